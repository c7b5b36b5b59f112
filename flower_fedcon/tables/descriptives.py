"""A study's Table 1: its columns by client and pooled, from the sums sent before round 1.

Clients send nothing more for it: standardisation needs the same numbers of values, sums, and sums
of squares about the pooled mean, see `flower_fedcon.tables.preparation`. A node does not send
results from fewer rows than its `min_rows`: a mean is then empty, and so is the number of rows of a
category, which may be 0. If only a few rows lack a value, they have the node's mean, or its most
frequent category, as in the model. Shares are of all training rows, including those without a
value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.tables.encoding import is_wide
from flower_fedcon.tables.own_files import DESCRIPTIVES
from flower_fedcon.tables.schema import Schema
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

TOGETHER = "(together)"
_Line = tuple[str, str, str, float, float, float, float]


@dataclass(frozen=True, eq=False)
class Descriptives:
    """A description of the training rows, by client.

    Parameters
    ----------
    clients : tuple of str
    rows : tuple of int
    numeric : tuple of str
        Columns of numbers; "log(x)" for one with a transform.
    values, sums, squares : arrays, shape (clients, columns)
        The number of values, their sum, and the sum of (value - mean)^2.
    means : array, shape (columns,)
        The means over all clients.
    levels : tuple of (str, str)
        Pairs of a column and one of its categories.
    counts : array, shape (clients, levels)
        Numbers of rows; NaN if not sent.
    """

    clients: tuple[str, ...]
    rows: tuple[int, ...]
    numeric: tuple[str, ...]
    values: Array
    sums: Array
    squares: Array
    means: Array
    levels: tuple[tuple[str, str], ...]
    counts: Array

    @classmethod
    def of(
        cls,
        schema: Schema,
        clients: Sequence[str],
        rows: Sequence[int],
        means: Array,
        categories: Mapping[str, tuple[str, ...]],
        told: Sequence[Payload],
        spread: Sequence[Payload],
    ) -> Descriptives:
        """Return the description that follows from both exchanges.

        Parameters
        ----------
        schema : Schema
        clients : sequence of str
        rows : sequence of int
        means : array, shape (columns,)
        categories : dict
            The categories of all clients by feature; features with more than 200 are left out.
        told, spread : sequence of dict
            Each client's answers in the first and in the second exchange.
        """
        columns = [
            f.name if f.transform == "none" else f"{f.transform}({f.name})" for f in schema.numeric
        ]
        levels = [(schema.event or schema.target, mark) for mark in schema.outcome_marks]
        each = [np.asarray(one["outcomes"], dtype=float) for one in told] if levels else []
        each_level = [(f.name, mark) for f in schema.categorical for mark in categories[f.name]]
        shown = [not is_wide(categories[name]) for name, _ in each_level]  # else thousands
        visible = [level for level, one in zip(each_level, shown, strict=True) if one]
        counts = np.stack([np.asarray(one["counts"], dtype=float) for one in spread])[:, shown]
        if each:
            counts = np.hstack([np.stack(each)[:, -len(levels) :], counts])
        return cls(
            tuple(clients),
            tuple(rows),
            tuple(columns),
            np.stack([one["observed"] for one in told]),
            np.stack([one["sums"] for one in told]),
            np.stack([one["squares"] for one in spread]),
            np.asarray(means),
            (*levels, *visible),
            counts,
        )

    @property
    def table(self) -> dict[str, list[Any]]:
        """The columns of `descriptives.csv`; None for values that are not sent."""
        columns: dict[str, list[Any]] = {name: [] for name in DESCRIPTIVES}
        for line in self._lines():
            for name, value in zip(DESCRIPTIVES, line, strict=True):
                columns[name].append(None if value != value else value)
        columns["values"] = [None if n is None else int(n) for n in columns["values"]]
        return columns

    def _lines(self) -> Iterator[_Line]:
        together = TOGETHER if TOGETHER not in self.clients else f"(all) {TOGETHER}"
        for j, name in enumerate(self.numeric):
            n, sums, squares = self.values[:, j], self.sums[:, j], self.squares[:, j]
            about = self.means[j]
            for k, client in enumerate(self.clients):
                moments = _moments(n[k], sums[k], squares[k], about)
                yield (name, "", client, float(n[k]), *moments, math.nan)
            every = _moments(n.sum(), sums.sum(), squares.sum(), about)
            yield (name, "", together, float(n.sum()), *every, math.nan)
        nothing = math.nan, math.nan
        rows = np.array(self.rows, dtype=float)
        for place, (name, mark) in enumerate(self.levels):
            counts = self.counts[:, place]
            for client, n, of in zip(self.clients, counts, rows, strict=True):
                yield (name, mark, client, float(n), *nothing, _share(n, of))
            told = ~np.isnan(counts)
            total = float(counts[told].sum()) if told.any() else math.nan
            yield (name, mark, together, total, *nothing, _share(total, float(rows[told].sum())))


def _moments(n: float, total: float, square: float, about: float) -> tuple[float, float]:
    """Return the mean and the standard deviation (with n - 1) of values; NaN without values.

    >>> _moments(3.0, 9.0, 11.0, 2.0)  # 1, 3 and 5, whose squares about 2 are 1, 1 and 9
    (3.0, 2.0)
    """
    if not n:
        return math.nan, math.nan
    mean = float(total / n)
    variation = max(float(square - n * (mean - about) ** 2), 0.0)
    return mean, math.sqrt(variation / (n - 1)) if n > 1 else math.nan


def _share(n: float, whole: float) -> float:
    return float(n / whole) if whole else math.nan
