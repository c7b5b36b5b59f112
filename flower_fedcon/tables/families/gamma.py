"""Gamma regression: amounts above 0, such as costs, whose spread grows with their mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_fedcon.objectives.losses import GammaRegression
from flower_fedcon.tables.families.base import PEARSON, Cells, LogLink, Parts, Stated
from flower_fedcon.validation import Array


class Gamma(LogLink):
    """Gamma regression."""

    name = "gamma"
    title = "Gamma regression"
    of = GammaRegression
    rank = 6
    ratio = "ratio of means"
    scale = PEARSON
    expected = True

    def read(self, cells: Cells, stated: Stated) -> Array:
        """Return amounts above 0."""
        remedy = (
            'correct the cell, or model zeros separately (loss = "logistic" for amounts above 0)'
        )
        return cells.above_zero(stated.target, "an amount", remedy)

    def deviance(self, scores: Array, y: Array, parameter: float = 0.0) -> Array:
        """Return 2 (y / mu - 1 - log(y / mu))."""
        ratio = y * self.link.inverse(-scores)
        deviances: Array = 2.0 * (ratio - 1.0 - np.log(ratio))
        return deviances

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return the rows' parts, with log y, of which the shape follows."""
        ratio = y * self.link.inverse(-scores)
        return (
            np.zeros_like(ratio), self.deviance(scores, y), np.square(ratio - 1.0), np.log(y),
        )  # fmt: skip

    def slopes(self, scores: Array, y: Array, parameter: float = 0.0) -> tuple[Array, Array]:
        """Return y / mu - 1 and 1."""
        return y / self.link.inverse(scores) - 1.0, np.ones(len(y))

    def level(self, y: Array, offset: Array | None) -> tuple[float, float]:
        """Return the sum of y / exp(offset), and the number of rows."""
        rates = y if offset is None else y * self.link.inverse(-offset)
        return math.fsum(rates.tolist()), float(len(y))


FAMILY = Gamma()
