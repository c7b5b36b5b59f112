"""What the estimators share: rows dealt to their clients, and the run that fits them."""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from flower_fedcon.core.participation import Participation
from flower_fedcon.errors import ConfigError
from flower_fedcon.paths import CrossValidation, RegularizationPath, cross_validate
from flower_fedcon.paths.path import default_strategy, regularization_path
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import ElasticNet, Regularizer, WithIntercept
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import Array, choice

_APPROACH = 10  # points of a path to the weight wanted, for a method that starts from nearby


class FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that is fitted over the clients that hold the rows.

    A subclass says by `_objective` what one client minimises, and by `_penalty` the regularizer.

    Attributes
    ----------
    history_ : RegularizationPath
        The fit's rounds, bytes and KKT residual, at its last point.
    n_iter_ : int
        Rounds of the method.
    groups_ : array
        The clients.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    fit_intercept: bool
    tol: float
    max_iter: int
    algorithm: Any
    participation: Participation | None
    random_state: int | None
    history_: RegularizationPath
    coef_: Array

    @abstractmethod
    def _check(self, X: Any, y: Any) -> tuple[Any, Array]:
        """Return X and y as they are used."""

    @abstractmethod
    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        """Return one client's objective."""

    @abstractmethod
    def _take(self, x: Array) -> None:
        """Set the coefficients from a model."""

    def _validated(self, X: Any, y: Any, **checks: Any) -> tuple[Any, Array]:
        found: tuple[Any, Array] = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, **checks
        )
        return found

    def _products(self, X: Any) -> Array:
        """Return the products of new rows with the coefficients, before any intercept."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        products: Array = safe_sparse_dot(X, self.coef_.T)
        return products

    def _problem(self, X: Any, y: Array, groups: Any, sample_weight: Any) -> FederatedProblem:
        """Return the problem of the clients that the groups name."""
        n = X.shape[0]
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        if weight is not None and (weight < 0).any():
            raise ValueError(f"sample_weight must be >= 0, got {weight.min():g}")
        if groups is None:
            groups = np.zeros(n, int)
        check_consistent_length(X, groups)
        unknown = [i for i, group in enumerate(groups) if group is None or group != group]
        if unknown:
            raise ValueError(
                f"groups has no value for {len(unknown)} rows, the first of them row {unknown[0]}: "
                "name the client of each row, or drop such rows"
            )
        self.groups_, place = np.unique(np.asarray(groups), return_inverse=True)
        clients, names, self._rows = [], [], []
        for k, name in enumerate(self.groups_):
            rows = np.flatnonzero(place == k)
            own = None if weight is None else weight[rows]
            if own is not None and not own.any():
                continue  # such rows count for nothing
            clients.append(self._objective(X[rows], y[rows], own))
            names.append(str(name))
            self._rows.append(rows)
        if not clients:
            raise ValueError("sample_weight is 0 for every row: nothing to fit")
        self._total = float(sum(f.total_weight for f in clients))
        weights = [f.total_weight for f in clients]
        start = self._start(clients)
        return FederatedProblem(clients, weights=weights, names=names, x0=start)

    def _start(self, clients: list[Any]) -> Array | None:
        """Return where to start, if zeros are far away: of sums that each client could send."""
        return None

    def _strategy(self, problem: FederatedProblem) -> FedConStrategy[Any]:
        if self.algorithm is None:
            return default_strategy(problem, self.participation)
        common = {} if self.participation is None else {"participation": self.participation}
        if isinstance(self.algorithm, FedConStrategy):
            if common:
                raise ConfigError(
                    "give participation to the strategy that is the algorithm, or name the "
                    'algorithm: algorithm="FedNewton"'
                )
            return self.algorithm
        kind: Any = strategy_class(self.algorithm)
        takes = inspect.signature(kind).parameters
        if "regularizer" not in takes:
            raise ConfigError(f"{kind.__name__} takes no regularizer, which the estimator has")
        try:
            made: FedConStrategy[Any] = kind(regularizer=None, **common)
            return made
        except (TypeError, ConfigError) as error:
            raise ConfigError(
                f"{kind.__name__} has settings of its own ({error}): give "
                f"algorithm={kind.__name__}(None, ...)"
            ) from None

    def _options(self) -> dict[str, Any]:
        return {"tolerance": self.tol, "max_rounds": self.max_iter, "seed": self.random_state or 0}

    def _psi(self, l1_ratio: float) -> Regularizer:
        """Return the regularizer whose weight is sought or given."""
        if not 0 <= l1_ratio <= 1:
            raise ConfigError(f"l1_ratio must be in [0, 1], got {l1_ratio!r}")
        psi = ElasticNet(float(l1_ratio), 1.0 - float(l1_ratio))
        return WithIntercept(psi) if self.fit_intercept else psi

    def _fit_at(self, problem: FederatedProblem, l1_ratio: float, alpha: float) -> Self:
        """Fit for one weight."""
        psi, strategy = self._psi(l1_ratio), self._strategy(problem)
        options = self._options()
        grid = [float(alpha)]
        if not strategy.participation.is_full(problem.num_clients) and l1_ratio and alpha:
            # Without everyone nothing guards a step that is too long: come from the null model.
            short = regularization_path(problem, psi, strategy, num=1, **options)
            top = float(short.values[0])
            if top > alpha:
                grid = np.geomspace(top, alpha, _APPROACH).tolist()
        self._finish(regularization_path(problem, psi, strategy, values=grid, **options), -1)
        return self

    def _finish(self, path: RegularizationPath, place: int) -> None:
        if not path.converged[place]:
            warnings.warn(
                f"{type(self).__name__} did not reach its tolerance in max_iter={self.max_iter} "
                f"rounds (KKT residual {path.kkt[place]:.3g}): scale the columns, or allow more",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.history_ = path
        self.n_iter_ = max(1, int(path.rounds.sum()))
        self._take(np.asarray(path.x[place]))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class Tuned(FederatedEstimator):
    """An estimator whose weight is found by cross-validation within the clients.

    Attributes
    ----------
    cv_ : CrossValidation
        Losses of all weights, and what it took; `cv_.stability` says how often each coefficient
        was selected.
    """

    num: int
    min_ratio: float
    cv: Any
    rule: str
    cv_: CrossValidation

    def _splits(self, X: Any, y: Array, groups: Any) -> Any:
        """Return the folds: a number, or each client's rows in each of those that are given."""
        if isinstance(self.cv, int | np.integer):
            return int(self.cv)
        given = self.cv.split(X, y, groups) if hasattr(self.cv, "split") else self.cv
        return [
            [tuple(_places(own, np.asarray(part)) for part in pair) for own in self._rows]
            for pair in given
        ]

    def _fit_cv(self, problem: FederatedProblem, l1_ratio: float, folds: Any) -> float:
        """Fit for the weight that cross-validation finds, and return it."""
        choice("rule", self.rule, ("min", "1se"))
        if not l1_ratio > 0:
            raise ConfigError("cross-validation needs l1_ratio > 0: a path begins where all are 0")
        found = cross_validate(
            problem,
            self._psi(l1_ratio),
            self._strategy(problem),
            folds=folds,
            num=self.num,
            min_ratio=self.min_ratio,
            **self._options(),
        )
        self.cv_ = found
        place = found.best if self.rule == "min" else found.one_standard_error
        self._finish(found.path, place)
        return float(found.values[place])


def _places(own: Array, rows: Array) -> Array:
    """Return where a client's rows, ascending, are that are among these; as often as they are."""
    place = np.searchsorted(own, rows)
    mine = (place < len(own)) & (own[np.minimum(place, len(own) - 1)] == rows)
    found: Array = place[mine]
    return found
