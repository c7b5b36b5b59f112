"""Columns that follow the order of rows, or of clusters, at one client alone.

Levels take turns from row to row, as in 0, 1, 0, 1; or within nearly all clusters a column has one
value, and elsewhere it varies within most, as where it was sorted alone in a file of clusters.

Of 1,351 federations made of R's data sets none was said to take turns: where files list visits or
litters, their turns have other lengths elsewhere; of 2,721 with clusters, which are at several
clients most, 3 to be sorted; of 3,000 simulated ones, a third of whose files are sorted by the
column, none. Of columns of two levels sorted alone 28 % are found, with clusters of 2 to 20 rows:
pairs are often alike anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.tables.checks.comparable import comparable
from flower_fedcon.tables.checks.odd_values import all_columns
from flower_fedcon.tables.checks.within_clusters import varying
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_LEVELS = 6  # in turn; of more nothing is sought
_NEVER = 1e-6  # the chance of such an order, by the shares elsewhere
_MIXED = 0.5  # of the rows that would be alike in any order: with fewer elsewhere has an order
_MOST, _FEW = 0.5, 0.1  # shares of clusters within which a column varies: elsewhere, and there
_SEVERAL, _OF = 3, 10  # clusters of a client, and of all others


def in_order(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients with a column whose levels take turns, or hardly vary within clusters.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    if not comparable(tables):
        return
    columns = all_columns(tables)
    clustered = all(table.clusters is not None for table in tables)
    for column in schema.names:
        values = [one[column] for one in columns]
        yield from taking_turns(column, names, values)
        if clustered:
            clusters = [np.asarray(table.clusters) for table in tables]
            yield from sorted_alone(column, names, values, clusters)


def taking_turns(column: str, names: Sequence[str], each: Sequence[Array]) -> Iterator[str]:
    """Yield the clients whose two to six values take turns from row to row, unlike elsewhere.

    >>> some = np.random.default_rng(0).integers(0, 2, (3, 40)).astype(float)
    >>> some[1] = np.arange(40) % 2
    >>> list(taking_turns("arm", "abc", some))
    ["column 'arm': its 2 values take turns in all 40 rows of b, and elsewhere not (58% of the \
rows at most): is it known there, or written in turn?"]
    """
    known = [values[~np.isnan(values)] for values in each]
    kinds = [len(np.unique(own[: 2 * _LEVELS])) for own in known]
    for k, (name, own) in enumerate(zip(names, known, strict=True)):
        period = kinds[k]
        if not 2 <= period <= _LEVELS or len(own) <= 2 * period:
            continue
        if not _again(own, period).all() or len(np.unique(own[:period])) < period:
            continue
        rest = [part for j, part in enumerate(known) if j != k and len(part) > 2 * period]
        shares = [float(_again(part, period).mean()) for part in rest]
        if not rest or max(shares) < _MIXED * max(map(_alike, rest)):
            continue  # they are in an order of their own, as in a file of visits
        if max(shares) ** (len(own) - period) < _NEVER:
            yield (
                f"column {column!r}: its {period} values take turns in all {len(own)} rows of "
                f"{name}, and elsewhere not ({max(shares):.0%} of the rows at most): is it known "
                f"there, or written in turn?"
            )


def _alike(values: Array) -> float:
    """Return the chance that two rows have one value."""
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(shares @ shares)


def _again(values: Array, period: int) -> Array:
    again: Array = values[period:] == values[:-period]
    return again


def sorted_alone(
    column: str, names: Sequence[str], each: Sequence[Array], clusters: Sequence[Array]
) -> Iterator[str]:
    """Yield the clients where a column is sorted, and for this hardly varies within clusters.

    Sorted with the whole file it would part clusters. Not within one is said by
    `flower_fedcon.tables.checks.within_clusters`.

    >>> rng, schools = np.random.default_rng(0), np.repeat(np.arange(30.0), 5)
    >>> boys = rng.integers(0, 2, (3, 150)).astype(float)
    >>> boys[1] = np.arange(150) > 70  # 71 are 0, so that school 14 has both
    >>> list(sorted_alone("boy", "abc", boys, [schools] * 3))
    ["column 'boy': rows with the same value follow each other at b, so that it varies within 1 of \
30 clusters, and elsewhere within 80% or more: is it sorted without the others there?"]
    """
    from scipy.stats import binom

    told = [varying(own, of) for own, of in zip(each, clusters, strict=True)]
    for k, (some, of) in enumerate(told):
        rest = [pair for j, pair in enumerate(told) if j != k and pair[1] >= _SEVERAL]
        if not rest or not 0 < some <= _FEW * of or sum(pair[1] for pair in rest) < _OF:
            continue
        least = min(there / count for there, count in rest)
        own = each[k][~np.isnan(each[k])]
        in_runs = np.count_nonzero(np.diff(own)) == len(np.unique(own)) - 1
        if least >= _MOST and binom.cdf(some, of, least) < _NEVER and in_runs:
            yield (
                f"column {column!r}: rows with the same value follow each other at {names[k]}, so "
                f"that it varies within {some} of {of} clusters, and elsewhere within {least:.0%} "
                f"or more: is it sorted without the others there?"
            )
