"""Softmax regression: rows with one score for each class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.arrays import in_order, wide
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.validation import Array, count, plain_array


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

    target_name = "y"
    separable = True
    curvatures = (0.0, 0.5)
    _several = True

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
        self.num_classes = count("SoftmaxRegression(num_classes)", num_classes, minimum=2)
        super().__init__(A, y, l2, sample_weight=sample_weight, intercept=intercept)
        self._give_columns(self.num_classes)

    def _checked(self, targets: Any) -> Array:
        if len(self.shape) != 1:
            raise ConfigError(
                f"SoftmaxRegression(A) must have shape (examples, features), got {self.A.shape}"
            )
        labels = self._match("y", plain_array("SoftmaxRegression(y)", targets))
        if labels.dtype.kind not in "iu":
            raise ConfigError(
                f"SoftmaxRegression(y) must hold integers, got {labels.dtype}: pass y.astype(int)"
            )
        outside = labels[(labels < 0) | (labels >= self.num_classes)]
        if outside.size:
            raise ConfigError(
                f"SoftmaxRegression(y) must be 0 to {self.num_classes - 1}, got {outside[0]}"
            )
        return labels.astype(np.intp)

    @property
    def y(self) -> Array:
        """The classes, shape (m,)."""
        return self.targets

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return log sum exp(s) - s_y."""
        shifted = scores - scores.max(axis=-2, keepdims=True)
        rows = np.arange(targets.shape[-1])
        if targets.ndim == 1:
            of_class = shifted[targets, rows]
        else:
            of_class = shifted[np.arange(len(targets))[:, None], targets, rows]
        losses: Array = np.log(np.exp(shifted).sum(axis=-2)) - of_class
        return losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return the classes' probabilities, minus 1 for the row's class."""
        is_class = np.arange(self.num_classes)[:, None] == targets[..., None, :]
        slopes: Array = _probabilities(scores) - is_class
        return slopes

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x; see `LogisticRegression.hessian`."""
        self._expect(x)
        p = _probabilities(self._scores(x, self.rows))
        shares = np.full(self.num_examples, self.scale / self.num_examples, self.dtype)
        if self.weights is not None:
            shares *= self.weights
        d, classes = self.shape
        hessian = np.empty((d, classes, d, classes), self.dtype)
        for k in range(classes):
            for j in range(k + 1):
                block = self._gram(p[k] * ((k == j) - p[j]) * shares, None)
                hessian[:, k, :, j] = hessian[:, j, :, k] = block
        flat = hessian.reshape(d * classes, d * classes)
        return self._add_l2(flat if columns is None else flat[np.ix_(columns, columns)], columns)

    def hessian_products(self, x: Array) -> Callable[[Array], Array]:
        """Return the map v -> H v; see `LogisticRegression.hessian_products`."""
        if x.shape != self.shape:
            self._expect(x)
        p = _probabilities(self._scores(x, self.rows))
        share = self.scale / p.shape[-1]
        counts = p * (wide(share, p) if self.clients else share)
        if self.weights is not None:
            counts = counts * self.weights[..., None, :]

        def product(v: Array) -> Array:
            changes = self._scores(v, self.rows)
            changes = (changes - (p * changes).sum(axis=-2, keepdims=True)) * counts
            if self.sparse:
                return self.ridged(self._pull(changes, self.rows), v)
            # Twice as fast as the rows' transpose times that of the changes.
            sums = np.matmul(changes, self.rows).swapaxes(-1, -2)
            return self.ridged(in_order(sums), v)

        return product


def _probabilities(scores: Array) -> Array:
    """Return the classes' probabilities, shape (..., classes, rows)."""
    powers = np.exp(scores - scores.max(axis=-2, keepdims=True))
    probabilities: Array = powers / powers.sum(axis=-2, keepdims=True)
    return probabilities
