"""A table's rows as the model's columns: numbers and categories, imputed and scaled.

Without a wide feature (one with more than `WIDE` categories) the rows are an array whose columns
have mean 0 and variance 1. With one they are a sparse matrix with an entry for each category of a
row. Numeric columns stay the same; columns of categories are divided by their scale and not
centred. The intercept, or the risk sets of a Cox model, absorb the difference: no coefficient
changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.errors import ConfigError
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


def encoded(table: Table, preparation: Preparation, least: int = 1) -> Any:
    """Return all rows of a table, shape (m, columns), as an array or a sparse matrix.

    Columns with fewer than `least` training rows are unknown and replaced by their mean.

    Raises
    ------
    ConfigError
        If the mean of a category's column is not a share.
    """
    schema, known = table.schema, preparation.categories
    of_marks = np.asarray(preparation.kept) >= len(schema.numeric)
    check_shares(preparation.means[of_marks])
    found = []
    for feature, (marks, rare) in zip(
        schema.categorical, table.known_categories(least), strict=True
    ):
        categories = known[feature.name]
        hidden = hidden_places(categories, rare)
        found.append((feature, categories, codes(marks, categories), hidden))
    if any(is_wide(categories) for _, categories, _, _ in found):
        return _sparse(table, found, preparation, least)
    columns = [table.known_numbers(least)]
    for feature, categories, places, hidden in found:
        block = (places[:, None] == np.arange(len(categories))).astype(np.float64)
        block[places < 0] = np.nan
        block[:, hidden] = np.nan
        columns.append(block[:, _with_column(feature, categories)])
    whole = np.concatenate(columns, axis=1)[:, preparation.kept]
    whole = np.where(np.isnan(whole), preparation.means, whole)
    return (whole - preparation.centers) / preparation.scales


def check_shares(shares: Array) -> None:
    """Raise unless these numbers, which stand for an unknown category, are shares.

    Raises
    ------
    ConfigError
    """
    wrong = shares[~((shares >= 0.0) & (shares <= 1.0))]
    if len(wrong):
        raise ConfigError(
            f"a preparation in which the share of a category is {wrong[0]:g}, expected one in "
            f"[0, 1]: let the server send what the exchanges give"
        )


def hidden_places(categories: tuple[str, ...], rare: AbstractSet[str]) -> list[int]:
    """Return which categories' columns are their means in all rows of a node.

    Of a feature with many categories there are none: a rare one's rows have another category.
    """
    if is_wide(categories):
        return []
    return [place for place, category in enumerate(categories) if category in rare]


def _with_column(feature: Feature, categories: tuple[str, ...]) -> list[int]:
    """Return the places of the categories that have a column."""
    having = set(dummies(feature, categories))
    return [place for place, category in enumerate(categories) if category in having]


def _sparse(
    table: Table,
    found: list[tuple[Feature, tuple[str, ...], Any, list[int]]],
    preparation: Preparation,
    least: int,
) -> Any:
    """Return the rows as a sparse matrix, including features that are not wide."""
    from scipy import sparse

    p = table.numeric.shape[1]
    scales, means, kept = preparation.scales, preparation.means, preparation.kept
    ours = kept < p
    dense = table.known_numbers(least)[:, kept[ours]]
    dense = np.where(np.isnan(dense), means[ours], dense)
    dense = (dense - means[ours]) / scales[ours]
    blocks, first = [sparse.csr_array(dense)], p
    for feature, categories, places, hidden in found:
        having = np.array(_with_column(feature, categories), dtype=np.intp)
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
