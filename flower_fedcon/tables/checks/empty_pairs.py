"""Rows of two categories together of which none has an outcome at one client, or each has.

A rule, such as that of visits paid by an insurance, leaves those without outcomes whom two columns
tell together. Each category alone has outcomes there, so that `empty_cells` says nothing. By the
least share, of the same rows elsewhere and of those at the client with one of the two categories,
this would be once in a million cases.

With the least share 0.7 that needs 12 runs of such rows, with 0.3 39: rows next to each other count
once, as they may be of one patient. Of 2,782 federations made of R's data sets 2 were said, in one
set, a design; of the same in mixed order, which hides patients and schools, 22 in 12 sets. Of 3,000
simulated ones, of which about a third have categories and such outcomes, none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from flower_fedcon.tables.checks.unlike_outcomes import FEW, marks_of, what_it_is
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_MARKS, _ALL = 10, 200  # categories of a column, and of all: of more nothing is sought
_LEAST = 0.2  # the share of others with an outcome: sites differ in rare ones by more than chance
_NEVER = math.log(1e-6)
_WORK = 1e10  # multiplications: of more nothing is sought


def empty_pairs(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients where two categories together have no outcome, or only such, alone there.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    ordered = schema.event or schema.family.binary or schema.family.whole or schema.levels
    if len(tables) < 2 or not ordered or schema.sparse:
        return
    levels: list[tuple[str, str]] = []
    flags: list[list[Array]] = [[] for _ in tables]
    for column, each in marks_of(tables).items():
        marks = [mark for mark in np.unique(np.concatenate(each)).tolist() if mark]
        for mark in marks if 2 <= len(marks) <= _MARKS else ():
            levels.append((column, mark))
            for own, marked in zip(flags, each, strict=True):
                own.append((marked == mark).astype(float))
    rows = sum(len(table.targets) for table in tables)
    if len(levels) < 4 or len(levels) > _ALL or rows * len(levels) ** 2 > _WORK:
        return
    outcomes = [np.asarray(table.outcome) > 0 for table in tables]
    counts = np.array(
        [_pairs(own, np.ones(len(y))) for own, y in zip(flags, outcomes, strict=True)]
    )
    events = np.array([_pairs(own, y) for own, y in zip(flags, outcomes, strict=True)])
    for found, so, have in ((events, "none", "have"), (counts - events, "each", "have not")):
        for k, (a, b), share in _empty(levels, flags, counts, found):
            (one, mark), (other, second) = levels[a], levels[b]
            yield (
                f"columns {one!r} and {other!r}: {so} of the {counts[k, a, b]:.0f} rows of "
                f"{names[k]} with {mark!r} and {second!r} has {what_it_is(schema)}, and "
                f"{share:.0%} or more elsewhere, or with one of the two, {have}: is one known from "
                f"the others there?"
            )


def _pairs(flags: Sequence[Array], which: Array) -> Array:
    """Return for each two levels the number of rows with both of those that are asked for."""
    columns = np.column_stack(flags)
    both: Array = columns.T @ (columns * which[:, None])
    return both


def _empty(
    levels: Sequence[tuple[str, str]], flags: Sequence[Sequence[Array]], rows: Array, found: Array
) -> Iterator[tuple[int, tuple[int, int], float]]:
    """Yield the clients, the two levels with most rows of those without one, and its share else."""
    for k in range(len(rows)):
        told = []
        for a, b in combinations(range(len(levels)), 2):
            if levels[a][0] == levels[b][0] or rows[k, a, b] < FEW or found[k, a, b]:
                continue
            alone = [(found[k, i, i], rows[k, i, i] - rows[k, a, b]) for i in (a, b)]
            rest = [
                (found[j, a, b], rows[j, a, b])
                for j in range(len(rows))
                if j != k and rows[j, a, b] >= FEW
            ]
            if not rest or min(of for _, of in alone) < FEW:
                continue
            share = min(number / of for number, of in [*alone, *rest])
            if share < _LEAST:
                continue
            both = flags[k][a] * flags[k][b]
            runs = int(
                np.count_nonzero(np.diff(both, prepend=0.0) > 0)
            )  # of a patient, or a school
            if runs * math.log1p(-min(share, 0.999)) < _NEVER:
                told.append((float(rows[k, a, b]), (a, b), share))
        if told:
            yield (k, *max(told)[1:])
