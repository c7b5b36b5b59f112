"""Stripes: clients of a cohort send different entries, each entry the same number of times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from flower_fedcon.compressors.values import DType, Shape, Sparse
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, expect_array, expect_names


class Stripe(Sparse):
    """The entries of an array in one column of `Stripes`; on the wire, values and column number."""

    __slots__ = ("column",)

    def __init__(self, indices: Array, values: Array, shape: Shape, column: int) -> None:
        super().__init__(indices, values, shape)
        self.column = column

    def arrays(self) -> dict[str, Array]:
        """Return values and column, which determine the indices."""
        return {"values": self.values, "column": np.array(self.column, dtype=np.int32)}


class Stripes(NamedTuple):
    """A pattern of `cohort` columns in which every entry belongs to `copies` of them.

    Entry k belongs to the columns k s, ..., k s + s - 1 (mod c), with c = cohort and s = copies. If
    there are fewer than c/s entries, some columns hold none.

    >>> [Stripes(3, 2).indices(column, 3).tolist() for column in range(3)]
    [[0, 1], [0, 2], [1, 2]]
    """

    cohort: int
    copies: int

    def indices(self, column: int, size: int) -> Array:
        """Return the indices of a column, for an array of `size` entries, ascending.

        Raises
        ------
        ConfigError
            If there is no such column.
        """
        if not 0 <= column < self.cohort:
            raise ConfigError(f"'column' must be from 0 to {self.cohort - 1}, got {column}")
        return np.flatnonzero((column - self.copies * np.arange(size)) % self.cohort < self.copies)

    def pick(self, x: Array, column: int) -> Stripe:
        """Return the entries of x in a column."""
        indices = self.indices(column, x.size)
        return Stripe(indices, x.reshape(-1)[indices], x.shape, column)

    def decode(self, arrays: Mapping[str, Array], shape: Shape, dtype: DType) -> Stripe:
        """Return the stripe whose `arrays` came over the wire.

        Raises
        ------
        ConfigError
            If they do not belong to one of the columns.
        """
        expect_names(arrays, ("column", "values"))
        column = int(expect_array(arrays, "column", (), np.dtype(np.int32)))
        indices = self.indices(column, math.prod(shape))
        return Stripe(indices, expect_array(arrays, "values", indices.shape, dtype), shape, column)
