"""Figures of a study for print: forest plots, ROC and calibration curves, survival curves."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.figures import COLOURS, PAPER, check_figure, save_figure
from flower_fedcon.lab.report.contents import RunContents, read_folders
from flower_fedcon.lab.report.forest_plot import by_site, ticks
from flower_fedcon.validation import choice

if TYPE_CHECKING:
    from flower_fedcon.tables.product_limit import KaplanMeier

Intervals = Mapping[str, tuple[float, float, float]]
_BELOW = 0.17  # inches for a line of numbers at risk
_NUMBERS = 8  # the most numbers at risk of an arm
_INCHES, _LINE, _AROUND = 5.5, 0.26, 1.0  # a panel's width; a line's height, and that of the rest
_SQUARE, _LETTERS = 4.0, 42  # a square panel's side; letters of a line above it


def plot_study(
    folders: Sequence[Path], kind: str, paths: Sequence[Path], width: float | None = None
) -> None:
    """Draw results of runs on tables, a panel for each run; forests by site for each column.

    Parameters
    ----------
    folders : sequence of Path
        Folders of runs.
    kind : {"forest", "sites", "roc", "calibration", "survival"}
        In this order: coefficients, or ratios if the model has them, with their intervals; each
        site's own fits; the ROC curve and the calibration on all sites' held-out rows; Kaplan-Meier
        curves.
    paths : sequence of Path
        The same figure as .png, .pdf or .svg files.
    width : float, optional
        The width of the figure in inches, with letters of the size in papers.

    Raises
    ------
    ConfigError
        If a run has no such results, or a file has a different type.
    """
    needed, draw = KINDS[choice("--kind", kind, tuple(KINDS))]
    for path in paths:
        check_figure(path)
    panels: list[tuple[float, str, Callable[[Any], None]]] = []
    for run in (run for each in read_folders(folders) for run in each.runs):
        drawn = draw(run)
        if not drawn:
            raise ConfigError(f"{run.folder} has nothing to draw: {needed}")
        panels += drawn
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [height for height, _, _ in panels]
    wide = _SQUARE if kind in ("roc", "calibration") else _INCHES
    scale = 1.0 if width is None else width / wide
    with rc_context({} if width is None else PAPER):
        size = wide * scale, sum(heights) * scale
        figure = Figure(figsize=size, dpi=160 if width is None else 300, layout="constrained")
        FigureCanvasAgg(figure)  # a separate canvas: no global state, no display
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights).ravel()
        for axis, (_, title, fill) in zip(axes, panels, strict=True):
            fill(axis)
            axis.set_title(textwrap.fill(title, _LETTERS), fontsize="medium")
        save_figure(figure, paths)


def draw_curves(
    curves: Mapping[str, KaplanMeier],
    path: Path,
    time: str = "time",
    at_risk: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> None:
    """Draw curves as steps from 1 at time 0, with shaded intervals.

    Parameters
    ----------
    curves : dict of KaplanMeier, by arm
    path : path
        A .png, .pdf or .svg file.
    time : str
        The label of the time axis.
    at_risk : dict, by arm
        Pairs of a time and the number at risk there, which stand below the curves.

    Raises
    ------
    ConfigError
        If the file has a different type.
    """
    check_figure(path, None)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES, 3.6 + _BELOW * len(curves)), dpi=150, layout="constrained")
    lines = {arm: [own.time, own.survival, own.lower, own.upper] for arm, own in curves.items()}
    _survival_curves(figure.subplots(), lines, time, at_risk or {})
    save_figure(figure, [path])


def _survival_curves(
    axis: Any,
    lines: Mapping[str, Sequence[Any]],
    time: str,
    at_risk: Mapping[str, Sequence[tuple[float, float]]],
) -> None:
    """Draw steps of (time, survival, lower, upper), by arm, above the numbers at risk."""
    for k, (arm, columns) in enumerate(lines.items()):
        colour = COLOURS[k % len(COLOURS)]
        at, *steps = (
            [start, *column] for start, column in zip((0.0, 1.0, 1.0, 1.0), columns, strict=True)
        )
        axis.step(at, steps[0], where="post", color=colour, label=arm)
        axis.fill_between(at, *steps[1:], step="post", color=colour, alpha=0.2, linewidth=0)
    axis.set_ylim(0.0, 1.02)
    axis.set_xlim(left=0.0)
    axis.set_xlabel("\n".join([time, *[""] * (len(at_risk) + bool(at_risk))]))
    small = {"xycoords": ("data", "axes fraction"), "textcoords": "offset fontsize",
             "fontsize": "small", "annotation_clip": False}  # fmt: skip
    if at_risk:  # below the axis and its label
        axis.annotate("at risk", (0.0, 0.0), (-1.5, -4.2), ha="right", **small)
    for k, (arm, numbers) in enumerate(at_risk.items()):
        colour, down = COLOURS[list(lines).index(arm) % len(COLOURS)], -5.5 - 1.25 * k
        name = arm if len(lines) > 1 else ""
        axis.annotate(name, (0.0, 0.0), (-1.5, down), ha="right", color=colour, **small)
        for when, n in numbers:
            axis.annotate(f"{n:.0f}", (when, 0.0), (0.0, down), ha="center", color=colour, **small)
    axis.set_ylabel("without an event")
    if len(lines) > 1:
        axis.legend(fontsize="small")


def _forest(run: RunContents) -> list[Any]:
    from flower_fedcon.tables.preparation import INTERCEPT

    lines = {
        name: interval
        for name, interval in run.intervals.items()
        if not name.startswith(INTERCEPT) and all(map(math.isfinite, interval))
    }
    return [_of_lines(run.label, run.ratio, lines)] if lines else []


def _sites(run: RunContents) -> list[Any]:
    from flower_fedcon.tables.preparation import INTERCEPT

    return [
        _of_lines(f"{run.label}: {row['column']}", run.ratio, by_site(row, run.ratio))
        for row in run.heterogeneity
        if row["column"] != INTERCEPT
    ]


def _of_lines(title: str, ratio: str, lines: Intervals) -> Any:
    return (_AROUND + _LINE * len(lines), title, lambda axis: _lines(axis, ratio, lines))


def _lines(axis: Any, ratio: str, lines: Intervals) -> None:
    """Draw a line for each interval, with its numbers on the right."""
    logs = bool(ratio) and all(min(own) > 0 for own in lines.values())
    places = range(len(lines))
    for place, (value, low, high) in zip(places, lines.values(), strict=True):
        axis.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.2)
        axis.plot([value], [place], marker="s", markersize=4, color=COLOURS[0])
    axis.axvline(1.0 if ratio else 0.0, color="#888888", linewidth=0.8)
    axis.set_yticks(places, lines)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    right = axis.twinx()
    right.set_ylim(axis.get_ylim())
    right.set_yticks(places, [f"{v:.3g} ({a:.3g} to {b:.3g})" for v, a, b in lines.values()])
    for own in (axis, right):
        own.tick_params(axis="y", length=0)
        own.spines[["left", "right", "top"]].set_visible(False)
    if logs:
        axis.set_xscale("log")
        least, most = (math.log(end) for end in axis.get_xlim())
        marks = ticks(least, most, True)
        axis.set_xticks(marks, [f"{tick:g}" for tick in marks])
        axis.set_xticks([], minor=True)
    axis.set_xlabel(f"{ratio or 'coefficient'}, for one unit more (95 % interval)")


def _roc(run: RunContents) -> list[Any]:
    stated = run.quality.get("roc")
    auc = run.quality.get("pooled", {}).get("auc")
    if not stated:
        return []
    title = run.label + ("" if auc is None else f": AUC {auc:.3f}")
    ends = stated["false_positive_rate"], stated["true_positive_rate"]
    return [(_SQUARE, title, lambda axis: _square(axis, *ends, "false positive rate",
                                                  "true positive rate", "-"))]  # fmt: skip


def _calibration(run: RunContents) -> list[Any]:
    stated = run.quality.get("calibration_curve")
    if not stated:
        return []
    slope = run.quality["pooled"].get("calibration_slope")
    title = run.label + ("" if slope is None else f": slope {slope:.3f}")
    ends = stated["predicted"], stated["observed"]
    return [(_SQUARE, title, lambda axis: _square(axis, *ends, "predicted", "observed", "o-"))]


def _square(axis: Any, x: Any, y: Any, x_name: str, y_name: str, marks: str) -> None:
    axis.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=0.8)
    axis.plot(x, y, marks, color=COLOURS[0], linewidth=1.2, markersize=4)
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel=x_name, ylabel=y_name, aspect="equal")


def _survival(run: RunContents) -> list[Any]:
    if not run.survival:
        return []
    lines: dict[str, list[list[float]]] = {}
    for row in run.survival:
        columns = lines.setdefault(row["arm"], [[], [], [], []])
        for column, name in zip(columns, ("time", "survival", "lower", "upper"), strict=True):
            column.append(float(row[name]))
    time = run.model.partition(":")[0] or "time"
    at_risk: dict[str, list[tuple[float, float]]] = {}
    for row in run.at_risk:
        at_risk.setdefault(row["arm"], []).append((float(row["time"]), float(row["at_risk"])))
    if at_risk:
        every = [at for at, _ in next(iter(at_risk.values()))]
        kept = set(every[:: -(-len(every) // _NUMBERS)])
        at_risk = {arm: [one for one in own if one[0] in kept] for arm, own in at_risk.items()
                   if arm in lines}  # fmt: skip
    height = 3.6 + _BELOW * len(at_risk)
    return [(height, run.label, lambda axis: _survival_curves(axis, lines, time, at_risk))]


KINDS: dict[str, tuple[str, Callable[[RunContents], list[Any]]]] = {
    "forest": ('repeat the run with inference = "model" or "robust"', _forest),
    "sites": ("repeat the run with heterogeneity = true", _sites),
    "roc": ("a logistic model needs test_fraction in the schema, rows that are held out", _roc),
    "calibration": (
        "a logistic model needs test_fraction in the schema, rows that are held out",
        _calibration,
    ),
    "survival": ("a Cox model needs curve_times in the schema", _survival),
}
"""Kinds of figures: the part that a run needs, and a run's panels (height, title, drawing)."""
