"""Columns of clusters that group no rows at a client, or too many, and clusters in two spellings.

Of 2,000 simulated honest federations, with clusters of 1.3 to 9 rows on average, none had a
remark. Of 2,741 made of R's data sets (a column of 10 to 200 values as the cluster, one of two to
six as the site) 11 had one on rows that are not grouped, or all grouped, since the site is an
outcome or an arm there, and 20 one on spellings: 18 are misspelled, and two have vowels as names.
Clusters of another size were said of 2 of 3,447, which group by a count. Of simulated federations,
whose sizes' logarithms have deviations of 0.3 to 1 within sites, 6 of 18,000 were said if these are
up to 0.5 between sites, and 23 of 6,000 if 0.8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.errors import first_few, number_of
from flower_fedcon.tables.marks import folded, number_in
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_FEW = 20  # rows of a client: with fewer nothing is said
_CHANCE = 0.01  # that as many rows are alone in their clusters as elsewhere
_TIMES = 3  # the largest cluster elsewhere: one of all rows is said if larger
ALONE = "each row of every client is a cluster of its own"
_MULTIPLE, _SEVERAL = 4, 5  # times the usual size elsewhere; clusters of each client
_MEAN = 3  # the same of mean sizes, which are not those of many single rows alone
_NUMBER = 3  # of the numbers of clusters, the other way round: rows are regrouped
_PARTS = re.compile(r"[^\W\d_]+|[0-9]+|[^\w\s./:#-]")


def spelled(table: SiteRows) -> Iterator[str]:
    """Yield the clusters of a file whose names differ only in case, signs, blanks or zeros."""
    if table.clusters is None:
        return
    rows = np.bincount(table.clusters.astype(int), minlength=len(table.cluster_names))
    by_name = dict(zip(table.cluster_names, rows.tolist(), strict=True))
    groups = [
        " and ".join(f"{name!r} ({number_of(by_name[name], 'row')})" for name in group)
        for group in same_names(list(by_name))
    ]
    if groups:
        yield (
            f"column {table.schema.cluster!r}: {first_few(groups, 3)} are clusters of their own: "
            f"do they mean the same?"
        )


def same_names(names: Sequence[str]) -> list[list[str]]:
    """Return the groups of names that probably are one.

    They have the same words and numbers; a word may be written as its first letter: ward 05 is W05.

    >>> same_names(["W05", "W6", "w5 ", "A-1", "A1", "A-11", "1-1", "11"])
    [['W05', 'w5 '], ['A-1', 'A1']]
    >>> same_names(["W05", "ward 05", "W06"]), same_names(["A+", "A-", "1.5", "15"])
    ([['W05', 'ward 05']], [])
    """
    keys = {name: _parts(name) for name in names}
    words = {key[0] for key in keys.values() if key and key[0].isalpha()}
    short = {
        word: word[0] for word in words
        if len(word) > 2 and word[0] in words and sum(other[0] == word[0] for other in words) == 2
    }  # fmt: skip
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, key in keys.items():
        groups.setdefault((short.get(key[0], key[0]), *key[1:]) if key else (name,), []).append(
            name
        )
    return [group for group in groups.values() if len(group) > 1]


def _parts(name: str) -> tuple[str, ...]:
    plain = folded(name)
    if number_in(plain) is not None:
        return (plain,)
    return tuple(part.lstrip("0") or part for part in _PARTS.findall(plain))


def nothing_grouped(column: str) -> str:
    """Return the remark on a column of clusters that have one row each, at all clients."""
    return (
        f"column {column!r}: {ALONE}, so nothing is grouped, and errors by cluster are those of "
        f'rows (inference="robust"): does it number the rows?'
    )


def odd_clusters(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients whose rows are each a cluster, or all one, and elsewhere are grouped.

    That each row of all clients is one is said once.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    if any(table.clusters is None for table in tables):
        return
    sizes = [np.unique(np.asarray(table.clusters), return_counts=True)[1] for table in tables]
    measured = np.array([_measures(own) for own in sizes])
    middles = np.array([np.median(own) for own in sizes])
    column = tables[0].schema.cluster
    if all((own == 1).all() for own in sizes):
        yield nothing_grouped(column)
        return
    for k, (name, own) in enumerate(zip(names, sizes, strict=True)):
        others = [*sizes[:k], *sizes[k + 1 :]]
        if own.sum() < _FEW or not others:
            continue
        rest = np.concatenate(others)
        alone = (float((rest == 1).sum()) + 1) / (float(rest.sum()) + 2)  # Laplace
        if len(own) == own.sum() and rest.mean() >= 2 and alone ** len(own) < _CHANCE:
            yield (
                f"column {column!r}: each of the {len(own)} rows of {name} is a cluster of its "
                f"own, and elsewhere one has {rest.mean():.3g} rows on average: are they numbers "
                f"of rows?"
            )
        elif len(own) == 1 < min(map(len, others)) and own[0] > _TIMES * rest.max():
            yield (
                f"column {column!r}: all {own[0]} rows of {name} are one cluster, and elsewhere "
                f"the largest has {rest.max()}: is the cluster not known there?"
            )
        elif asked := _of_another_size(measured[k], np.delete(measured, k, axis=0)):
            of, least = f"{np.median(own):g}", min(usual := np.delete(middles, k).tolist())
            elsewhere = f"{least:g} to {max(usual):g}" if least < max(usual) else f"{least:g}"
            yield (
                f"column {column!r}: the {len(own)} clusters of {name} have {of} rows (median), "
                f"and elsewhere {elsewhere}: {asked}"
            )
            if len(others) == 1:
                return  # of the other the same could be said
        elif np.median(own) >= _MULTIPLE * max(usual := np.delete(middles, k).tolist()) and (
            own.min() >= 2 * max(usual) and min(map(len, (own, *others))) >= _SEVERAL
        ):
            yield (
                f"column {column!r}: clusters of {name} have {own.mean():.3g} rows on average, and "
                f"elsewhere {rest.mean():.3g}: are rows multiplied by a join, or of shorter times?"
            )


def _measures(sizes: Array) -> list[float]:
    """Return the logarithms of median and mean size, and of the inverse number of clusters."""
    return [math.log(np.median(sizes)), math.log(sizes.mean()), -math.log(len(sizes))]


def _of_another_size(own: Array, others: Array) -> str:
    """Return what to ask of clusters far larger, or smaller, than at each other client, or "".

    Sites honestly have larger or smaller clusters, as wards. If rows were grouped otherwise, there
    are fewer, or more, clusters as well.

    Parameters
    ----------
    own : array, shape (3,)
        From `_measures`.
    others : array, shape (K, 3)

    Examples
    --------
    >>> pairs, villages = _measures(np.repeat(2, 60)), _measures(np.arange(6, 18))
    >>> _of_another_size(np.array(pairs), np.array([villages] * 2))
    'are they smaller units there, as households are to villages?'
    """
    if max(own[2], others[:, 2].max()) > -math.log(_SEVERAL):
        return ""
    least = np.log([_MULTIPLE, _MEAN, _NUMBER]) + (math.log(2) if len(others) == 1 else 0.0)
    apart = (own - others) / least
    if apart.min() >= 1:
        return "are they larger units there, or are codes cut short?"
    if apart.max() <= -1:
        return "are they smaller units there, as households are to villages?"
    return ""
