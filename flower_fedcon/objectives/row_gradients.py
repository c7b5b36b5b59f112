"""Gradients of single rows, clipped and rounded to a grid, each from its own row alone.

What another row changes in one, be it a last bit that a library's order of sums decides, would move
the sum by more than that other row's own gradient. So scores are summed row by row in one order,
lengths are measured row by row, and sums are of whole numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flower_fedcon.errors import RefusedError
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr")
_AT_ONCE = 2**18  # numbers of a block of rows


def clipped_steps(objective: Any, x: Any, grid: Grid, rows: Array) -> Array:
    """Return the sum of some rows' gradients, each clipped and in whole steps of a grid.

    Parameters
    ----------
    objective : LinearModel
        Or what defines `row_gradients(x, rows)`, an array of a gradient for each row; or what
        defines `clipped_sum(x, clip, rows)`, which is asked for one row at a time.
    x : array, or list of arrays
        In the objective's form.
    grid : Grid
    rows : array of int

    Returns
    -------
    array of int64, of x's size, flattened
    """
    entries = sum(int(np.size(layer)) for layer in (x if isinstance(x, list) else [x]))
    total = np.zeros(entries, np.int64)
    size = max(2, _AT_ONCE // max(1, entries))
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        if is_linear(objective):
            slopes, data = objective.slopes_and_rows(x, block)
            steps = _sparse if objective.sparse else _dense
            total += steps(np.atleast_2d(slopes), data, grid)
            continue
        if hasattr(type(objective), "row_gradients"):
            each = objective.row_gradients(x, block)
        else:
            each = np.full((len(block), entries), np.nan)
            for i in range(len(block)):
                with count_as_nothing():
                    each[i] = _flat(objective.clipped_sum(x, grid.clip, block[i : i + 1]))
        total += grid.steps(each).sum(axis=0)
    return total


def losses_of_rows(objective: Any, x: Any, rows: Array) -> Array:
    """Return the losses of some rows; NaN for a row for which an objective of your own raises."""
    if is_linear(objective) or hasattr(type(objective), "row_gradients"):
        return np.asarray(objective.row_losses(x, rows))
    found = np.full(len(rows), np.nan)
    for i in range(len(rows)):
        with count_as_nothing():
            found[i] = objective.row_losses(x, rows[i : i + 1])[0]
    return found


@contextmanager
def count_as_nothing() -> Iterator[None]:
    """Go on where a row's gradient or loss raises, and log of which type the error was.

    An error that reached the server would tell of that row, without noise.
    """
    try:
        yield
    except RefusedError:  # of the request, and of no row
        raise
    except Exception as error:
        _log.warning("a row does not count, since its loss raises %s", type(error).__name__)


def _flat(gradient: Any) -> Array:
    """Return a gradient, or one in layers, as a vector."""
    layers = gradient if isinstance(gradient, list | tuple) else [gradient]
    return np.concatenate([np.reshape(layer, -1) for layer in layers])


def is_linear(objective: Any) -> bool:
    """Return whether rows' gradients are slopes times rows, as `LinearModel` has them."""
    kind = type(objective)
    return isinstance(objective, LinearModel) and kind.clipped_sum is LinearModel.clipped_sum


def _dense(slopes: Array, data: Array, grid: Grid) -> Array:
    """Return the sum of the steps of rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        each = data.astype(np.float64)[:, :, None] * slopes.T[:, None, :]
    total: Array = grid.steps(each.reshape(len(data), -1)).sum(axis=0)
    return total


def _sparse(slopes: Array, rows: Any, grid: Grid) -> Array:
    """Return the sum of the steps of sparse rows, of which only entries that are there count."""
    from scipy.sparse import csr_array

    data = csr_array(rows)
    counts = np.diff(data.indptr)
    with np.errstate(over="ignore", invalid="ignore"):
        values = data.data.astype(np.float64) * np.repeat(slopes, counts, axis=1)
    ones = np.ones(data.shape[1])

    def sums(squares: Array) -> Array:  # row by row, as the entries stand
        found = np.zeros(data.shape[0])
        for each in squares:
            found += csr_array((each, data.indices, data.indptr), shape=data.shape) @ ones
        return found

    steps = grid.whole(
        values, sums, lambda row: np.repeat(row, counts)[None], data.shape[1] * len(slopes)
    )
    columns = [
        csr_array((each, data.indices, data.indptr), shape=data.shape).sum(axis=0) for each in steps
    ]
    total: Array = np.stack(columns, axis=1).astype(np.int64).reshape(-1)
    return total
