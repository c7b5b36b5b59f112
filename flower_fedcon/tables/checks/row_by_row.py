"""A column of numbers that one client's rows repeat from the row before, or that numbers its rows.

Cells are filled down, or written once for two rows; or they have the number of the row. Files may
be sorted by a column, and list visits. So a client is asked about if this is so there alone, of one
column alone, and if its other values, and those elsewhere, are in no order. Several columns that
are repeated in the same rows are as those of rows of one patient, and are not asked about.

Of 1,351 federations made of R's data sets none was said to repeat values and two to number rows,
which are years of panels that a law splits; the bounds were set with these in view. Of 4,500
simulated ones, a third of whose files are sorted by a column, none. Of columns that one site of
those fills down in 30 % of its rows 36 % were found, in 60 % 46 %, of values given to two rows each
53 %, and of numbers of rows up to 50, which begin anew, 62 %: others have few values, or files that
are sorted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.tables.checks.comparable import comparable
from flower_fedcon.tables.checks.doubled_rows import neighbours_alike, tail
from flower_fedcon.tables.checks.odd_values import all_columns
from flower_fedcon.tables.checks.repeated_rows import pairs_of
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_FEW, _KINDS = 20, 6  # rows of a client, and different values: with fewer nothing is said
_SHARE, _TIMES = 0.2, 5.0  # of the neighbours that would differ; times any other client's
_SLACK, _BY_CHANCE = 1.5, 1e-6  # times it; the chance of as many at this
_RUN = 0.5  # of the repeated values: so many may be in one run, as of zeros in a sorted file
_NUMBERS, _ELSEWHERE = 0.9, 0.2  # of steps that are 1: here at least, and elsewhere at most


class _Column(NamedTuple):
    pairs: int  # neighbours with values
    again: Array  # whether each row has the value of the row before, shape (m,)
    alike: float  # the share of all pairs of rows with one value
    sorted: bool  # whether neighbours are alike
    free: bool  # whether this is not so of values that are not repeated
    run: int  # the most rows that follow each other with one value
    ones: float  # the share of steps that are 1

    def beyond(self, where: Array | None = None) -> float:
        """Return the share of neighbours that are equal, of those that would differ by chance."""
        share = float(self.again.sum() / self.pairs if where is None else self.again[where].mean())
        return (share - self.alike) / (1 - self.alike)


def row_by_row(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients at which a column's values are repeated from row to row, or count rows.

    With a column of clusters nothing is sought: their rows are meant to be alike.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    if schema.cluster or not comparable(tables):
        return
    columns = all_columns(tables)
    numbers = columns[0].keys() - {feature.name for feature in schema.categorical}
    each = [_told(own) for own in columns]
    for column in (name for name in columns[0] if name in numbers):
        for k, name in enumerate(names):
            own = each[k].get(column)
            if own is None or not (_is_repeated(column, each[k]) or own.ones >= _NUMBERS):
                continue
            rest = [one[column] for j, one in enumerate(each) if j != k and column in one]
            if not rest or any(one.sorted for one in rest):
                continue
            if own.ones >= _NUMBERS and max(one.ones for one in rest) <= _ELSEWHERE:
                yield (
                    f"column {column!r}: {own.ones:.0%} of the steps from row to row at {name} are "
                    f"1, and elsewhere {max(one.ones for one in rest):.0%} at most: does it number "
                    f"the rows there?"
                )
            elif _only_here(own, max(one.beyond() for one in rest)):
                there, of = (sum(int(n) for n in every) for every in zip(
                    *((one.again.sum(), one.pairs) for one in rest), strict=True))  # fmt: skip
                yield (
                    f"column {column!r}: {own.again.sum()} of {own.pairs} rows of {name} have the "
                    f"value of the row before, and elsewhere {there} of {of}: is it filled down?"
                )


def _is_repeated(column: str, columns: dict[str, _Column]) -> bool:
    """Return whether many rows have the value of the row before, in one column alone."""
    own = columns[column]
    if own.beyond() < _SHARE or not own.free or own.run > _RUN * own.again.sum():
        return False
    rows = int(own.again.sum())
    return all(
        other.beyond(own.again) < _SHARE + 2 * math.sqrt(other.alike / ((1 - other.alike) * rows))
        for name, other in columns.items()
        if name != column
    )


def _only_here(own: _Column, elsewhere: float) -> bool:
    """Return whether far more neighbours are equal than by chance, and than elsewhere."""
    share = own.alike + (1 - own.alike) * max(elsewhere, 0.0)
    share = min(_SLACK * share + 1 / own.pairs, 1.0)
    equal = int(own.again.sum())
    if own.beyond() < _TIMES * elsewhere or equal <= share * own.pairs:
        return False
    return tail(equal, own.pairs, share) < math.log(_BY_CHANCE)


def _told(columns: dict[str, Array]) -> dict[str, _Column]:
    """Return what is known of a client's columns, without those of few values or one."""
    told = {}
    for name, values in columns.items():
        known = values[~np.isnan(values)]
        distinct, codes, counts = np.unique(known, return_inverse=True, return_counts=True)
        if len(known) <= _FEW or len(distinct) < 2:
            continue
        steps, heads = np.diff(known), np.append(True, np.diff(known) != 0)
        free = len(distinct) >= _KINDS and heads.sum() >= _FEW
        told[name] = _Column(
            len(steps), np.append(False, np.diff(values) == 0), pairs_of(counts)
            / math.comb(len(known), 2), neighbours_alike(codes),
            bool(free and not neighbours_alike(codes[heads])),
            int(np.diff(np.flatnonzero(heads), append=len(known)).max()),
            float((steps == 1).mean()) if len(distinct) >= _KINDS else 0.0,
        )  # fmt: skip
    return told
