"""Proportional-odds regression of ordered classes, over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from flower_fedcon.errors import ConfigError, first_few, number_of
from flower_fedcon.estimators.base import FederatedEstimator
from flower_fedcon.estimators.logistic_regression import of_weight
from flower_fedcon.objectives import ProportionalOdds, WithThresholds
from flower_fedcon.runs.final_sums import added
from flower_fedcon.tables.families import family_of
from flower_fedcon.tables.families.ordinal import between_levels, thresholds_of
from flower_fedcon.tables.row_weights import NO_SCORE_TESTS, SAMPLING
from flower_fedcon.tables.statistics import Estimates
from flower_fedcon.tables.statistics.by_threshold import shapes_by_threshold, tested_odds
from flower_fedcon.tables.statistics.score_tests import ScoreTest
from flower_fedcon.validation import Array


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedOrdinalRegression(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """Ordered classes by proportional odds: R's `MASS::polr` of the pooled rows.

    The log odds of a higher class than the k-th are X w - thresholds_[k], by maximum likelihood.
    There is no penalty.

    Parameters
    ----------
    levels : sequence, optional
        The classes in their order, the lowest first. By default numbers in
        ascending order, or the categories of an ordered `pandas.Categorical`.

    Attributes
    ----------
    coef_ : array, shape (features,)
        Log odds ratios of a higher class.
    thresholds_, thresholds_bse_ : array, shape (classes - 1,)
        The thresholds, ascending; with inference their standard errors.
    intercept_ : float
        Minus the first threshold.
    classes_ : array
        The classes in their order.
    history_, n_iter_, n_features_in_, feature_names_in_, groups_ : see `FederatedLasso`

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedOrdinalRegression
    >>> X, y = np.repeat([[0.0], [1.0]], 4, axis=0), ["no", "no", "some", "much"] * 2
    >>> y[4:6] = ["some", "much"]
    >>> model = FederatedOrdinalRegression(levels=["no", "some", "much"])
    >>> model = model.fit(X, y, groups=[0, 1] * 4)
    >>> model.coef_.round(3), model.thresholds_.round(3)
    (array([1.913]), array([-0.259,  1.707]))
    """

    family: ClassVar[str] = "ordinal"  # type: ignore[misc]

    levels: Sequence[Any] | None = None
    fit_intercept: bool = field(default=True, init=False)
    penalty_factor: Any = field(default=None, init=False)
    site_effects: str = field(default="common", init=False)
    nodes: int = field(default=7, init=False)
    reml: bool = field(default=False, init=False)

    def _check(self, X: Any, y: Any) -> tuple[Any, Array]:
        given = self.levels
        kind: Any = getattr(y, "dtype", None)
        if given is None and getattr(kind, "ordered", False):
            given = list(kind.categories)
        X, y = self._validated(X, y)
        check_classification_targets(y)
        if given is None and y.dtype.kind not in "biuf" and len(np.unique(y)) > 2:
            raise ConfigError(
                f"the classes {first_few([repr(v) for v in np.unique(y).tolist()])} have no order "
                f'of their own: give levels, such as levels=["low", "middle", "high"]'
            )
        classes = np.unique(y) if given is None else np.asarray(given)
        there = np.isin(classes, y)
        if len(np.unique(classes)) < len(classes) or not np.isin(y, classes).all():
            wrong = [repr(v) for v in np.unique(y[~np.isin(y, classes)]).tolist()]
            raise ValueError(
                f"levels must be all classes of y, each once, got {classes.tolist()!r}"
                + (f" and y has {first_few(wrong)}" if wrong else "")
            )
        if len(classes) < 2 or not there.all():
            raise ValueError(
                f"y must have two classes or more, each with a row, got "
                f"{number_of(int(there.sum()), 'class', 'classes')} of {classes.tolist()!r}: leave "
                f"levels without rows out"
            )
        self._levels: Array = classes
        order = np.argsort(classes)
        return X, order[np.searchsorted(classes, y, sorter=order)].astype(np.float64)

    def fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        clusters: Any = None,
    ) -> Self:
        """Fit the model of all clients' rows; see `FederatedElasticNet.fit`."""
        X, y = self._check(X, y)
        self._levels, y = of_weight(self._levels, y, sample_weight)
        self.classes_ = self._levels
        problem = self._problem(X, y, groups, sample_weight, offset, None, clusters)
        return self._fit_at(problem, 0.0, 0.0)

    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        return ProportionalOdds(X, y, len(self._levels), sample_weight=weight, intercept=True)

    @property
    def _ordered(self) -> int:
        return len(self._levels)

    def _completed(self, objective: Any) -> Any:
        return WithThresholds(objective)

    def _take(self, x: Array) -> None:
        columns = self.n_features_in_
        self.coef_, self.intercept_ = x[:columns].copy(), float(x[columns])
        self.thresholds_ = thresholds_of(x[columns:])[0]
        self._form = x[columns:].copy()

    def _parameter_names(self) -> list[str]:
        marks = [str(mark) for mark in self.classes_]
        return [*super()._parameter_names(), *between_levels(marks)]

    def _show(self, found: Estimates, shape: tuple[int, ...]) -> None:
        super()._show(found, shape)
        jacobian = thresholds_of(found.values[self.n_features_in_ :])[1]
        V = found.covariance[self.n_features_in_ :, self.n_features_in_ :]
        self.thresholds_bse_ = np.sqrt(np.diag(jacobian @ V @ jacobian.T))

    def proportionality(self) -> ScoreTest:
        """Test whether odds are proportional: whether coefficients are the same at all thresholds.

        It is the score test against logistic models of more than each class, with the expected
        information, of sums over the clients.

        Returns
        -------
        ScoreTest

        Raises
        ------
        ConfigError
            If the fit was without inference (or has been pickled, which drops the rows), the
            weights are of sampling, or there are only two classes.

        Examples
        --------
        >>> from flower_fedcon.estimators import FederatedOrdinalRegression
        >>> X, y = np.arange(40.0)[:, None] % 7, np.arange(40) % 3
        >>> model = FederatedOrdinalRegression(inference="model").fit(X, y)
        >>> test = model.proportionality()
        >>> round(test.global_statistic, 3), test.degrees, round(test.global_pvalue, 3)
        (0.002, 1, 0.96)
        """
        if self._inferred().weights == SAMPLING:
            raise ConfigError(f"{NO_SCORE_TESTS}: fit without the weights for this test")
        shapes = shapes_by_threshold(self.n_features_in_, len(self.classes_) - 1)
        told, why = self._asked("by_threshold", shapes)
        for site, reason in why.items():
            raise ConfigError(f"client {site!r}: {reason}")
        return tested_odds(self._parameter_names()[: self.n_features_in_], added(told, shapes))

    def predict_proba(self, X: Any) -> Array:
        """Return the classes' probabilities, shape (rows, classes), in the order of `classes_`."""
        family, scores = family_of(self.family), self._products(X) + self.intercept_
        return family.probabilities(family.spread(scores, self._form, 0))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        places = self.predict_proba(X).argmax(axis=1)
        chosen: Array = self.classes_[places]
        return chosen
