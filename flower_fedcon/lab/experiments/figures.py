"""Figures of runs: the error against rounds, traffic and time."""

from __future__ import annotations

import logging
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError, nearest, needing
from flower_fedcon.lab.experiments.seed_statistics import highest, lowest
from flower_fedcon.lab.experiments.sweeps import Scaling, exponent
from flower_fedcon.runs.history import Record, row_name, why_not_recorded
from flower_fedcon.runs.relative import RELATIVE
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_log = logging.getLogger("flwr")
SUFFIXES = (".png", ".pdf", ".svg")
AXES = {
    "rounds": "communication round",
    "bytes": "megabytes sent, up and down",
    "seconds": "seconds in the rounds",
    "simulated": "simulated seconds",
    "gradients": "gradients on clients",
    "examples": "rows that gradients went over",
}
_MEANT = {"megabytes": "bytes", "mb": "bytes", "round": "rounds", "time": "seconds"}
USUAL_AXES = ("rounds", "bytes", "seconds")
_COUNTED = {"rounds": "round", "simulated": "simulated_seconds", "examples": "examples_seen"}
LABELS = {
    "residual": "objective residual  F − F*",
    "objective": "objective  F",
    RELATIVE: "relative residual  (F − F*)/|F*|",
    "fw_gap": "Frank-Wolfe gap",
    "kkt": "proximal-gradient residual",
}
_HELD_OUT = ("test_auc", "test_accuracy", "test_concordance", "test_rmse")  # the first recorded one
_CLIENTS = 8  # at most so many clients have their own lines

