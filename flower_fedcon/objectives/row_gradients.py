"""Gradients of single rows, clipped and rounded to a grid, each from its own row alone.

What another row changes in one, be it a last bit that a library's order of sums decides, would move
the sum by more than that other row's own gradient. So scores are summed row by row in one order,
lengths are measured row by row, and sums are of whole numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.validation import Array

_AT_ONCE = 2**18  # numbers of a block of rows


def clipped_steps(objective: Any, x: Array, grid: Grid, rows: Array) -> Array:
    """Return the sum of some rows' gradients, each clipped and in whole steps of a grid.

    Parameters
    ----------
    objective : LinearModel
        Or what defines `clipped_sum(x, clip, rows)`, which is asked for one row at a time.
    x : array
    grid : Grid
    rows : array of int

    Returns
    -------
    array of int64, of x's size
    """
    total = np.zeros(x.size, np.int64)
    size = max(2, _AT_ONCE // max(1, x.size))
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        if not is_linear(objective):
            each = [
                objective.clipped_sum(x, grid.clip, block[i : i + 1]) for i in range(len(block))
            ]
            total += grid.steps(np.stack(each).reshape(len(block), -1)).sum(axis=0)
        elif objective.sparse:
            total += _sparse(objective, x, grid, block)
        else:
            slopes = np.atleast_2d(objective.row_slopes(x, block))
            data = objective.rows[block].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                each = data[:, :, None] * slopes.T[:, None, :]
            total += grid.steps(each.reshape(len(block), -1)).sum(axis=0)
    return total


def is_linear(objective: Any) -> bool:
    """Return whether rows' gradients are slopes times rows, as `LinearModel` has them."""
    kind = type(objective)
    return isinstance(objective, LinearModel) and kind.clipped_sum is LinearModel.clipped_sum


def _sparse(objective: LinearModel, x: Array, grid: Grid, block: Array) -> Array:
    """Return the sum of the steps of sparse rows, of which only entries that are there count."""
    from scipy.sparse import csr_array

    data = csr_array(objective.rows[block])
    counts = np.diff(data.indptr)
    slopes = np.atleast_2d(objective.row_slopes(x, block))
    with np.errstate(over="ignore", invalid="ignore"):
        values = data.data.astype(np.float64) * np.repeat(slopes, counts, axis=1)
    ones = np.ones(data.shape[1])

    def sums(squares: Array) -> Array:  # row by row, as the entries stand
        found = np.zeros(len(block))
        for each in squares:
            found += csr_array((each, data.indices, data.indptr), shape=data.shape) @ ones
        return found

    steps = grid.whole(
        values, sums, lambda row: np.repeat(row, counts)[None], math.prod(objective.shape)
    )
    columns = [
        csr_array((each, data.indices, data.indptr), shape=data.shape).sum(axis=0) for each in steps
    ]
    total: Array = np.stack(columns, axis=1).astype(np.int64).reshape(-1)
    return total
