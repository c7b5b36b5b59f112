"""Losses of rows that have kinks: their gradients are subgradients, and L does not exist.

Both are Lipschitz: no slope is longer than 1. At a kink, 0 is taken, which is between the slopes of
the two sides. Second derivatives are 0 between the kinks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.objectives.losses import signs
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.validation import Array


class Kinked(LinearModel):
    """A loss that is linear between its kinks."""

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return zeros."""
        return np.zeros_like(scores)


class LeastAbsoluteDeviations(Kinked):
    """Mean of |<a_i, x> - b_i|, plus l2/2 ||x||^2: regression to conditional medians.

    It has no Lipschitz gradient: `smoothness` is None, and `gradient` returns a subgradient.

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
    b : array, shape (m,)
    l2 : float
        >= 0.
    sample_weight, intercept
        As for `LogisticRegression`.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match b, or a value is not finite.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastAbsoluteDeviations
    >>> f = LeastAbsoluteDeviations(np.array([[1.0], [2.0]]), np.array([3.0, 0.0]))
    >>> f.value(np.ones(1)), f.gradient(np.ones(1))
    (2.0, array([0.5]))
    """

    target_name = "b"

    def __init__(
        self,
        A: object,
        b: object,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, b, l2, sample_weight=sample_weight, intercept=intercept)

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return the sizes of the residuals."""
        losses: Array = np.abs(scores - targets)
        return losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return the signs of the residuals."""
        slopes: Array = np.sign(scores - targets)
        return slopes

    def usual_curvatures(self) -> Array:
        """Return 1 over the mean size of the targets, which are the residuals at 0."""
        sizes = np.abs(self.targets).mean(axis=-1, keepdims=True)
        curvatures: Array = 1.0 / np.where(sizes > 0, sizes, 1.0)
        return curvatures


class SupportVectorMachine(Kinked):
    """Mean of max(0, 1 - y_i <a_i, x>), plus l2/2 ||x||^2: the hinge loss of a linear classifier.

    It has no Lipschitz gradient: `smoothness` is None, and `gradient` returns a subgradient.

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
    y : array, shape (m,)
        Labels, -1 or +1.
    l2 : float
        >= 0.
    sample_weight, intercept
        As for `LogisticRegression`.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match y, a value is not finite, or a label is not -1 or +1.

    Examples
    --------
    >>> from flower_fedcon.objectives import SupportVectorMachine
    >>> f = SupportVectorMachine(np.array([[2.0], [0.5]]), np.array([1, -1]))
    >>> f.value(np.ones(1)), f.gradient(np.ones(1))
    (0.75, array([0.25]))
    """

    target_name = "y"

    def __init__(
        self,
        A: object,
        y: object,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, y, l2, sample_weight=sample_weight, intercept=intercept)

    def _checked(self, targets: Any) -> Array:
        return signs("SupportVectorMachine", super()._checked(targets))

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return max(0, 1 - y s)."""
        losses: Array = np.maximum(1.0 - targets * scores, 0.0)
        return losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return -y where y s < 1, else 0."""
        slopes: Array = np.where(targets * scores < 1.0, -targets, np.zeros_like(targets))
        return slopes

    def usual_curvatures(self) -> float:
        """Return 1/2: the loss falls by 1 from a score of 0 to the kink."""
        return 0.5
