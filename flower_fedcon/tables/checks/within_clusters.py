"""Columns that vary within one client's clusters unlike elsewhere, and rows after an event.

Of 1,088 federations made of R's data sets, with a column of 10 to 200 values as the cluster that
is at one client each, 2 were said. Where clusters are at several clients, as groups of ages are, a
column that tells the client often varies so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.errors import first_few
from flower_fedcon.tables.checks.odd_values import numbers_of
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_BY_CHANCE = 1e-6  # that so many clusters are unlike the others
_MOST, _SOME = 0.5, 0.1  # shares of clusters in which a column varies
_FEW, _AFTER, _SHARE = 3, 5, 0.2  # clusters; events that rows follow, and their share
_AGAIN = 0.5  # of the rows of a client: so many have values that others of their cluster have
_OF = 10  # clusters, or events, elsewhere


def within_clusters(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients with a column that varies within no cluster, or within some, alone there.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    if len(tables) < 2 or any(table.clusters is None for table in tables):
        return
    schema = tables[0].schema
    columns = [numbers_of(table) for table in tables]
    for place, feature in enumerate(schema.categorical):
        for one, table in zip(columns, tables, strict=True):
            one[feature.name] = _codes(table.categories[:, place])
    if schema.family.labelled and not schema.event:
        for one, table in zip(columns, tables, strict=True):
            one[schema.target] = np.asarray(table.outcome, dtype=float)
    for column in columns[0]:
        if schema.event and column == schema.target:
            continue  # times, which end each row
        told = [
            varying(one[column], np.asarray(table.clusters))
            for one, table in zip(columns, tables, strict=True)
        ]
        for k, (some, of) in enumerate(told):
            rest = [pair for j, pair in enumerate(told) if j != k and pair[1] >= _FEW]
            others = sum(pair[1] for pair in rest)
            if not rest or of < _FEW or others < _OF:
                continue
            least = min(there / count for there, count in rest)
            if not some and least >= _MOST and (1 - least) ** of < _BY_CHANCE:
                yield (
                    f"column {column!r}: it varies within none of {of} clusters of {names[k]}, and "
                    f"elsewhere within {least:.0%} or more: is it a mean of the cluster, or one "
                    f"value in all its rows, there?"
                )
            alone = some >= max(_FEW, _SOME * of) and not any(there for there, _ in rest)
            if alone and (1 - some / of) ** others < _BY_CHANCE:
                yield (
                    f"column {column!r}: it varies within {some} of {of} clusters of {names[k]}, "
                    f"and within none of {others} elsewhere: is it another measure there, or are "
                    f"rows of other clusters among them?"
                )
    yield from _rows_again(names, tables, columns)
    yield from _after_events(names, tables)
    yield from _without_entries(tables)


def _rows_again(
    names: Sequence[str], tables: Sequence[SiteRows], columns: Sequence[dict[str, Array]]
) -> Iterator[str]:
    """Yield the client in whose clusters values of two columns occur again, elsewhere never."""
    found: dict[int, list[str]] = {}
    for column in columns[0]:
        told = [
            again(one[column], np.asarray(table.clusters))
            for one, table in zip(columns, tables, strict=True)
        ]
        for k, (rows, of) in enumerate(told):
            rest = [pair for j, pair in enumerate(told) if j != k]
            others = sum(pair[1] for pair in rest)
            alone = of and rows >= _AGAIN * of and not any(pair[0] for pair in rest)
            if alone and others >= _OF and (1 - rows / of) ** others < _BY_CHANCE:
                found.setdefault(k, []).append(repr(column))
    for k, repeated in found.items():
        if len(repeated) < 2:
            continue  # rounded, or filled in
        yield (
            f"rows of one cluster have the same {first_few(repeated)} at {names[k]}, and never "
            f"elsewhere: are they counted twice, as before and after a correction?"
        )


def again(values: Array, clusters: Array) -> tuple[int, int]:
    """Return the rows whose value another row of their cluster has, of those with others.

    >>> again(np.array([1.0, 1.0, 2.0, 3.0, 3.0]), np.array([0, 0, 0, 1, 2]))
    (2, 3)
    """
    known = ~np.isnan(values)
    pairs = np.column_stack([clusters[known], values[known]])
    several = np.unique(pairs[:, 0], return_inverse=True, return_counts=True)
    pairs = pairs[several[2][several[1]] > 1]
    if not len(pairs):
        return 0, 0
    counts = np.unique(pairs, axis=0, return_counts=True)[1]
    return int(counts[counts > 1].sum()), len(pairs)


def _without_entries(tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the remark on rows of clusters that seem to follow each other, without an entry.

    Each event is in the cluster's row with the latest time, as in rows of one patient.
    """
    schema = tables[0].schema
    if not schema.event or schema.entry:
        return
    last = of = 0
    for table in tables:
        times, events = table.targets[:, :2].T
        own = np.unique(np.asarray(table.clusters), return_inverse=True)[1]
        latest, rows = np.full(len(own), -np.inf), np.bincount(own)
        np.maximum.at(latest, own, times)
        at = (events > 0) & (rows[own] > 1)
        of += int(at.sum())
        last += int((at & (times == latest[own])).sum())
    if last == of >= 2 * _OF:
        yield (
            f"all {of} events of clusters with several rows are in the row with the latest "
            f"{schema.target!r}: do rows of {schema.cluster!r} follow each other? Then name the "
            f"column of each row's start: entry = ..."
        )


def varying(values: Array, clusters: Array) -> tuple[int, int]:
    """Return in how many clusters a column varies, and those with two known rows or more.

    >>> varying(np.array([1.0, 2.0, 3.0, 3.0, np.nan, 5.0]), np.array([0, 0, 1, 1, 1, 2]))
    (1, 2)
    """
    known = ~np.isnan(values)
    order = np.argsort(clusters[known], kind="stable")
    own, values = clusters[known][order], values[known][order]
    if not len(own):
        return 0, 0
    starts = np.flatnonzero(np.diff(own, prepend=np.nan) != 0)
    several = np.diff(starts, append=len(own)) > 1
    low, high = (each.reduceat(values, starts) for each in (np.minimum, np.maximum))
    return int((high > low)[several].sum()), int(several.sum())


def _codes(marks: np.ndarray[tuple[int, ...], np.dtype[np.str_]]) -> Array:
    codes: Array = np.unique(marks, return_inverse=True)[1].astype(float)
    codes[marks == ""] = np.nan
    return codes


def _after_events(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients with rows of a cluster after its event, which no other has."""
    schema = tables[0].schema
    if not (schema.event and schema.entry):
        return
    told = []
    for table in tables:
        times, events, entries = table.targets[:, :3].T
        own = np.unique(np.asarray(table.clusters), return_inverse=True)[1]
        last = np.full(len(own), -np.inf)
        np.maximum.at(last, own, entries)
        followed = (events > 0) & (last[own] >= times)
        told.append((int(followed.sum()), int((events > 0).sum())))
    for k, (rows, of) in enumerate(told):
        rest = [pair for j, pair in enumerate(told) if j != k]
        if rows < max(_AFTER, _SHARE * of) or any(after for after, _ in rest):
            continue
        if (others := sum(events for _, events in rest)) >= _OF:
            yield (
                f"column {schema.event!r}: {rows} of {of} events of {names[k]} have later rows of "
                f"their cluster, and none of {others} elsewhere: are events in the right rows?"
            )
