"""Poisson regression over clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import xlogy
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import Tags

from flower_fedcon.estimators.linear_regression import (
    FederatedElasticNet,
    FederatedElasticNetCV,
    LinearRegressor,
    _offset,
)
from flower_fedcon.objectives import PoissonRegression
from flower_fedcon.validation import Array


class _Counts(LinearRegressor):
    """The base of the regressors of counts."""

    family = "poisson"

    def _check(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Array]:
        X, y = self._validated(X, y, y_numeric=True, **checks)
        if y.min() < 0:
            raise ValueError(f"y must be counts or rates >= 0, got {y.min():g}")
        return X, y

    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        return PoissonRegression(X, y, sample_weight=weight, intercept=self.fit_intercept)

    def _start(self, clients: list[Any]) -> Array | None:
        """Return the null model: with counts in thousands a Newton step from 0 overshoots."""
        if not self._common_intercept:
            return None
        mean = self._mean(clients, lambda f: f.targets)
        exposed = self._mean(clients, lambda f: np.exp(_offset(f) + np.zeros(f.num_examples)))
        return self._with_intercept(clients, math.log(mean / exposed)) if mean > 0 else None

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return D^2, the explained share of the deviance, as `PoissonRegressor.score` does.

        Parameters
        ----------
        X : array or sparse matrix, shape (rows, features)
        y : array, shape (rows,)
            Counts >= 0.
        sample_weight : array, shape (rows,), optional
        """
        expected = np.clip(self.predict(X), np.finfo(float).tiny, None)
        share: float = d2_tweedie_score(y, expected, sample_weight=sample_weight, power=1)
        return share

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedPoissonRegressor(_Counts, FederatedElasticNet):
    """Poisson regression over clients: `sklearn.linear_model.PoissonRegressor` of the pooled rows.

    Minimises the mean of exp(X w + b) - y (X w + b), plus alpha (1 - l1_ratio) ||w||^2 / 2 and
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

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedPoissonRegressor
    >>> X, y = np.arange(4.0)[:, None], np.array([1, 2, 4, 8])
    >>> FederatedPoissonRegressor(alpha=0).fit(X, y, groups=[0, 1, 0, 1]).coef_.round(6)  # log 2
    array([0.693147])
    """

    l1_ratio: float = 0.0


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedPoissonRegressorCV(_Counts, FederatedElasticNetCV):
    """`FederatedPoissonRegressor` with alpha by cross-validation within the clients.

    Parameters
    ----------
    l1_ratio : float, or list of several (default: 1.0)
        In (0, 1]; of several values the one with the least mean deviance is chosen.
    inference : {"debiased"}, optional
        Standard errors of a fit with l1_ratio=1, as in `FederatedLasso`.

    Attributes
    ----------
    alpha_, l1_ratio_ : float
    cv_ : CrossValidation
        The path of all rows, the mean deviances of held-out rows as losses, and how often each
        coefficient was selected.
    coef_, intercept_, history_, n_iter_, n_features_in_, feature_names_in_, groups_
        See `FederatedLasso`.

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedPoissonRegressorCV
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(120, 4))
    >>> y = rng.poisson(np.exp(X[:, 0]))
    >>> model = FederatedPoissonRegressorCV(rule="1se").fit(X, y, groups=np.arange(120) % 3)
    >>> np.flatnonzero(model.coef_)
    array([0])
    """

    l1_ratio: float | Sequence[float] = 1.0

    @staticmethod
    def _held_out_loss(whole: Any, fitted: Any, held: Any, x: Array) -> float:
        """Return the mean deviance of the rows held out."""
        y, weights = held.targets, held.weights
        least = y - xlogy(y, y)  # the loss of a saturated model
        return 2.0 * float(held.value(x) - np.average(least, weights=weights))
