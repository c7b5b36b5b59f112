"""A column of one client that follows from another of few values, where elsewhere it does not.

A category is made from a count or from another category, or a number is that of the year, not of
the row. Then all rows with one value of the other column are alike. Two chances are below one in a
million: that the column's own values, in any order, would be so; and that rows are alike as often,
if each is with the share at the client where it is nearest to that.

Of 1,351 federations made of R's data sets 2 were said, where sites are choices or designs, of 2,504
others, by other columns and in mixed order, 3 in 2 sets, of rows of studies; of 2,721 with clusters
13 in 4 sets, as where the column of sites is a part of the rule; of 7,000 simulated ones none.
By the second chance 20 rows more than values are enough where half of the rows elsewhere have the
commonest values, and 131 where nine tenths have; neighbours that are alike count once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.tables.checks.odd_values import all_columns
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

Found = dict[int, list[tuple[int, float]]]
"""For each column those that follow from it, with the share of their commonest values elsewhere."""
_FEW = 20  # rows of a client: with fewer nothing is said of it
_VALUES = 60  # values: of a column with more nothing is said to follow
_MIXED = 0.9  # of the rows elsewhere: with more a column nearly follows there, too
_NEVER = math.log(1e-6)
_FIRST = 100  # rows, which are looked at first
_SEVERAL = 3  # pairs of columns: if more follow, rows are of clusters
_WIDE, _CELLS = 100, 2e7  # columns and cells: of more nothing is sought


def follows_from(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients where a column has one value for each value of another, alone there.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    width = tables[0].numeric.shape[1] + tables[0].categories.shape[1] + 1
    rows = sum(len(table.targets) for table in tables)
    if len(tables) < 2 or schema.sparse or width > _WIDE or width * rows > _CELLS:
        return
    columns, each = _coded(tables)
    causes = [j for j, column in enumerate(columns) if column != schema.target]
    for k, (name, own) in enumerate(zip(names, each, strict=True)):
        if len(own) < _FEW:
            continue
        rest = [other for j, other in enumerate(each) if j != k and len(other) >= _FEW]
        found: Found = {}
        kinds = [len(np.unique(values[values >= 0])) for values in own.T]
        for cause in causes if rest else ():
            if not 2 <= kinds[cause] <= _VALUES:
                continue
            for column in _alike(own[:_FIRST], cause):
                if not 2 <= kinds[column] <= kinds[cause]:
                    continue
                both = own[:, [cause, column]]
                share = _follows(both, tables[k].clusters, rest, cause, column)
                if share is not None:
                    found.setdefault(cause, []).append((column, share))
        yield from _in_words(name, columns, kinds, found)


def _in_words(
    name: str, columns: Sequence[str], kinds: Sequence[int], found: Found
) -> Iterator[str]:
    """Yield a remark for each column, with the column of fewest values it follows from."""
    if sum(map(len, found.values())) > _SEVERAL:
        return  # rows of one cluster, such as a patient, have all these values
    said: set[int] = set()
    for cause in sorted(found, key=lambda j: kinds[j]):
        for column, share in found[cause]:
            if column not in said:
                said |= {column, cause} if kinds[column] == kinds[cause] else {column}
                yield (
                    f"column {columns[column]!r}: at {name} it has one value for each of the "
                    f"{kinds[cause]} of {columns[cause]!r}, and elsewhere not (the commonest ones "
                    f"are {share:.0%} of the rows at most): is one made from the other there?"
                )


def _coded(tables: Sequence[SiteRows]) -> tuple[list[str], list[Array]]:
    """Return the columns' names, and each client's rows with values as numbers from 0.

    Missing ones are -1. Outcomes that are levels, or times, are left out.
    """
    schema = tables[0].schema
    columns = all_columns(tables)
    ends = np.cumsum([len(table.targets) for table in tables])[:-1]
    names = [name for name in columns[0] if not (schema.event and name == schema.target)]
    codes = []
    for name in names:
        values = np.concatenate([one[name] for one in columns])
        own = np.unique(values, return_inverse=True)[1].reshape(-1)
        codes.append(np.where(np.isnan(values), -1, own))
    return names, np.split(np.column_stack(codes), ends)


def _alike(rows: Array, cause: int) -> Iterator[int]:
    """Yield the columns that do not vary among rows with one value of a column."""
    ordered = rows[np.argsort(rows[:, cause], kind="stable")]
    before, after = ordered[:-1], ordered[1:]
    same = (before[:, cause] == after[:, cause]) & (after[:, cause] >= 0)
    varies = (before != after) & (before >= 0) & (after >= 0)
    for column in np.flatnonzero(~varies[same].any(axis=0)).tolist():
        if column != cause:
            yield column


def _follows(
    own: Array, clusters: Array | None, rest: Sequence[Array], cause: int, column: int
) -> float | None:
    """Return the share of rows elsewhere with the commonest values, if the client is unlike it."""
    filled = (own >= 0).all(axis=1)
    known = own[filled]
    if len(known) < _FEW or held_by(*known.T) < len(known):
        return None
    known = _independent(known, None if clusters is None else clusters[filled])
    groups = len(np.unique(known[:, 0]))
    told = []
    for other in rest:
        both = other[:, [cause, column]]
        both = both[(both >= 0).all(axis=1)]
        if len(both) < _FEW or len(np.unique(both[:, 1])) < 2:
            continue  # where it does not vary nothing is told
        told.append(held_by(*both.T) / len(both))
        if told[-1] > _MIXED or _the_other_way_round(*both.T):
            return None
    if not told or (len(known) - groups) * math.log(max(told)) > _NEVER:
        return None
    return max(told) if in_any_order(*known.T) < _NEVER else None


def _the_other_way_round(cause: Array, column: Array) -> bool:
    """Return whether the first one follows from the second, whose values are then few by chance."""
    return held_by(column, cause) == len(cause) and in_any_order(column, cause) < _NEVER


def _independent(rows: Array, clusters: Array | None) -> Array:
    """Return one row of those of a cluster that are all alike, and of neighbours that are."""
    if clusters is not None:
        each = np.unique(np.column_stack([clusters, rows]), axis=0)
        if len(each) == len(np.unique(clusters)):
            return each[:, 1:]
    return rows[np.flatnonzero((np.diff(rows, axis=0, prepend=-1) != 0).any(axis=1))]


def held_by(cause: Array, column: Array) -> int:
    """Return how many rows have the commonest value among those with one value of a column.

    >>> held_by(np.array([0, 0, 0, 1, 1]), np.array([2, 2, 5, 3, 3]))
    4
    """
    kinds = int(column.max()) + 1
    pairs, counts = np.unique(cause * kinds + column, return_counts=True)
    starts = np.flatnonzero(np.diff(pairs // kinds, prepend=-1))
    return int(np.maximum.reduceat(counts, starts).sum())


def in_any_order(cause: Array, column: Array) -> float:
    """Return a bound on the logarithm of the chance that values in any order follow from others.

    >>> round(math.exp(in_any_order(np.array([0, 0, 1, 1]), np.array([3, 3, 4, 4]))), 6)
    0.666667
    """
    counts = np.unique(column, return_counts=True)[1]
    orders = math.lgamma(len(column) + 1) - sum(math.lgamma(n + 1) for n in counts.tolist())
    return len(np.unique(cause)) * math.log(len(counts)) - orders
