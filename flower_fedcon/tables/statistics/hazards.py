"""Sites' messages after a Cox fit, for tests of proportionality and baseline hazards.

The message of the statistic "in_time" holds, for p columns and a centred function g of time:

score : p numbers
    The sum over events of g (row - mean of the risk set).
first, second, third : p (p + 1) / 2 numbers each
    The upper triangles of the sums over events of the risk sets' covariances V, of g V and g^2 V.
moments : 2 numbers
    The sum over events of the function of time before centring, and the number of events.

The message of "baseline", which a node's policy must list, holds Breslow's cumulative hazard of a
row of zeros up to each time of a grid. Intervals of the grid are merged as for Kaplan-Meier curves,
until each has at least `min_rows` events and rows at risk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, RefusedError, first_few
from flower_fedcon.objectives.base import unscaled
from flower_fedcon.objectives.common_baseline import CommonBaseline
from flower_fedcon.objectives.equal_times import on_grid
from flower_fedcon.objectives.survival import CoxRegression
from flower_fedcon.tables.risk_counts import risk_counts
from flower_fedcon.tables.small_cells import is_few
from flower_fedcon.tables.statistics.score_tests import ScoreTest, given_nuisance
from flower_fedcon.tables.statistics.site_sums import most_numbers, packed, unpacked
from flower_fedcon.validation import Array, float_array
from flower_fedcon.wire.payloads import Payload

TRANSFORMS = LOG, IDENTITY = "log", "identity"
"""Functions of time that need no other sites; messages hold their index."""
NO_LOGARITHM = "needs times of events above 0, and one is 0"
_MOST = 700.0  # the largest score of a hazard: e^700 is a number


@dataclass(frozen=True, eq=False)
class Proportionality(ScoreTest):
    """A test of proportional hazards: that coefficients do not change with time.

    Its score is the sum over events of the function of time times the row beside its risk set; see
    `ScoreTest` for the statistics.

    Attributes
    ----------
    transform : {"log", "rank", "identity"}
        The function of time with which coefficients may change.
    """

    transform: str = LOG


def in_time(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's sums for a test of proportional hazards; see the module.

    Parameters
    ----------
    objective : object
    down : dict
        "x"; "transform", the place in `TRANSFORMS`; and "center", the mean of the function of time.
    least : int
        With fewer events (but not 0) nothing is sent.

    Raises
    ------
    ConfigError
        If the loss is not that of a Cox model, or an event's time has no logarithm.
    """
    f = _cox(objective)
    place, center = int(down["transform"]), float(down["center"])
    if not 0 <= place < len(TRANSFORMS) or not np.isfinite(center):
        raise ConfigError(f"a function of time must be one of {TRANSFORMS} by number, got {place}")
    if is_few(f.given_weights, f.events.astype(bool), least):
        raise RefusedError(
            f"refused: this node has fewer than {least} events, the least by its policy.min-rows "
            f"and policy.min-cell"
        )
    return sums_in_time(f, down["x"], log_times(f) if TRANSFORMS[place] == LOG else f.times, center)


def sums_in_time(f: CoxRegression, x: Array, moments: Array, center: float) -> Payload:
    """Return a site's sums for a function of time, given for each row."""
    score, *squares = f.sums_in_time(x, moments - center)
    names = ("first", "second", "third")
    triangles = {name: packed(square) for name, square in zip(names, squares, strict=True)}
    told = np.array([float(moments[f.events].sum()), float(f.events.sum())])
    return {"score": np.asarray(score, np.float64), **triangles, "moments": told}


def sums_of_all_sites(f: CommonBaseline, x: Array, moments: Array, center: float) -> Payload:
    """Return all sites' sums for a function of time, given at each shared time."""
    score, *squares = f.sums_in_time(x, moments - center)
    names = ("first", "second", "third")
    triangles = {name: packed(square) for name, square in zip(names, squares, strict=True)}
    told = np.array([float(f.counts @ moments), float(f.counts.sum())])
    return {"score": score, **triangles, "moments": told}


