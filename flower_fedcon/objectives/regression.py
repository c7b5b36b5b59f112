"""Regression by other losses than the square: Huber's, and Poisson's for counts."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.rows import LinearModel, pull
from flower_fedcon.validation import Array, float_array, nonnegative, positive

# The score from which exp is continued linearly, so that sums of its squares are finite.
_LINEAR_FROM = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 200.0}


class ScoreLoss(LinearModel):
    """The mean over rows of w_i loss(<a_i, x>, b_i), plus l2/2 ||x||^2.

    A subclass defines the loss and its derivatives in the score, entry by entry, so that the same
    lines serve one client and a stack of them.
    """

    def __init__(
        self,
        A: object,
        b: object,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, sample_weight=sample_weight, intercept=intercept)
        name = type(self).__name__
        targets = self._match("b", float_array(f"{name}(b)", b))
        self.targets = targets.astype(self.dtype, copy=False)
        self.l2 = nonnegative(f"{name}(l2)", l2)

    @abstractmethod
    def losses(self, scores: Array, targets: Array) -> Array:
        """Return each row's loss."""

    @abstractmethod
    def slopes(self, scores: Array, targets: Array) -> Array:
        """Return the derivative of each row's loss in its score."""

    def _slopes(self, scores: Array, targets: Array) -> Array:
        return self.slopes(scores, targets)

    @property
    def parameters(self) -> tuple[float, ...]:
        """What the loss depends on besides score and target."""
        return ()

    def _losses(self, scores: Array, targets: Array) -> Array:
        return self.losses(scores, targets)

    def _pull_back(self, scores: Array, rows: Any, targets: Array, weights: Array | None) -> Array:
        slopes = self.slopes(scores, targets)
        slopes *= 1 / len(targets)
        if weights is not None:
            slopes *= weights
        return pull(slopes, rows).reshape(self.shape)


class HuberRegression(ScoreLoss):
    """Mean of h(<a_i, x> - b_i), plus l2/2 ||x||^2, with Huber's h.

    h(r) = r^2 / 2 for |r| <= delta, else delta (|r| - delta / 2).

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
    b : array, shape (m,)
    delta : float (default: 1.35)
        > 0, in the unit of b: larger residuals count linearly.
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
    >>> from flower_fedcon.objectives import HuberRegression
    >>> f = HuberRegression(np.array([[1.0], [1.0]]), np.array([0.5, 9.0]), delta=2.0)
    >>> f.value(np.zeros(1)), f.gradient(np.zeros(1)), f.smoothness
    (8.0625, array([-1.25]), 1.0)
    """

    def __init__(
        self,
        A: object,
        b: object,
        delta: float = 1.35,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, b, l2, sample_weight=sample_weight, intercept=intercept)
        self.delta = positive("HuberRegression(delta)", delta)

    @property
    def parameters(self) -> tuple[float, ...]:
        """Delta."""
        return (self.delta,)

    def losses(self, scores: Array, targets: Array) -> Array:
        """Return h of the residuals."""
        r = np.abs(scores - targets)
        inner = np.minimum(r, self.delta)
        result: Array = inner * (r - 0.5 * inner)
        return result

    def slopes(self, scores: Array, targets: Array) -> Array:
        """Return the residuals, clipped at delta."""
        result: Array = np.clip(scores - targets, -self.delta, self.delta)
        return result

    def _curvatures(self, scores: Array) -> Array:
        inner: Array = np.abs(scores - self.targets) <= self.delta
        return inner.astype(self.dtype)

    def _curvature(self) -> tuple[float, float]:
        return self._singular_squares()[0] / self.num_examples + self.l2, self._mu


class PoissonRegression(ScoreLoss):
    """Mean of exp(<a_i, x>) - y_i <a_i, x>, plus l2/2 ||x||^2: a log-linear model of counts.

    This is the negative log-likelihood without its constant. It has no Lipschitz gradient:
    `smoothness` is None. Beyond a score of 200 (40 in float32) exp is continued linearly.

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
    y : array, shape (m,)
        Counts (or rates), >= 0.
    l2 : float
        >= 0.
    sample_weight, intercept
        As for `LogisticRegression`. A row with an exposure e has the rate y/e and the weight e.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match y, a value is not finite, or a count is negative.

    Examples
    --------
    >>> from flower_fedcon.objectives import PoissonRegression
    >>> f = PoissonRegression(np.array([[1.0], [2.0]]), np.array([3, 0]))
    >>> f.value(np.zeros(1)), f.gradient(np.zeros(1)), f.hessian(np.zeros(1))
    (1.0, array([0.]), array([[2.5]]))
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
        super().__init__(A, y, l2, sample_weight=sample_weight, intercept=intercept)
        if self.targets.min() < 0:
            raise ConfigError(f"PoissonRegression(y) must be >= 0, got {self.targets.min():g}")

    @property
    def y(self) -> Array:
        """The counts, shape (m,)."""
        return self.targets

    def losses(self, scores: Array, targets: Array) -> Array:
        """Return exp(score) - y score."""
        beyond = np.maximum(scores - _LINEAR_FROM[scores.dtype], 0)
        result: Array = _exp(scores) * (1 + beyond) - targets * scores
        return result

    def slopes(self, scores: Array, targets: Array) -> Array:
        """Return exp(score) - y."""
        return _exp(scores) - targets

    def _curvatures(self, scores: Array) -> Array:
        return _exp(scores)

    def _curvature(self) -> tuple[None, float]:
        return None, self._mu


def _exp(scores: Array) -> Array:
    result: Array = np.exp(np.minimum(scores, _LINEAR_FROM[scores.dtype]))
    return result
