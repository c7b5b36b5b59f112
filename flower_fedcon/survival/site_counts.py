"""Rows of times dealt to their sites, and what each site counts of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, repr_of
from flower_fedcon.estimators.argument_forms import clients_of
from flower_fedcon.tables.risk_counts import risk_counts
from flower_fedcon.validation import Array, count, expect_unmasked, float_array


def checked(time: Any, event: Any) -> tuple[Array, Array]:
    """Return times and events of rows, shape (rows,), the events as bools.

    Raises
    ------
    ConfigError
        If a time is negative or missing, an event is neither 0 nor 1, or there is no row.
    """
    given = []
    for name, column in (("time", time), ("event", event)):
        expect_unmasked(name, column)
        array = np.asarray(column)
        if array.dtype.kind not in "biuf":
            try:
                array = np.array([np.nan if v is None else float(v) for v in array.tolist()])
            except (TypeError, ValueError):
                raise ConfigError(
                    f"{name} must hold numbers, got {repr_of(column)}: convert it (`.astype(float)`"
                    + (", or `== 'dead'`, say)" if name == "event" else ")")
                ) from None
        if array.ndim != 1 or not array.size:
            raise ConfigError(f"{name} must have one number for each row, got shape {array.shape}")
        array = array.astype(np.float64)
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
            f"time and event must be of the same rows, got {len(times)} and {len(events)}"
        )
    if (times < 0).any():
        row = int(np.argmax(times < 0))
        raise ConfigError(
            f"time must be >= 0, got {times[row]:g} in row {row}: correct it, or drop the row"
        )
    other = events[(events != 0) & (events != 1)]
    if other.size:
        raise ConfigError(
            f"event must be 1 for an event and 0 for none, got {other[0]:g}: where 2 stands for an "
            "event, give event == 2"
        )
    return times, events == 1


def counts_of_sites(
    times: Array, events: Array, arm: Array, arms: int, groups: Any, grid: Any, min_rows: Any
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
            "event is 0 in all rows: there is no event, and no time at which anything changes"
            if grid is None
            else "grid must have one time or more"
        )
    if points[0] < 0 or (np.diff(points) <= 0).any():
        raise ConfigError(
            f"grid must be times >= 0, each later than the one before, got {repr_of(grid)}"
        )
    found = [
        risk_counts(times[own], events[own], arm[own], arms, points, least)
        for own in (place == k for k in range(len(sites)))
    ]
    return sites, points, np.array([n for n, _ in found]), np.array([d for _, d in found])
