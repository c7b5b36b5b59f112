"""Curves and tests for rows of times at several sites."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, repr_of
from flower_fedcon.estimators.argument_forms import clients_of
from flower_fedcon.objectives.equal_times import tied_times
from flower_fedcon.objectives.survival import check_entries
from flower_fedcon.tables.log_rank import LogRank
from flower_fedcon.tables.product_limit import KaplanMeier
from flower_fedcon.tables.risk_counts import risk_counts
from flower_fedcon.validation import Array, count, expect_unmasked, float_array, floats_of


def kaplan_meier(
    time: Any,
    event: Any,
    groups: Any = None,
    grid: Any = None,
    min_rows: int = 1,
    *,
    alpha: float = 0.05,
    entry: Any = None,
) -> KaplanMeier:
    """Return the Kaplan-Meier curve of all sites' rows, from sums that each site could send.

    Parameters
    ----------
    time : array, shape (rows,)
        Time until the event, or until the last observation; >= 0.
    event : array, shape (rows,)
        1 or True for an event, 0 or False for a censored row.
    groups : array, shape (rows,), optional
        The site of each row, as for estimators; one site by default.
    grid : array, shape (intervals,), optional
        Ascending times at which sites count, such as months. By default all times of events, which
        gives the curve of the pooled rows. On a coarser grid an event counts at the next point. At
        these points the curve is exact without censoring. With censoring it lies between two
        curves, in which all rows censored in an interval leave before its events, or none; their
        difference is the grid's error.
    min_rows : int (default: 1)
        The smallest count, except 0, that leaves a site: intervals are merged until counts reach
        it.
    alpha : float (default: 0.05)
        The intervals have coverage 1 - alpha.
    entry : array, shape (rows,), optional
        The time after which each row is at risk, before its time: for rows that enter late (left
        truncation), and several rows of one person. The curve is then that of persons who enter,
        and is uncertain while few are at risk.

    Returns
    -------
    KaplanMeier

    Raises
    ------
    ConfigError
        If a time is negative or missing, an event is neither 0 nor 1, no row has one, or the grid
        is not ascending.

    Examples
    --------
    >>> from flower_fedcon.survival import kaplan_meier
    >>> rng = np.random.default_rng(0)
    >>> site, months = rng.integers(0, 3, 90), rng.exponential(10, 90)
    >>> curve = kaplan_meier(months, months < 24, groups=site, grid=range(1, 25), min_rows=3)
    >>> curve
    KaplanMeier(3 sites, 76 events, 24 times: median 8)
    >>> bool((curve.events[curve.events > 0] >= 3).all())
    True
    """
    times, events = checked(time, event)
    times, late = with_entries(times, entry)
    sites, points, n, d = counts_of_sites(
        times, events, np.zeros(len(times), np.intp), 1, groups, grid, min_rows, late
    )
    return KaplanMeier.of_counts(points, n[:, :, 0], d[:, :, 0], sites, alpha)


def logrank(
    time: Any,
    event: Any,
    by: Any,
    groups: Any = None,
    stratified: bool = False,
    *,
    grid: Any = None,
    min_rows: int = 1,
    entry: Any = None,
) -> LogRank:
    """Return the log-rank test of arms over all sites' rows, from sums that each site could send.

    Parameters
    ----------
    time, event, groups, grid, min_rows, entry : see `kaplan_meier`
    by : array, shape (rows,)
        The arm of each row; at least two arms.
    stratified : bool (default: False)
        Whether each site is a stratum: rows are compared with those of their own site.

    Returns
    -------
    LogRank

    Raises
    ------
    ConfigError
        As in `kaplan_meier`; also if there is only one arm, or no event while rows of two arms are
        at risk.

    Examples
    --------
    >>> from flower_fedcon.survival import logrank
    >>> rng = np.random.default_rng(0)
    >>> site, treated = rng.integers(0, 3, 200), rng.integers(0, 2, 200)
    >>> months = rng.exponential(np.where(treated, 14.0, 7.0) * (1 + site))
    >>> logrank(months, months < 24, treated, groups=site, stratified=True)
    LogRank(stratified, 2 arms: chi2 10.87, p = 0.000979)
    """
    times, events = checked(time, event)
    if by is None:
        raise ConfigError("by must have the arm of each row, got None")
    if not isinstance(stratified, bool | np.bool_):
        raise ConfigError(f"stratified must be True or False, got {repr_of(stratified)}")
    arms, arm = clients_of(by, len(times), "by")
    if len(arms) < 2:
        raise ConfigError(f"by must have at least two arms, got {arms.tolist()[0]!r} in all rows")
    times, late = with_entries(times, entry)
    _, _, n, d = counts_of_sites(times, events, arm, len(arms), groups, grid, min_rows, late)
    return LogRank.of_counts(n, d, arms, bool(stratified), grid=grid is not None)


def checked(time: Any, event: Any) -> tuple[Array, Array]:
    """Return times and events of rows, shape (rows,), the events as bools.

    Raises
    ------
    ConfigError
        If a time is negative or missing, an event is neither 0 nor 1, or there is no row.
    """
    given = []
    for name, column in (("time", time), ("event", event)):
        array = floats_of(name, column)
        if array.ndim != 1 or not array.size:
            raise ConfigError(f"{name} must have one number for each row, got shape {array.shape}")
        if not np.isfinite(array).all():
            row = int(np.argmin(np.isfinite(array)))
            raise ConfigError(
                f"{name} must be finite, got {array[row]:g} in row {row}: fill it in, or drop the "
                "row"
            )
        given.append(array)
    times, events = given
    if len(times) != len(events):
        raise ConfigError(
            f"time and event must have one value for each row, got {len(times)} and {len(events)} "
            f"values"
        )
    if (times < 0).any():
        row = int(np.argmax(times < 0))
        raise ConfigError(
            f"time must be >= 0, got {times[row]:g} in row {row}: correct it, or drop the row"
        )
    other = events[(events != 0) & (events != 1)]
    if other.size:
        raise ConfigError(
            f"event must be 1 for an event and 0 for none, got {other[0]:g}: if 2 stands for an "
            f"event, give event == 2"
        )
    return tied_times(times), events == 1


def with_entries(times: Array, entry: Any) -> tuple[Array, Array | None]:
    """Return times, and the times at which rows enter, of which those equal up to rounding are one.

    Raises
    ------
    ConfigError
        If there is not one for each row, before its time.
    """
    if entry is None:
        return times, None
    expect_unmasked("entry", entry)
    late = float_array("entry", entry, ndim=1).astype(np.float64)
    if late.shape != times.shape:
        raise ConfigError(
            f"entry must have one time for each row, got {len(late)} times and {len(times)} rows"
        )
    times, late = np.split(tied_times(np.concatenate([times, late])), 2)
    check_entries(times, late)
    return times, late


def counts_of_sites(
    times: Array,
    events: Array,
    arm: Array,
    arms: int,
    groups: Any,
    grid: Any,
    min_rows: Any,
    entry: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Return the sites, the grid, and each site's numbers at risk and of events.

    Returns
    -------
    sites : array
    grid : array, shape (intervals,)
    at_risk, events : arrays of int, shape (sites, intervals, arms)

    Raises
    ------
    ConfigError
        If the grid is not ascending, or there is none and no row has an event.
    """
    least = count("min_rows", min_rows)
    sites, place = clients_of(groups, len(times))
    points = np.unique(times[events]) if grid is None else float_array("grid", grid, ndim=1)
    if not points.size:
        raise ConfigError(
            "event is 0 in all rows, so the curve never changes: check the column of events"
            if grid is None
            else "grid must have at least one time"
        )
    if points[0] < 0 or (np.diff(points) <= 0).any():
        raise ConfigError(
            f"grid must be times >= 0, each later than the one before, got {repr_of(grid)}"
        )
    early = [None if entry is None else entry[place == k] for k in range(len(sites))]
    counted = [
        risk_counts(times[here], events[here], arm[here], arms, points, least, entry=late)
        for here, late in zip((place == k for k in range(len(sites))), early, strict=True)
    ]
    return sites, points, np.array([n for n, _ in counted]), np.array([d for _, d in counted])
