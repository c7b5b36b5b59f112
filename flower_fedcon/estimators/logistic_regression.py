"""Logistic regression over clients, for two or more classes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from flower_fedcon.estimators.base import FederatedEstimator, Tuned
from flower_fedcon.estimators.shared_arguments import Mixture, SiteSettings
from flower_fedcon.objectives import LogisticRegression, SoftmaxRegression
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.validation import Array, positive


class _LogisticClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """The base of the classifiers."""

    def _check(self, X: Any, y: Any) -> tuple[Any, Array]:
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have two classes or more, got 1 class: {y[0]}")
        return X, labels

    def _objective(self, X: Any, y: Array, weight: Array | None) -> Any:
        settings = {"sample_weight": weight, "intercept": self.fit_intercept}
        if len(self.classes_) == 2:
            return LogisticRegression(X, 2.0 * y - 1.0, **settings)  # type: ignore[arg-type]
        return SoftmaxRegression(X, y, len(self.classes_), **settings)  # type: ignore[arg-type]

    @property
    def family(self) -> str:  # type: ignore[override]
        """The loss's name in schemas."""
        several = len(getattr(self, "classes_", ())) > 2
        return "multinomial" if several else "logistic"

    def _problem(
        self, X: Any, y: Array, groups: Any, sample_weight: Any, *more: Any
    ) -> FederatedProblem:
        self.classes_, y = of_weight(self.classes_, y, sample_weight)
        return super()._problem(X, y, groups, sample_weight, *more)

    def _take(self, x: Array) -> None:
        rows = x[None] if x.ndim == 1 else x.T
        common = self._common_intercept
        self.coef_ = rows[:, :-1].copy() if common else rows.copy()
        none = np.full(len(rows), self._no_intercept)
        self.intercept_ = rows[:, -1].copy() if common else none
        if len(rows) > 1:  # of equivalent models, the one whose intercepts sum to 0
            self.intercept_ -= self.intercept_.mean()

    def decision_function(self, X: Any) -> Array:
        """Return the scores: shape (rows,) for two classes, else (rows, classes)."""
        scores: Array = self._products(X) + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Array:
        """Return the classes' probabilities, shape (rows, classes)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            second: Array = expit(scores)
            return np.stack([1 - second, second], axis=1)
        probabilities: Array = softmax(scores, axis=1)
        return probabilities

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        scores = self.decision_function(X)
        places = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        chosen: Array = self.classes_[places]
        return chosen


def of_weight(classes: Array, y: Array, sample_weight: Any) -> tuple[Array, Array]:
    """Return the classes with rows of positive weight, and each row's place among them.

    Raises
    ------
    ValueError
        If there is only one.
    """
    weight = None if sample_weight is None else np.asarray(sample_weight)
    if weight is None or weight.shape != y.shape or not (weight > 0).any():
        return classes, y
    there = np.unique(y[weight > 0]).astype(np.intp)
    if len(there) < 2:
        raise ValueError("y must have two classes or more, got 1 class of positive weight")
    return classes[there], np.minimum(np.searchsorted(there, y), len(there) - 1)


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedLogisticRegression(SiteSettings, _LogisticClassifier, Mixture):
    """Logistic regression over clients: `sklearn.linear_model.LogisticRegression` of pooled rows.

    Minimises C times the sum of the losses of all rows, plus l1_ratio ||w||_1 and
    (1 - l1_ratio) ||w||^2 / 2. With more than two classes the model is multinomial.

    Parameters
    ----------
    C : float (default: 1.0)
        > 0; smaller values give sparser models, and numpy.inf means no penalty.
    l1_ratio : float (default: 1.0)
        In [0, 1].

    Attributes
    ----------
    coef_ : array, shape (1, features), or (classes, features) with more than two
    intercept_ : array, shape (1,) or (classes,)
    classes_ : array
    history_, n_iter_, n_features_in_, feature_names_in_, groups_ : see `FederatedLasso`

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedLogisticRegression
    >>> X = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
    >>> y = ["no", "yes", "no", "yes"]
    >>> model = FederatedLogisticRegression(C=10.0).fit(X, y, groups=[0, 0, 1, 1])
    >>> model.predict([[0.0, 0.0], [3.0, 1.0]])
    array(['no', 'yes'], dtype='<U3')
    """

    C: float = field(default=1.0, kw_only=False)
    l1_ratio: float = 1.0

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
        """Fit the model of all clients' rows; see `FederatedLasso.fit`."""
        X, y = self._check(X, y)
        problem = self._problem(X, y, groups, sample_weight, offset, exposure, clusters)
        free = isinstance(self.C, float | int) and math.isinf(self.C)
        alpha = 0.0 if free else 1.0 / (positive("C", self.C) * self._total)
        return self._fit_at(problem, self.l1_ratio, alpha)


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedLogisticRegressionCV(_LogisticClassifier, Tuned):
    """`FederatedLogisticRegression` with C by cross-validation within the clients.

    Parameters
    ----------
    inference : {"debiased"}, optional
        Standard errors of a fit with l1_ratio=1, as in `FederatedLasso`.

    Attributes
    ----------
    C_, l1_ratio_ : float
    cv_ : CrossValidation
        The path of all rows, losses, and how often each coefficient was selected.
    coef_, intercept_, classes_, history_, n_iter_, n_features_in_, feature_names_in_, groups_
        See `FederatedLogisticRegression`.

    Examples
    --------
    >>> from flower_fedcon.estimators import FederatedLogisticRegressionCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 4))
    >>> y = X[:, 0] + 0.5 * rng.normal(size=90) > 0
    >>> model = FederatedLogisticRegressionCV(rule="1se").fit(X, y, groups=np.arange(90) % 3)
    >>> np.flatnonzero(model.coef_)
    array([0])
    """

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Choose C and fit; see `FederatedLasso.fit`."""
        X, y = self._check(X, y)
        problem = self._problem(X, y, groups, sample_weight)
        weight = self._fit_cv(problem, self.l1_ratio, self._splits(X, y, groups))
        self.C_ = 1.0 / (weight * self._total)
        return self
