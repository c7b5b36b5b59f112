"""The quadratic assignment problem, relaxed to matrices."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from flower_fedcon.arrays import dot
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.client_axis import Stackable, Which, scaled_together
from flower_fedcon.validation import Array, float_array, plain_array


class QuadraticAssignment(Objective, Stackable):
    """f(X) = sum over the client's entries (i, j) of X_ij (A X B')_ij.

    If the clients partition the entries, their f sum to trace(A X B' X'). f is not convex, and
    states no smoothness.

    Parameters
    ----------
    A, B : arrays, shape (q, q)
    entries : array of int, shape (k, 2), optional
        The pairs (i, j), each at most once; by default all.

    Raises
    ------
    ConfigError
        If A and B are not square and of one shape, or a pair is out of range or occurs twice.

    Examples
    --------
    >>> from flower_fedcon.objectives import QuadraticAssignment
    >>> f = QuadraticAssignment([[0.0, 1.0], [1.0, 0.0]], [[0.0, 2.0], [2.0, 0.0]])
    >>> f.value(np.eye(2)), f.value(np.full((2, 2), 0.5))
    (4.0, 2.0)
    >>> f.gradient(np.eye(2))
    array([[4., 0.],
           [0., 4.]])
    """

    convex = False

    def __init__(self, A: object, B: object, entries: object = None) -> None:
        name = type(self).__name__
        self.A = float_array(f"{name}(A)", A, ndim=2)
        self.B = float_array(f"{name}(B)", B, ndim=2)
        size = len(self.A)
        if size == 0 or not self.A.shape == self.B.shape == (size, size):
            raise ConfigError(
                f"{name} needs square A and B of one shape, got {self.A.shape}, {self.B.shape}"
            )
        self.shape = (size, size)
        self.dtype = np.result_type(self.A, self.B)
        self.A = self.A.astype(self.dtype, copy=False)
        self.B = self.B.astype(self.dtype, copy=False)
        if entries is None:
            entries = np.argwhere(np.ones(self.shape))
        pairs = plain_array(f"{name}(entries)", entries)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu" or not len(pairs):
            raise ConfigError(f"{name}(entries) must be pairs of integers, shape (k, 2), k >= 1")
        if pairs.min() < 0 or pairs.max() >= size:
            raise ConfigError(f"{name}(entries) must be 0 to {size - 1}, got {pairs.tolist()}")
        self.entries = pairs.astype(np.intp)
        self._i, self._j = self.entries.T
        if len(np.unique(self._i * size + self._j)) < len(pairs):
            raise ConfigError(f"{name}(entries) holds a pair twice")
        self.num_examples = len(pairs)
        # Few entries need only their rows of A and B; for many, the whole product is faster.
        self._few = len(pairs) <= size
        self._A, self._B = self.A[self._i], self.B[self._j]

    def stack_key(self) -> Hashable | None:
        """Return what the clients of one stack share; None for many entries, see `__init__`."""
        if type(self) is not QuadraticAssignment or not self._few:
            return None
        return self.shape, self.dtype, self.num_examples

    @classmethod
    def along_axis(cls, objectives: Sequence[Self], factors: Sequence[float]) -> Self:
        """Return objectives, each times its factor, as one for all clients."""
        whole = copy.copy(objectives[0])
        whole._i, whole._j = (np.stack([getattr(f, n) for f in objectives]) for n in ("_i", "_j"))
        whole._A = scaled_together([f._A for f in objectives], factors)
        whole._B = np.stack([f._B for f in objectives])
        return whole

    def part(self, which: Which) -> Self:
        """Return some of the clients."""
        part = copy.copy(self)
        part._i, part._j = self._i[which], self._j[which]
        part._A, part._B = self._A[which], self._B[which]
        return part

    @property
    def numbers_each(self) -> int:
        """The number of entries in a client's data."""
        return 2 * int(self._A.shape[-1] * self._A.shape[-2])

    def _at(self, x: Array) -> Any:
        """Return the index of the client's entries of x."""
        if x.ndim == 2:
            return self._i, self._j
        return np.arange(len(x))[:, None], self._i, self._j

    def _products(self, x: Array) -> Array:
        """Return (A X B')_ij at the entries."""
        if x.shape[-2:] != self.shape or x.ndim > self._A.ndim:
            raise ConfigError(f"QuadraticAssignment takes x of shape {self.shape}, got {x.shape}")
        if self._few:
            products: Array = (np.matmul(self._A, x) * self._B).sum(axis=-1)
        else:
            products = (self.A @ x @ self.B.T)[self._i, self._j]
        return products

    def value(self, x: Array) -> Any:
        """Return f(x)."""
        return dot(self._products(x), x[self._at(x)], 1)

    def gradient(self, x: Array) -> Array:
        """Return M o (A X B') + A' (M o X) B, for M = 1 at the entries and 0 elsewhere."""
        products, entries = self._products(x), x[self._at(x)]
        if self._few:
            gradient: Array = np.matmul(self._A.swapaxes(-1, -2), entries[..., None] * self._B)
        else:
            masked = np.zeros_like(x)
            masked[self._i, self._j] = entries
            gradient = self.A.T @ masked @ self.B
        gradient[self._at(gradient)] += products
        return gradient
