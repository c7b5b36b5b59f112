"""Objectives with a linear gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.rows import LinearModel, pull
from flower_fedcon.validation import Array, float_array, positive


class LeastSquares(LinearModel):
    """scale * ||A x - b||^2 / (2 m), for m rows.

    Parameters
    ----------
    A : array of shape (m, *model shape), or sparse matrix
        With more than two axes this is trace regression: (A x)_i = <A_i, X>.
    b : array, shape (m,)
    scale : float
        > 0.
    sample_weight, intercept
        As for `LogisticRegression`.

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
    """

    def __init__(
        self,
        A: object,
        b: object,
        scale: float = 1.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        super().__init__(A, sample_weight=sample_weight, intercept=intercept)
        self.targets = self._match("b", float_array("LeastSquares(b)", b))
        self.scale = positive("LeastSquares(scale)", scale)
        self.dtype = np.result_type(self.rows, self.targets)
        self.rows = self.rows.astype(self.dtype, copy=False)
        self.targets = self.targets.astype(self.dtype, copy=False)

    @property
    def b(self) -> Array:
        """The targets, shape (m,)."""
        return self.targets

    # With fewer calls than the general form: for small data, calls cost as much as arithmetic.

    def value(self, x: Array) -> float:
        """Return f(x)."""
        if x.shape != self.shape:
            self._expect(x)
        scores: Array = self.rows.dot(x if x.ndim == 1 else x.reshape(-1))
        return self._loss(scores)

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x, in the shape of x."""
        if x.shape != self.shape:
            self._expect(x)
        rows = self.rows
        scores: Array = rows.dot(x if x.ndim == 1 else x.reshape(-1))
        return self._pull_back(scores, rows, self.targets, self.weights)

    def add_gradient(self, x: Array, out: Array, scale: float) -> None:
        """Add scale times the gradient at x to `out` in place; the factor adds no pass."""
        if x.shape != self.shape:
            self._expect(x)
        rows = self.rows
        scores: Array = rows.dot(x if x.ndim == 1 else x.reshape(-1))
        out += self._pull_back(scores, rows, self.targets, self.weights, scale)

    def pulled_gradient(self, x: Array, scale: float, center: Array, pull: float) -> Array:
        """Return scale times the gradient at x, plus pull (x - center)."""
        if x.shape != self.shape:
            self._expect(x)
        g: Array = x - center
        g *= pull
        rows = self.rows
        scores: Array = rows.dot(x if x.ndim == 1 else x.reshape(-1))
        g += self._pull_back(scores, rows, self.targets, self.weights, scale)
        return g

    def _loss(self, scores: Array) -> float:
        residual = scores - self.targets
        return 0.5 * self.scale / len(residual) * float(residual.dot(self._weighted(residual)))

    def _pull_back(
        self, scores: Array, rows: Any, targets: Array, weights: Array | None, scale: float = 1.0
    ) -> Array:
        m, d = rows.shape
        scores -= targets
        if weights is not None:
            scores *= weights
        # The factor multiplies the smaller of the two arrays.
        if m < d:
            scores *= scale * self.scale / m
        dense = isinstance(rows, np.ndarray)
        gradient: Array = scores.dot(rows) if dense else pull(scores, rows)
        if m >= d:
            gradient *= scale * self.scale / m
        return gradient if gradient.shape == self.shape else gradient.reshape(self.shape)

    def _slopes(self, scores: Array, targets: Array) -> Array:
        return self.scale * (scores - targets)

    def _curvatures(self, scores: Array) -> Array:
        return np.full(len(scores), self.scale, self.dtype)

    def _curvature(self) -> tuple[float, float]:
        top, bottom = self._singular_squares()
        factor = self.scale / self.num_examples
        return factor * top, factor * bottom


class Quadratic(Objective):
    """x'Qx / 2 - b'x.

    Parameters
    ----------
    Q : array, shape (d, d)
        Symmetric.
    b : array, shape (d,)

    Raises
    ------
    ConfigError
        If Q is not square or not symmetric, does not match b, or a value is not finite.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic(np.diag([1.0, 4.0]), np.array([1.0, 0.0]))
    >>> f.value(np.ones(2)), f.gradient(np.ones(2)), f.smoothness, f.strong_convexity
    (1.5, array([0., 4.]), 4.0, 1.0)
    """

    def __init__(self, Q: object, b: object) -> None:
        Q = float_array("Quadratic(Q)", Q, ndim=2)
        b = float_array("Quadratic(b)", b, ndim=1)
        if Q.size == 0 or Q.shape != (b.size, b.size):
            raise ConfigError(
                f"Quadratic needs Q of shape (d, d) and b of shape (d,), got {Q.shape}, {b.shape}"
            )
        gap = float(np.abs(Q - Q.T).max())
        if gap > 100 * np.finfo(Q.dtype).eps * float(np.abs(Q).max()):
            raise ConfigError(
                f"Quadratic(Q) is not symmetric (entries differ by up to {gap:.3g}): pass "
                "(Q + Q.T) / 2, which gives the same function"
            )
        self.dtype = np.result_type(Q, b)
        self.Q = Q.astype(self.dtype, copy=False)
        self.b = b.astype(self.dtype, copy=False)
        self.shape = self.b.shape

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return Q, or its rows and columns with these numbers."""
        return self.Q if columns is None else self.Q[np.ix_(columns, columns)]

    def value(self, x: Array) -> float:
        """Return f(x)."""
        self._expect(x)
        return float((0.5 * self.Q.dot(x) - self.b).dot(x))

    def gradient(self, x: Array) -> Array:
        """Return Q x - b."""
        self._expect(x)
        gradient: Array = self.Q.dot(x)
        gradient -= self.b
        return gradient

    def _expect(self, x: Array) -> None:
        if x.shape != self.shape:
            raise ConfigError(f"Quadratic takes x of shape {self.shape}, got {x.shape}")

    def _curvature(self) -> tuple[float, float]:
        # mu of a function that is not convex is reported as 0, L as the largest |eigenvalue|.
        eigenvalues = np.linalg.eigvalsh(self.Q.astype(np.float64, copy=False))
        return float(np.abs(eigenvalues).max()), max(float(eigenvalues[0]), 0.0)
