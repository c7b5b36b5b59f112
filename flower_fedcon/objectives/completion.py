"""Matrix completion: squared errors at the observed entries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective, places_of_rows
from flower_fedcon.sets.operators import MatrixOperator
from flower_fedcon.validation import Array, count, float_array, plain_array, positive


class MatrixCompletion(Objective):
    """scale * sum over observed (i, j) of (X_ij - Y_ij)^2.

    Parameters
    ----------
    rows, cols : arrays of int, shape (k,)
        The observed entries, counted from 0. An entry that occurs twice counts twice.
    values : array, shape (k,)
        Y_ij. Its dtype is the objective's.
    shape : tuple of int
        (m, n), the shape of X.
    scale : float
        > 0.

    Raises
    ------
    ConfigError
        If the three arrays differ in length or are empty, an index is outside the shape, or a
        value is not finite.

    Examples
    --------
    >>> from flower_fedcon.objectives import MatrixCompletion
    >>> f = MatrixCompletion([0, 1], [1, 0], [3.0, -1.0], shape=(2, 2))
    >>> f.value(np.zeros((2, 2)))
    10.0
    >>> f.gradient(np.zeros((2, 2))) + 0.0
    array([[ 0., -6.],
           [ 2.,  0.]])
    >>> f.gradient_operator(np.zeros((2, 2))).dot(np.ones(2))
    array([-6.,  2.])
    """

    def __init__(
        self,
        rows: object,
        cols: object,
        values: object,
        shape: Sequence[int],
        scale: float = 1.0,
    ) -> None:
        name = type(self).__name__
        if not isinstance(shape, list | tuple) or len(shape) != 2:
            raise ConfigError(f"{name}(shape) must be (rows, columns), got {shape!r}")
        m, n = (count(f"{name}(shape)", length) for length in shape)
        self.shape = (m, n)
        self.values = float_array(f"{name}(values)", values, ndim=1)
        self.rows = _indices(f"{name}(rows)", rows, m)
        self.cols = _indices(f"{name}(cols)", cols, n)
        if not self.rows.size == self.cols.size == self.values.size or not self.values.size:
            raise ConfigError(
                f"{name} needs rows, cols and values of one length >= 1, got {self.rows.size}, "
                f"{self.cols.size}, {self.values.size}"
            )
        self.scale = positive(f"{name}(scale)", scale)
        self.dtype = self.values.dtype
        self.num_examples = self.values.size
        self._flat = self.rows * n + self.cols

    def residual(self, x: Array) -> Array:
        """Return X_ij - Y_ij at the observed entries, shape (k,)."""
        if x.shape != self.shape:
            raise ConfigError(f"MatrixCompletion takes x of shape {self.shape}, got {x.shape}")
        residual: Array = x[self.rows, self.cols] - self.values
        return residual

    def rmse(self, x: Array) -> float:
        """Return the root mean square of the residual."""
        residual = self.residual(x)
        return float(np.sqrt(residual.dot(residual) / residual.size))

    def value(self, x: Array) -> float:
        """Return f(x)."""
        residual = self.residual(x)
        return self.scale * float(residual.dot(residual))

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x, a dense array."""
        return self._spread(2.0 * self.scale * self.residual(x), self._flat)

    def add_gradient(self, x: Array, out: Array, scale: float) -> None:
        """Add scale times the gradient at x to `out` in place, at the observed entries only.

        Parameters
        ----------
        x, out : arrays of `shape`
        scale : float
        """
        residual = self.residual(x)
        residual *= 2.0 * self.scale * scale
        np.add.at(out, (self.rows, self.cols), residual)  # an entry that occurs twice counts twice

    def gradient_operator(self, x: Array) -> MatrixOperator:
        """Return the gradient at x as a sparse operator: k numbers, whatever the shape."""
        return MatrixOperator(
            (self.shape[0], self.shape[1]),
            rows=self.rows,
            cols=self.cols,
            values=2.0 * self.scale * self.residual(x),
        )

    def batch_gradient(self, x: Array, rows: Array) -> Array:
        """Return k times the gradient at x of the mean over some of the k observations."""
        rows = places_of_rows(rows)
        factor = 2.0 * self.scale * self.num_examples / rows.size
        residual = x[self.rows[rows], self.cols[rows]] - self.values[rows]
        return self._spread(factor * residual, self._flat[rows])

    def _spread(self, values: Array, flat: Array) -> Array:
        size = self.shape[0] * self.shape[1]
        dense = np.bincount(flat, weights=values, minlength=size)
        return dense.astype(values.dtype, copy=False).reshape(self.shape)

    def _curvature(self) -> tuple[float, float]:
        times = np.unique(self._flat, return_counts=True)[1]
        everywhere = times.size == self.shape[0] * self.shape[1]
        least = float(times.min()) if everywhere else 0.0
        return 2.0 * self.scale * float(times.max()), 2.0 * self.scale * least


def _indices(name: str, value: object, length: int) -> Array:
    array = plain_array(name, value)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigError(f"{name} must be a one-dimensional array of integers")
    if array.size and not (array.min() >= 0 and array.max() < length):
        raise ConfigError(
            f"{name} must be from 0 to {length - 1}, got {array.min()} to {array.max()}: subtract "
            f"1 if indices count from 1"
        )
    return array.astype(np.intp)
