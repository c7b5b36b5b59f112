"""Poisson regression: counts, or rates over exposures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_fedcon.objectives.losses import PoissonRegression
from flower_fedcon.tables.families.base import Cells, LogLink, Parts, Stated
from flower_fedcon.tables.families.link_functions import cut
from flower_fedcon.validation import Array


class Counts(LogLink):
    """A model of counts."""

    ratio = "rate ratio"
    whole = True
    separable = True

    def read(self, cells: Cells, stated: Stated) -> Array:
        """Return counts >= 0."""
        return cells.numbers_in(stated.target, "a count")

    def outcomes(self, stated: Stated) -> list[str]:
        """Return the rows that are not 0, in words."""
        return [f"a target {stated.target!r} above 0"]

    def decides(self, y: Array) -> bool:
        """Return whether all are 0."""
        return not y.any()


class Poisson(Counts):
    """Poisson regression."""

    name = "poisson"
    title = "Poisson regression"
    of = PoissonRegression
    rank = 4
    quasi = True
    profiled = True
    alike = "all 0"
    endless = "counts differ too much between groups, as when most are 0"
    debiased = True

    def deviance(self, scores: Array, y: Array, parameter: float = 0.0) -> Array:
        """Return 2 (y log(y / mu) - (y - mu))."""
        from scipy.special import xlogy

        s, mu = cut(scores), self.link.inverse(scores)
        deviances: Array = 2.0 * (xlogy(y, y) - y * s - (y - mu))
        return deviances

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return the rows' parts."""
        from scipy.special import gammaln

        s, mu = cut(scores), self.link.inverse(scores)
        loglik = y * s - mu - gammaln(y + 1.0)
        return loglik, self.deviance(scores, y), np.square(y - mu) / mu, np.zeros_like(mu)

    def slopes(self, scores: Array, y: Array, parameter: float = 0.0) -> tuple[Array, Array]:
        """Return y - mu and mu."""
        mean = self.link.inverse(scores)
        return y - mean, mean

    def level(self, y: Array, offset: Array | None) -> tuple[float, float]:
        """Return the sums of counts and of exposures."""
        exposed = float(len(y)) if offset is None else math.fsum(self.link.inverse(offset).tolist())
        return math.fsum(y.tolist()), exposed


FAMILY = Poisson()
