"""A table's rows as the model sees them: numbers and categories, imputed and scaled.

Rows without a wide feature (one with more than `WIDE` categories) are an array whose columns have
the mean 0 and the variance 1. With one they are a sparse matrix, which has an entry for each
category that a row has: numeric columns are as above, those of categories are divided by their
scale and not centred. An intercept takes that up, and so do the risk sets of a Cox model: no
coefficient changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.tables.schema import Feature

if TYPE_CHECKING:
    from flower_fedcon.tables.preparation import Preparation
    from flower_fedcon.tables.table import Table

WIDE = 200
"""The most categories of a feature whose columns are an array's."""
OTHER = ""
"""The category of a wide feature's rows that have none, or one that nobody tells."""


def is_wide(categories: tuple[str, ...]) -> bool:
    """Return whether a feature of these categories, which are agreed on, is a wide one."""
    return OTHER in categories


def dummies(feature: Feature, categories: Sequence[str]) -> list[str]:
    """Return the categories that have a column: all but the reference, by default the first.

    >>> dummies(Feature("sex", "categorical"), ("f", "m"))
    ['m']
    """
    reference = feature.reference or (categories[0] if categories else "")
    return [category for category in categories if category != reference]


def codes(marks: np.ndarray[Any, Any], categories: tuple[str, ...]) -> Any:
    """Return which category each row has; -1 for one that is not known.

    >>> codes(np.array(["b", "", "a"]), ("a", "b")).tolist()
    [1, -1, 0]
    >>> codes(np.array(["b", "", "z"]), ("a", "b", OTHER)).tolist()
    [1, 2, 2]
    """
    places = {category: place for place, category in enumerate(categories)}
    otherwise = places.get(OTHER, -1)
    return np.array([places.get(mark, otherwise) for mark in marks.tolist()], dtype=np.intp)


def encoded(table: Table, preparation: Preparation) -> Any:
    """Return all rows of a table, shape (m, columns): an array, or a sparse matrix."""
    schema, known = table.schema, preparation.categories
    found = [
        (feature, known[feature.name], codes(marks, known[feature.name]))
        for feature, marks in zip(schema.categorical, table.categories.T, strict=True)
    ]
    if any(is_wide(categories) for _, categories, _ in found):
        return _sparse(table, found, preparation)
    columns = [table.numeric]
    for feature, categories, places in found:
        block = (places[:, None] == np.arange(len(categories))).astype(np.float64)
        block[places < 0] = np.nan
        columns.append(block[:, _with_column(feature, categories)])
    whole = np.concatenate(columns, axis=1)[:, preparation.kept]
    whole = np.where(np.isnan(whole), preparation.means, whole)
    if schema.standardize:
        whole = (whole - preparation.means) / preparation.scales
    return whole


def _with_column(feature: Feature, categories: tuple[str, ...]) -> list[int]:
    """Return the places of the categories that have a column."""
    having = set(dummies(feature, categories))
    return [place for place, category in enumerate(categories) if category in having]


def _sparse(
    table: Table, found: list[tuple[Feature, tuple[str, ...], Any]], preparation: Preparation
) -> Any:
    """Return the rows as a sparse matrix; of features that are not wide, too."""
    from scipy import sparse

    m, p = table.numeric.shape
    scales, means, kept = preparation.scales, preparation.means, preparation.kept
    ours = kept < p
    dense = table.numeric[:, kept[ours]]
    dense = np.where(np.isnan(dense), means[ours], dense)
    if table.schema.standardize:
        dense = (dense - means[ours]) / scales[ours]
    blocks, first = [sparse.csr_array(dense)], p
    for feature, categories, places in found:
        having = np.array(_with_column(feature, categories), dtype=np.intp)
        encoded = np.full(len(categories), -1)
        encoded[having] = np.arange(first, first + len(having))
        first += len(having)
        mine = np.flatnonzero((kept >= first - len(having)) & (kept < first))
        column = np.full(first + 1, -1)  # of the block, by number among the encoded ones
        column[kept[mine]] = np.arange(len(mine))
        where = np.where(places < 0, -1, column[encoded[places]])
        rows = np.flatnonzero(where >= 0)
        shape = (m, len(mine))
        ones = np.ones(len(rows)), (rows, where[rows])
        block = sparse.csr_array(ones, shape=shape)
        unknown = np.flatnonzero(places < 0)
        if unknown.size:  # of a feature that is not wide: they become the columns' means
            tall = sparse.csr_array(
                (np.ones(len(unknown)), (unknown, np.zeros(len(unknown), dtype=np.intp))),
                shape=(m, 1),
            )
            block = block + tall @ sparse.csr_array(means[mine][None, :])
        blocks.append(block @ sparse.diags_array(1.0 / scales[mine]))
    return sparse.csr_array(sparse.hstack(blocks, format="csr"))
