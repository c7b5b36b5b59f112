"""Least squares: normal outcomes, whose variance is estimated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_fedcon.objectives.losses import LeastSquares
from flower_fedcon.tables.families.base import RESIDUAL, Family, Parts
from flower_fedcon.validation import Array


class Squared(Family):
    """Least squares."""

    name = "squared"
    title = "Linear regression"
    of: type = LeastSquares
    rank = 0
    scale = RESIDUAL
    profiled = True
    debiased = True
    far = 1e8
    endless = "intercepts and columns explain every target"
    metrics = ("mse", "mae")

    def deviance(self, scores: Array, y: Array, parameter: float = 0.0) -> Array:
        """Return the squared residuals."""
        deviances: Array = np.square(scores - y)
        return deviances

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return squares; the log-likelihood follows from their sum."""
        squares = self.deviance(scores, y)
        return np.zeros_like(squares), squares, squares, np.zeros_like(squares)

    def slopes(self, scores: Array, y: Array, parameter: float = 0.0) -> tuple[Array, Array]:
        """Return the residuals."""
        return y - scores, np.ones(len(y))

    def means(self, scores: Array, y: Array, x: Array) -> dict[str, Array]:
        """Return squared and absolute errors."""
        return {"mse": (y - scores) ** 2, "mae": np.abs(y - scores)}

    def level(self, y: Array, offset: Array | None) -> tuple[float, float]:
        """Return the sum of y - offset, and the number of rows."""
        return math.fsum((y if offset is None else y - offset).tolist()), float(len(y))


FAMILY = Squared()
