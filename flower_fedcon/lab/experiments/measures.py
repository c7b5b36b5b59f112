"""The measures of claims, on the histories of their runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.experiments.sweeps import Places, Reader, as_list, exponent, quantities
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.toml_schema import Table, check_type
from flower_fedcon.validation import Array

Runs: TypeAlias = Mapping[tuple[Any, ...], Sequence[Record]]
"""(label, seed), or in a sweep (label, seed, value) -> rows."""


@dataclass(frozen=True)
class Measure:
    """A kind of measurement: its keys besides those of the threshold, and its computation.

    `find` returns the measured numbers of one seed, one for each named round or algorithm. With
    `across` it takes all seeds and all places of a sweep together.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    find: Callable[[Table, Any], list[float]]
    across: bool = False


def _value(claim: Table, rows: Reader) -> list[float]:
    """Return the column at each round, divided by another column (`per`) if given."""
    history = rows(claim["algorithm"])
    values = [_at(history, claim["column"], number) for number in _rounds(claim, history)]
    if "per" not in claim:
        return values
    per = [_at(history, claim["per"], number) for number in _rounds(claim, history)]
    return [value / other for value, other in zip(values, per, strict=True)]


def _ratio(claim: Table, rows: Reader) -> list[float]:
    """Return the column of one algorithm divided by that of each other, at each round.

    With `over_round`, the other column is taken at that round.
    """
    history = rows(claim["algorithm"])
    ratios = []
    for other in as_list(claim["over"]):
        for number in _rounds(claim, history):
            lower = _at(rows(other), claim["column"], claim.get("over_round", number))
            upper = _at(history, claim["column"], number)
            ratios.append(upper / lower if lower else math.copysign(math.inf, upper))
    return ratios


def _lead(claim: Table, rows: Reader) -> list[float]:
    """Return the column of one algorithm minus that of each other; see `_ratio`."""
    history = rows(claim["algorithm"])
    return [
        _at(history, claim["column"], number)
        - _at(rows(other), claim["column"], claim.get("over_round", number))
        for other in as_list(claim["over"])
        for number in _rounds(claim, history)
    ]


def _order(claim: Table, rows: Reader) -> list[float]:
    """Return the ratio of each algorithm's column to the next one's: below 1 if in order."""
    ratios = []
    for number in _rounds(claim, rows(claim["algorithms"][0])):
        values = [_at(rows(label), claim["column"], number) for label in claim["algorithms"]]
        ratios += [a / b for a, b in itertools.pairwise(values)]
    return ratios


def _pairs(claim: Table, rows: Reader) -> list[float]:
    """Return the column of each algorithm divided by that of its counterpart in `over`."""
    return [
        value
        for one, other in zip(claim["algorithms"], as_list(claim["over"]), strict=True)
        for value in _ratio({**claim, "algorithm": one, "over": other}, rows)
    ]


def _spread(claim: Table, rows: Reader) -> list[float]:
    """Return each algorithm's standard deviation over rounds, divided by its counterpart's.

    With `changes` it is that of the changes from one record to the next: a slow drift adds little.
    """

    def deviation(label: str) -> float:
        history = [row for row in rows(label) if row["round"] >= claim.get("since", 1)]
        return float(np.diff(column_of(history, claim["column"]), n=claim.get("changes", 0)).std())

    return [
        deviation(one) / deviation(other)
        for one, other in zip(claim["algorithms"], as_list(claim["over"]), strict=True)
    ]


def _first(claim: Table, rows: Reader) -> list[float]:
    """Return the first recorded round with the column at or below a level, inf if none is.

    With `rising` it is the first at or above the level.

    With `of`, return the value of that column there. per = "rounds" divides by the run's rounds,
    and `over` by the number of each other algorithm.
    """
    first, *others = _cost(
        {**claim, "algorithms": [claim["algorithm"], *as_list(claim.get("over", []))]}, rows
    )
    if others:
        return [first / other if math.isfinite(first + other) else math.nan for other in others]
    return [first / rows(claim["algorithm"])[-1]["round"] if "per" in claim else first]


def _cost(claim: Table, rows: Reader) -> list[float]:
    """Return each algorithm's cost to reach a level, in rounds or another column (`of`)."""
    check_type("level", claim["level"], float)
    costs = []
    for label in claim["algorithms"]:
        history = rows(label)
        sign = -1.0 if claim.get("rising") else 1.0
        reached = np.flatnonzero(sign * (column_of(history, claim["column"]) - claim["level"]) <= 0)
        spent = column_of(history, claim.get("of", "round"))
        costs.append(float(spent[reached[0]]) if reached.size else math.inf)
    return costs


