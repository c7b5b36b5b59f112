"""A site's message on its rows' times: events and rows at risk in intervals of a shared grid.

Interval k of a grid g_1 < ... < g_K is (g_(k-1), g_k]; the first one begins at time 0. Its events
count at g_k. Its number at risk is chosen so that 1 - events / at risk is the site's own
Kaplan-Meier estimate over the interval, and is rounded to a whole number. It is the number at the
interval's start minus some of the rows censored in it (without events, minus all rows censored
before g_k). If the grid has every event's time, the counts are those of the rows themselves.
Without censoring, or with one site up to rounding, the estimate is exact at the points of any grid.

Small cells do not leave the site. An interval with fewer than `min_rows` rows at risk, or with
fewer events (but not 0), is merged with the next ones until both are large enough. Counts that are
still too small at the grid's end are not sent: these rows count as censored at the end of the last
interval sent. Intervals are merged for all arms together, so that events are compared at the same
times. An arm with fewer than `min_rows` rows left ends there, and the others continue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flower_fedcon.objectives.equal_times import on_grid, tied_times
from flower_fedcon.tables.small_cells import is_few
from flower_fedcon.validation import Array


@dataclass(frozen=True, eq=False)
class Curves:
    """The clients' counts.

    Parameters
    ----------
    times : array, shape (intervals,)
    arms : tuple of str
    at_risk, events : arrays, shape (clients, intervals, arms)
    names : tuple of str
        The clients' names.
    left : array, shape (1 + intervals, arms)
        The numbers at risk at 0 and at these times, of all clients; see
        `flower_fedcon.tables.numbers_at_risk`.
    """

    times: Array
    arms: tuple[str, ...]
    at_risk: Array
    events: Array
    names: tuple[str, ...]
    left: Array


def risk_counts(
    time: Array,
    event: Array,
    arm: Array,
    arms: int,
    grid: Array,
    min_rows: int = 1,
    weights: Array | None = None,
    entry: Array | None = None,
) -> tuple[Array, Array]:
    """Return a site's numbers at risk and of events, each of shape (intervals, arms).

    Parameters
    ----------
    time : array, shape (rows,)
    event : array of bool, shape (rows,)
    arm : array of int, shape (rows,)
        From 0 to arms - 1.
    arms : int
    grid : array, shape (intervals,)
        Ascending.
    min_rows : int
        >= 1: the smallest number that is sent, except 0.
    weights : array, shape (rows,), optional
        By which rows count for `min_rows`; see `flower_fedcon.tables.small_cells`.
    entry : array, shape (rows,), optional
        The time after which each row is at risk.

    Examples
    --------
    >>> time, event = np.array([1.0, 2, 2, 3, 4]), np.array([1, 1, 0, 1, 0], bool)
    >>> at_risk, events = risk_counts(time, event, np.zeros(5, int), 1, np.array([1.0, 2, 3]))
    >>> at_risk[:, 0], events[:, 0]
    (array([5, 4, 2]), array([1, 1, 1]))
    """
    early = np.full(len(time), -np.inf) if entry is None else entry
    time = on_grid(tied_times(time), grid)
    if entry is not None:
        time, early = np.split(on_grid(tied_times(np.concatenate([time, entry])), grid), 2)
    by_arm = [
        _by_interval(time[arm == k], event[arm == k], grid, early[arm == k]) for k in range(arms)
    ]
    start, deaths, logs, at_end = (np.stack(part, axis=1) for part in zip(*by_arm, strict=True))
    at_risk, events = np.zeros_like(deaths), np.zeros_like(deaths)
    first = 0
    for last in range(len(grid)):
        block = slice(first, last + 1)
        total = deaths[block].sum(axis=0)
        died = np.where(total > 0, -np.expm1(logs[block].sum(axis=0)), 1.0)
        size = np.where(total > 0, np.rint(total / died), at_end[last]).astype(np.int64)
        enough = (total == 0) | (total >= min_rows)
        enough &= (size == 0) | (size >= min_rows)
        open_arm = start[first] >= min_rows
        if weights is not None and min_rows > 1:
            begin, end = grid[first - 1] if first else -np.inf, grid[last]
            for k in range(arms):
                in_arm, died = arm == k, event & (time > begin) & (time <= end)
                left = in_arm & (time >= end) & (early < end)
                few = [in_arm & died, *([left] * bool(left.any() and not total[k]))]
                enough[k] &= not any(is_few(weights, rows, min_rows) for rows in few)
                open_arm[k] &= not is_few(weights, in_arm & (time > begin), min_rows)
        if enough[open_arm].all() or last == len(grid) - 1:
            told = enough & open_arm
            at_risk[block] = np.where(told, size, 0)
            events[last] = np.where(told, total, 0)
            first = last + 1
    return at_risk, events


def _by_interval(
    time: Array, event: Array, grid: Array, entry: Array
) -> tuple[Array, Array, Array, Array]:
    """Return, by interval, rows at its start, events, log of the share left, rows at its end.

    Those at its start include rows that enter later.
    """
    size, ascending = len(grid), np.sort(time)
    moments, deaths = np.unique(time[event], return_counts=True)
    entered = np.sort(entry)
    alive = np.searchsorted(entered, moments) - np.searchsorted(ascending, moments)
    place = np.searchsorted(grid, moments)
    with np.errstate(divide="ignore"):
        kept = np.log1p(-deaths / alive)
    died = np.bincount(place, deaths, minlength=size + 1)[:size].astype(np.int64)
    logs = np.bincount(place, kept, minlength=size + 1)[:size]
    before = np.concatenate([[0], np.searchsorted(ascending, grid, side="right")[:-1]])
    at_end = np.searchsorted(entered, grid) - np.searchsorted(ascending, grid)
    return len(time) - before, died, logs, at_end
