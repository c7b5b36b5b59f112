"""Columns of a model that are combinations of others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import first_few, number_of
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.table import Table
from flower_fedcon.validation import Array

_WORK = 1e11  # multiplications: half a minute


def collinear(
    tables: Sequence[Table], preparation: Preparation, work: float = _WORK
) -> Iterator[str]:
    """Yield remarks on columns of the model that are combinations of others in the training rows.

    Parameters
    ----------
    tables : sequence of Table
    preparation : Preparation
    work : float
        The largest number of multiplications; if more are needed, combinations are not sought.
    """
    names = preparation.names
    if unsought(tables, preparation, work):
        return
    yield from dependent(names, _triangle(tables, preparation))


def dependent(names: Sequence[str], triangle: Array, rounding: float = 1e-10) -> Iterator[str]:
    """Yield remarks on columns that are combinations of others; see `combinations`."""
    for column, others in combinations(names, triangle, rounding):
        if len(others) == 1:
            yield f"columns {column!r} and {others[0]!r} are exactly collinear: leave one out"
        else:
            said = first_few([repr(name) for name in others])
            yield f"column {column!r} is exactly a combination of {said}: leave one out"


def combinations(
    names: Sequence[str], triangle: Array, rounding: float = 1e-10
) -> Iterator[tuple[str, list[str]]]:
    """Yield the columns that are combinations of others, with those others.

    Parameters
    ----------
    names : sequence of str
    triangle : array, shape (rows, columns)
        A matrix whose columns have the same scalar products as those of the data.
    rounding : float
        The largest residual of a column of length 1 that counts as a combination.

    Examples
    --------
    >>> A = np.array([[1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    >>> [(name, sorted(others)) for name, others in combinations("abcd", A)]
    [('c', ['a']), ('d', ['a', 'b'])]
    """
    from scipy.linalg import qr, solve_triangular

    lengths = np.linalg.norm(triangle, axis=0)
    scaled = triangle / np.where(lengths > 0, lengths, 1.0)
    upper, order = qr(scaled, mode="r", pivoting=True)
    sizes = np.abs(np.diag(upper))
    rank = int((sizes > rounding * math.sqrt(len(names)) * max(1.0, sizes[0])).sum())
    weights = solve_triangular(upper[:rank, :rank], upper[:rank, rank:])
    for j, shares in zip(order[rank:], weights.T, strict=True):
        yield names[j], [names[order[i]] for i in np.flatnonzero(np.abs(shares) > 100 * rounding)]


def unsought(tables: Sequence[Table], preparation: Preparation, work: float = _WORK) -> str:
    """Return why combinations of columns are not sought; "" if they are; see `collinear`."""
    columns, rows = len(preparation.names), sum(preparation.rows)
    if preparation.width:
        return "collinear columns were not searched for, since the model's columns are sparse"
    if columns >= rows:
        return (
            f"the model has {number_of(columns, 'column')} and only "
            f"{number_of(rows, 'training row')}, so some columns are combinations of others"
        )
    if columns**2 * (rows + columns * len(tables)) > work:
        return f"collinear columns were not searched for among the model's {columns} columns"
    return ""


def _triangle(tables: Sequence[Table], preparation: Preparation) -> Array:
    """Return R of the QR factorisation of all clients' centred training rows."""
    middle = (preparation.means - preparation.centers) / preparation.scales
    triangle: Any = np.zeros((0, len(middle)))
    for table in tables:
        rows = table.matrix(preparation)[table.training_rows]
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        triangle = np.linalg.qr(np.concatenate([triangle, dense - middle]), mode="r")
    upper: Array = triangle
    return upper