def _share(claim: Table, rows: Reader) -> list[float]:
    """Return the share of the recorded rounds in which one algorithm's column is below another's.

    It takes the whole curve, or the part between `since` and `until`, and returns one share for
    each algorithm in `over`.
    """
    history = [row for row in rows(claim["algorithm"]) if row["round"] >= 1]
    numbers = column_of(history, "round")
    kept = (numbers >= claim.get("since", 1)) & (numbers <= claim.get("until", math.inf))
    values = column_of(history, claim["column"])[kept]
    if not kept.any():
        raise ConfigError("a share needs a recorded round between since and until")
    return [
        float(np.mean(values < [_at(rows(other), claim["column"], int(n)) for n in numbers[kept]]))
        for other in as_list(claim["over"])
    ]


def _slope(claim: Table, rows: Reader) -> list[float]:
    """Return the exponent of t that fits the column best between two rounds (least squares)."""
    history = rows(claim["algorithm"])
    numbers = column_of(history, "round")
    values = column_of(history, claim["column"])
    kept = (numbers >= claim.get("since", 1)) & (numbers <= claim.get("until", math.inf))
    if kept.sum() < 2 or not (values[kept] > 0).all():
        raise ConfigError("a slope needs at least two recorded rounds with values above 0")
    return [float(np.polyfit(np.log(numbers[kept]), np.log(values[kept]), 1)[0])]


def _bounded(claim: Table, rows: Reader) -> list[float]:
    """Return the largest ratio of the column to a bound, the sum over `terms` of c t^p.

    Each of `terms` is [c, p]. t counts from 1 at the start, as in theorems on x^t. take = "least"
    gives the ratio of the column's least value to the bound at t = T, the rounds of the run.
    """
    history = [row for row in rows(claim["algorithm"]) if row["round"] >= 1]
    least = claim.get("take") == "least"
    values, numbers = column_of(history, claim["column"]), column_of(history, "round")
    t = numbers[-1:] if least else numbers + 1
    bound = sum(float(c) * t ** float(p) for c, p in claim["terms"])
    return [float(np.max((np.min(values) if least else values) / bound))]


def _count(claim: Table, rows: Reader) -> list[float]:
    """Return the number of recorded rounds with the column above a level."""
    values = column_of(rows(claim["algorithm"]), claim["column"])
    return [float((values > claim["level"]).sum())]


def _scaling(claim: Table, seeded: Sequence[Places]) -> list[float]:
    """Return the best-fitting exponents of a sweep's parameter; see `sweeps`."""
    points = [quantities(claim, places, column_of) for places in seeded]
    if claim.get("of_mean"):
        points = [(points[0][0], np.mean([y for _, y in points], axis=0))]
    return [exponent(x, y) for x, y in points]


MEASURES: dict[str, Measure] = {
    "value": Measure(("algorithm", "column"), ("round", "per"), _value),
    "ratio": Measure(("algorithm", "over", "column"), ("round", "over_round"), _ratio),
    "lead": Measure(("algorithm", "over", "column"), ("round", "over_round"), _lead),
    "pairs": Measure(("algorithms", "over", "column"), ("round",), _pairs),
    "spread": Measure(("algorithms", "over", "column"), ("since", "changes"), _spread),
    "order": Measure(("algorithms", "column"), ("round",), _order),
    "share": Measure(("algorithm", "over", "column"), ("since", "until"), _share),
    "first": Measure(("algorithm", "column", "level"), ("per", "over", "of", "rising"), _first),
    "cost": Measure(("algorithms", "column", "level"), ("of", "rising"), _cost),
    "slope": Measure(("algorithm", "column"), ("since", "until"), _slope),
    "bounded": Measure(("algorithm", "column", "terms"), ("take",), _bounded),
    "count": Measure(("algorithm", "column", "level"), (), _count),
    "scaling": Measure(
        ("algorithm", "column"), ("level", "take", "power", "of_mean"), _scaling, across=True
    ),
}


def _rounds(claim: Table, history: Sequence[Record]) -> list[int]:
    return [int(n) for n in as_list(claim.get("round", history[-1]["round"]))]


def _at(history: Sequence[Record], column: str, number: int) -> float:
    for row in history:
        if row["round"] == number:
            return float(column_of([row], column)[0])
    raise ConfigError(f"round {number} is not recorded: rounds up to {history[-1]['round']:g} are, "
                      "as evaluate_every says")  # fmt: skip


def column_of(history: Sequence[Record], name: str) -> Array:
    """Return a column of a history."""
    columns = {key for row in history for key in row}
    if name not in columns:
        raise ConfigError(f"unknown column {name!r}: {nearest(name, columns)}")
    return np.array([row.get(name, math.nan) for row in history], dtype=float)
