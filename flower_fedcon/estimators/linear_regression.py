"""Linear regression over clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin

from flower_fedcon.estimators.base import FederatedEstimator, Tuned
from flower_fedcon.estimators.shared_arguments import Penalty, SiteSettings
from flower_fedcon.objectives import LeastSquares, WithOffset
from flower_fedcon.tables.families import family_of
from flower_fedcon.validation import Array, nonnegative

_ROUNDING = 1e-8  # of sums of products, relative to the largest target times the largest entry


def _offset(f: Any) -> Any:
    """Return the offsets of a client's rows; 0 without any."""
    return f.offset if isinstance(f, WithOffset) else 0.0


class LinearRegressor(RegressorMixin, FederatedEstimator):  # type: ignore[misc]
    """The base of the regressors."""

    family = "squared"

    def _check(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Array]:
        return self._validated(X, y, y_numeric=True, **checks)

    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        return LeastSquares(X, y, sample_weight=weight, intercept=self.fit_intercept)

    def _start(self, clients: list[Any]) -> Array | None:
        """Return the null model, at which gradients show what the columns explain."""
        return self._with_intercept(clients, self._mean(clients, lambda f: f.targets - _offset(f)))

    def _with_intercept(self, clients: list[Any], value: float) -> Array | None:
        if not self._common_intercept:
            return None
        start = np.zeros(clients[0].shape)
        start[-1] = value
        return start

    def _mean(self, clients: list[Any], values: Callable[[Any], Array]) -> float:
        """Return the mean over all clients' rows, from sums that each client could send."""
        sums = (
            float(v.sum() if f.weights is None else f.weights @ v) * f.total_weight / f.num_examples
            for f, v in ((f, values(f)) for f in clients)
        )
        return math.fsum(sums) / self._total

    def _take(self, x: Array) -> None:
        self.coef_ = x[:-1].copy() if self._common_intercept else x.copy()
        self.intercept_ = float(x[-1]) if self._common_intercept else self._no_intercept

    def _scores(self, X: Any) -> Array:
        scores: Array = self._products(X) + self.intercept_
        return scores

    def predict(self, X: Any) -> Array:
        """Return the expected targets, shape (rows,)."""
        return family_of(self.family).link.inverse(self._scores(X))


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedElasticNet(SiteSettings, LinearRegressor, Penalty):
    """Linear regression with an elastic net, over clients: `sklearn.linear_model.ElasticNet`.

    Minimises ||y - X w - b||^2 / (2 n) + alpha l1_ratio ||w||_1 + alpha (1 - l1_ratio) ||w||^2 / 2
    over the n rows of all clients.

    Parameters
    ----------
    alpha : float (default: 1.0)
        >= 0.

    Attributes
    ----------
    coef_ : array, shape (features,)
    intercept_ : float
    history_, n_iter_, n_features_in_, feature_names_in_, groups_ : see `FederatedLasso`

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedElasticNet
    >>> X, y = [[-1, 1], [1, 1], [-1, -1], [1, -1]], [0, 4, 0, 4]
    >>> FederatedElasticNet(alpha=1.0).fit(X, y, groups=[0, 0, 1, 1]).coef_  # (2 - .5) / 1.5
    array([1., 0.])
    """

    def fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
        clusters: Any = None,
    ) -> Self:
        """Fit the model of all clients' rows.

        Parameters
        ----------
        X : array or sparse matrix, shape (rows, features)
        y : array, shape (rows,)
        groups : array, shape (rows,), optional
            The client of each row; one client by default.
        sample_weight : array, shape (rows,), optional
            Weights >= 0; see `weight_kind`.
        offset : array, shape (rows,), optional
            A column that is added to the scores without a coefficient.
        exposure : array, shape (rows,), optional
            > 0, for models with a log link: its logarithm is added to the scores.
        clusters : array, shape (rows,), optional
            Labels, for inference="cluster" and site_effects="random". A cluster is a label within a
            client; by default each client is one cluster.

        Raises
        ------
        ConfigError
            If inference is not possible: with a penalty, a separated outcome, or collinear columns.
        """
        X, y = self._check(X, y)
        problem = self._problem(X, y, groups, sample_weight, offset, exposure, clusters)
        return self._fit_at(problem, self.l1_ratio, nonnegative("alpha", self.alpha))


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedLasso(FederatedElasticNet):
    """The lasso over clients: `sklearn.linear_model.Lasso` of the pooled rows.

    Minimises ||y - X w - b||^2 / (2 n) + alpha ||w||_1 over the n rows of all clients.

    Attributes
    ----------
    coef_ : array, shape (features,)
    intercept_ : float
    history_ : RegularizationPath
        The fit's rounds, bytes and KKT residual, at its last point.
    n_iter_ : int
        Rounds.
    groups_ : array
        The clients.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedLasso
    >>> X, y = [[-1, 1], [1, 1], [-1, -1], [1, -1]], [0, 4, 0, 4]
    >>> model = FederatedLasso(alpha=0.5).fit(X, y, groups=["a", "a", "b", "b"])
    >>> model.coef_, model.intercept_
    (array([1.5, 0. ]), 2.0)
    """

    l1_ratio: float = field(default=1.0, init=False)


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedElasticNetCV(LinearRegressor, Tuned):
    """`FederatedElasticNet` with alpha by cross-validation within the clients.

    Parameters
    ----------
    l1_ratio : float, or list of several (default: 0.5)
        In (0, 1]; of several values the one with the least mean loss is chosen.
    inference : {"debiased"}, optional
        Standard errors of a fit with l1_ratio=1, as in `FederatedLasso`.

    Attributes
    ----------
    alpha_, l1_ratio_ : float
    cv_ : CrossValidation
        The path of all rows, losses, and how often each coefficient was selected.
    coef_, intercept_, history_, n_iter_, n_features_in_, feature_names_in_, groups_
        See `FederatedLasso`.

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedElasticNetCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 4))
    >>> y = X[:, 0] + 0.1 * rng.normal(size=60)
    >>> model = FederatedElasticNetCV(rule="1se").fit(X, y, groups=np.arange(60) % 3)
    >>> np.flatnonzero(model.coef_)
    array([0])
    """

    l1_ratio: float | Sequence[float] = 0.5

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Choose alpha and fit; see `FederatedElasticNet.fit`."""
        X, y = self._check(X, y, ensure_min_samples=2)
        problem = self._problem(X, y, groups, sample_weight)
        folds, values = self._splits(X, y, groups), None
        if (y == y[0]).all():  # a constant target: all weights leave only rounding
            top = _ROUNDING * max(abs(float(y[0])), 1e-200) * float(abs(X).max())
            values = np.geomspace(1.0, self.min_ratio, self.num) * (top or 1.0)
        self.alpha_ = self._fit_cv(problem, self.l1_ratio, folds, values)
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedLassoCV(FederatedElasticNetCV):
    """`FederatedLasso` with alpha by cross-validation within the clients.

    Parameters
    ----------
    inference : {"debiased"}, optional
        Standard errors of a fit with an l1 norm, as in `FederatedLasso`.

    Attributes
    ----------
    alpha_, cv_ : see `FederatedElasticNetCV`
    coef_, intercept_, history_, n_iter_, n_features_in_, feature_names_in_, groups_
        See `FederatedLasso`.

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedLassoCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 4))
    >>> y = X[:, 0] + 0.1 * rng.normal(size=60)
    >>> FederatedLassoCV().fit(X, y, groups=np.arange(60) % 3).coef_[0].round(1)
    np.float64(1.0)
    """

    l1_ratio: float = field(default=1.0, init=False)
