"""A column whose value in the first row of each cluster is one and the same, at one client alone.

An index has the value 1 (or 100) in the first year of each cluster, and a change from the start 0.

Of 2,721 federations made of R's data sets with clusters none was said, and none of 4,000 simulated
ones, of which half have clusters. By the chance 7 clusters are enough if a tenth of them elsewhere
begin with one value, and 21 if half do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.tables.checks.comparable import comparable
from flower_fedcon.tables.checks.equal_means import OWN, shared
from flower_fedcon.tables.checks.odd_values import numbers_of
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_SEVERAL = 5  # clusters with two rows or more
_NEVER = math.log(1e-6)
_MIXED = 0.5  # of the clusters elsewhere: with more a column may begin there so, too


class _Firsts(NamedTuple):
    clusters: int  # with two known rows or more
    value: float  # the commonest of their first rows
    share: float  # of the clusters that have it there
    later: float  # of the other rows
    last: float  # the share of the clusters whose last rows have the commonest of their values


def first_rows(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients with a column that begins with one value in each cluster, alone there.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    if not comparable(tables) or any(table.clusters is None for table in tables):
        return
    numbers = [numbers_of(table) for table in tables]
    for column in numbers[0]:
        told = [
            firsts(one[column], np.asarray(table.clusters))
            for one, table in zip(numbers, tables, strict=True)
        ]
        for k, own in enumerate(told):
            rest = [j for j, one in enumerate(told) if j != k and one.clusters >= _SEVERAL]
            if own.clusters < _SEVERAL or own.share < 1 or own.last == 1 or not rest:
                continue
            most = max([own.later, *(told[j].share for j in rest)])
            never = (own.clusters - 1) * math.log(max(most, 1e-9)) < _NEVER
            if most > _MIXED or not never:
                continue
            # a year, or what follows from it, is the same in several clusters elsewhere
            if all(shared(numbers[j][column], np.asarray(tables[j].clusters)) <= OWN for j in rest):
                yield (
                    f"column {column!r}: the first row of each of {own.clusters} clusters of "
                    f"{names[k]} has {own.value:g}, and elsewhere they differ: is it an index, or "
                    f"a change from the first row, there?"
                )


def firsts(values: Array, clusters: Array) -> _Firsts:
    """Return how many clusters have several rows, and the commonest value of their first ones.

    >>> tuple(firsts(np.array([1.0, 1.2, 1.0, 0.9, 1.0, 1.1]), np.array([0, 0, 1, 1, 2, 2])))
    (3, 1.0, 1.0, 0.0, 0.3333333333333333)
    """
    known = ~np.isnan(values)
    values, clusters = values[known], clusters[known]
    order = np.argsort(clusters, kind="stable")
    values, clusters = values[order], clusters[order]
    starts = np.flatnonzero(np.diff(clusters, prepend=-1) != 0)
    ends = np.append(starts[1:], len(values)) - 1
    starts, ends = starts[ends > starts], ends[ends > starts]
    if not len(starts):
        return _Firsts(0, math.nan, 0.0, 0.0, 0.0)
    (value, share), (_, last) = (_commonest(values[places]) for places in (starts, ends))
    later = float((np.delete(values, starts) == value).mean())
    return _Firsts(len(starts), value, share, later, last)


def _commonest(values: Array) -> tuple[float, float]:
    """Return the commonest value and its share."""
    kinds, counts = np.unique(values, return_counts=True)
    return float(kinds[counts.argmax()]), float(counts.max() / len(values))
