"""Huber's loss: squares of small residuals, lengths of large ones; not a likelihood.

The deviance is twice the loss, as for every family: that is what the fit minimises, and a few
outliers do not decide which share of it a model explains. The metrics beside it are of squares and
lengths. The calibration line is that of least squares, since it concerns means.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.objectives.losses import HuberRegression
from flower_fedcon.tables.families.base import NONE, Parts
from flower_fedcon.tables.families.squared import Squared
from flower_fedcon.validation import Array

_DELTA = 1.35  # the objective's default, which tables use


class Huber(Squared):
    """Huber's loss."""

    name = "huber"
    title = "Huber regression"
    of = HuberRegression
    rank = 1
    scale = NONE
    profiled = False
    debiased = False
    weighs_rows = False
    mean_null = False

    def parameter(self, x: Array) -> float:
        """Return delta."""
        return _DELTA

    def deviance(self, scores: Array, y: Array, parameter: float = _DELTA) -> Array:
        """Return twice the loss."""
        r = np.abs(scores - y)
        inner = np.minimum(r, parameter)
        deviances: Array = 2.0 * (inner * (r - 0.5 * inner))
        return deviances

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return the deviance alone."""
        none = np.zeros_like(scores)
        return none, self.deviance(scores, y, loss.delta), none, none

    def null(self, mean: float, y: Array, offset: Array | None) -> Array:
        """Return the scores of the location that minimises the loss."""
        from scipy.optimize import brentq

        left = y if offset is None else y - offset
        low, high = float(left.min()), float(left.max())

        def slope(at: float) -> float:
            return float(np.clip(at - left, -_DELTA, _DELTA).sum())

        at = low if low == high else brentq(slope, low, high)
        scores = np.full(len(y), at)
        return scores if offset is None else scores + offset


FAMILY = Huber()
