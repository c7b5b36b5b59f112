"""Clipping of clients' releases, with all values of a round together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flower_fedcon.validation import Array

CLIP = "clip"
"""The name of C in a broadcast."""


def clipped(
    columns: Mapping[str, Array], centers: Mapping[str, Array], clip: float
) -> dict[str, Array]:
    """Return releases scaled to norms of at most `clip`; shorter ones are unchanged.

    Parameters
    ----------
    columns : dict of array, shape (n, *shape)
        A row for each of n clients.
    centers : dict of array, shape (*shape)
        The reference points of values that are points, by name: their difference counts.
    clip : float
        C > 0.

    Examples
    --------
    >>> clipped({"delta": np.array([[3.0, 4.0], [0.3, 0.4]])}, {}, 1.0)["delta"].round(6)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    >>> clipped({"v": np.array([[3.0, 5.0]])}, {"v": np.array([3.0, 4.0])}, 1.0)["v"]
    array([[3., 5.]])
    """
    lengths = norms(columns, centers)
    long = np.flatnonzero(lengths > clip)
    factors = clip / lengths[long] * (1 - slack(columns) / 4)  # so that none is cut twice
    releases = {}
    for name, column in columns.items():
        center = centers.get(name)
        releases[name] = cut = column.copy()
        scale = factors.reshape(-1, *[1] * (column.ndim - 1))
        if center is None:
            cut[long] = scale.astype(column.dtype) * column[long]
            continue
        wide = np.asarray(center, np.float64)
        moved = scale * (column[long] - wide)
        near = (wide + moved).astype(column.dtype)
        # Floats are sparse far from 0: values rounded away from the center are rounded towards it.
        beyond = np.abs(near - wide) > np.abs(moved)
        cut[long] = np.where(beyond, np.nextafter(near, np.asarray(center, column.dtype)), near)
    return releases


def norms(columns: Mapping[str, Array], centers: Mapping[str, Array]) -> Array:
    """Return the Euclidean norm of each client's release, in double precision.

    >>> norms({"a": np.array([[3.0], [0.0]]), "b": np.array([[4.0], [1.0]])}, {})
    array([5., 1.])
    """
    total: Any = 0.0
    for name, column in columns.items():
        wide = column.astype(np.float64, copy=False)
        moved = wide - centers[name] if name in centers else wide
        flat = moved.reshape(len(moved), -1)
        with np.errstate(over="ignore"):  # a release too long for arithmetic becomes 0
            total = total + np.einsum("ij,ij->i", flat, flat)
    lengths: Array = np.sqrt(total)
    return lengths


def slack(columns: Mapping[str, Array]) -> float:
    """Return by which share of C rounding may shorten a release that was cut."""
    return 64 * max(float(np.finfo(column.dtype).eps) for column in columns.values())


def rows(column: Any, count: int) -> Array:
    """Return a column's values as one array with a row for each of `count` clients."""
    if isinstance(column, np.ndarray):
        return column
    values = column if isinstance(column, list) else [column.part(i) for i in range(count)]
    return np.stack([v if isinstance(v, np.ndarray) else v.dense() for v in values])
