"""Losses with one score a row: each is three functions of scores and targets, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.arrays import dot
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.validation import Array, float_array, positive

# Beyond this score exp is continued linearly, so that sums of its squares are finite.
_LINEAR_FROM = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 200.0}


class LeastSquares(LinearModel):
    """scale * ||A x - b||^2 / (2 m), for m rows, plus l2/2 ||x||^2.

    With several outputs of each row it is scale * ||A X - B||_F^2 / (2 m) plus l2/2 ||X||_F^2, for
    a matrix X with a column for each output.

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
        With more than two axes this is trace regression: (A x)_i = <A_i, X>.
    b : array, shape (m,) or (m, outputs)
        With two axes X has shape (features, outputs), and A has two axes, too.
    scale : float
        > 0, the factor of the squares; l2 is not multiplied by it.
    l2 : float
        >= 0.
    sample_weight, intercept
        As for `LogisticRegression`; the intercepts of several outputs are a last row of X.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match b, or a value is not finite.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastSquares
    >>> f = LeastSquares(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([1.0, 2.0]))
    >>> f.value(np.zeros(2)), f.gradient(np.zeros(2))
    (1.25, array([-0.5, -2. ]))
    >>> f.smoothness, f.strong_convexity
    (2.0, 0.5)

    Two outputs of each row, and l2:

    >>> B = np.array([[1.0, 3.0], [2.0, 4.0]])
    >>> f = LeastSquares(np.array([[1.0, 0.0], [0.0, 2.0]]), B, l2=0.5)
    >>> f.shape, f.value(np.zeros((2, 2))), f.gradient(np.zeros((2, 2)))
    ((2, 2), 7.5, array([[-0.5, -1.5],
           [-2. , -4. ]]))
    >>> f.smoothness, f.strong_convexity
    (2.5, 1.0)
    """

    target_name = "b"
    curvatures = (1.0, 1.0)

    def __init__(
        self,
        A: object,
        b: object,
        scale: float = 1.0,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, b, l2, sample_weight=sample_weight, intercept=intercept)
        self.scale = positive("LeastSquares(scale)", scale)
        if self.targets.ndim > 1:
            self._several = True
            self._give_columns(self.targets.shape[1])

    def _checked(self, targets: Any) -> Array:
        b = float_array("LeastSquares(b)", targets)
        if b.ndim != 2:
            b = self._match("b", b)
        elif len(self.shape) != 1:
            raise ConfigError(
                f"LeastSquares: several outputs b of shape {b.shape} need A of shape (examples, "
                f"features), got {self.A.shape}"
            )
        elif len(b) != self.num_examples or not b.size:
            raise ConfigError(
                f"LeastSquares: A has {self.num_examples} rows, so b must have shape "
                f"({self.num_examples},) or ({self.num_examples}, outputs), got {b.shape}"
            )
        self.dtype = np.result_type(self.rows, b)
        self.rows = self.rows.astype(self.dtype, copy=False)
        return b.astype(self.dtype, copy=False)

    @property
    def b(self) -> Array:
        """The targets, shape (m,) or (m, outputs)."""
        return self.targets

    # With several outputs scores have shape (..., outputs, rows), targets (..., rows, outputs).

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return half the squares of the residuals, summed over outputs."""
        if self._several:
            targets = targets.swapaxes(-1, -2)
        residuals = scores - targets
        losses: Array = 0.5 * residuals * residuals
        return losses.sum(axis=-2) if self._several else losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return the residuals."""
        return scores - (targets.swapaxes(-1, -2) if self._several else targets)

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return ones."""
        return np.ones_like(scores)

    def _mean(self, scores: Array) -> Any:
        """Return the mean of `loss`, by one product."""
        several, weights = self._several, self.weights
        residuals = scores - (self.targets.swapaxes(-1, -2) if several else self.targets)
        if weights is not None and several:
            weights = weights[..., None, :]
        weighted = residuals if weights is None else weights * residuals
        if self.clients is not None:
            sums = dot(residuals, weighted, 2 if several else 1)
        else:
            sums = float(np.vdot(residuals, weighted) if several else residuals.dot(weighted))
        return 0.5 * self.scale / scores.shape[-1] * sums


