"""A loss of rows whose scores have an offset: a known part that is not fitted."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.rows import LinearModel, is_sparse
from flower_fedcon.validation import Array, float_array


class WithOffset(Objective):
    """x -> f of the scores <a_i, x> + offset_i.

    The loss f has the offsets as its last column before an intercept. Their coefficient is fixed at
    1 and is not an entry of x. All methods of a loss, second derivatives included, therefore work
    with an offset.

    Parameters
    ----------
    kind : callable
        Makes the loss of rows: `lambda A: PoissonRegression(A, y, intercept=True)`, say.
    A : array of shape (m, features), or sparse matrix
    offset : array, shape (m,)
        The offsets; for a model with a log link, the log of an exposure, say.

    Raises
    ------
    ConfigError
        If an offset is not finite, or their number is not that of the rows.

    Examples
    --------
    >>> from flower_fedcon.objectives import PoissonRegression, WithOffset
    >>> A, y, years = np.array([[1.0], [1.0]]), np.array([2.0, 6.0]), np.array([1.0, 3.0])
    >>> f = WithOffset(lambda rows: PoissonRegression(rows, y), A, np.log(years))
    >>> f.gradient(np.log([2.0])).round(12), f.hessian(np.log([2.0]))
    (array([0.]), array([[4.]]))
    """

    clusters: Array | None = None
    """The cluster of each row, as `LinearModel` has them."""

    def __init__(self, kind: Any, A: Any, offset: object) -> None:
        given = float_array("offset", offset)
        if given.shape != (A.shape[0],):
            raise ConfigError(
                f"offset must have one value for each of {A.shape[0]} rows, got shape {given.shape}"
            )
        if is_sparse(A):
            from scipy import sparse

            rows = sparse.hstack([A, given[:, None]], format="csr")
        else:
            rows = np.concatenate([np.asarray(A), given[:, None]], axis=1)
        self.loss: LinearModel = kind(rows)
        if len(self.loss.shape) != 1:
            raise ConfigError("an offset is for models of one score a row")
        self._place = A.shape[1]
        self._keep()

    def _keep(self) -> None:
        inner = self.loss
        self.shape, self.dtype = (inner.shape[0] - 1,), inner.dtype
        self.num_examples, self.total_weight = inner.num_examples, inner.total_weight
        self.separable = type(inner).separable
        self.entries = np.delete(np.arange(inner.shape[0]), self._place)

    @property
    def targets(self) -> Array:
        """The targets of the rows."""
        return self.loss.targets

    @property
    def weights(self) -> Array | None:
        """The weights of the rows, with mean 1; None if all are 1."""
        return self.loss.weights

    @property
    def offset(self) -> Array:
        """The offsets, in the order of the loss's rows."""
        column = self.loss.rows[:, [self._place]]
        offsets: Array = (column.toarray() if self.loss.sparse else np.asarray(column)).reshape(-1)
        return offsets

    def full(self, x: Array) -> Array:
        """Return the model of the loss: x, with 1 for the offset."""
        return np.insert(x, self._place, 1.0)

    def value(self, x: Array) -> float:
        """Return f(x)."""
        return float(self.loss.value(self.full(x)))

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x."""
        derivatives: Array = self.loss.gradient(self.full(x))[self.entries]
        return derivatives

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return f(x) and the gradient at x."""
        value, gradient = self.loss.value_and_gradient(self.full(x))
        return float(value), gradient[self.entries]

    def batch_gradient(self, x: Array, rows: Array) -> Array:
        """Return the gradient of the mean over `rows` only."""
        derivatives: Array = self.loss.batch_gradient(self.full(x), rows)[self.entries]
        return derivatives

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x; see `LogisticRegression.hessian`."""
        kept = self.entries if columns is None else self.entries[columns]
        return self.loss.hessian(self.full(x), kept)

    def entry_curvatures(self) -> Array:
        """Return the approximate curvature along each entry."""
        return self.loss.entry_curvatures()[self.entries]

    def subset(self, rows: Array) -> Self:
        """Return the same function on some rows (integers): a fold of the data."""
        part = object.__new__(type(self))
        part.loss, part._place = self.loss.subset(rows), self._place
        part._keep()
        return part

    def _curvature(self) -> tuple[float | None, float | None]:
        return self.loss.smoothness, 0.0  # of all columns, an upper bound without the offset's


__all__ = ["WithOffset"]
