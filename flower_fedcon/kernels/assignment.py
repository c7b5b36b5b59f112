"""Assignment problems, compiled by numba: the vertices of the Birkhoff polytope.

Shortest augmenting paths after Crouse, "On implementing 2D rectangular assignment algorithms", IEEE
Transactions on Aerospace and Electronic Systems 52(4), 2016. SciPy solves them so, too: steps and
ties are taken in the same order, and the same of several solutions is found.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from flower_fedcon.kernels.jit import jit, renamed
from flower_fedcon.validation import Array


def assign(costs: Array, columns: Array) -> bool:
    """Write the columns, one for each row, whose entries have the least sum.

    Parameters
    ----------
    costs : array, shape (n, n)
    columns : array of int, shape (n,)

    Returns
    -------
    bool
        Whether they are found: the entries are finite, and so are the sums on the way.
    """
    n = len(costs)
    numbers = np.empty((6, n))  # one piece of memory, which costs as much as a row
    row_price, column_price, length = numbers[0], numbers[1], numbers[2]
    row_of, before = numbers[3].view(np.int64), numbers[4].view(np.int64)
    left = numbers[5].view(np.uintp)  # which are no negative indices, as the compiler can see
    entries, bad = costs.reshape(-1), 0
    for i in range(len(entries)):
        bad += not abs(entries[i]) < np.inf
    if bad:
        return False
    for i in range(n):
        row_price[i] = column_price[i] = 0.0
        row_of[i] = columns[i] = -1
    for start in range(n):  # one more row is assigned, by the shortest path to a free column
        row, first, reach = costs[start], 0, np.inf
        for j in range(n - 1, -1, -1):
            way = row[j] - column_price[j]
            length[j] = way
            if way < reach or (way == reach and row_of[j] < 0):
                first, reach = j, way
        if not reach < np.inf:
            return False
        if row_of[first] < 0:  # the path is one step
            row_price[start] += reach
            row_of[first], columns[start] = start, first
            continue
        for j in range(n):
            left[j], before[j] = n - 1 - j, start
        nearest, count = n - 1 - first, n
        while True:
            count -= 1  # the columns behind are done
            sink = left[nearest]
            left[nearest], left[count] = left[count], sink
            i = row_of[sink]
            if i < 0:
                break
            row, price, so_far, reach = costs[i], row_price[i], reach, np.inf
            for k in range(count):
                j = left[k]
                way = so_far + row[j] - price - column_price[j]
                if way < length[j]:
                    length[j], before[j] = way, i
                if length[j] < reach or (length[j] == reach and row_of[j] < 0):
                    nearest, reach = k, length[j]
            if not reach < np.inf:
                return False
        row_price[start] += reach
        for k in range(count, n):
            j = left[k]
            column_price[j] -= reach - length[j]
            if row_of[j] >= 0:
                row_price[row_of[j]] += reach - length[j]
        free, i = np.intp(sink), -1
        while i != start:
            i = before[free]
            row_of[free] = i
            columns[i], free = free, columns[i]
    return True


def assign_each(costs: Array, columns: Array) -> bool:
    """Do what `assign` does for several matrices, of shape (number, n, n), one after another."""
    found = True
    for i in range(len(costs)):
        found &= assign(costs[i], columns[i])
    return found


_floats = jit(renamed(assign, "floats"))
assign, assign_each = jit(assign), jit(assign_each)


@cache
def assign_floats() -> Any:
    """Return `assign` for contiguous matrices of floats alone.

    It raises TypeError, and compiles nothing, for all others: its caller need not look at each.
    """
    compiled: Any = _floats
    for number in (types.float64, types.float32):
        compiled.compile(
            (types.Array(number, 2, "C", readonly=True), types.Array(types.intp, 1, "C"))
        )
    compiled.disable_compile()
    return compiled
