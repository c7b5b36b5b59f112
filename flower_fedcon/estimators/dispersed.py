"""Log-linear models of amounts, and of counts that vary more than Poisson's, over clients."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_tweedie_score

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators.counts import FederatedPoissonRegressor
from flower_fedcon.objectives import (
    GammaRegression,
    NegativeBinomialRegression,
    WithDispersion,
)
from flower_fedcon.tables.families import family_of
from flower_fedcon.tables.preparation import DISPERSION
from flower_fedcon.tables.statistics import Estimates
from flower_fedcon.validation import Array, nonnegative

_NO_DISPERSION = 1e-4  # alpha times the mean: the share of the variance beyond Poisson's


class FederatedGammaRegressor(FederatedPoissonRegressor):
    """Gamma regression with a log link: `sklearn.linear_model.GammaRegressor` of the pooled rows.

    Minimises the mean of y exp(-X w - b) + X w + b, plus alpha (1 - l1_ratio) ||w||^2 / 2 and
    alpha l1_ratio ||w||_1.

    Parameters
    ----------
    alpha : float (default: 1.0)
        >= 0.
    l1_ratio : float (default: 0.0)
        In [0, 1]: 0 is scikit-learn's penalty, 1 selects columns.

    Attributes
    ----------
    coef_, intercept_, history_, n_iter_, n_features_in_, feature_names_in_, groups_
        See `FederatedLasso`.
    shape_ : float
        With inference: the shape of the gamma distributions, by maximum likelihood. `dispersion_`
        is Pearson's chi^2 / (n - p).

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedGammaRegressor
    >>> X, y = np.arange(4.0)[:, None], np.array([1.0, 2.0, 4.0, 8.0])
    >>> FederatedGammaRegressor(alpha=0).fit(X, y, groups=[0, 1, 0, 1]).coef_.round(6)  # log 2
    array([0.693147])
    """

    family = "gamma"
    shape_: float

    def _check(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Array]:
        X, y = self._validated(X, y, y_numeric=True, **checks)
        if y.min() <= 0:
            raise ValueError(
                f"y must be amounts > 0, got {y.min():g}: model zeros separately "
                f"(FederatedLogisticRegression for y > 0)"
            )
        return X, y

    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        return GammaRegression(X, y, sample_weight=weight, intercept=self.fit_intercept)

    def _show(self, found: Estimates, shape: tuple[int, ...]) -> None:
        super()._show(found, shape)
        self.shape_ = found.shape

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return D^2, the explained share of the deviance, as `GammaRegressor.score` does."""
        share: float = d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=2)
        return share


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedNegativeBinomial(FederatedPoissonRegressor):
    """Counts of variance mu + alpha mu^2, mu = exp(X w + b): NB2 of the pooled rows.

    Maximises the likelihood jointly in w, b and log alpha, like statsmodels' `NegativeBinomial`.
    There is no penalty.

    Parameters
    ----------
    alpha : float (default: 0.0)
        Must be 0, since there is no penalty.

    Attributes
    ----------
    alpha_ : float
        The variance's alpha; the standard error of its logarithm is the last of `estimates_.bse`.
    coef_, intercept_, history_, n_iter_, n_features_in_, feature_names_in_, groups_
        See `FederatedLasso`.

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedNegativeBinomial
    >>> X, y = np.repeat([[0.0], [1.0]], 4, axis=0), np.array([0, 0, 1, 7, 1, 2, 5, 24])
    >>> model = FederatedNegativeBinomial().fit(X, y, groups=[0, 1] * 4)
    >>> model.coef_.round(6), round(model.alpha_, 3)  # log 4
    (array([1.386294]), 1.481)
    """

    family = "negative_binomial"

    alpha: float = 0.0
    l1_ratio: float = field(default=0.0, init=False)
    penalty_factor: Any = field(default=None, init=False)
    site_effects: str = field(default="common", init=False)
    nodes: int = field(default=7, init=False)
    reml: bool = field(default=False, init=False)

    def fit(
        self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None, **more: Any
    ) -> Self:
        """Fit the model of all clients' rows; see `FederatedElasticNet.fit`.

        Raises
        ------
        ConfigError
            With inference, if the counts vary no more than Poisson counts: no alpha > 0 then fits.
            Without inference this is a warning.
        """
        if nonnegative("alpha", self.alpha):
            raise ConfigError(
                f"FederatedNegativeBinomial has no penalty, got alpha={self.alpha!r}: leave it out "
                f"(the variance's alpha is estimated as alpha_)"
            )
        return super().fit(X, y, groups, sample_weight, **more)

    def _check(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Array]:
        X, y = super()._check(X, y, **checks)
        if not y.any():
            raise ValueError("y is 0 in every row, so there is nothing to fit: check the column")
        return X, y

    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        return NegativeBinomialRegression(X, y, sample_weight=weight, intercept=self.fit_intercept)

    def _completed(self, objective: Any) -> Any:
        return WithDispersion(objective)

    def _start(self, clients: list[Any]) -> Array | None:
        """Return the null model, with alpha from moments."""
        losses = [f.loss for f in clients]
        null = super()._start(losses)
        start = np.zeros(clients[0].shape)
        if null is not None:
            start[:-1] = null
        mean = self._mean(clients, lambda f: f.targets)
        squares = self._mean(clients, lambda f: np.square(f.targets - mean))
        self._mean_count = mean
        start[-1] = family_of(self.family).start(mean, squares)
        return start

    def _take(self, x: Array) -> None:
        self.alpha_ = math.exp(float(x[-1]))
        super()._take(x[:-1])
        if self.alpha_ * self._mean_count < _NO_DISPERSION:
            said = (
                f"the counts vary no more than Poisson's (alpha = {self.alpha_:.1e}): the "
                f"likelihood has no maximum at an alpha > 0. Use FederatedPoissonRegressor"
            )
            if self.inference is not None:
                raise ConfigError(said)
            warnings.warn(said, ConvergenceWarning, stacklevel=5)

    def _parameter_names(self) -> list[str]:
        return [*super()._parameter_names(), DISPERSION]

    def _show(self, found: Estimates, shape: tuple[int, ...]) -> None:
        super()._show(found, shape)
        self.covariance_ = found.covariance
