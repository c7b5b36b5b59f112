"""Projections onto simplices and l1 balls, compiled by numba. See `kernels.oracles`."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.kernels.jit import jit
from flower_fedcon.validation import Array


def _sum_of_sizes(x: Array) -> float:
    """Return the sum of |x_j|, in any order: infinite or not a number if an entry is so."""
    total = 0.0
    for j in range(len(x)):
        total += abs(x[j])
    return total


def _largest(x: Array) -> Any:
    """Return the largest of finite entries."""
    found = x[0]
    for j in range(len(x)):
        found = x[j] if x[j] > found else found
    return found


def below_largest(models: Array, radius: float, ball: bool, below: Array, outside: Array) -> int:
    """Write how far the entries, or their sizes, lie below the largest of each row.

    `outside` tells which rows are to be projected; for a ball, those whose sizes sum to more than
    the radius.

    Returns
    -------
    int
        The number of those rows, or -1 if entries are not finite, or such a sum may be the radius,
        but for rounding.
    """
    d, found = models.shape[1], 0
    margin = (d + 8) * np.finfo(models.dtype).eps
    for i in range(len(models)):
        x = models[i]
        total = _sum_of_sizes(x)
        if not total < np.inf or (ball and abs(total - radius) <= margin * total):
            return -1
        outside[i] = not ball or total > radius
        if outside[i]:
            found += 1
            if ball:
                for j in range(d):
                    below[i, j] = abs(x[j])
            else:
                below[i] = x
            largest = _largest(below[i])
            for j in range(d):
                below[i, j] -= largest
    return found


def simplex(
    models: Array, below: Array, ordered: Array, radius: float, ball: bool, outside: Array,
    out: Array,
) -> None:  # fmt: skip
    """Write the projections onto the simplex, or the l1 ball; see `sets.simplex`.

    Parameters
    ----------
    models, out : array, shape (n, d)
    below, outside
        See `below_largest`.
    ordered : array, shape (n, d)
        `below`, in increasing order.
    """
    d, number = models.shape[1], models.dtype.type
    for i in range(len(models)):
        if not outside[i]:
            out[i] = models[i]
            continue
        total, active = 0.0, 0
        for k in range(d):
            total += ordered[i, d - 1 - k]
            active += np.float64(ordered[i, d - 1 - k]) * (k + 1.0) > total - radius
        active, total = max(active, 1), 0.0
        for k in range(active):
            total += ordered[i, d - 1 - k]
        level = number((total - radius) / active)
        for j in range(d):
            left = below[i, j] - level
            left = left if left > 0 else number(0)
            if ball:  # without -0
                out[i, j] = -left if models[i, j] < 0 and left > 0 else left
            else:
                out[i, j] = left


# How these go over entries is left to the compiler: a test is all that follows from the sum.
_sum_of_sizes = jit(_sum_of_sizes, fastmath={"reassoc"})
_largest = jit(_largest, fastmath={"nnan", "nsz", "reassoc"})
below_largest, simplex = jit(below_largest), jit(simplex)
