"""Quadratic functions by their matrices."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from flower_fedcon.arrays import dot, times
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.client_axis import Stackable, Which, scaled_together
from flower_fedcon.validation import Array, float_array


class Quadratic(Objective, Stackable):
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

    def stack_key(self) -> Hashable | None:
        """Return what the clients of one stack share."""
        return (self.shape, self.dtype) if type(self) is Quadratic else None

    @classmethod
    def along_axis(cls, objectives: Sequence[Self], factors: Sequence[float]) -> Self:
        """Return objectives, each times its factor, as one for all clients."""
        whole = copy.copy(objectives[0])
        whole.__dict__.pop("_constants", None)
        whole.Q = scaled_together([f.Q for f in objectives], factors)
        whole.b = scaled_together([f.b for f in objectives], factors)
        return whole

    def part(self, which: Which) -> Self:
        """Return some of the clients."""
        part = copy.copy(self)
        part.Q, part.b = self.Q[which], self.b[which]
        return part

    @property
    def numbers_each(self) -> int:
        """The number of entries in a client's data."""
        return int(self.b.shape[-1] ** 2)

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return Q, or its rows and columns with these numbers."""
        return self.Q if columns is None else self.Q[np.ix_(columns, columns)]

    def entry_curvatures(self) -> Array:
        """Return the absolute diagonal of Q."""
        return np.abs(np.diag(self.Q))

    def usual_sizes(self) -> tuple[Any, Any]:
        """Return the norm of b, and the trace of |Q|; of each client."""
        diagonal = np.abs(np.diagonal(self.Q, axis1=-2, axis2=-1))
        return np.sqrt(np.square(self.b).sum(axis=-1)), diagonal.sum(axis=-1)

    def value(self, x: Array) -> Any:
        """Return f(x)."""
        self._expect(x)
        return dot(0.5 * times(self.Q, x) - self.b, x, 1)

    def gradient(self, x: Array) -> Array:
        """Return Q x - b."""
        self._expect(x)
        gradient: Array = times(self.Q, x) - self.b
        return gradient

    def value_and_gradient(self, x: Array) -> tuple[Any, Array]:
        """Return both, from one product with the matrix unless a subclass overrides them."""
        if type(self) is not Quadratic:
            return super().value_and_gradient(x)
        self._expect(x)
        product = times(self.Q, x)
        return dot(0.5 * product - self.b, x, 1), product - self.b

    def _expect(self, x: Array) -> None:
        if x.shape != self.shape and x.shape != self.b.shape:
            raise ConfigError(f"Quadratic takes x of shape {self.shape}, got {x.shape}")

    def _curvature(self) -> tuple[float, float]:
        # mu of a function that is not convex is reported as 0, L as the largest |eigenvalue|.
        eigenvalues = np.linalg.eigvalsh(self.Q.astype(np.float64, copy=False))
        return float(np.abs(eigenvalues).max()), max(float(eigenvalues[0]), 0.0)
