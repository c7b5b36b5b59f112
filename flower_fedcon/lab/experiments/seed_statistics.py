"""Statistics of runs that differ only in their seed: mean, smallest and largest values.

A run that ended before the others, at a level or on a budget, counts with its last row from then
on: its model and its costs no longer change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.runs.history import Record
from flower_fedcon.validation import count

OF = {"run": ("run",), "problem": ("problem",), "both": ("run", "problem")}
"""The tables of an experiment file whose seed can vary."""


class Seeds(NamedTuple):
    """The seeds of a comparison, and the tables of its file whose `seed` they set."""

    numbers: list[int]
    tables: tuple[str, ...] = OF["run"]


def parse_seeds(text: str) -> Seeds:
    """Return the seeds of a list such as "0,1,2", which may name the problem.

    >>> parse_seeds("0,1").tables, parse_seeds("problem:0,1").tables, parse_seeds("both:3")
    (('run',), ('problem',), Seeds(numbers=[3], tables=('run', 'problem')))
    """
    whose, colon, numbers = text.rpartition(":")
    if colon and whose.strip() not in OF:
        raise ConfigError(f"--seeds {text}: {nearest(whose.strip(), OF)}")
    return Seeds(parse(numbers), OF[whose.strip()] if colon else OF["run"])


def parse(text: str) -> list[int]:
    """Return the numbers of a list such as "0,1,2".

    >>> parse("0, 1,2")
    [0, 1, 2]
    """
    seeds = []
    for part in text.split(","):
        try:
            seeds.append(count("seeds", int(part), minimum=0))
        except ValueError:
            raise ConfigError(
                f"--seeds {text}: write numbers such as 0,1,2; problem:0,1,2 for the seed of the "
                "problem, both:0,1,2 for that of run and problem"
            ) from None
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: write each seed once")
    return seeds


def mean(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """Return rows with the mean of each column, for all rounds that any run recorded.

    >>> mean([[{"round": 1, "objective": 2.0}], [{"round": 1, "objective": 4.0}]])
    [{'round': 1.0, 'objective': 3.0}]
    """
    return _reduce(runs, np.mean)


def lowest(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """Return rows with the smallest value of each column; see `mean`."""
    return _reduce(runs, np.min)


def highest(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """Return rows with the largest value of each column; see `mean`."""
    return _reduce(runs, np.max)


def at_ends(runs: Sequence[Sequence[Record]]) -> tuple[Record, Record, Record]:
    """Return each column's mean, smallest and largest value, at the end of each run.

    >>> at_ends([[{"round": 1}, {"round": 2}], [{"round": 4}]])
    ({'round': 3.0}, {'round': 2.0}, {'round': 4.0})
    """
    last = [rows[-1] for rows in runs]
    return _over(last, np.mean), _over(last, np.min), _over(last, np.max)


def same(runs: Sequence[Sequence[Record]]) -> bool:
    """Return whether all runs are equal in every column except the time."""
    first, *others = ([{**row, "seconds": 0.0} for row in rows] for rows in runs)
    return all(rows == first for rows in others)


def _reduce(runs: Sequence[Sequence[Record]], function: Callable[..., Any]) -> list[Record]:
    rounds = [[row["round"] for row in rows] for rows in runs]
    begun = max(numbers[0] for numbers in rounds)
    records = []
    for number in sorted({n for numbers in rounds for n in numbers if n >= begun}):
        rows = [
            rows[bisect_right(numbers, number) - 1]
            for rows, numbers in zip(runs, rounds, strict=True)
        ]
        records.append({**_over(rows, function), "round": float(number)})
    return records


def _over(rows: Sequence[Record], function: Callable[..., Any]) -> Record:
    columns = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: float(function([row[name] for row in rows])) for name in columns}
