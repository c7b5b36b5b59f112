"""Rows that occur again: at another client, within a file, or with another row's identifier."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations
from typing import Any

import numpy as np

from flower_fedcon.errors import first_few, number_of
from flower_fedcon.tables.marks import text_of
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_LONG = 4  # characters of an identifier that is hardly a number of rows
_FEW = 20  # with fewer rows, or values, nothing is said
_DISTINCT = 0.9  # from this share of distinct rows on, equal rows are not due to chance
_SHARED = 0.5  # a remark follows if another client holds this share of the rows
_LEAST = 5  # equal rows that are said without an identifier
_VARIES = 0.75  # the chance that two rows have one value, below which a column tells rows apart
_WIDE = 200  # with more columns copied rows without an identifier are not sought
_EACH = 10  # rows of one value: with more, on average, equal ones may be so by chance


def same_rows(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients that hold rows of others, in any order, or their own rows repeatedly.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    same: dict[bytes, list[str]] = {}
    held, counts = [], []
    for name, table in zip(names, tables, strict=True):
        every = _keys(table)
        keys, times = np.unique(every, return_counts=True)
        held.append(keys)
        counts.append(times)
        same.setdefault(keys.tobytes() + times.tobytes(), []).append(name)
        own = every + _alike_clusters(table, every)
        within = np.unique(own, return_counts=True)[1]
        if len(keys) >= _FEW and within[0] > 1 and (within == within[0]).all():
            yield f"each row occurs {within[0]} times at {name}: are rows counted repeatedly?"
    for group in same.values():
        if len(group) > 1:
            yield f"{first_few(group)} hold exactly the same rows"
    alike = {name: group[0] for group in same.values() for name in group}
    owners = np.repeat(np.arange(len(held)), [len(keys) for keys in held])
    whole = np.concatenate(held)
    order = np.argsort(whole, kind="stable")
    places = np.flatnonzero(np.diff(whole[order]) == 0)
    pairs = zip(owners[order[places]].tolist(), owners[order[places + 1]].tolist(), strict=True)
    for pair, shared in Counter(pairs).items():
        fewer, more = sorted(pair, key=lambda client: len(held[client]))
        rows = int(counts[fewer].sum())
        # If few values are possible, rows are equal by chance, even within a client.
        distinct = len(held[fewer]) >= _DISTINCT * rows
        if rows < _FEW or not distinct or shared < _SHARED * rows:
            continue
        chance = rows * (1.0 - (1.0 - _alike(counts[fewer], counts[more])) ** len(held[more]))
        if shared <= chance + 4.0 * math.sqrt(chance):
            continue
        by_chance = f" (about {chance:.0f} by chance)" if chance >= 0.5 else ""
        if alike[names[fewer]] != alike[names[more]]:
            yield (
                f"{shared} of the {rows} rows of {names[fewer]} are also held by "
                f"{names[more]}{by_chance}: are they counted twice?"
            )


def same_identifiers(
    column: str, names: Sequence[str], each: Sequence[AbstractSet[str]]
) -> Iterator[str]:
    """Yield the clients that share half of their identifiers or more.

    Identifiers of fewer than four characters may be numbers of rows, or of a client's own list.

    >>> own = {f"A{k:05d}" for k in range(0, 300, 7)}
    >>> [*same_identifiers("mrn", "ab", [own, {*own, "B00001"}])]
    ["43 of the 43 identifiers in column 'mrn' of a are also those of b: are they the same \
patients?"]
    """
    long = [{mark for mark in own if len(mark) >= _LONG} for own in each]
    for j, k in combinations(range(len(names)), 2):
        fewer, more = sorted((j, k), key=lambda one: len(long[one]))
        shared = len(long[fewer] & long[more])
        if shared < max(_FEW, _SHARED * len(long[fewer])):
            continue
        numbers = [int(mark) for mark in long[fewer] if mark.isdecimal()]
        if not numbers or max(numbers) - min(numbers) >= len(long[fewer]):  # they do not just run
            yield (
                f"{shared} of the {len(long[fewer])} identifiers in column {column!r} of "
                f"{names[fewer]} are also those of {names[more]}: are they the same patients?"
            )


def _alike(*counts: Array) -> float:
    """Return the share of pairs of rows that are equal within clients, from rows by value.

    >>> _alike(np.array([2, 1, 1]), np.array([1, 1]))
    0.14285714285714285
    """
    pairs = [math.comb(int(times.sum()), 2) for times in counts]
    equal = [pairs_of(times) for times in counts]
    return sum(equal) / max(1, sum(pairs))


def _keys(table: SiteRows) -> Array:
    """Return a number for each row, equal for equal rows."""
    if table.sparse is not None:
        return np.array([hash(table.resume_key)])
    rows = len(table.targets)
    weights = np.empty((rows, 0)) if table.weights is None else table.weights[:, None]
    parts = (table.numeric, table.targets.reshape(rows, -1), weights)
    numbers = np.ascontiguousarray(np.concatenate(parts, axis=1)) + 0.0
    texts = numbers.view(np.dtype((np.void, numbers.itemsize * numbers.shape[1]))).ravel().tolist()
    marks = map(tuple, table.categories.tolist())
    return np.fromiter(map(hash, zip(texts, marks, strict=True)), dtype=np.int64, count=rows)


def _alike_clusters(table: SiteRows, keys: Array) -> Array:
    """Return each row's number of its cluster among those with the same rows, from 0.

    Such clusters are a design, as of classes that are given the same tasks, and their rows are no
    copies: a row that is copied keeps its cluster's name, and hardly all of a cluster are copied
    under another one.

    Parameters
    ----------
    table : SiteRows
    keys : array, shape (m,)
        Equal for equal rows.
    """
    numbers = np.zeros(len(keys), dtype=np.int64)
    if table.clusters is None or table.sparse is not None:
        return numbers
    codes, met = np.asarray(table.clusters), Counter[bytes]()
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        content = np.unique(keys[rows]).tobytes() if len(rows) > 1 else b""
        if len(content) > keys.itemsize:
            numbers[rows] = met[content]
            met[content] += 1
    return numbers


def repeated(
    table: SiteRows, identifiers: Mapping[str, Sequence[Any]], numbers: Any
) -> Iterator[str]:
    """Yield the identifiers that tell of rows which occur again in one client's file.

    Their rows are equal in all columns of the schema, and are counted repeatedly; or they differ,
    as those of a patient's visits, or hours, which are no independent rows. With fewer than 20
    different identifiers nothing is said: they may be those of wards.

    Parameters
    ----------
    table : SiteRows
    identifiers : dict
        The cells of columns that have the name of an identifier.
    numbers : array of int, shape (m,)
        The rows' numbers in the file.
    """
    missing, said = {"", *table.schema.missing}, False
    keys = _keys(table) if identifiers else np.empty(0)
    alike_clusters = _alike_clusters(table, keys).tolist() if identifiers else []
    for name, cells in identifiers.items():
        texts = [(text_of(cell) or "").strip() for cell in cells]
        there = np.array([place for place, text in enumerate(texts) if text not in missing], int)
        units = [f"{alike_clusters[place]} {texts[place]}" for place in there.tolist()]
        distinct, codes = np.unique(np.array(units, str), return_inverse=True)
        if not _FEW <= len(distinct) < len(there):
            continue
        order = there[np.argsort(codes, kind="stable")]
        own, alike = np.sort(codes), keys[order]
        again = np.flatnonzero(own[1:] == own[:-1])  # rows beside the one before of this value
        equal = again[alike[again + 1] == alike[again]]
        first, second = numbers[order[[equal[0], equal[0] + 1]]] if len(equal) else (0, 0)
        if len(there) <= _EACH * len(distinct) and len(equal) >= _DISTINCT * len(again):
            said = True
            yield (
                f"{number_of(len(equal), 'row has', 'rows have')} the {name!r} and all values of "
                f"another row, such as rows {first} and {second}: are they counted twice?"
            )
        elif not table.schema.cluster:
            most = int(np.bincount(own).max())
            yield (
                f"column {name!r}: {len(there)} rows have {len(distinct)} values, each in up to "
                f"{most} rows: rows of one patient, or other unit, are not independent. Name it as "
                f'the cluster, for inference = "cluster"'
            )
    if not said and not table.schema.cluster and table.sparse is None:
        yield from pasted(table, numbers)


def pasted(table: SiteRows, numbers: Any) -> Iterator[str]:
    """Yield that rows are equal to others in all columns, if this is hardly by chance.

    Rows that are equal by chance are a small part of those that are equal in all columns but one,
    for some column at least; of copied rows nearly all are. A table whose rows all occur equally
    often is left to `same_rows`.
    """
    rows = len(table.targets)
    columns, parts = coded_columns(
        [*table.numeric.T, *table.targets.reshape(rows, -1).T, *table.categories.T]
    )
    if rows < _FEW or len(columns) > _WIDE:
        return
    key = np.sum(parts, axis=0, dtype=np.uint64)  # equal for equal rows
    _, first, codes, times = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    equal, pairs, varying = rows - len(times), pairs_of(times), 0
    if equal < _LEAST or (times == times[0]).all():
        return
    for own, part in zip(columns, parts, strict=True):
        if varies(own):
            varying += 1
            if pairs < _DISTINCT * pairs_of(np.unique(key - part, return_counts=True)[1]):
                return
    if not varying:
        return
    again = np.setdiff1d(np.arange(rows), first)
    one = int(again[0])
    other = int(first[codes[one]])
    yield (
        f"{equal} of {rows} rows have all values of another row, such as rows {numbers[other]} and "
        f"{numbers[one]}: are they counted twice?"
    )


def coded_columns(columns: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Return the place of each value among its column's, and its part of a key of its row.

    The sum of a row's parts is equal for equal rows, and hardly for others.
    """
    codes = [np.unique(column, return_inverse=True)[1].ravel() for column in columns]
    factors = np.random.default_rng(0).integers(1, 2**63, len(codes), dtype=np.uint64)
    return codes, [own.astype(np.uint64) * by for own, by in zip(codes, factors, strict=True)]


def varies(codes: Array) -> bool:
    """Return whether a column tells rows apart: two of them seldom have one value."""
    return float(((np.bincount(codes) / len(codes)) ** 2).sum()) < _VARIES


def pairs_of(times: Array) -> int:
    """Return the number of pairs of equal rows, from rows by value."""
    return int((times * (times - 1)).sum()) // 2
