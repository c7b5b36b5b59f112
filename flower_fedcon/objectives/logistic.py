"""Logistic regression with two classes, and softmax regression with many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.rows import LinearModel, pull
from flower_fedcon.validation import Array, count, float_array, nonnegative


class LogisticRegression(LinearModel):
    """Mean of log(1 + exp(-y_i <a_i, x>)), plus l2/2 ||x||^2.

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
        The dtype of A is the objective's. A SciPy sparse matrix is kept as CSR.
    y : array, shape (m,)
        Labels, -1 or +1.
    l2 : float
        >= 0.
    sample_weight : array, shape (m,), optional
        Weights >= 0 of the rows, of any positive sum: the mean is then the weighted one.
    intercept : bool (default: False)
        Give the model one entry more, the last, that is added to all scores; l2 leaves it free.
        `WithIntercept` does the same for a regularizer.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match y, a value is not finite, or a label is not -1 or +1.

    Examples
    --------
    >>> from flower_fedcon.objectives import LogisticRegression
    >>> f = LogisticRegression(np.array([[1.0], [2.0]]), np.array([1, -1]))
    >>> round(f.value(np.zeros(1)), 6), f.gradient(np.zeros(1))
    (0.693147, array([0.25]))
    >>> f.smoothness
    0.625
    """

    def __init__(
        self,
        A: object,
        y: object,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, sample_weight=sample_weight, intercept=intercept)
        labels = self._match("y", float_array("LogisticRegression(y)", y))
        wrong = labels[np.abs(labels) != 1]
        if wrong.size:
            zero_one = bool(np.isin(labels, (0, 1)).all())
            raise ConfigError(
                f"LogisticRegression(y) must be -1 or +1, got {wrong[0]:g}"
                + (": pass 2 * y - 1 for labels 0 and 1" if zero_one else "")
            )
        self.targets = labels.astype(self.dtype, copy=False)
        self.l2 = nonnegative("LogisticRegression(l2)", l2)

    @property
    def y(self) -> Array:
        """The labels, shape (m,)."""
        return self.targets

    def _losses(self, scores: Array, targets: Array) -> Array:
        losses: Array = np.logaddexp(0, -targets * scores)
        return losses

    def _pull_back(self, scores: Array, rows: Any, targets: Array, weights: Array | None) -> Array:
        # -y / (1 + exp(y t)) = (tanh(t/2) - y) / 2, which cannot overflow.
        scores *= 0.5
        np.tanh(scores, out=scores)
        scores -= targets
        scores *= 0.5 / len(targets)
        if weights is not None:
            scores *= weights
        return pull(scores, rows).reshape(self.shape)

    def _slopes(self, scores: Array, targets: Array) -> Array:
        return 0.5 * (np.tanh(0.5 * scores) - targets)

    def _curvatures(self, scores: Array) -> Array:
        tanh = np.tanh(0.5 * scores)
        return 0.25 * (1.0 - tanh * tanh)

    def hessian_products(self, x: Array) -> Callable[[Array], Array]:
        """Return the map v -> H v of the second derivatives at x, for v in the shape of x."""
        self._expect(x)
        curvatures = self._weighted(self._curvatures(self._scores(x, self.rows)))
        curvatures /= self.num_examples

        def product(v: Array) -> Array:
            changes = self._scores(v, self.rows)
            changes *= curvatures
            return self._add_ridge(self._pull(changes, self.rows), v)

        return product

    def _curvature(self) -> tuple[float, float]:
        return self._singular_squares()[0] / (4 * self.num_examples) + self.l2, self._mu


class SoftmaxRegression(LinearModel):
    """Mean cross-entropy of the logits A X, plus l2/2 ||X||^2.

    Parameters
    ----------
    A : array of shape (m, features), or sparse matrix
        The dtype of A is the objective's.
    y : array of int, shape (m,)
        Classes, 0 to num_classes - 1.
    num_classes : int
        >= 2. X has shape (features, num_classes).
    l2 : float
        >= 0.
    sample_weight, intercept
        As for `LogisticRegression`; the intercepts are a last row of X.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match y, a value is not finite, or a class is out of range.

    Examples
    --------
    >>> from flower_fedcon.objectives import SoftmaxRegression
    >>> f = SoftmaxRegression(np.array([[1.0], [2.0]]), np.array([0, 1]), num_classes=2)
    >>> f.shape, round(f.value(np.zeros((1, 2))), 6), f.gradient(np.zeros((1, 2)))
    ((1, 2), 0.693147, array([[ 0.25, -0.25]]))
    """

    def __init__(
        self,
        A: object,
        y: object,
        num_classes: int,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, sample_weight=sample_weight, intercept=intercept)
        if len(self.shape) != 1:
            raise ConfigError(
                f"SoftmaxRegression(A) must have shape (examples, features), got {self.A.shape}"
            )
        self.num_classes = count("SoftmaxRegression(num_classes)", num_classes, minimum=2)
        labels = self._match("y", np.asarray(y))
        if labels.dtype.kind not in "iu":
            raise ConfigError(
                f"SoftmaxRegression(y) must hold integers, got {labels.dtype}: pass y.astype(int)"
            )
        outside = labels[(labels < 0) | (labels >= self.num_classes)]
        if outside.size:
            raise ConfigError(
                f"SoftmaxRegression(y) must be 0 to {self.num_classes - 1}, got {outside[0]}"
            )
        self.targets = labels.astype(np.intp)
        self.shape = (self.shape[0], self.num_classes)
        self.l2 = nonnegative("SoftmaxRegression(l2)", l2)

    @property
    def y(self) -> Array:
        """The classes, shape (m,)."""
        return self.targets

    # Scores have shape (classes, rows), so that sums over the classes read memory in order.

    def _scores(self, x: Array, rows: Any) -> Array:
        scores: Array = rows.dot(x).T if self.sparse else x.T.dot(rows.T)
        return scores

    def _losses(self, scores: Array, targets: Array) -> Array:
        shifted = scores - scores.max(axis=0)
        own = shifted[targets, np.arange(len(targets))]
        losses: Array = np.log(np.exp(shifted).sum(axis=0)) - own
        return losses

    def _pull_back(self, scores: Array, rows: Any, targets: Array, weights: Array | None) -> Array:
        m = len(targets)
        scores = _probabilities(scores)
        scores[targets, np.arange(m)] -= 1
        scores *= 1 / m
        if weights is not None:
            scores *= weights
        gradient: Array = rows.T.dot(scores.T)
        return gradient

    def _slopes(self, scores: Array, targets: Array) -> Array:
        slopes = _probabilities(scores)
        slopes[targets, np.arange(len(targets))] -= 1
        return slopes

    def _pull(self, slopes: Array, rows: Any) -> Array:
        gradient: Array = rows.T.dot(slopes.T)
        return gradient

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x; see `LogisticRegression.hessian`."""
        self._expect(x)
        p = _probabilities(self._scores(x, self.rows))
        d, classes = self.shape
        hessian = np.empty((d, classes, d, classes), self.dtype)
        for k in range(classes):
            for j in range(k + 1):
                curvatures = p[k] * ((k == j) - p[j]) / self.num_examples
                block = self._gram(self._weighted(curvatures), None)
                hessian[:, k, :, j] = hessian[:, j, :, k] = block
        flat = hessian.reshape(d * classes, d * classes)
        return self._add_l2(flat if columns is None else flat[np.ix_(columns, columns)], columns)

    def hessian_products(self, x: Array) -> Callable[[Array], Array]:
        """Return the map v -> H v; see `LogisticRegression.hessian_products`."""
        self._expect(x)
        p = _probabilities(self._scores(x, self.rows))
        weights = self._weighted(p) / self.num_examples

        def product(v: Array) -> Array:
            changes = self._scores(v, self.rows)
            changes -= np.einsum("ij,ij->j", p, changes)
            changes *= weights
            if self.sparse:
                return self._add_ridge(self._pull(changes, self.rows), v)
            # Twice as fast as the transpose of the rows times that of the changes.
            return self._add_ridge(np.ascontiguousarray(changes.dot(self.rows).T), v)

        return product

    def _curvature(self) -> tuple[float, float]:
        return self._singular_squares()[0] / (2 * self.num_examples) + self.l2, self._mu


def _probabilities(scores: Array) -> Array:
    """Return the classes' probabilities, shape (classes, rows); overwrites the scores."""
    scores -= scores.max(axis=0)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=0)
    return scores
