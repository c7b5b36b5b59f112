"""The figure of Kaplan-Meier curves, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flower_fedcon.lab.experiments.figures import COLOURS, check_figure
from flower_fedcon.survival import KaplanMeier
from flower_fedcon.wire.whole_files import atomic


def draw_curves(curves: Mapping[str, KaplanMeier], path: Path, time: str = "time") -> None:
    """Draw curves as steps from 1 at time 0, with shaded intervals.

    Parameters
    ----------
    curves : dict of KaplanMeier, by arm
    path : path
        A .png, .pdf or .svg file.
    time : str
        What stands below the axis.

    Raises
    ------
    ConfigError
        If the file's type is another.
    """
    check_figure(path, None)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for k, (arm, curve) in enumerate(curves.items()):
        colour = COLOURS[k % len(COLOURS)]
        at = np.concatenate([[0.0], curve.time])
        steps = [np.concatenate([[1.0], v]) for v in (curve.survival, curve.lower, curve.upper)]
        axes.step(at, steps[0], where="post", color=colour, label=arm)
        axes.fill_between(at, steps[1], steps[2], step="post", color=colour, alpha=0.2, linewidth=0)
    axes.set_ylim(0.0, 1.02)
    axes.set_xlim(left=0.0)
    axes.set_xlabel(time)
    axes.set_ylabel("without an event")
    if len(curves) > 1:
        axes.legend(fontsize="small")
    with atomic(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)
