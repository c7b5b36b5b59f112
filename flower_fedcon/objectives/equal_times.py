"""Times that are equal up to rounding are tied, as in R's survival (its `timefix`).

Sums of 0.1, or days divided by 365.25, differ in their last digits where the times meant are one.
Times whose distance is at most sqrt(eps) = 1.5e-8 times the mean of the distinct times are one
time, the earliest of them; R also takes an absolute distance of 1.5e-8 for none, which depends on
the unit.
"""

from __future__ import annotations

import numpy as np

from flower_fedcon.validation import Array

_TOLERANCE = float(np.sqrt(np.finfo(np.float64).eps))


def tied_times(times: Array) -> Array:
    """Return times, of which those equal up to rounding have become equal.

    Examples
    --------
    >>> tied_times(np.array([0.1 + 0.2, 0.3, 1.0])).tolist()
    [0.3, 0.3, 1.0]
    """
    distinct, place = np.unique(times, return_inverse=True)
    if len(distinct) < 2:
        return times
    first = np.diff(distinct, prepend=-np.inf) > _TOLERANCE * float(np.abs(distinct).mean())
    return times if first.all() else distinct[first][np.cumsum(first)[place] - 1]


def on_grid(times: Array, grid: Array) -> Array:
    """Return times, of which those equal to a point of a grid up to rounding are at this point.

    Parameters
    ----------
    times : array, shape (rows,)
    grid : array, shape (points,)
        Ascending.

    Examples
    --------
    >>> on_grid(np.array([0.1 + 0.2, 0.35]), np.array([0.1, 0.2, 0.3])).tolist()
    [0.3, 0.35]
    """
    if not (len(times) and len(grid)):
        return times
    after = np.minimum(np.searchsorted(grid, times), len(grid) - 1)
    before = np.maximum(after - 1, 0)
    near = np.where(times - grid[before] < grid[after] - times, before, after)
    close = np.abs(times - grid[near]) <= _TOLERANCE * float(np.abs(np.unique(times)).mean())
    return np.where(close, grid[near], times)
