"""Negative binomial regression: counts of variance mu + alpha mu^2, whose alpha is fitted, too."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_fedcon.objectives.dispersion import WithDispersion
from flower_fedcon.objectives.losses import NegativeBinomialRegression
from flower_fedcon.tables.families.base import Parts, Stated
from flower_fedcon.tables.families.link_functions import cut
from flower_fedcon.tables.families.poisson import Counts
from flower_fedcon.validation import Array


class NegativeBinomial(Counts):
    """Negative binomial regression."""

    name = "negative_binomial"
    title = "Negative binomial regression"
    of = WithDispersion
    rank = 5
    instead = "poisson"
    dispersed = True

    def loss(self, A: Any, y: Array, stated: Stated, **options: Any) -> Any:
        """Return the objective for a known alpha."""
        return NegativeBinomialRegression(A, y, **options)

    def completed(self, objective: Any) -> Any:
        """Return the objective of coefficients and log alpha."""
        return WithDispersion(objective)

    def parameter(self, x: Array) -> float:
        """Return alpha: the model's last entry is log alpha."""
        return float(np.exp(np.clip(x.flat[-1], -30.0, 30.0)))

    def start(self, mean: float, variance: float) -> float:
        """Return log alpha by moments."""
        return math.log(min(max((variance - mean) / max(mean, 1e-300) ** 2, 0.1), 1e6))

    def deviance(self, scores: Array, y: Array, parameter: float = 1.0) -> Array:
        """Return 2 (y log(y / mu) - (y + 1/alpha) log((1 + alpha y) / (1 + alpha mu)))."""
        from scipy.special import xlogy

        s, a = cut(scores), parameter
        r, logs = 1.0 / a, np.logaddexp(0.0, s + math.log(a))
        deviances: Array = 2.0 * (xlogy(y, y) - y * s - (y + r) * (np.log1p(a * y) - logs))
        return deviances

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return the rows' parts."""
        from scipy.special import gammaln

        a, s, mu = loss.alpha, cut(scores), self.link.inverse(scores)
        r, t = 1.0 / a, math.log(a)
        logs = np.logaddexp(0.0, s + t)
        loglik = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0) + y * (s + t) - (y + r) * logs
        pearson = (y - mu) / mu * ((y - mu) / (1.0 + a * mu))  # no square, which may overflow
        return loglik, self.deviance(scores, y, a), pearson, np.zeros_like(mu)

    def slopes(self, scores: Array, y: Array, parameter: float = 1.0) -> tuple[Array, Array]:
        """Return (y - mu) / (1 + alpha mu) and mu / (1 + alpha mu)."""
        mean = self.link.inverse(scores)
        return (y - mean) / (1.0 + parameter * mean), mean / (1.0 + parameter * mean)

    def level(self, y: Array, offset: Array | None) -> tuple[float, float] | None:
        """Return the sum of counts and the rows; with an offset the null model is not a ratio."""
        return None if offset is not None else super().level(y, None)


FAMILY = NegativeBinomial()
