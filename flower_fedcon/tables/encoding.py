"""A table's rows as the model's columns: numbers and categories, imputed and scaled.

Without a wide feature (one with more than `WIDE` categories) the rows are an array whose columns
have mean 0 and variance 1. With one they are a sparse matrix with an entry for each category of a
row. Numeric columns stay the same; columns of categories are divided by their scale and not
centred. The intercept, or the risk sets of a Cox model, absorb the difference: no coefficient
changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.tables.schema import Feature
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from flower_fedcon.tables.preparation import Preparation
    from flower_fedcon.tables.table import Table

WIDE = 200
"""The largest number of categories of a feature with dense columns."""
OTHER = ""
"""The category of a wide feature's rows without a value, or with one that no node sends."""


def is_wide(categories: tuple[str, ...]) -> bool:
    """Return whether a feature with these agreed categories is wide."""
    return OTHER in categories


def dummies(feature: Feature, categories: Sequence[str]) -> list[str]:
    """Return the categories that have a column: all but the reference, by default the first.

    >>> dummies(Feature("sex", "categorical"), ("f", "m"))
    ['m']
    """
    reference = feature.reference or (categories[0] if categories else "")
    return [category for category in categories if category != reference]


def codes(marks: np.ndarray[Any, Any], categories: tuple[str, ...]) -> Any:
    """Return each row's category by its place; -1 for an unknown one.

    >>> codes(np.array(["b", "", "a"]), ("a", "b")).tolist()
    [1, -1, 0]
    >>> codes(np.array(["b", "", "z"]), ("a", "b", OTHER)).tolist()
    [1, 2, 2]
    """
    places = {category: place for place, category in enumerate(categories)}
    otherwise = places.get(OTHER, -1)
    return np.array([places.get(mark, otherwise) for mark in marks.tolist()], dtype=np.intp)


def unknown_here(places: Any, columns: Sequence[int], rows: Any, least: int) -> list[int]:
    """Return the categories with too few rows on a node, whose columns count as unknown there.

    A column that is 1 in one row reveals this row, since the column's part of a gradient is the
    row's outcome. Such a column is replaced by its mean over all nodes, so that the row looks like
    those without a category column. If these rows, or those without a value, are still few, the
    columns of the next smallest categories become unknown, too: otherwise the sums of all others
    would reveal them.

    Parameters
    ----------
    places : array of int
        The category of each row; -1 without one.
    columns : sequence of int
        The categories that have a column.
    rows : array of int
        The training rows.
    least : int
        The least number of rows of a category.

    Examples
    --------
    >>> places = np.array([0, 0, 0, 0, 1, 1, 1, 2])
    >>> unknown_here(places, [1, 2], np.arange(8), 2), unknown_here(places, [0, 1], np.arange(8), 2)
    ([2], [1])
    """
    own, missing = places[rows], int((places[rows] < 0).sum())
    counts = {column: int((own == column).sum()) for column in columns}
    hidden = [column for column, n in counts.items() if 0 < n < least]
    lacks = 0 < missing < least
    if lacks:
        hidden += [column for column, n in counts.items() if n == 0]
    shown = sorted((n, column) for column, n in counts.items() if column not in hidden)
    while shown:
        others = len(own) - missing - sum(n for n, _ in shown)
        if not 0 < others < least and not (lacks and others == 0):
            break
        hidden.append(shown.pop(0)[1])
    return sorted(hidden)


def encoded(table: Table, preparation: Preparation, least: int = 1) -> Any:
    """Return all rows of a table, shape (m, columns), as an array or a sparse matrix.

    Columns with fewer than `least` training rows are unknown and replaced by their mean.
    """
    schema, known = table.schema, preparation.categories
    found = []
    for feature, marks in zip(schema.categorical, table.categories.T, strict=True):
        categories = known[feature.name]
        places = merged_rare(table, codes(marks, categories), categories, least)
        found.append((feature, categories, places))
    if any(is_wide(categories) for _, categories, _ in found):
        return _sparse(table, found, preparation, least)
    columns = [known_numbers(table, least)]
    for feature, categories, places in found:
        block = (places[:, None] == np.arange(len(categories))).astype(np.float64)
        block[places < 0] = np.nan
        own = _with_column(feature, categories)
        block[:, unknown_here(places, own, table.training_rows, least)] = np.nan
        columns.append(block[:, own])
    whole = np.concatenate(columns, axis=1)[:, preparation.kept]
    whole = np.where(np.isnan(whole), preparation.means, whole)
    return (whole - preparation.centers) / preparation.scales


def merged_rare(table: Table, places: Any, categories: tuple[str, ...], least: int) -> Any:
    """Return each row's category; rare ones of a wide feature count as `OTHER`."""
    if least == 1 or not is_wide(categories):
        return places
    counts = np.bincount(places[table.training_rows], minlength=len(categories))
    rare = np.flatnonzero((counts > 0) & (counts < least))
    return np.where(np.isin(places, rare), categories.index(OTHER), places)


