"""The gallery's scripts, as the site runs them: each draws, in a few seconds."""

from __future__ import annotations

import runpy

import matplotlib
import numpy as np
import pytest
from pages import ROOT

from flower_fedcon import registry

SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))


def test_there_are_many():
    assert len(SCRIPTS) >= 8


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_draws(path, monkeypatch):
    monkeypatch.setattr(registry, "_own", {})  # one of them registers an algorithm
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")
    runpy.run_path(str(path))
    axes = [axes for number in pyplot.get_fignums() for axes in pyplot.figure(number).axes]
    drawn = [line.get_ydata() for ax in axes for line in ax.lines]
    drawn += [np.array([bar.get_height() for ax in axes for bar in ax.patches])]
    pyplot.close("all")
    assert all(ax.get_xlabel() for ax in axes)
    assert sum(np.isfinite(values).sum() for values in drawn) > 20
