"""Quantiles over all nodes, from counts in intervals that end at round numbers.

Two exchanges count rows in about a thousand intervals each. In the first the intervals go from ten
standard deviations below the mean to ten above; in the second they go from the 1 % to the 99 %
quantile found by the first. A node sends how many of its rows lie in each interval. If its policy
has `min_rows` or `min_cell`, it first divides its sorted values into groups of this size (the last
group takes the rest), and counts each group at its mean. Its answers therefore reveal only means of
groups, whatever the intervals and the number of requests.

A quantile is the smallest end of an interval with at least that share of the values at or below it.
It is a round number, accurate to a thousandth of the values' spread, and not a value of a row.
Without groups it does not depend on the division of rows among nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flower_fedcon.tables.small_cells import effective_rows
from flower_fedcon.validation import Array

INTERVALS = 2500
"""The number of interval ends for each column; one more interval holds larger values."""
_REACH = 10.0  # standard deviations: at most one row in a hundred lies beyond
_TAILS = 0.01
_SLACK = 1e-9  # of a share of rows


def first_ends(mean: float, spread: float) -> Array:
    """Return the ends of the first exchange's intervals."""
    reach = _REACH * (spread or 1.0)
    return round_ends(mean - reach, mean + reach)


def round_ends(low: float, high: float) -> Array:
    """Return round numbers that cover an interval, shape (INTERVALS,).

    >>> round_ends(0.0, 1.0)[[0, 1, 1000]].tolist()
    [-0.001, 0.0, 0.999]
    """
    span = max(high - low, 1e-12 * max(abs(low), abs(high), 1e-290)) / (0.39 * INTERVALS)
    power = math.floor(math.log10(span))
    digit = next(d for d in (5, 2, 1) if d * 10.0**power <= span * (1 + 1e-9))
    first = math.floor(low / (digit * 10.0**power)) - 1
    places = (first + np.arange(INTERVALS, dtype=np.float64)) * digit
    # A quotient of whole numbers equals the float read from its decimals.
    ends: Array = places / 10.0**-power if power < 0 else places * 10.0**power
    return ends


def told_counts(values: Array, ends: Array, least: int, weights: Array | None = None) -> Array:
    """Return a node's rows in each interval, shape (INTERVALS + 1,), in groups of at least `least`.

    Parameters
    ----------
    values, ends : array
    least : int
    weights : array, optional
        By which the rows of a group count; see `tables.small_cells`.

    Examples
    --------
    >>> ends = np.arange(1.0, INTERVALS + 1)
    >>> told_counts(np.array([0.5, 3.0, 3.5, 9.0]), ends, 1)[:10].astype(int).tolist()
    [1, 0, 1, 1, 0, 0, 0, 0, 1, 0]
    >>> told_counts(np.array([0.5, 9.0, 3.5, 3.0, 8.0]), ends, 2)[:10].astype(int).tolist()
    [0, 2, 0, 0, 0, 0, 3, 0, 0, 0]
    """
    order = np.argsort(values, kind="stable")
    values = values[order]
    groups = len(values) // least
    starts = least * np.arange(groups)
    if weights is not None and least > 1:
        starts = _starts(weights[order], least)
    if not len(starts):
        return np.zeros(len(ends) + 1)
    sizes = np.diff(starts, append=len(values)).astype(np.float64)
    means = values if least == 1 else np.add.reduceat(values, starts) / sizes
    places = np.searchsorted(ends, means, side="left")
    return np.bincount(places, sizes, minlength=len(ends) + 1)


def _starts(weights: Array, least: int) -> Array:
    """Return where groups of rows begin, which count as `least` or more each by their weights."""
    starts, first = [0], 0
    for end in range(1, len(weights) + 1):
        if effective_rows(weights, np.arange(first, end)) >= least:
            first = end
            starts.append(first)
    return np.array(starts[:-1], dtype=np.intp)


def quantiles(counts: Array, ends: Array, shares: Sequence[float]) -> list[float]:
    """Return the quantiles of these shares; see the module.

    >>> ends = np.arange(1.0, INTERVALS + 1)
    >>> counts = told_counts(np.array([2.0, 3.0, 3.0, 9.0]), ends, 1)
    >>> quantiles(counts, ends, [0.1, 0.5, 0.9])
    [2.0, 3.0, 9.0]
    """
    below = np.cumsum(counts)
    wanted = np.array(shares) * below[-1] * (1.0 - _SLACK)
    places = np.minimum(np.searchsorted(below, wanted, side="left"), len(ends) - 1)
    values: list[float] = ends[places].tolist()
    return values


def second_ends(counts: Array, ends: Array) -> Array:
    """Return the ends of the second exchange's intervals."""
    low, high = quantiles(counts, ends, [_TAILS, 1.0 - _TAILS])
    step = float(ends[1] - ends[0])
    return round_ends(low - step, high)
