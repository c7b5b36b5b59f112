"""Results of the study of steps: shares of cells with intervals, a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError

WAYS = {"race": "race, its cost included", "rule": "rule", "paper": "the paper's constant"}
"""The ways to choose a step that are compared with the best of the grid."""
ENOUGH = 2.0
"""A choice is good enough up to this multiple of the best grid value's rounds."""
_TOP = 8.0  # where the figure draws larger ratios
Row = Mapping[str, Any]


class Share(NamedTuple):
    """The share of cells that are good enough.

    Attributes
    ----------
    good, cells : int
    low, high : float
        The 95 % interval of the share, Wilson's.
    median : float
        The median of the cells' ratios.
    """

    good: int
    cells: int
    low: float
    high: float
    median: float

    def __str__(self) -> str:
        if not self.cells:
            return ""
        part = f"{self.good} of {self.cells}"
        median = f"{self.median:.2f}" if self.median < math.inf else "more than 4"
        return f"{part} ({100 * self.low:.0f} to {100 * self.high:.0f} %), {median}"


def cells_of(rows: Sequence[Row], way: str) -> dict[tuple[Any, ...], float]:
    """Return each cell's ratio: rounds over those of the best grid value, the median over seeds.

    A cell is a combination of family, method, condition, cohort and level that the grid reached
    with most seeds. A ratio is infinite if the level was not reached in four times the rounds.
    """
    by_cell: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if way not in row:
            continue
        who = tuple(row[key] for key in ("family", "method", "condition", "cohort"))
        for level, (took, best) in enumerate(zip(row[way], row["best"], strict=True)):
            ratio = math.nan if best is None else math.inf if took is None else took / best
            by_cell.setdefault((*who, level), []).append(ratio)
    decided = {
        cell: sorted(numbers)
        for cell, ratios in by_cell.items()
        if 2 * len(numbers := [r for r in ratios if not math.isnan(r)]) > len(ratios)
    }
    return {cell: _middle(numbers) for cell, numbers in decided.items()}


def _middle(known: Sequence[float]) -> float:
    """Return the median of sorted numbers, some of which may be infinite."""
    middle: float = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
    return middle


def share_of(ratios: Sequence[float]) -> Share:
    """Return the share of ratios that are good enough.

    >>> share_of([1.0, 1.5, 2.0, math.inf])
    Share(good=3, cells=4, low=0.3..., high=0.95..., median=1.75)
    """
    from scipy.stats import binomtest

    if not ratios:
        return Share(0, 0, math.nan, math.nan, math.nan)
    good = sum(ratio <= ENOUGH for ratio in ratios)
    low, high = binomtest(good, len(ratios)).proportion_ci(method="wilson")
    return Share(good, len(ratios), float(low), float(high), _middle(sorted(ratios)))


def grown(rows: Sequence[Row]) -> list[str]:
    """Return the runs by rule, or after a race, whose objective ended above the start."""
    return [
        f"{row['method']} by {way}, {row['family']}, L/mu {row['condition']:g}, "
        f"{row['cohort']} clients, seed {row['seed']}"
        for row in rows
        for way in ("rule", "race")
        if row[f"{way}_grown"]
    ]


def to_markdown(rows: Sequence[Row], levels: Sequence[float]) -> str:
    """Return the table of cells within twice the best grid value, overall and by property."""
    lines = ["| | " + " | ".join(WAYS.values()) + " |", "|---|---|---|---|"]
    ratios = {way: cells_of(rows, way) for way in WAYS}
    groups: list[tuple[str, int, Any]] = [("all", 0, None)]
    for place, key, title in (
        (0, "family", "{}"), (1, "method", "{}"), (2, "condition", "L/mu {:g}"),
        (3, "cohort", "{} in a round"),
    ):  # fmt: skip
        values = sorted({row[key] for row in rows})
        groups += [(title.format(value), place, value) for value in values]
    groups += [(f"level {level:g}", 4, i) for i, level in enumerate(levels)]
    for title, place, value in groups:
        shares = []
        for way in WAYS:
            group = [r for cell, r in ratios[way].items() if value is None or cell[place] == value]
            shares.append(str(share_of(group)))
        lines.append(f"| {title} | " + " | ".join(shares) + " |")
    return "\n".join(lines) + "\n"


def plot_steps(rows: Sequence[Row], path: Path) -> Path:
    """Draw rounds over those of the best grid value against L/mu, a panel for each method.

    Lines are medians over families, cohorts, levels and seeds; bands hold 80 % of the runs. Ratios
    above eight, and runs that do not reach the level, are drawn at eight.

    Raises
    ------
    ConfigError
        If there is nothing to draw, or the file's kind is not one of matplotlib's.
    """
    from flower_fedcon.lab.experiments.figures import check_figure

    check_figure(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    methods = sorted({row["method"] for row in rows})
    if not methods:
        raise ConfigError("no run of the study has ended, so there is nothing to draw")
    wide = min(3, len(methods))
    high = -(-len(methods) // wide)
    figure = Figure(figsize=(3.6 * wide, 3.0 * high + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False).ravel()
    for unused in panels[len(methods) :]:
        unused.set_axis_off()
    for method, panel in zip(methods, panels, strict=False):
        of_method = [row for row in rows if row["method"] == method]
        for (way, label), style in zip(WAYS.items(), ("o-", "s--", "^:"), strict=True):
            _draw(panel, [row for row in of_method if way in row], way, label, style)
        panel.axhline(ENOUGH, color="0.4", linewidth=0.8)
        panel.set(xscale="log", yscale="log", ylim=(0.8, 1.1 * _TOP))
        panel.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8 or more"], minor=False)
        panel.set_yticks([], minor=True)
        panel.set_title(method, fontsize="medium")
        panel.grid(alpha=0.3)
    for panel in panels[: len(methods)][-wide:]:  # the lowest of its column
        panel.set_xlabel("L/mu of the clients' objectives")
        panel.tick_params(labelbottom=True)
    for leftmost in range(0, len(methods), wide):
        panels[leftmost].set_ylabel("rounds / the best grid value's")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(WAYS), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path


def _draw(panel: Any, rows: Sequence[Row], way: str, label: str, style: str) -> None:
    """Draw one way to choose the step: its median and the middle 80 % by condition."""
    at: dict[float, list[float]] = {}
    for row in rows:
        for took, best in zip(row[way], row["best"], strict=True):
            if best is not None:
                ratio = _TOP if took is None else min(_TOP, took / best)
                at.setdefault(row["condition"], []).append(ratio)
    x = sorted(at)
    low, middle, high = (
        [float(np.quantile(at[c], q)) for c in x] for q in (0.1, 0.5, 0.9)
    )  # fmt: skip
    (line,) = panel.plot(x, middle, style, label=label, markersize=4)
    panel.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