def shapes_in_time(columns: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of such an answer."""
    square = (most_numbers(columns),)
    return {"score": (columns,), "first": square, "second": square, "third": square,
            "moments": (2,)}  # fmt: skip


def log_times(f: CoxRegression) -> Array:
    """Return the logarithm of each row's time.

    Raises
    ------
    ConfigError
        If an event is at time 0.
    """
    return logarithms(f.times, f.events)


def logarithms(times: Array, events: Any) -> Array:
    """Return the logarithms of times, of which those of events must be above 0.

    Raises
    ------
    ConfigError
    """
    if (times[events] == 0).any():
        raise ConfigError(
            f'transform="log" {NO_LOGARITHM}: use "rank" or "identity", or correct the time'
        )
    logs: Array = np.log(np.where(times > 0, times, 1.0))
    return logs


def baseline(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's baseline cumulative hazard at the times of a grid; see the module."""
    f = _cox(objective)
    grid = np.asarray(down["times"], dtype=np.float64)
    if grid.ndim != 1 or not grid.size or (np.diff(grid) <= 0).any():
        raise ConfigError("baseline hazards must be requested at ascending times")
    if len(np.unique(f.strata)) > 1:
        raise ConfigError("baseline hazards can only be sent by a site that is one stratum")
    alike = np.zeros(f.num_examples, dtype=np.intp)
    _, events = risk_counts(f.times, f.events, alike, 1, grid, least, f.given_weights)
    ((times, hazard),) = (stratum.T for stratum in f.baseline(down["x"]).values())
    times = on_grid(times, grid)
    whole = np.concatenate([[0.0], hazard])[np.searchsorted(times, grid, side="right")]
    last = np.maximum.accumulate(np.where(events[:, 0] > 0, np.arange(len(grid)), -1))
    return {"hazard": np.where(last >= 0, whole[last], 0.0)}


def of_stratum(hazards: Mapping[Any, Array], stratum: Any) -> Array:
    """Return the baseline hazard of a stratum, which needs no name if there is only one.

    Raises
    ------
    ConfigError
        If no stratum has this name.
    """
    if stratum is None and len(hazards) == 1:
        (stratum,) = hazards
    if stratum not in hazards:
        known = first_few([*map(repr, hazards)])
        raise ConfigError(f"stratum must name one of the baseline hazards {known}, got {stratum!r}")
    return hazards[stratum]


def survival(hazard: Array, scores: Array, times: Any) -> Array:
    """Return the probabilities that rows have no event up to some times, shape (rows, times).

    Parameters
    ----------
    hazard : array, shape (k, 2)
        Ascending times, and the cumulative hazard of a row of zeros up to each of them.
    scores : array, shape (rows,)
        Log hazard ratios to a row of zeros.
    times : array, shape (times,)
        Times equal up to rounding to one of the hazard's are that one. The hazard is that of the
        last of its times that is no later.

    Examples
    --------
    >>> hazard = np.array([[0.1, 0.5], [0.3, 1.0]])
    >>> survival(hazard, np.zeros(1), [0.0, 0.2, 0.1 + 0.2]).round(3)
    array([[1.   , 0.607, 0.368]])
    """
    at, total = hazard.T
    wanted = on_grid(float_array("times", times, ndim=1), at)
    met = np.append(0.0, total)[np.searchsorted(at, wanted, side="right")]
    risks = np.exp(np.minimum(scores, _MOST))
    probabilities: Array = np.exp(-risks[:, None] * met)
    return probabilities


def _cox(objective: Any) -> CoxRegression:
    f = unscaled(objective)
    if type(f) is not CoxRegression:
        raise ConfigError(f"hazards in time need a Cox model, got {type(f).__name__}")
    return f


def tested(transform: str, names: Sequence[str], sums: Mapping[str, Array]) -> Proportionality:
    """Return the test of proportional hazards that follows from all sites' sums.

    Parameters
    ----------
    transform : str
    names : sequence of str
        The columns' names.
    sums : dict of array
        As described in the module.
    """
    first, second, third = (unpacked(sums[n], len(names)) for n in ("first", "second", "third"))
    # The fit's own score, of entries that do not change with time, is 0.
    score = np.concatenate([np.zeros(len(names)), sums["score"]])
    information = np.block([[first, second], [second, third]])
    tested = np.arange(2 * len(names)) >= len(names)
    found = given_nuisance(score, information, tested)
    return Proportionality(list(names), *found, np.arange(len(names)), transform)
