"""A feature's categories as columns: which of them have one, and their block of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables.schema import Feature
from flower_fedcon.validation import Array

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