# Okabe and Ito's palette, distinguishable with any colour vision, without its yellow, which is too
# faint for a line on white; then three of Tol's muted colours. Dashes and markers differ as well.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00",
    "#882255", "#999933", "#7F7F7F",
)  # fmt: skip
PAPER: dict[Any, Any] = {
    "font.size": 7.0,
    "axes.titlesize": 7.0,
    "figure.titlesize": 8.0,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
}
_ROUNDING = 1e-12  # relative to the objective, or to the largest value of another column
_NARROWEST = 1.6  # inches that a panel needs in print
_LETTERS = 98  # characters of one point's size that fit above an inch of panel with its margins
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (9, 3)))
Limits: TypeAlias = tuple[float | None, float | None]
"""The ends of an axis; None for one that follows from what is drawn."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


def plot_histories(
    histories: Mapping[str, Sequence[Record]],
    path: str | Path | Sequence[str | Path],
    *,
    title: str = "",
    x: str | None = None,
    y: str | None = None,
    seeds: Mapping[str, Sequence[Sequence[Record]]] | None = None,
    by: Mapping[str, tuple[str, str]] | None = None,
    width: float | None = None,
    log: bool = False,
    xlim: Mapping[str, Limits] | None = None,
    ylim: Mapping[str, Limits] | None = None,
    say: Callable[[str], object] = _log.warning,
) -> Path:
    """Draw F - F* of several runs, and return the file's path.

    If F* is not known, the Frank-Wolfe gap is drawn if all runs recorded it, otherwise F. A metric
    on held-out rows that all runs recorded has its own panel; a single run shows it by client, too.

    Parameters
    ----------
    histories : dict
        Label -> rows of a history.
    path : path or sequence of paths
        The same figure as .png, .pdf or .svg files; the first path is returned.
    title : str (default: "")
    x : str, optional
        Panels to draw: "rounds", "bytes", "seconds", "simulated" (with a clock), "gradients",
        "examples", or several, as "rounds,bytes". By default the first four, as far as recorded.
    y : str, optional
        A column of the histories to draw instead, such as "test_accuracy".
    seeds : dict, optional
        Label -> the rows of several runs, whose mean is the label's history. A band shows their
        smallest and largest values.
    by : dict, optional
        Label -> (panel, name): each panel is drawn with the names in the legend, each with one
        colour; against rounds, unless x is given.
    width : float, optional
        The width of the figure in inches, with letters of the size in papers.
    log : bool (default: False)
        Draw y on a logarithmic axis, with gaps where it is <= 0. Without it, this axis is used for
        F - F*, "relative", and a column whose values are all positive and span more than two
        decades.
    xlim : dict, optional
        Abscissa -> the ends of its axes, each a number or None; "" stands for the only abscissa.
    ylim : dict, optional
        The column, or "" -> the ends of its axes, each a number or None. By default a logarithmic
        axis does not go down to values that are rounding; see `lower_end`.
    say : callable, optional
        Called with a line of text for each run that cannot be drawn completely; by default it is a
        warning in the log. The legend names these runs, too.

    Raises
    ------
    ConfigError
        If there is nothing to draw, or the file has a different type.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    targets = [check_figure(each, x) for each in paths]
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    for label, rows in histories.items():
        if not rows:
            raise ConfigError(f"{label!r} has no recorded rounds to draw")
    if not histories:
        raise ConfigError("no runs to draw")
    records = [row for rows in histories.values() for row in rows]
    # Not if every run is at the optimum up to rounding: nothing would be left to draw.
    residual = all("residual" in row for row in records) and any(
        row["residual"] > 0 for row in records
    )
    gap = all("fw_gap" in row and "residual" not in row for row in records)
    private = all("epsilon" in row and "objective" not in row for row in records)
    usual = "residual" if residual else "fw_gap" if gap else "epsilon" if private else "objective"
    column = y or usual
    logarithmic = log or column in ("residual", RELATIVE)
    if not all(any(column in row for row in rows) for rows in histories.values()):
        known = set.intersection(*({key for row in rows for key in row}
                                   for rows in histories.values()))  # fmt: skip
        if y is None:
            raise ConfigError(
                f"no {column} was recorded by all runs, as by none whose clients have train loops "
                f"of their own: name a column to draw by --y (y=): {', '.join(sorted(known))}"
            )
        raise ConfigError(f"unknown column {column!r}: {why_not_recorded(column, known)}")
    for name in [] if x is None else x.split(","):
        against = _COUNTED.get(name, name)
        if name in USUAL_AXES or all(any(against in r for r in h) for h in histories.values()):
            continue
        timed = ": give simulate a clock, or the experiment a table [clock]"
        raise ConfigError(
            f"{against} was not recorded by all runs{timed if name == 'simulated' else ''}"
        )
    panels = _panels(histories, column, x, by)
    if y is None and by is None and (beside := _held_out(histories)):
        panels.append(_Panel(panels[0].x, beside, "", list(histories)))
    across = _of_axes("xlim", xlim or {}, [panel.x for panel in panels])
    low, high = _of_axes("ylim", ylim or {}, [column]).get(column, (None, None))
    missing = {label: _missing(rows, column, logarithmic) for label, rows in histories.items()}
    for label, what in missing.items():
        if what:
            say(f"{label}: {what}")
    least = 0.0
    if logarithmic or spans(histories, column):
        bands = [lowest(runs) for runs in (seeds or {}).values() if len(runs) > 1]
        least = lower_end([*histories.values(), *bands], column)
    if least and low is None:
        low = least
        for label, rows in histories.items():
            values = values_of(rows, column, positive=True)
            if under := int((values < least).sum()):
                say(
                    f"{label}: {under} of {len(values)} points below the axis: {column} is "
                    f"rounding there"
                )

    names = {label: label if by is None else by[label][1] for label in histories}
    places = {name: i for i, name in enumerate(dict.fromkeys(names.values()))}
    wide = len(panels)
    size: tuple[float, float] = (4.2 * wide + 0.6, 4.2)
    if width is not None:
        wide = min(wide, max(1, int(width / _NARROWEST)))
        size = width, 0.4 + math.ceil(len(panels) / wide) * max(1.3, min(2.5, 0.75 * width / wide))
    scale = 1.0 if width is None else 0.6
    with rc_context({} if width is None else PAPER):
        figure = Figure(figsize=size, dpi=160 if width is None else 300, layout="constrained")
        FigureCanvasAgg(figure)  # a separate canvas: no global state, no display
        axes = figure.subplots(math.ceil(len(panels) / wide), wide, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        axes = axes[: len(panels)]
        for place, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
            positive = logarithmic and panel.column == column
            for label in panel.labels:
                rows, i = histories[label], places[names[label]]
                shown = names[label]
                if missing[label].startswith("not drawn"):
                    shown += " (not drawn)"
                abscissa = abscissa_of(rows, panel.x)
                _draw(axis, abscissa, values_of(rows, panel.column, positive), shown, i, scale)
                if seeds and len(seeds.get(label, ())) > 1:
                    _band(axis, rows, seeds[label], (panel.x, panel.column), i, positive)
            if len(histories) == 1:
                _draw_clients(axis, next(iter(histories.values())), (panel.x, panel.column))
            _dress(axis, panel.x, [histories[label][-1] for label in panel.labels])
            if panel.x in across:
                _limit(axis, "x", across[panel.x])
            _mark(axis)
            letters = int(_LETTERS * size[0] / wide / axis.title.get_fontsize())
            if panel.title:
                lines_of = textwrap.wrap(panel.title, letters, max_lines=3, placeholder=" ...")
                axis.set_title("\n".join(lines_of))
            if width is not None:
                axis.set_xlabel("\n".join(textwrap.wrap(axis.get_xlabel(), letters)))
            if place + wide < len(panels):
                axis.set_xlabel("")  # the panel below has the label
            if panel.column == column and place:
                axis.sharey(axes[0])
            text = LABELS.get(panel.column, panel.column.replace("_", " "))
            if panel.column == column and place % wide:
                axis.tick_params(which="both", labelleft=False)
            elif width is None or len(panels) == 1:
                axis.set_ylabel(text)
            elif not place:
                figure.supylabel(text, fontsize=7)  # an axis alone may be too short for it
        if logarithmic or spans(histories, column):
            axes[0].set_yscale("log")
        if (low, high) != (None, None):
            _limit(axes[0], "y", (low, high))
        if title:
            figure.suptitle(title)
        lines: dict[str, Any] = {}
        for axis in axes:  # a name may have no run in the first panel
            handles, labels = axis.get_legend_handles_labels()
            lines = dict(zip(labels, handles, strict=True)) | lines
        fitting = int(15 / scale * size[0]) // (max(map(len, lines)) + 11)  # characters
        figure.legend(
            [*lines.values()], [*lines], loc="outside lower center",
            ncols=min(len(lines), 4, max(1, fitting)), frameon=False, handlelength=3,
        )  # fmt: skip
        save_figure(figure, targets)
    return targets[0]


def lower_end(histories: Iterable[Sequence[Record]], column: str) -> float:
    """Return where a logarithmic axis ends below; 0 if all positive values are to be seen.

    Values below 1e-12 of the largest |F| (for F - F*), of 1 (for "relative"), or of the column's
    largest value if that is more, are rounding. If there are such values, the axis ends at the
    power of ten below the smallest other value, with some room.

    >>> lower_end([[{"objective": 2.0, "residual": r} for r in (1.0, 3e-5, 1e-16)]], "residual")
    1e-05
    >>> lower_end([[{"objective": 2.0, "residual": r} for r in (1.0, 3e-5, 1e-9)]], "residual")
    0.0
    """
    rows = [row for history in histories for row in history]
    values = values_of(rows, column, positive=True)
    values = values[np.isfinite(values)]
    size = {"residual": np.abs(values_of(rows, "objective")), RELATIVE: np.ones(1)}.get(column)
    largest = np.nanmax(values, initial=0.0 if size is None else np.nanmax(size, initial=0.0))
    seen = values[values > _ROUNDING * largest]
    if len(seen) == len(values) or not len(seen):
        return 0.0
    return float(10.0 ** math.floor(math.log10(seen.min()) - 0.05))


def parse_limits(option: str, texts: Sequence[str] | None) -> dict[str, Limits]:
    """Return the ends of axes, by the names before them.

    >>> parse_limits("xlim", ["rounds=0,100"]), parse_limits("ylim", ["1e-6,"])
    ({'rounds': (0.0, 100.0)}, {'': (1e-06, None)})
    """
    limits: dict[str, Limits] = {}
    for text in texts or ():
        name, _, ends = text.rpartition("=")
        try:
            low, high = (float(end) if end.strip() else None for end in ends.split(","))
        except ValueError:
            low = high = math.nan
        said = [end for end in (low, high) if end is not None]
        if not said or not all(map(math.isfinite, said)) or (len(said) == 2 and said[0] >= said[1]):
            raise ConfigError(
                f"--{option} {text}: write two increasing numbers such as 1e-6,1, of which one may "
                f"be left out, as in 1e-6,"
            )
        limits[name.strip()] = (low, high)
    return limits


def _of_axes(option: str, given: Mapping[str, Limits], drawn: Sequence[str]) -> dict[str, Limits]:
    """Return the limits by axis, of those that are drawn."""
    names = list(dict.fromkeys(drawn))
    for name in given:
        if not name and len(names) > 1:
            raise ConfigError(
                f"--{option} is for one of the panels' axes, {', '.join(names)}: name it, as in "
                f"--{option} {names[0]}=0,100"
            )
        if name and name not in names:
            raise ConfigError(f"--{option} {name}: no panel has this axis: {nearest(name, names)}")
    return {name or names[0]: ends for name, ends in given.items()}


def _limit(axis: Axes, name: str, ends: Limits) -> None:
    """Set the ends of an axis; from 0 on, the one across is linear.

    Raises
    ------
    ConfigError
        If a logarithmic axis of y would begin at 0 or below.
    """
    low, high = ends
    negative = any(end is not None and end <= 0 for end in ends)
    if name == "x":
        if negative and axis.get_xscale() == "log":
            axis.set_xscale("linear")
        axis.set_xlim(low, high)
        return
    if negative and axis.get_yscale() == "log":
        raise ConfigError("--ylim: the axis is logarithmic: give ends above 0, or none")
    axis.set_ylim(low, high)


class _Panel(NamedTuple):
    """A panel: its abscissa, column, title, and lines."""

    x: str
    column: str
    title: str
    labels: Sequence[str]


def _panels(
    histories: Mapping[str, Sequence[Record]],
    column: str,
    x: str | None,
    by: Mapping[str, tuple[str, str]] | None,
) -> list[_Panel]:
    """Return the panels: one for each abscissa, or for each value of a setting."""
    if by is None:
        drawn = x.split(",") if x else axes_of(histories.values())
        return [_Panel(name, column, "", list(histories)) for name in drawn]
    values = dict.fromkeys(by[label][0] for label in histories)
    return [
        _Panel(name, column, value, [label for label in histories if by[label][0] == value])
        for name in (x or "rounds").split(",")
        for value in values
    ]


def plot_scalings(scalings: Sequence[Scaling], path: str | Path, *, title: str = "") -> Path:
    """Draw scalings with their fits, and return the file's path.

    Parameters
    ----------
    scalings : sequence of Scaling
        Scalings with the same axes share a panel. Lines are means over the seeds, or medians if
        each seed is fitted alone; bands go from the smallest to the largest values.
    path : path
        .png, .pdf or .svg.
    title : str (default: "")
    """
    target = check_figure(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str], list[Scaling]] = {}
    for scaling in scalings:
        panels.setdefault((scaling.abscissa, scaling.ordinate), []).append(scaling)
    figure = Figure(figsize=(4.8 * len(panels) + 0.6, 4.8), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, ((abscissa, ordinate), members) in zip(axes, panels.items(), strict=True):
        for i, scaling in enumerate(members):
            y = np.stack(scaling.y)
            middle = y.mean(axis=0) if scaling.of_mean else np.median(y, axis=0)
            power = exponent(scaling.x, middle)
            _draw(axis, scaling.x, middle, f"{scaling.label}: {power:.2f}", i)
            colour = COLOURS[i % len(COLOURS)]
            axis.fill_between(
                scaling.x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.2, linewidth=0
            )
        axis.set(xscale="log", yscale="log", xlabel=abscissa, ylabel=LABELS.get(ordinate, ordinate))
        axis.grid(visible=True, which="major", linewidth=0.5, alpha=0.4)
        axis.spines[["top", "right"]].set_visible(False)
        ticks = [f"{float(f'{x:.3g}'):g}" for x in members[0].x]
        axis.set_xticks(members[0].x, ticks, minor=False)
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.legend(
            title="fitted exponents", loc="upper center", bbox_to_anchor=(0.5, -0.16),
            frameon=False, handlelength=3, fontsize="small", title_fontsize="small",
        )  # fmt: skip
    if title:
        figure.suptitle(title)
    save_figure(figure, [target])
    return target


class Curves(NamedTuple):
    """A panel of a paper's figure: its title, the column drawn, and the runs by label."""

    title: str
    column: str
    histories: Mapping[str, Sequence[Record]]


def plot_panels(panels: Sequence[Curves], path: str | Path) -> Path:
    """Draw columns of runs against rounds, a panel for each problem, and return the file's path.

    An axis is logarithmic if its values are positive and span more than two decades.
    """
    target = check_figure(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    wide = min(len(panels), 3) if len(panels) != 4 else 2
    high = math.ceil(len(panels) / wide)
    figure = Figure(figsize=(3.9 * wide, 3.7 * high), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(high, wide, squeeze=False).ravel()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes, panels, strict=False):
        every = {label: [row for row in rows if row["round"]] for label, rows
                 in panel.histories.items()}  # fmt: skip
        logarithmic = spans(every, panel.column) or panel.column == "residual"
        for i, (label, rows) in enumerate(every.items()):
            y = values_of(rows, panel.column, positive=logarithmic)
            _draw(axis, abscissa_of(rows, "rounds"), y, label, i, 0.7)
        _dress(axis, "rounds", [rows[-1] for rows in every.values()])
        _mark(axis)
        if logarithmic:
            axis.set_yscale("log")
        axis.set_title(panel.title, fontsize="medium")
        axis.set_ylabel(LABELS.get(panel.column, panel.column.replace("_", " ")))
        axis.legend(frameon=False, handlelength=3, fontsize="x-small")
    save_figure(figure, [target])
    return target


def save_figure(figure: Figure, targets: Sequence[Path]) -> None:
    """Write a figure with fonts that journals accept and editors can edit.

    The files contain no date, so equal runs give equal files.
    """
    from matplotlib import rc_context

    for target in targets:
        dated = {".pdf": "CreationDate", ".svg": "Date"}.get(target.suffix.lower())
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "fedcon"}):
                figure.savefig(target, metadata={dated: None} if dated else None)
        except OSError as error:
            raise ConfigError(f"cannot write {target}: {error.strerror or error}") from None


