"""Numbers at risk below a curve: rows with a time of at least t, by arm, without small steps.

A number changes only in steps in which no fewer than `min_rows` rows leave with an event, nor
without one, nor enter late, except 0 of each; and it is `min_rows` at least, or 0. Until then it
stays as it was. So no difference of two numbers is a small count, and with min_rows = 1 the numbers
are those of R's `summary(survfit(...), times)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.objectives.equal_times import on_grid, tied_times
from flower_fedcon.tables.own_files import AT_RISK
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.tables.small_cells import is_few
from flower_fedcon.validation import Array

_TICKS = 6  # numbers below a curve


def numbers_at_risk(
    time: Array,
    event: Any,
    arm: Any,
    arms: int,
    points: Array,
    least: int = 1,
    weights: Array | None = None,
    entry: Array | None = None,
) -> Array:
    """Return a site's numbers at risk, shape (points, arms).

    Parameters
    ----------
    time : array, shape (rows,)
    event : array of bool, shape (rows,)
    arm : array of int, shape (rows,)
        From 0 to arms - 1; rows of none count nowhere.
    arms : int
    points : array, shape (points,)
        Ascending; the first is 0.
    least : int
    weights : array, shape (rows,), optional
        By which rows count for `least`.
    entry : array, shape (rows,), optional
        The time after which each row is at risk; rows that enter at 0 are so from there on.

    Examples
    --------
    >>> time, event = np.array([1.0, 2, 2, 3, 4]), np.array([1, 1, 0, 1, 0], bool)
    >>> numbers_at_risk(time, event, np.zeros(5, int), 1, np.array([0.0, 2, 3, 5]))[:, 0]
    array([5., 4., 2., 0.])
    >>> numbers_at_risk(time, event, np.zeros(5, int), 1, np.array([0.0, 2, 3, 5]), 2)[:, 0]
    array([5., 5., 5., 0.])
    """
    early = np.full(len(time), -np.inf)
    if entry is None:
        time = on_grid(tied_times(time), points)
    else:
        time, late = np.split(on_grid(tied_times(np.concatenate([time, entry])), points), 2)
        early[late > 0] = late[late > 0]
    told = np.zeros((len(points), arms))
    for k in range(arms):
        here = arm == k
        last, since = 0.0, -np.inf
        for place, point in enumerate(points.tolist()):
            entered = here & (early >= since) & (early < point)
            left = here & (time >= since) & (time < point)
            rest = here & (early < point) & (time >= point)
            parts = (left & event, left & ~event, entered, rest)
            if not any(is_few(weights, one, least) for one in parts):
                last, since = float(rest.sum()), point
            told[place, k] = last
    return told


def at_ticks(longest: float) -> Array:
    """Return round times from 0 on, below which a figure shows numbers.

    >>> at_ticks(2659.0).tolist(), at_ticks(0.9).tolist()
    ([0.0, 500.0, 1000.0, 1500.0, 2000.0, 2500.0], [0.0, 0.2, 0.4, 0.6, 0.8])
    """
    rough = longest / (_TICKS - 1) if longest > 0 else 1.0
    size = 10.0 ** np.floor(np.log10(rough))
    step = size * min((1, 2, 5, 10), key=lambda each: abs(each * size - rough))
    times: Array = np.round(np.arange(0.0, longest * (1 + 1e-9), step), 10)
    return times


def of_tables(
    clients: Sequence[SiteRows], by: str | None, arms: Sequence[str], points: Array, least: int
) -> Array:
    """Return the numbers at risk of tables' training rows, shape (points, arms)."""
    total = np.zeros((len(points), len(arms)))
    for table in clients:
        rows = table.training_rows
        arm = np.zeros(len(rows), np.intp)
        if by is not None:
            place = [feature.name for feature in table.schema.categorical].index(by)
            marks = table.categories[rows, place]
            arm = np.select([marks == mark for mark in arms], range(len(arms)), default=-1)
        time, event, *more = table.targets[rows].T
        entry = more[0] if table.schema.entry else None
        w = None if table.weights is None else table.weights[rows]
        total += numbers_at_risk(time, event == 1, arm, len(arms), points, least, w, entry)
    return total


def as_columns(arms: Sequence[str], points: Array, numbers: Array) -> dict[str, list[Any]]:
    """Return the columns of `at_risk.csv`."""
    size = len(points)
    columns = (
        [arm for arm in arms for _ in range(size)],
        [*points.tolist()] * len(arms),
        numbers.T.astype(int).ravel().tolist(),
    )
    return dict(zip(AT_RISK, columns, strict=True))
