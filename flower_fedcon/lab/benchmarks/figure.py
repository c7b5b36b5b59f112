"""The cost curves of `fedcon bench curves --figure FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.benchmarks.measure import Result

_AXES = {"dimension": "dimension d", "rounds": "rounds, start included"}
_ROW = 3  # panels in a row


def plot_curves(results: Sequence[Result], path: Path) -> Path:
    """Draw the cost of a client's step in a round against each varied quantity.

    Raises
    ------
    ConfigError
        If no result is a point of a curve, or matplotlib cannot write the file's type.
    """
    from flower_fedcon.lab.experiments.figures import check_figure

    check_figure(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = [one for one in results if one.axis]
    if not points:
        raise ConfigError('none of these benchmarks has curves to draw: run "curves"')
    axes = list(dict.fromkeys(one.axis for one in points))
    wide, high = min(len(axes), _ROW), -(-len(axes) // _ROW)
    figure = Figure(figsize=(4.0 * wide, 3.4 * high), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(high, wide, sharey=True, squeeze=False).ravel()
    for unused in panels[len(axes) :]:
        unused.set_axis_off()
    for axis, panel in zip(axes, panels, strict=False):
        here = [one for one in points if one.axis == axis]
        first = here[0].series
        curves = {
            "hand-written loop": [(p.at, p.cost / p.ratio) for p in here if p.series == first]
        }
        for one in here:
            curves.setdefault(f"{one.series} engine", []).append((one.at, one.cost))
        for (label, curve), style in zip(curves.items(), ("k:s", "-o", "--^"), strict=False):
            panel.plot(*zip(*curve, strict=True), style, label=label, markersize=4)
        panel.set(xscale="log", yscale="log", xlabel=_AXES.get(axis, axis))
        panel.set_title(here[0].what.split(",")[0], fontsize="medium")
        panel.grid(alpha=0.3)
    for leftmost in range(0, len(axes), _ROW):
        panels[leftmost].set_ylabel("microseconds a client and round")
    panels[len(axes) - 1].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    return path
