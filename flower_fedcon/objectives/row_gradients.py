"""Gradients of single rows, clipped and rounded to a grid, each computed from its row alone.

If another row changed one of them, even in the last bit through a library's order of summation,
that row would move the sum by more than its own gradient. Scores are therefore summed row by row in
a fixed order, norms are computed row by row, and sums are of whole numbers.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flower_fedcon.errors import RefusedError
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.objectives.set_aside import is_ours, owner_of
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr")
_AT_ONCE = 2**18  # numbers of a block of rows
_OF_LINEAR = ("slope", "loss", "slopes_and_rows", "row_losses", "_apart", "_scores", "_expect")


def clipped_steps(objective: Any, x: Any, grid: Grid, rows: Array) -> Array:
    """Return the sum of some rows' gradients, each clipped and in whole steps of a grid.

    Parameters
    ----------
    objective : LinearModel
        Or an object with `row_gradients(x, rows)`, an array with a gradient for each row, or with
        `clipped_sum(x, clip, rows)`. A user's own method is called for one row at a time. A row at
        which it raises, or whose gradient is not finite, counts as 0.
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
    linear = is_linear(objective)
    if linear:
        objective._expect(x)  # no row's fault
    together = _takes_together(objective, "slope" if linear else "row_gradients")
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        if linear:
            if together:
                slopes, data = objective.slopes_and_rows(x, block)
            else:
                slopes, data = _own_slopes(objective, x, block), objective.rows[block]
            steps = _sparse if objective.sparse else _dense
            total += steps(np.atleast_2d(slopes), data, grid)
            continue
        if together:
            each = objective.row_gradients(x, block)
        else:
            each = _own_gradients(objective, x, grid.clip, block, entries)
        total += grid.steps(each).sum(axis=0)
    return total


def losses_of_rows(objective: Any, x: Any, rows: Array) -> Array:
    """Return the losses of some rows; NaN for a row at which a user's own objective raises."""
    linear = is_linear(objective)
    if _takes_together(objective, "loss" if linear else "row_losses"):
        return np.asarray(objective.row_losses(x, rows))
    losses = np.full(len(rows), np.nan)
    for i in range(len(rows)):
        with count_as_nothing():
            one, at = _alone(objective, rows[i]) if linear else (objective, rows[i : i + 1])
            losses[i] = one.row_losses(copy.deepcopy(x), at)[0]
    return losses


def _takes_together(objective: Any, name: str) -> bool:
    """Return whether a method treats each row of a batch independently of the others.

    This package's own classes do so. A user's function may mix rows, or raise at one of them.
    """
    kind = type(objective)
    names = {name, *(_OF_LINEAR if isinstance(objective, LinearModel) else ())}
    owners = [owner_of(kind, method) for method in names]
    beside = names & getattr(objective, "__dict__", {}).keys()  # overrides its class's
    return not beside and all(owner is not None and is_ours(owner) for owner in owners)


def _alone(objective: LinearModel, row: Any) -> tuple[LinearModel, Array]:
    """Return an objective that holds only one row, and the row's place in it."""
    return objective.subset(np.array([row])), np.zeros(1, np.intp)


def _own_slopes(objective: LinearModel, x: Array, rows: Array) -> Array:
    """Return the slopes of rows by a user's own loss, one row at a time: (scores, rows)."""
    slopes = np.full((np.size(x) // objective.rows.shape[-1], len(rows)), np.nan)
    for i in range(len(rows)):
        with count_as_nothing():
            one, at = _alone(objective, rows[i])
            slopes[:, i : i + 1] = one.slopes_and_rows(x.copy(), at)[0]
    return slopes


def _own_gradients(objective: Any, x: Any, clip: float, rows: Array, entries: int) -> Array:
    """Return gradients by a user's own objective, one row at a time: (rows, entries)."""
    gradients = np.full((len(rows), entries), np.nan)
    each = hasattr(type(objective), "row_gradients")
    for i in range(len(rows)):
        with count_as_nothing():
            at, one = copy.deepcopy(x), rows[i : i + 1]
            gradients[i] = _flat(
                objective.row_gradients(at, one) if each else objective.clipped_sum(at, clip, one)
            )
    return gradients


@contextmanager
def count_as_nothing() -> Iterator[None]:
    """Continue if a row's gradient or loss raises, and log the type of the error.

    An error that reached the server would reveal something of that row, without noise.
    """
    try:
        yield
    except RefusedError:  # caused by the request, not by a row
        raise
    except Exception as error:
        _log.warning("a row does not count, since its loss raises %s", type(error).__name__)


def _flat(gradient: Any) -> Array:
    """Return a gradient, or one in layers, as a vector."""
    layers = gradient if isinstance(gradient, list | tuple) else [gradient]
    return np.concatenate([np.reshape(layer, -1) for layer in layers])


def is_linear(objective: Any) -> bool:
    """Return whether rows' gradients are slopes times rows, as in `LinearModel`."""
    kind = type(objective)
    return isinstance(objective, LinearModel) and kind.clipped_sum is LinearModel.clipped_sum


def _dense(slopes: Array, data: Array, grid: Grid) -> Array:
    """Return the sum of the steps of rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        each = data.astype(np.float64)[:, :, None] * slopes.T[:, None, :]
    total: Array = grid.steps(each.reshape(len(data), -1)).sum(axis=0)
    return total


def _sparse(slopes: Array, rows: Any, grid: Grid) -> Array:
    """Return the sum of the steps of sparse rows, over stored entries only."""
    from scipy.sparse import csr_array

    data = csr_array(rows)
    counts = np.diff(data.indptr)
    with np.errstate(over="ignore", invalid="ignore"):
        values = data.data.astype(np.float64) * np.repeat(slopes, counts, axis=1)
    ones = np.ones(data.shape[1])

    def sums(squares: Array) -> Array:  # row by row, in the order of the entries
        by_row = np.zeros(data.shape[0])
        for each in squares:
            by_row += csr_array((each, data.indices, data.indptr), shape=data.shape) @ ones
        return by_row

    steps = grid.whole(
        values, sums, lambda row: np.repeat(row, counts)[None], data.shape[1] * len(slopes)
    )
    columns = [
        csr_array((each, data.indices, data.indptr), shape=data.shape).sum(axis=0) for each in steps
    ]
    total: Array = np.stack(columns, axis=1).astype(np.int64).reshape(-1)
    return total
