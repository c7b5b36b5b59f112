"""Cox regression over clients, each of which is a stratum."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from flower_fedcon.core.participation import Participation
from flower_fedcon.estimators.base import FederatedEstimator
from flower_fedcon.objectives import CoxRegression
from flower_fedcon.objectives.survival import NOTHING_COMPARED
from flower_fedcon.validation import Array, nonnegative


class FederatedCoxRegression(FederatedEstimator):
    """Cox's proportional hazards over clients, stratified: each has a baseline hazard of its own.

    Minimises the negative log partial likelihood, summed over the clients, / n, plus
    alpha l1_ratio ||w||_1 + alpha (1 - l1_ratio) ||w||^2 / 2.

    Parameters
    ----------
    alpha : float (default: 0.01)
        >= 0. With 0 there may be no minimiser: coefficients that order all events run away.
    l1_ratio : float (default: 1.0)
        In [0, 1].
    ties : {"breslow", "efron"} (default: "breslow")
        See `flower_fedcon.objectives.CoxRegression`.
    tol, max_iter, algorithm, participation, random_state : see `FederatedLasso`

    Attributes
    ----------
    coef_ : array, shape (features,)
        Log hazard ratios.
    history_, n_iter_, n_features_in_, feature_names_in_, groups_ : see `FederatedLasso`

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedCoxRegression
    >>> X = np.array([[1.0], [0.0], [1.0], [0.0], [1.0]])
    >>> y = np.array([[1, 1], [2, 1], [2, 1], [3, 1], [3, 0]])  # time, event
    >>> FederatedCoxRegression(0.0, ties="efron").fit(X, y, groups=[0, 0, 1, 1, 1]).coef_.round(3)
    array([0.481])
    """

    fit_intercept = False

    def __init__(
        self,
        alpha: float = 0.01,
        *,
        l1_ratio: float = 1.0,
        ties: str = "breslow",
        tol: float = 1e-8,
        max_iter: int = 1000,
        algorithm: Any = None,
        participation: Participation | None = None,
        random_state: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.ties = ties
        self.tol = tol
        self.max_iter = max_iter
        self.algorithm = algorithm
        self.participation = participation
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model of all clients' rows.

        Parameters
        ----------
        X : array or sparse matrix, shape (rows, features)
        y : array
            Two columns, time and event (1 or 0); or one, of times that are negative where the row
            was censored, as in XGBoost; or scikit-survival's array of (event, time).
        groups : array, shape (rows,), optional
            The client of each row, which is its stratum; one by default.
        sample_weight : array, shape (rows,), optional
            Weights >= 0.
        """
        X, y = self._check(X, y)
        problem = self._problem(X, y, groups, sample_weight)
        if all(f.smoothness == 0 for f in problem.clients):
            raise ValueError(f"n_samples={X.shape[0]}: {NOTHING_COMPARED}")
        return self._fit_at(problem, self.l1_ratio, nonnegative("alpha", self.alpha))

    def _check(self, X: Any, y: Any) -> tuple[Any, Array]:
        names = np.asarray(y).dtype.names
        if names is not None:
            event, time = (np.asarray(y)[name] for name in names)
            y = np.stack([time, event], axis=1).astype(float)
        X, y = self._validated(X, y, y_numeric=True, multi_output=True)
        if y.ndim == 1:
            y = np.stack([np.abs(y), y >= 0], axis=1).astype(float)
        elif y.shape[1] != 2:
            raise ValueError(f"y must be times, or the columns time and event, got {y.shape}")
        time, event = y.T
        if (time < 0).any():
            row = int(np.argmax(time < 0))
            raise ValueError(
                f"times must be >= 0, got {time[row]:g} in row {row}: with a column of events the "
                "sign of a time says nothing, so correct it or drop the row"
            )
        other = event[(event != 0) & (event != 1)]
        if other.size:
            raise ValueError(
                f"the second column of y must be 1 for an event and 0 for none, got {other[0]:g}: "
                "where 2 stands for an event, give y[:, 1] == 2"
            )
        if not event.any():
            raise ValueError("y has no event in any row: there is nothing to fit")
        return X, y

    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        return CoxRegression(X, y[:, 0], y[:, 1], ties=self.ties, sample_weight=weight)

    def _take(self, x: Array) -> None:
        self.coef_ = x.copy()

    def predict(self, X: Any) -> Array:
        """Return the log hazard ratios to a row of zeros, shape (rows,)."""
        return self._products(X)