def signs(title: str, labels: Array) -> Array:
    """Return labels that are all -1 or +1.

    Raises
    ------
    ConfigError
    """
    wrong = labels[np.abs(labels) != 1]
    if wrong.size:
        zero_one = bool(np.isin(labels, (0, 1)).all())
        raise ConfigError(
            f"{title}(y) must be -1 or +1, got {wrong[0]:g}"
            + (": pass 2 * y - 1 for labels 0 and 1" if zero_one else "")
        )
    return labels


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
        Give the model one more entry, the last, which is added to all scores; l2 leaves it free.
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

    target_name = "y"
    separable = True
    curvatures = (0.0, 0.25)

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
        return signs("LogisticRegression", super()._checked(targets))

    @property
    def y(self) -> Array:
        """The labels, shape (m,)."""
        return self.targets

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return log(1 + exp(-y s))."""
        losses: Array = np.logaddexp(0, -targets * scores)
        return losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return -y / (1 + exp(y s)) = (tanh(s/2) - y) / 2, which cannot overflow."""
        return 0.5 * (np.tanh(0.5 * scores) - targets)

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return (1 - tanh(s/2)^2) / 4."""
        tanh = np.tanh(0.5 * scores)
        return 0.25 * (1.0 - tanh * tanh)

    def hessian_products(self, x: Array) -> Callable[[Array], Array]:
        """Return the map v -> H v of the second derivatives at x, for v in the shape of x."""
        return self.second_derivatives(x)


class HuberRegression(LinearModel):
    """Mean of h(<a_i, x> - b_i), plus l2/2 ||x||^2, with Huber's h.

    h(r) = r^2 / 2 for |r| <= delta, else delta (|r| - delta / 2).

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
    b : array, shape (m,)
    delta : float (default: 1.35)
        > 0, in the unit of b. Larger residuals count linearly.
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

    target_name = "b"
    curvatures = (0.0, 1.0)

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

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return h of the residuals."""
        r = np.abs(scores - targets)
        inner = np.minimum(r, self.delta)
        losses: Array = inner * (r - 0.5 * inner)
        return losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return the residuals, clipped at delta."""
        slopes: Array = np.minimum(np.maximum(scores - targets, -self.delta), self.delta)
        return slopes

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return 1 where a residual counts by its square, else 0."""
        inner: Array = np.abs(scores - targets) <= self.delta
        return inner.astype(scores.dtype)


class PoissonRegression(LinearModel):
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

    target_name = "y"
    separable = True

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
        counts = super()._checked(targets)
        if counts.min() < 0:
            raise ConfigError(f"PoissonRegression(y) must be >= 0, got {counts.min():g}")
        return counts

    @property
    def y(self) -> Array:
        """The counts, shape (m,)."""
        return self.targets

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return exp(score) - y score."""
        beyond = np.maximum(scores - _LINEAR_FROM[scores.dtype], 0)
        losses: Array = _exp(scores) * (1 + beyond) - targets * scores
        return losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return exp(score) - y."""
        return _exp(scores) - targets

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return exp(score)."""
        return _exp(scores)

    def usual_curvatures(self) -> Array:
        """Return the counts, averaged with their mean: an estimate of exp(score) at a fit."""
        w = self.targets if self.weights is None else self.weights * self.targets
        curvatures: Array = 0.5 * (self.targets + w.mean(axis=-1, keepdims=True))
        return curvatures