def _with_column(feature: Feature, categories: tuple[str, ...]) -> list[int]:
    """Return the places of the categories that have a column."""
    having = set(dummies(feature, categories))
    return [place for place, category in enumerate(categories) if category in having]


def known_numbers(table: Table, least: int) -> Any:
    """Return the numeric columns, without those unknown on a node with this threshold.

    A column is unknown if it has no value, or one value in all but a few rows. If only a few rows
    lack a value, they get the mean of this node's other rows: a mean chosen by the server would
    reveal them.
    """
    found = table.numeric
    if least == 1:
        return found
    found = found.copy()
    for column in found.T:
        own = column[table.training_rows]
        values = own[~np.isnan(own)]
        _, counts = np.unique(values, return_counts=True)
        if 0 < len(values) < least or 0 < len(values) - counts.max(initial=0) < least:
            column[:] = np.nan
        elif 0 < len(own) - len(values) < least and len(values):
            column[np.isnan(column)] = math.fsum(values) / len(values)
    return found


def of_enough_rows(A: Any, rows: Any, least: int) -> Any:
    """Return a sparse matrix without columns that separate few rows from all others.

    A column becomes 0 if only a few training rows have a value other than 0, or differ from the
    others.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> A = csr_array([[1.0, 2.0, 0.0], [1.0, 0.0, 3.0], [1.0, 2.0, 0.0]])
    >>> of_enough_rows(A, np.arange(3), 2).toarray().tolist()
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if least == 1:
        return A
    from scipy import sparse

    columns = sparse.csc_array(A[rows])
    there = np.diff(columns.indptr)
    hidden = (there > 0) & (there < least)
    for j in np.flatnonzero((there >= least) & (len(rows) - there < least)).tolist():
        values = columns.data[columns.indptr[j] : columns.indptr[j + 1]]
        usual = np.unique(values, return_counts=True)[1].max()
        hidden[j] = 0 < len(rows) - usual < least
    return sparse.csr_array(A @ sparse.diags_array((~hidden).astype(np.float64)))


def _sparse(
    table: Table,
    found: list[tuple[Feature, tuple[str, ...], Any]],
    preparation: Preparation,
    least: int,
) -> Any:
    """Return the rows as a sparse matrix, including features that are not wide."""
    from scipy import sparse

    p = table.numeric.shape[1]
    scales, means, kept = preparation.scales, preparation.means, preparation.kept
    ours = kept < p
    dense = known_numbers(table, least)[:, kept[ours]]
    dense = np.where(np.isnan(dense), means[ours], dense)
    dense = (dense - means[ours]) / scales[ours]
    blocks, first = [sparse.csr_array(dense)], p
    for feature, categories, places in found:
        having = np.array(_with_column(feature, categories), dtype=np.intp)
        hidden = unknown_here(places, list(map(int, having)), table.training_rows, least)
        first += len(having)
        mine = np.flatnonzero((kept >= first - len(having)) & (kept < first))
        levels = having[kept[mine] - (first - len(having))]
        blocks.append(level_block(places, levels, hidden, means[mine], scales[mine]))
    return sparse.csr_array(sparse.hstack(blocks, format="csr"))


def level_block(
    places: Any, levels: Any, hidden: Sequence[int], means: Array, scales: Array
) -> Any:
    """Return a feature's columns as a sparse matrix, shape (m, levels), over their scales.

    Parameters
    ----------
    places : array of int, shape (m,)
        The category of each row; -1 without one.
    levels : array of int
        The category of each column.
    hidden : sequence of int
        The unknown categories, whose columns are their means.
    means, scales : array, shape (levels,)
    """
    from scipy import sparse

    m = len(places)
    column = np.full(max(int(levels.max(initial=0)), int(places.max(initial=0))) + 2, -1)
    column[levels] = np.arange(len(levels))
    out = np.array([place for place in hidden if place < len(column)], dtype=np.intp)
    where = np.where((places < 0) | np.isin(places, out), -1, column[places])
    rows = np.flatnonzero(where >= 0)
    block = sparse.csr_array((np.ones(len(rows)), (rows, where[rows])), shape=(m, len(levels)))
    unknown = np.flatnonzero(places < 0)
    out = column[out]
    out = out[out >= 0]
    if unknown.size:  # for a feature that is not wide they become the columns' means
        others = means.copy()
        others[out] = 0.0
        block = block + _tall(unknown, m) @ sparse.csr_array(others[None, :])
    if out.size:
        alike = np.zeros(len(levels))
        alike[out] = means[out]
        block = block + _tall(np.arange(m), m) @ sparse.csr_array(alike[None, :])
    return block @ sparse.diags_array(1.0 / scales)


def _tall(rows: Any, m: int) -> Any:
    """Return a sparse column with ones in these rows, of m."""
    from scipy import sparse

    places = (rows, np.zeros(len(rows), dtype=np.intp))
    return sparse.csr_array((np.ones(len(rows)), places), shape=(m, 1))
