"""Sparse rows of many clients, as one sparse matrix with a block for each client."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from flower_fedcon.objectives.client_axis import Which
from flower_fedcon.validation import Array


class SparseRows:
    """The rows of n clients, each with m rows of d entries that are mostly 0.

    Parameters
    ----------
    each : sequence of CSR matrix, shape (m, d)
        One for each client.
    """

    ndim = 3

    def __init__(self, each: Sequence[Any]) -> None:
        self.each = list(each)
        m, d = self.each[0].shape
        self.shape = (len(self.each), int(m), int(d))
        self.dtype = self.each[0].dtype

    def __len__(self) -> int:
        return len(self.each)

    @property
    def nnz(self) -> int:
        """The largest number of stored entries of a client."""
        return max(int(rows.nnz) for rows in self.each)

    def __getitem__(self, index: Any) -> SparseRows:
        """Return the rows of some clients, or some rows of some: see `LinearModel.part`."""
        if isinstance(index, tuple):
            chosen, rows = np.broadcast_arrays(*index)
            pairs = zip(chosen[:, 0].tolist(), rows, strict=True)
            return SparseRows([self.each[client][some] for client, some in pairs])
        return SparseRows(_some(self.each, index))

    @cached_property
    def _blocks(self) -> Any:
        """All rows, with separate columns for each client."""
        n, m, d = self.shape
        counts = np.array([rows.nnz for rows in self.each])
        wide = np.int64 if n * max(m, d) > np.iinfo(np.int32).max else np.int32
        columns = np.concatenate([rows.indices.astype(wide) for rows in self.each])
        columns += np.repeat(np.arange(n, dtype=wide) * d, counts)
        starts = np.concatenate([[0], *(rows.indptr[1:].astype(wide) for rows in self.each)])
        starts[1:] += np.repeat((np.cumsum(counts) - counts), m)
        data = np.concatenate([rows.data for rows in self.each])
        return csr_array((data, columns, starts), shape=(n * m, n * d))

    def scores(self, x: Array) -> Array:
        """Return each row's product with its client's x, shape (n, m, ...).

        Parameters
        ----------
        x : array, shape (n, d, ...), or (1, d, ...) for one point
        """
        n, m, d = self.shape
        models = np.broadcast_to(x, (n, *x.shape[1:]))
        products: Array = self._blocks.dot(models.reshape(n * d, *x.shape[2:]))
        return products.reshape(n, m, *x.shape[2:])

    def pull(self, weights: Array) -> Array:
        """Return the sum of each client's rows, each times its weights, of shape (n, m, ...)."""
        n, m, d = self.shape
        sums: Array = self._blocks.T.dot(weights.reshape(n * m, *weights.shape[2:]))
        return sums.reshape(n, d, *weights.shape[2:])


def _some(each: list[Any], which: Which) -> list[Any]:
    return each[which] if isinstance(which, slice) else [each[place] for place in which.tolist()]
