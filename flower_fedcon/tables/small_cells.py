"""What a node uses of its rows: nothing that rests on few of them, whatever a server asks.

Rows count by their weight, as many as equally heavy ones: (sum w)^2 / sum w^2. So rows of weight 0
hide no other, and neither do many light rows beside a heavy one. What is unknown on a node follows
from its own rows alone: not from a schema's reference, nor from the categories, their order or the
means that a server has prepared. Otherwise the difference of two preparations would be the few rows
that each of them hides.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from flower_fedcon.validation import Array

Marks = np.ndarray[Any, Any]
_SMALL = 0.1  # of a node's rows, that may count as having its most frequent category


def effective_counts(codes: Any, cells: int, weights: Array | None = None) -> Array:
    """Return the rows of each cell, by weight as many as equally heavy ones.

    Parameters
    ----------
    codes : array of int, shape (m,)
        Of each row its cell.
    cells : int
    weights : array, shape (m,), optional

    Returns
    -------
    array, shape (cells,)
        (sum w)^2 / sum w^2; without weights numbers of rows.

    Examples
    --------
    >>> codes = np.array([0, 0, 0, 1, 1])
    >>> effective_counts(codes, 2), effective_counts(codes, 2, np.array([7.0, 0, 0, 0.1, 0.1]))
    (array([3., 2.]), array([1., 2.]))
    """
    if weights is None:
        return np.bincount(codes, minlength=cells).astype(np.float64)
    top = np.zeros(cells)
    np.maximum.at(top, codes, weights)
    w = weights / np.where(top > 0, top, 1.0)[codes]
    sums, squares = (np.bincount(codes, power, cells) for power in (w, w * w))
    counts: Array = sums * sums / np.where(squares > 0, squares, 1.0)
    return counts


def effective_rows(weights: Array | None, rows: Any) -> float:
    """Return how many rows these are, by weight.

    Parameters
    ----------
    weights : array, shape (m,), optional
        Of all rows.
    rows : array of int or bool
        Those that count.
    """
    which = np.arange(len(rows))[rows] if rows.dtype == bool else rows
    chosen = None if weights is None else weights[which]
    return float(effective_counts(np.zeros(len(which), np.intp), 1, chosen)[0])


def is_few(weights: Array | None, rows: Any, least: int) -> bool:
    """Return whether there are such rows, and too few of them for a node's threshold.

    Parameters
    ----------
    weights, rows : see `effective_rows`
    least : int
        1 is no threshold.
    """
    there = bool(rows.any()) if rows.dtype == bool else bool(len(rows))
    return least > 1 and there and effective_rows(weights, rows) < least


def all_but_few_alike(values: Array, weights: Array | None, least: int, most: int = 1) -> bool:
    """Return whether all but a few rows have one of few values, so that columns tell the few apart.

    A column and the intercept can vanish at one value, those of a polynomial of degree d at d.

    Parameters
    ----------
    values : array, shape (m,)
    weights : array, shape (m,), optional
    least : int
    most : int
        How many values.

    Examples
    --------
    >>> x = np.array([0.0, 0, 0, 1, 1, 1, 2])
    >>> all_but_few_alike(x, None, 3), all_but_few_alike(x, None, 3, 2)
    (False, True)
    """
    if least <= 1:
        return False
    distinct, codes = np.unique(values, return_inverse=True)
    rest = len(distinct) - min(most, len(distinct) - 1)
    if len(distinct) < 2:
        return False
    rare = np.argsort(effective_counts(codes, len(distinct), weights), kind="stable")[:rest]
    return is_few(weights, np.isin(codes, rare), least)


def known_marks(
    marks: Marks, rows: Any, weights: Array | None, least: int
) -> tuple[Marks, AbstractSet[str]]:
    """Return each row's category as far as a node uses it, and the categories unknown there.

    A category of few rows is unknown, and its rows have none, "". If all rows without one are few,
    columns that set them apart, or the difference of columns that do not, would reveal their
    outcomes. Up to a tenth of the node's rows they count as its most frequent category. If they are
    more, that would be no small error: then the next smallest categories become unknown, too.

    Parameters
    ----------
    marks : array of str, shape (m,)
        "" where there is none.
    rows : array of int
        Those trained on.
    weights : array, shape (m,), optional
    least : int

    Examples
    --------
    >>> known_marks(np.array(["a", "a", "a", "b", "b", "z", ""]), np.arange(7), None, 2)[0].tolist()
    ['a', 'a', 'a', 'b', 'b', '', '']
    >>> known, rare = known_marks(np.array(["a", "a", "a", "b", "b", "z"]), np.arange(6), None, 2)
    >>> known.tolist(), sorted(rare)
    (['a', 'a', 'a', '', '', ''], ['b', 'z'])
    >>> known_marks(np.repeat(["a", "b", "z"], [9, 6, 1]), np.arange(16), None, 2)[0][-1].item()
    'a'
    """
    if least <= 1 or not len(rows):
        return marks, frozenset()
    distinct, codes = np.unique(marks[rows], return_inverse=True)
    counts = effective_counts(codes, len(distinct), None if weights is None else weights[rows])
    known = (distinct != "") & (counts >= least)
    w = np.ones(len(rows)) if weights is None else weights[rows]
    usual = ""
    while known.any() and is_few(weights, rows[~known[codes]], least):
        if w[~known[codes]].sum() <= _SMALL * w.sum():
            usual = distinct[known][np.argmax(counts[known])]
            break
        known[np.argmin(np.where(known, counts, np.inf))] = False
    rare = distinct[(distinct != "") & ~known]
    used = np.where(np.isin(marks, rare) | (marks == ""), usual, marks)
    return used, frozenset(rare.tolist())


def known_numbers(numbers: Array, rows: Any, weights: Array | None, least: int) -> Array:
    """Return numeric columns as far as a node uses them, shape (m, columns).

    A column in which all but a few rows are alike, or which only a few have, is unknown. If a few
    rows lack a value, they get the mean of this node's others: a mean of the server's choice would
    tell them apart.

    Parameters
    ----------
    numbers : array, shape (m, columns)
        NaN where a value is missing.
    rows, weights, least : see `known_marks`
    """
    if least <= 1:
        return numbers
    shown = numbers.copy()
    for column in shown.T:
        there = rows[~np.isnan(column[rows])]
        w = None if weights is None else weights[there]
        if is_few(weights, there, least) or all_but_few_alike(column[there], w, least):
            column[:] = np.nan
        elif len(there) and is_few(weights, rows[np.isnan(column[rows])], least):
            column[np.isnan(column)] = math.fsum(column[there]) / len(there)
    return shown


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
