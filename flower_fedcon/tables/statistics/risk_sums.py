"""A site's answers for a Cox model in which all sites have one baseline hazard.

The server asks several times in each step of its fit; `objectives.common_baseline` says for what
sums. Sums at each event's time reveal single rows: where one row leaves between two times, the
difference is that row. So a node answers only

- on the schema's grid, `baseline_times`, where times are merged until no sum, and no difference of
  two, rests on fewer rows than min_rows and min_cell: at a merged time these are the events, the
  rows at risk with and without events, and the rows that enter or leave without an event. Events
  then count at the last time that was merged. What is too little at the end is not told, and these
  rows count as censored before.
- at other times, such as those of all events, if its policy lists "risk_sets".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.core.exchange import Site
from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.objectives.base import unscaled
from flower_fedcon.objectives.common_baseline import (
    ANSWERS,
    SharedTimes,
    SiteRisks,
    cox_of,
    event_times,
)
from flower_fedcon.objectives.private_objective import is_private
from flower_fedcon.objectives.survival import CoxRegression
from flower_fedcon.tables.packed_text import packed_text, unpacked_text
from flower_fedcon.tables.small_cells import is_few
from flower_fedcon.tables.statistics.site_sums import expect_clusters
from flower_fedcon.tables.wing import RISK_SETS
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

TIMES = "times"
QUESTIONS = (TIMES, *ANSWERS)
"""A request holds the place of its question."""


def check_times(site: Site, down: Payload) -> None:
    """Raise if a node would tell sums at times that its policy does not allow.

    Raises
    ------
    RefusedError
    """
    if is_private(unscaled(site.objective)):
        raise RefusedError(
            "refused: this node's examples are private (ExampleDP), and no noise protects the sums "
            "over its rows at risk"
        )
    if site.data is None:  # in this process
        return
    schema = getattr(getattr(site.data, "data", None), "schema", None)
    grid = () if schema is None else schema.baseline_times
    if not grid:
        site.bounds.check_phase(RISK_SETS)
    elif "grid" not in down or not np.array_equal(down["grid"], grid):
        raise RefusedError(
            "refused: this node sums over its rows at risk only at the schema's baseline_times"
        )


def answer(site: Site, down: Payload) -> Payload:
    """Return a site's sums; see the module."""
    bounds = site.bounds
    return told(site.objective, down, max(bounds.min_rows, bounds.min_cell))


