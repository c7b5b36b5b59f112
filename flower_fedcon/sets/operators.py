"""Matrices kept as sums and products of smaller ones, for linear minimisation oracles."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array


class MatrixOperator:
    """The matrix sparse + dense + left right', kept as its parts.

    Operators and dense matrices can be added, subtracted, multiplied and divided by numbers.

    Parameters
    ----------
    shape : tuple of int
        (m, n).
    rows, cols, values : arrays of shape (k,), optional
        The sparse part; entries that occur twice add up.
    dense : array of shape (m, n), optional
    left, right : arrays of shape (m, r) and (n, r), optional

    Examples
    --------
    >>> operator = MatrixOperator((2, 2), rows=[0], cols=[1], values=[3.0]) + np.eye(2)
    >>> (2 * operator).to_dense()
    array([[2., 6.],
           [0., 2.]])
    >>> operator.dot(np.array([1.0, 1.0])), operator.transposed_dot(np.array([1.0, 0.0]))
    (array([4., 1.]), array([1., 3.]))
    """

    __array_ufunc__ = None  # NumPy arrays leave the operations to this class

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        rows: Any = (),
        cols: Any = (),
        values: Any = (),
        dense: Array | None = None,
        left: Array | None = None,
        right: Array | None = None,
    ) -> None:
        self.shape = shape
        self.rows, self.cols = np.asarray(rows, dtype=np.intp), np.asarray(cols, dtype=np.intp)
        self.values: Array = np.asarray(values, dtype=np.float64)
        self.dense_part = dense
        self.left, self.right = left, right
        m, n = shape
        if not self.rows.shape == self.cols.shape == self.values.shape:
            raise ConfigError("MatrixOperator needs rows, cols and values of one length")
        if self.rows.size and not (
            0 <= self.rows.min() <= self.rows.max() < m
            and 0 <= self.cols.min() <= self.cols.max() < n
        ):
            raise ConfigError(f"MatrixOperator has an entry outside its shape {shape}")
        if dense is not None and dense.shape != shape:
            raise ConfigError(f"MatrixOperator of shape {shape} has a dense part {dense.shape}")
        if (left is None) != (right is None):
            raise ConfigError("MatrixOperator needs both left and right, or neither")
        if (
            left is not None
            and right is not None
            and (left.shape != (m, left.shape[-1]) or right.shape != (n, left.shape[-1]))
        ):
            raise ConfigError(
                f"MatrixOperator of shape {shape} has the factors {left.shape}, {right.shape}"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries, float64."""
        return np.dtype(np.float64)

    @cached_property
    def _sparse(self) -> tuple[Any, Any]:
        from scipy.sparse import csr_array  # slow to import

        matrix = csr_array((self.values, (self.rows, self.cols)), shape=self.shape)
        return matrix, csr_array(matrix.T)

    def dot(self, v: Array) -> Array:
        """Return the product with a vector of n entries."""
        return self._product(v, 0)

    def transposed_dot(self, u: Array) -> Array:
        """Return the transposed matrix's product with a vector of m entries."""
        return self._product(u, 1)

    def _product(self, v: Array, side: int) -> Array:
        out: Array = self._sparse[side] @ v if self.rows.size else np.zeros(self.shape[side])
        if self.dense_part is not None:
            out = out + (self.dense_part.T if side else self.dense_part) @ v
        if self.left is not None and self.right is not None:
            left, right = (self.right, self.left) if side else (self.left, self.right)
            out = out + left @ (right.T @ v)
        return out

    def to_dense(self) -> Array:
        """Return the matrix."""
        out = np.zeros(self.shape)
        np.add.at(out, (self.rows, self.cols), self.values)
        if self.dense_part is not None:
            out += self.dense_part
        if self.left is not None and self.right is not None:
            out += self.left @ self.right.T
        return out

    def bound(self) -> float:
        """Return a bound on the entries of each part, to scale by; 0 for a zero matrix."""
        total = np.abs(self.values).max(initial=0.0)
        if self.dense_part is not None:
            total = np.maximum(total, np.abs(self.dense_part).max())  # propagates NaN
        if self.left is not None and self.right is not None:
            product = np.abs(self.left).max(axis=0, initial=0.0)
            product = product * np.abs(self.right).max(axis=0, initial=0.0)
            total = np.maximum(total, product.sum())
        return float(total)

    def __add__(self, other: Any) -> MatrixOperator:
        if isinstance(other, np.ndarray):
            other = MatrixOperator(self.shape, dense=other)
        if not isinstance(other, MatrixOperator):
            return NotImplemented
        if other.shape != self.shape:
            raise ConfigError(f"operators of shapes {self.shape} and {other.shape} cannot be added")
        parts = [p for p in (self.dense_part, other.dense_part) if p is not None]
        left = [p for p in (self.left, other.left) if p is not None]
        right = [p for p in (self.right, other.right) if p is not None]
        return MatrixOperator(
            self.shape,
            rows=np.concatenate([self.rows, other.rows]),
            cols=np.concatenate([self.cols, other.cols]),
            values=np.concatenate([self.values, other.values]),
            dense=sum(parts[1:], parts[0]) if parts else None,
            left=np.hstack(left) if left else None,
            right=np.hstack(right) if right else None,
        )

    __radd__ = __add__

    def __mul__(self, factor: float) -> MatrixOperator:
        return MatrixOperator(
            self.shape,
            rows=self.rows,
            cols=self.cols,
            values=factor * self.values,
            dense=None if self.dense_part is None else factor * self.dense_part,
            left=None if self.left is None else factor * self.left,
            right=self.right,
        )

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> MatrixOperator:
        return self * (1.0 / divisor)

    def __neg__(self) -> MatrixOperator:
        return self * -1.0

    def __sub__(self, other: Any) -> MatrixOperator:
        return self.__add__(-other)

    def __repr__(self) -> str:
        return f"<MatrixOperator: {self.shape}, {self.values.size} sparse entries>"
