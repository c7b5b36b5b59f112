"""Statistics of runs that differ only in their seed: mean, smallest and largest values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.history import Record
from flower_fedcon.validation import count


def parse(text: str) -> list[int]:
    """Return the seeds of a list such as "0,1,2".

    >>> parse("0, 1,2")
    [0, 1, 2]
    """
    seeds = []
    for part in text.split(","):
        try:
            seeds.append(count("seeds", int(part), minimum=0))
        except ValueError:
            raise ConfigError(f"--seeds {text}: write numbers such as 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: write each seed once")
    return seeds


def mean(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """Return rows with the mean of each column, for the rounds that all runs recorded.

    >>> mean([[{"round": 1, "objective": 2.0}], [{"round": 1, "objective": 4.0}]])
    [{'round': 1.0, 'objective': 3.0}]
    """
    return _reduce(runs, np.mean)


def lowest(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """Return rows with the smallest value of each column, as `mean` does."""
    return _reduce(runs, np.min)


def highest(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """Return rows with the largest value of each column, as `mean` does."""
    return _reduce(runs, np.max)


def _reduce(runs: Sequence[Sequence[Record]], function: Callable[..., Any]) -> list[Record]:
    tables = [{row["round"]: row for row in rows} for rows in runs]
    found = []
    for number in sorted(set.intersection(*(set(table) for table in tables))):
        rows = [table[number] for table in tables]
        columns = [name for name in rows[0] if all(name in row for row in rows)]
        found.append({name: float(function([row[name] for row in rows])) for name in columns})
    return found
