"""Rows of one client that have the values of the row before, or of a block before, alone there.

A join, or files that are stacked, double rows. Where columns have few values, rows are equal by
chance, and in a sorted file next to each other. So a client is asked about if neighbouring rows are
equal far more often there than at any other, and more often than in another order of its rows; if
its other neighbours are alike, too, as in a sorted file, the equal rows must be more than by the
others' frequencies would be in the whole file.

Of 1,351 federations made of R's data sets one was said, of rows of one patient, and none of 12,000
simulated ones, with columns of few or many values and files of which a third each are sorted by one
column or by all. Where a join had repeated two fifths of the rows of one of two to five clients,
72 % were found in files in mixed order, 30 % in those sorted by a column and 16 % in those sorted
by all; the others have columns of few values, or few rows. Of blocks of a quarter of the rows that
occur again 95 % were found, some of them by the rows of the client alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.tables.checks.repeated_rows import coded_columns, pairs_of, pasted, varies
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_FEW = 20  # rows of a client: with fewer nothing is said of it
_LEAST, _SHARE = 10, 0.1  # rows that are said; their share
_TIMES = 5.0  # the share elsewhere, and the equal neighbours in another order
_BY_CHANCE = 1e-6  # of as many equal neighbours at the share elsewhere
_SORTED = 4.0  # standard errors: neighbours are more alike than by chance
_BEYOND = 3.0  # times the equal rows by the others' frequencies, in a sorted file
_PAIRS = 3.0  # of which none is found with a chance of 1 in 20
_BLOCK, _WHOLE = 20, 0.6  # rows of a block that occurs again; their share of it
_OTHERS = 4  # times the others' longest block
_DESIGN = 1.25  # times the block's rows have its columns but the outcome's: as in a design
_WIDE, _CELLS = 100, 5_000_000  # columns and cells: of more nothing is sought


class _Own(NamedTuple):
    rows: int
    equal: int  # rows with the values of the row before
    alike: float  # a bound on the share of pairs of rows that are equal
    alike_apart: float  # the same without neighbours
    ordered: bool  # whether other neighbours are more alike than by chance
    evenly: bool  # whether each row occurs as often, and more than once
    block: tuple[int, int, int]  # see `_block`


def doubled_rows(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients in whose files rows occur again as neighbours, or in blocks.

    With a column of clusters nothing is sought: their rows are meant to be alike.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    if len(tables) < 2 or schema.sparse or schema.cluster:
        return
    width = tables[0].numeric.shape[1] + tables[0].categories.shape[1]
    rows = sum(len(table.targets) for table in tables)
    if not 0 < width <= _WIDE or width * rows > _CELLS:
        return
    told = [_of_client(table) for table in tables]
    outcome = " and ".join(repr(name) for name in (schema.target, schema.event) if name)
    for k, (name, table) in enumerate(zip(names, tables, strict=True)):
        rest = [both for j, both in enumerate(told) if j != k and both[0].rows >= _FEW]
        (own, without), others = told[k], [both[0] for both in rest]
        again = _is_doubled(own, others) or _is_stacked(own, without, others)
        if again and (own.evenly or any(pasted(table, np.arange(own.rows)))):
            continue  # which is said of this client's file alone
        if _is_doubled(own, others):
            yield _in_words(name, own, others, "", "are rows doubled by a join, or files stacked?")
        elif again:
            length, place, offset = own.block
            first, second = table.numbers_of(np.array([place, place + offset])).tolist()
            yield (
                f"{length} rows of {name} from row {second} on have all values of those from row "
                f"{first} on: are files stacked?"
            )
        elif _is_doubled(without, others := [both[1] for both in rest]):
            asked = "are they rows of one patient, or doubled by a join?"
            yield _in_words(name, without, others, f" but {outcome}", asked)


def _in_words(name: str, own: _Own, rest: Sequence[_Own], but: str, asked: str) -> str:
    return (
        f"{own.equal} of {own.rows} rows of {name} have all values{but} of the row before, and "
        f"elsewhere {sum(o.equal for o in rest)} of {sum(o.rows for o in rest)}: {asked}"
    )


def _is_stacked(own: _Own, without: _Own, rest: Sequence[_Own]) -> bool:
    """Return whether a block occurs again here alone, with its outcomes, unlike a design's."""
    length = own.block[0]
    if not rest or without.block[0] > _DESIGN * length:
        return False
    return length >= max(_BLOCK, _OTHERS * max(o.block[0] for o in rest))