def told(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's sums over its rows at risk.

    Parameters
    ----------
    objective : CoxRegression, or WithOffset of one
    down : dict
        "x"; "question", a place in `QUESTIONS`; "grid", the times of a grid, if there is one;
        "strata", the names of strata as the numbers of their text; without a grid "counts" and
        "times", the number of times of each stratum, and these; and what `SiteRisks` takes.
    least : int
        The fewest rows in a sum on a grid, and in a cluster.
    """
    objective = unscaled(objective)
    f = cox_of(objective)
    if type(f) is not CoxRegression:
        raise ConfigError(f"risk sets are of Cox models, got {type(f).__name__}")
    place = int(down["question"])
    if not 0 <= place < len(QUESTIONS):
        raise ConfigError(f"a question about risk sets must be one of {len(QUESTIONS)}")
    question, grid = QUESTIONS[place], down.get("grid")
    if question == TIMES:
        return _own_times(f, grid, least)
    x = np.asarray(down["x"], dtype=np.float64)
    shared, numbers = agreed_times(down)
    merged = None if grid is None or least <= 1 else _merging(f.given_weights, least)
    known = {name: float(number) for number, name in enumerate(numbers)}
    labels = [known.get(name, -1.0) for name in f.stratum_names]
    strata = np.array(labels)[f.strata.astype(np.intp)]
    site = SiteRisks(objective, shared, np.zeros_like(x), strata, merged)
    names = ("factors", "hazards", "shared", "means", "power", "clustered")
    more = {name: down[name] for name in names if name in down}
    if question == "meat" and more["power"] not in (1.0, 2.0):  # a higher one shows single rows
        raise ConfigError(f"scores are weighted by w or w^2, got the power {more['power']}")
    if question == "meat" and more["clustered"] and site.clusters is not None:
        expect_clusters(site.clusters, site.w, len(x), least)
    return ANSWERS[question](site, x, **more)


def agreed_times(down: Payload) -> tuple[SharedTimes, list[str]]:
    """Return the times at which sites sum, and the strata's names by their number."""
    names = _names(down["strata"])
    numbers = np.arange(len(names), dtype=np.float64)
    if "grid" in down:
        return SharedTimes.on_grid(numbers, np.asarray(down["grid"], dtype=np.float64)), names
    counts = np.asarray(down["counts"]).astype(np.intp)
    times = np.asarray(down["times"], dtype=np.float64)
    if counts.shape != numbers.shape or (counts < 0).any() or counts.sum() != len(times):
        raise ConfigError("the times of strata do not match the strata")
    return SharedTimes(np.repeat(numbers, counts), times), names


def packed_names(names: list[str]) -> Array:
    """Return the names of strata as an array."""
    return packed_text(names).astype(np.float64)


def _names(array: Array) -> list[str]:
    if not (np.asarray(array) == np.asarray(array).astype(np.uint8)).all():
        raise ConfigError("the names of strata are damaged")
    names = unpacked_text(np.asarray(array).astype(np.uint8))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError("the names of strata are damaged")
    return names


def _own_times(f: CoxRegression, grid: Array | None, least: int) -> Payload:
    """Return the names of a site's strata, and without a grid the times of their events."""
    if grid is not None:  # a stratum of few rows is not told
        weights, codes = f.given_weights, np.arange(len(f.stratum_names))
        rows = [f.strata == code for code in codes]
        kept = [
            name
            for name, there in zip(f.stratum_names, rows, strict=True)
            if there.any() and not is_few(weights, there, least)
        ]
        return {"strata": packed_names(kept), "counts": np.zeros(len(kept)), "times": np.empty(0)}
    own = event_times(f)
    codes, counts = np.unique(own.strata, return_counts=True)
    names = [f.stratum_names[int(code)] for code in codes]
    return {"strata": packed_names(names), "counts": counts.astype(float), "times": own.times}


def union_of(answers: list[Payload], grid: Array | None) -> Payload:
    """Return the times at which all sites sum, as a request holds them."""
    each = [(_names(one["strata"]), one["counts"], one["times"]) for one in answers]
    names = sorted({name for known, _, _ in each for name in known})
    down: Payload = {"strata": packed_names(names)}
    if grid is not None:
        return {**down, "grid": grid}
    number = {name: float(place) for place, name in enumerate(names)}
    sites = []
    for known, counts, times in each:
        codes = np.array([number[name] for name in known])
        if counts.shape != codes.shape or counts.sum() != len(times):
            raise ConfigError("a site's times of events do not match its strata")
        sites.append(SharedTimes(np.repeat(codes, counts.astype(np.intp)), times))
    shared = SharedTimes.union(sites)
    counts = np.bincount(shared.strata.astype(np.intp), minlength=len(names))
    return {**down, "counts": counts.astype(float), "times": shared.times}


def _merging(weights: Array | None, least: int) -> Callable[..., tuple[Array, Array, Array]]:
    """Return the rule by which times are merged; see the module."""

    def merged(
        first: Array, end: Array, cell: Array, size: int, rows: Array
    ) -> tuple[Array, Array, Array]:
        own = None if weights is None else weights[rows]
        start, stop, events = np.full(len(rows), size), np.zeros(len(rows), int), cell * 0 + size
        (before, died_before), begin = np.zeros((2, len(rows)), bool), 0
        for last in range(size):
            died = (cell >= begin) & (cell <= last)
            at = ((first <= last) & (end > last)) | died
            left = before & ~died_before & ~at
            groups = (died, at, at & ~died, left, at & ~before)
            if any(is_few(own, group, least) for group in groups):
                continue
            start = np.where(at, np.minimum(start, begin), start)
            stop[at], events[died] = last + 1, last
            before, died_before, begin = at, died, last + 1
        return start, stop, events

    return merged