def check_figure(path: str | Path, x: str | None = None) -> Path:
    """Return the path, if a figure of this type can be drawn with this abscissa.

    >>> check_figure("figure.gif")
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: cannot draw figure.gif: its name must end in .png, .pdf, .svg
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"cannot draw {target}: its name must end in {', '.join(SUFFIXES)}")
    for name in [] if x is None else x.split(","):
        if name not in AXES:
            raise ConfigError(f"unknown axis {name!r}: {nearest(name, AXES, _MEANT)}")
    with needing("figures are drawn by matplotlib", "cli"):
        import matplotlib  # noqa: F401  (found missing before a run, not after it)
    return target


def _draw(axis: Axes, x: Array, y: Array, label: str, index: int, scale: float = 1.0) -> None:
    axis.plot(
        x, y, label=label, color=COLOURS[index % len(COLOURS)], linewidth=1.4 * scale,
        linestyle=_DASHES[index % len(_DASHES)], marker=_MARKERS[index % len(_MARKERS)],
        markersize=5 * scale, markerfacecolor="white", zorder=3 - 0.01 * index,
    )  # fmt: skip


def _draw_clients(axis: Axes, rows: Sequence[Record], names: tuple[str, str]) -> None:
    """Draw the values of each client (of a few), in addition to the pooled value."""
    name, column = names
    keys = sorted({key for row in rows for key in row if key.startswith(f"{column}/")})
    for i, key in enumerate(keys if len(keys) <= _CLIENTS else (), start=1):
        _draw(axis, abscissa_of(rows, name), values_of(rows, key), key.partition("/")[2], i)
    if len(axis.lines) > 1:
        labels = ["pooled", *(str(line.get_label()) for line in axis.lines[1:])]
        axis.legend(axis.lines, labels, frameon=False, fontsize="small", handlelength=3)


def _band(
    axis: Axes,
    rows: Sequence[Record],
    runs: Sequence[Sequence[Record]],
    names: tuple[str, str],
    index: int,
    positive: bool,
) -> None:
    name, column = names
    axis.fill_between(
        abscissa_of(rows, name),
        values_of(lowest(runs), column, positive),
        values_of(highest(runs), column, positive),
        color=COLOURS[index % len(COLOURS)],
        alpha=0.2,
        linewidth=0,
        zorder=2 - 0.01 * index,
    )


def _dress(axis: Axes, name: str, last: Sequence[Record]) -> None:
    steps = name == "rounds" and "step" in (what := row_name(last))
    axis.set_xlabel(what if steps else AXES[name])
    axis.grid(visible=True, which="major", linewidth=0.5, alpha=0.4)
    axis.spines[["top", "right"]].set_visible(False)
    if _is_long([np.asarray(line.get_xdata(), float) for line in axis.lines], name):
        axis.set_xscale("log")
    else:
        axis.set_xlim(left=0)


def _is_long(lines: Sequence[Array], name: str) -> bool:
    """Return whether the abscissa is logarithmic.

    Rounds are if they span more than two decades; bytes and seconds if a run that ends early would
    be squeezed against the left edge.
    """
    if name == "rounds":
        return bool(max(x[-1] for x in lines) > 100 * min(x[0] for x in lines) > 0)
    return bool(max(x[-1] for x in lines) > 8 * min(x[-1] for x in lines) > 0)


def _mark(axis: Axes) -> None:
    """Space each line's markers evenly along the abscissa, apart from those of other lines."""
    scale = np.log if axis.get_xscale() == "log" else np.asarray
    for i, line in enumerate(axis.lines):
        x = np.asarray(line.get_xdata(), float)
        x = scale(np.maximum(x, x[x > 0].min(initial=1.0)))  # a coarse clock may read 0 at first
        places = np.linspace(x[0], x[-1], 8) + (x[-1] - x[0]) * (i % 4) / 32
        line.set_markevery(sorted({min(int(j), len(x) - 1) for j in np.searchsorted(x, places)}))
        line.recache(always=True)  # else a long line is still cut to the axis, without its marks


