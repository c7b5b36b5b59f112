"""Sums over the rows at risk at each of many times, for rows that enter and leave."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.validation import Array


class RiskSets:
    """Which rows are at risk at which of K times: each at those from `first` up to `end`.

    Times are divided into blocks of 1, 2, 4, ... of them, and a row's times are a few blocks. So a
    sum over a risk set is a sum of blocks, and never a difference of sums, which would lose the
    digits of a small risk set beside rows of large risks that have left.

    Parameters
    ----------
    first, end : array of int, shape (m,)
        A row is at risk at the times first, ..., end - 1; at none if end <= first.
    times : int
        K.

    Examples
    --------
    >>> sets = RiskSets(np.array([0, 0, 1]), np.array([1, 3, 3]), 3)
    >>> sets.sums(np.array([1.0, 10.0, 100.0])), sets.met(np.array([1.0, 10.0, 100.0]))
    (array([ 11., 110., 110.]), array([  1., 111., 110.]))
    """

    def __init__(self, first: Array, end: Array, times: int) -> None:
        levels = max(times - 1, 0).bit_length()
        size, rows = 1 << levels, np.flatnonzero(end > first)
        left, right = first[rows] + size, end[rows] + size
        blocks, members = [], []
        while rows.size:
            for odd, block in ((left & 1 == 1, left), (right & 1 == 1, right - 1)):
                blocks.append(block[odd])
                members.append(rows[odd])
            left, right = (left + 1) >> 1, right >> 1
            going = left < right
            rows, left, right = rows[going], left[going], right[going]
        self._blocks = _members(blocks, members, (2 * size, len(first)))
        leaves = np.arange(times)
        above = [(leaves + size) >> level for level in range(levels + 1)]
        self._above = _members([leaves] * len(above), above, (times, 2 * size))

    def sums(self, values: Array) -> Array:
        """Return, for each time, the sum of the values of the rows at risk, shape (K, ...)."""
        sums: Array = self._above @ (self._blocks @ values)
        return sums

    def met(self, values: Array) -> Array:
        """Return, for each row, the sum of the values of its times, shape (m, ...)."""
        sums: Array = self._blocks.T @ (self._above.T @ values)
        return sums


def _members(rows: list[Array], columns: list[Array], shape: tuple[int, int]) -> Any:
    from scipy import sparse

    place = [np.concatenate([np.empty(0, np.intp), *part]) for part in (rows, columns)]
    return sparse.csr_array((np.ones(len(place[0])), tuple(place)), shape=shape)