class GammaRegression(LinearModel):
    """Mean of y_i exp(-<a_i, x>) + <a_i, x>, plus l2/2 ||x||^2: a log-linear model of amounts.

    This is the negative log-likelihood of gamma distributions with means exp(<a_i, x>), divided by
    their common shape and without its constant. It has no Lipschitz gradient: `smoothness` is None.
    Below a score of -200 (-40 in float32) exp is continued linearly.

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
    y : array, shape (m,)
        Amounts > 0: costs, durations.
    l2 : float
        >= 0.
    sample_weight, intercept
        As for `LogisticRegression`.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match y, a value is not finite, or an amount is not > 0.

    Examples
    --------
    >>> from flower_fedcon.objectives import GammaRegression
    >>> f = GammaRegression(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]))
    >>> f.value(np.zeros(1)), f.gradient(np.zeros(1)), f.hessian(np.zeros(1))
    (2.0, array([-1.]), array([[2.]]))
    """

    target_name = "y"

    def _checked(self, targets: Any) -> Array:
        amounts = super()._checked(targets)
        if amounts.min() <= 0:
            raise ConfigError(
                f"GammaRegression(y) must be > 0, got {amounts.min():g}: model zeros separately "
                f"(LogisticRegression for y > 0), or use PoissonRegression"
            )
        return amounts

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return y exp(-score) + score."""
        beyond = np.maximum(-scores - _LINEAR_FROM[scores.dtype], 0)
        losses: Array = targets * _exp(-scores) * (1 + beyond) + scores
        return losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return 1 - y exp(-score)."""
        slopes: Array = 1.0 - targets * _exp(-scores)
        return slopes

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return y exp(-score)."""
        curvatures: Array = targets * _exp(-scores)
        return curvatures

    def usual_curvatures(self) -> float:
        """Return 1, the average of y exp(-score) at a fit."""
        return 1.0


class NegativeBinomialRegression(LinearModel):
    """A model of counts of variance mu + alpha mu^2, mu = exp(<a_i, x>), for a known alpha.

    Mean of (y_i + 1/alpha) log(1 + alpha exp(<a_i, x>)) - y_i <a_i, x>, plus l2/2 ||x||^2: the
    negative log-likelihood (NB2) without terms that do not depend on x. `WithDispersion` estimates
    alpha, too.

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
    y : array, shape (m,)
        Counts >= 0.
    alpha : float (default: 1.0)
        > 0.
    l2 : float
        >= 0.
    sample_weight, intercept
        As for `LogisticRegression`.

    Raises
    ------
    ConfigError
        If A is empty, its rows do not match y, a value is not finite, or a count is negative.

    Examples
    --------
    >>> from flower_fedcon.objectives import NegativeBinomialRegression
    >>> f = NegativeBinomialRegression(np.array([[1.0], [2.0]]), np.array([3, 0]))
    >>> f.gradient(np.zeros(1)), f.hessian(np.zeros(1))
    (array([0.]), array([[1.]]))
    """

    target_name = "y"
    separable = True

    def __init__(
        self,
        A: object,
        y: object,
        alpha: float = 1.0,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, y, l2, sample_weight=sample_weight, intercept=intercept)
        self.alpha = positive("NegativeBinomialRegression(alpha)", alpha)

    def _checked(self, targets: Any) -> Array:
        counts = super()._checked(targets)
        if counts.min() < 0:
            raise ConfigError(f"NegativeBinomialRegression(y) must be >= 0, got {counts.min():g}")
        return counts

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return (y + 1/alpha) log(1 + alpha exp(score)) - y score."""
        a = self.alpha
        logs = np.logaddexp(0.0, scores + np.log(a))
        losses: Array = (targets + 1.0 / a) * logs - targets * scores
        return losses

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return (y + 1/alpha) p - y, p = alpha mu / (1 + alpha mu)."""
        a = self.alpha
        p = np.exp(-np.logaddexp(0.0, -scores - np.log(a)))  # accurate for small p
        slopes: Array = (targets + 1.0 / a) * p - targets
        return slopes

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return (y + 1/alpha) p (1 - p)."""
        a = self.alpha
        z = scores + np.log(a)
        both = np.exp(-np.logaddexp(0.0, z) - np.logaddexp(0.0, -z))  # p (1 - p)
        curvatures: Array = (targets + 1.0 / a) * both
        return curvatures


def _exp(scores: Array) -> Array:
    result: Array = np.exp(np.minimum(scores, _LINEAR_FROM[scores.dtype]))
    return result