def _missing(rows: Sequence[Record], name: str, positive: bool) -> str:
    """Return which part of a column a figure cannot show, and why; "" if it shows all."""
    values = values_of(rows, name)
    hidden = int((~np.isfinite(values_of(rows, name, positive))).sum())
    if not hidden:
        return ""
    reasons = []
    if positive and (values <= 0).any():
        least = float(np.nanmin(values))
        size = np.nanmax(np.abs(values_of(rows, "objective")), initial=0.0)
        if name == "residual" and -least <= _ROUNDING * size:
            reasons.append(f"{name} is 0 up to rounding, so the optimum is reached")
        else:
            reasons.append(f"{name} <= 0, down to {least:.3g}, has no logarithm")
    if not np.isfinite(values).all():
        reasons.append(f"{name} is not recorded or not finite")
    scope = "not drawn" if hidden == len(values) else f"{hidden} of {len(values)} points not drawn"
    return f"{scope}: {' and '.join(reasons)}"


def abscissa_of(rows: Sequence[Record], name: str) -> Array:
    """Return the abscissa of a history, by its name in `AXES`."""
    if name == "bytes":
        total = values_of(rows, "uplink_bytes") + values_of(rows, "downlink_bytes")
        megabytes: Array = total / 1e6
        return megabytes
    return values_of(rows, _COUNTED.get(name, name))


def axes_of(histories: Iterable[Sequence[Record]]) -> list[str]:
    """Return the default abscissas of histories; with a clock they include its time."""
    timed = all("simulated_seconds" in row for rows in histories for row in rows)
    return [*USUAL_AXES, *(["simulated"] if timed else [])]


def values_of(rows: Sequence[Record], name: str, positive: bool = False) -> Array:
    """Return a column; with `positive`, values <= 0 are gaps, as a logarithmic axis needs."""
    values = np.array([row.get(name, math.nan) for row in rows], dtype=float)
    if positive:
        values[~(values > 0)] = math.nan
    return values


def _held_out(histories: Mapping[str, Sequence[Record]]) -> str:
    """Return the pooled metric on held-out rows to draw, or "" if the runs share none."""
    every = [{key for row in rows for key in row} for rows in histories.values()]
    shared = {key for key in set.intersection(*every) if key.startswith("test_") and "/" not in key}
    return next((name for name in (*_HELD_OUT, *sorted(shared)) if name in shared), "")


def spans(histories: Mapping[str, Sequence[Record]], column: str) -> bool:
    """Return whether all values are positive, over more than two decades."""
    values = np.concatenate([values_of(rows, column) for rows in histories.values()])
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() / values.min() > 100)