def _is_doubled(own: _Own, rest: Sequence[_Own]) -> bool:
    equal, rows = own.equal, own.rows
    if not rest or rows < _FEW or equal < max(_LEAST, _SHARE * rows):
        return False
    pooled = (sum(o.equal for o in rest) + 1) / (sum(o.rows for o in rest) + 1)
    share = max(pooled, *(o.equal / o.rows for o in rest), own.alike_apart)
    if equal < _TIMES * share * rows or tail(equal, rows, share) > math.log(_BY_CHANCE):
        return False
    chance = rows * -math.expm1(-rows * max(o.alike for o in rest))
    return not own.ordered or equal > _BEYOND * chance + _LEAST


def tail(found: int, of: int, share: float) -> float:
    """Return a bound on the logarithm of the chance of as many, by Chernoff.

    >>> round(tail(10, 10, 0.1), 3), round(10 * math.log(0.1), 3)
    (-23.026, -23.026)
    """
    there = found / of
    rest = (1 - there) * math.log((1 - there) / (1 - share)) if there < 1 else 0.0
    return -of * (there * math.log(there / share) + rest)


def _of_client(table: SiteRows) -> tuple[_Own, _Own]:
    """Return what is known of all columns, and of all but the outcome's."""
    rows = len(table.targets)
    targets = [*table.targets.reshape(rows, -1).T]
    codes, parts = coded_columns([*targets[:2], *targets[2:], *table.numeric.T,
                                  *table.categories.T])  # fmt: skip
    outcome = min(2, len(targets))
    return _own(codes, parts), _own(codes[outcome:], parts[outcome:])


def _own(codes: Sequence[Array], parts: Sequence[Array]) -> _Own:
    key: Array = np.asarray(np.sum(parts, axis=0, dtype=np.uint64))
    rows = len(key)
    again = np.append(False, key[1:] == key[:-1])
    equal, heads = int(again.sum()), ~again
    times = np.unique(key, return_counts=True)[1]
    of_heads = np.unique(key[heads], return_counts=True)[1]
    ordered = heads.sum() < _FEW or any(
        neighbours_alike(own[heads]) for own in codes if varies(own)
    )
    return _Own(
        rows, equal, (pairs_of(times) + _PAIRS) / max(1, math.comb(rows, 2)),
        pairs_of(of_heads) / max(1, math.comb(len(key[heads]), 2)), ordered,
        bool(times[0] > 1 and (times == times[0]).all()), _block(key),
    )  # fmt: skip


def neighbours_alike(codes: Array) -> bool:
    """Return whether neighbours are more alike than by chance, by von Neumann's ratio.

    >>> rng = np.random.default_rng(0)
    >>> mixed = rng.permutation(99)
    >>> bool(neighbours_alike(mixed)), bool(neighbours_alike(np.sort(mixed)))
    (False, True)
    """
    x = codes - codes.mean()
    whole = float(x @ x)
    if len(x) < _FEW or not whole > 0:
        return False
    return float((np.diff(x) ** 2).sum()) / whole < 2 - 2 * _SORTED / math.sqrt(len(x))


def _block(key: Array) -> tuple[int, int, int]:
    """Return a block of rows that occurs again: its equal rows, first place and offset.

    A row's next equal one may be another by chance.

    >>> _block(np.array([7, 1, 2, 3, 4, 2, 1, 2, 3, 4]))
    (3, 1, 5)
    """
    order = np.argsort(key, kind="stable")
    same = np.flatnonzero(key[order][1:] == key[order][:-1])
    offsets = np.zeros(len(key), dtype=np.int64)
    offsets[order[same]] = order[same + 1] - order[same]
    usual = np.bincount(offsets)
    usual[:2] = 0  # neighbours are known otherwise
    offset = int(usual.argmax())
    places = np.flatnonzero(offsets == offset)
    if not usual[offset] or np.ptp(places) + 1 > len(places) / _WHOLE:
        return 0, 0, 0
    return len(places), int(places[0]), offset
