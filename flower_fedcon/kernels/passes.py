"""Passes over the models of many clients, or models too large for the caches: as few as can be.

Compiled where `dispatch` says so, else by NumPy: bit for bit the same, but for square norms.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from flower_fedcon import validation
from flower_fedcon.arrays import in_order, known
from flower_fedcon.kernels.dispatch import kernels
from flower_fedcon.validation import Array

# Entries, and clients, from which on sums over clients are those of so many parts of the clients,
# which follow one another: few enough to be added by one thread, which has to fetch them.
_LARGE, _CLIENTS, _PARTS = 2**15, 16, 4


def pulled(x: Array, center: Array, pull: float) -> Array:
    """Return pull (x - center).

    >>> pulled(np.array([3.0, 1.0]), np.ones(2), 0.5)
    array([1., 0.])
    """
    compiled = _kernels(x, center) if x.ndim == 2 else None
    if compiled is None:
        g: Array = x - center
        g *= pull
        return g
    return compiled.pulled(x, center, pull)  # type: ignore[no-any-return]


def pulled_twice(x: Array, center: Array, pull: float, y: Array, step: float) -> tuple[Array, ...]:
    """Return pull (x - center) and y + step (x - center).

    >>> pulled_twice(np.array([3.0]), np.ones(1), 0.5, np.array([1.0]), 2.0)
    (array([1.]), array([5.]))
    """
    compiled = _kernels(x, center, y) if x.ndim == 2 else None
    if compiled is None:
        g = x - center
        moved = y + step * g
        g *= pull
        return g, moved
    return compiled.pulled_twice(x, center, pull, y, step)  # type: ignore[no-any-return]


def mix_outer(x: Array, rest: float, u: Array, v: Array) -> Array | None:
    """Return rest x + u v' for matrices x, or None where no kernel is used.

    >>> mix_outer(np.eye(2), 0.5, np.ones(2), np.ones(2)) is None
    True
    """
    if x.ndim != 2 or not u.dtype == v.dtype == x.dtype or (compiled := _kernels(x)) is None:
        return None
    return compiled.mix_outer(x, rest, u, v)  # type: ignore[no-any-return]


def variate_change(c: Array, delta: Array, length: float) -> Array:
    """Return -(c + delta / length): option II of Scaffold.

    Parameters
    ----------
    c : array, shape (..., *model)
    delta : array, shape (..., *model)
        Where steps of this length in all have led.
    length : float

    >>> variate_change(np.array([1.0]), np.array([[2.0], [-4.0]]), 2.0)
    array([[-2.],
           [ 1.]])
    """
    compiled = kernels(delta) if _of_vectors(delta, c) else None
    if compiled is not None:
        return compiled.variate_change(c, delta, -1.0 / length)  # type: ignore[no-any-return]
    change: Array = delta * (-1.0 / length)
    change -= c
    return change


def sum_over_clients(x: Array) -> Array:
    """Return the sum along the leading axis.

    Parameters
    ----------
    x : array, shape (clients, *model)

    >>> sum_over_clients(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([4., 6.])
    """
    if not _has_parts(x):
        total: Array = x.sum(axis=0)
        return total
    flat, compiled = in_order(x).reshape(len(x), -1), kernels(x)
    if compiled is None:
        ends = [len(x) * p // _PARTS for p in range(_PARTS + 1)]
        parts = np.stack([flat[first:last].sum(axis=0) for first, last in pairwise(ends)])
    else:
        parts = compiled.sum_parts(flat, _PARTS)
    return parts.sum(axis=0).reshape(x.shape[1:])  # type: ignore[no-any-return]


def change_of(x: Array, start: Array) -> Array:
    """Return x - start: of one client, or of many, whose start may be the same.

    >>> change_of(np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones(2))
    array([[0., 1.],
           [2., 3.]])
    """
    if x.size >= _LARGE and x.ndim == 2 and _of_vectors(x, start):
        compiled = kernels(x)
        if compiled is not None:
            return compiled.changes(x, start)  # type: ignore[no-any-return]
    return x - start


def squared_norm_of_clients(x: Array) -> Any:
    """Return the square norm of all clients' values together, of shape (clients, *model).

    >>> float(squared_norm_of_clients(np.ones((2, 3))))
    6.0
    """
    compiled = kernels(x) if x.size >= _LARGE and x.flags.c_contiguous else None
    if compiled is None:
        return validation.squared_norm(x)
    return compiled.squares(x.reshape(len(x), -1)).sum()


def _has_parts(x: Array) -> bool:
    """Return whether sums over these clients are those of parts; not of a single column each."""
    return x.size >= _LARGE and len(x) >= _CLIENTS and known(x) and x.size > len(x)


def _of_vectors(x: Array, *vectors: Array) -> bool:
    """Return whether x is a matrix, its entries known, and these are as its rows."""
    return (
        known(x)
        and x.ndim == 2
        and all(v.shape == x.shape[1:] and v.dtype == x.dtype for v in vectors)
    )


def _kernels(x: Array, *others: Array) -> ModuleType | None:
    """Return the compiled kernels where these matrices are alike, and large."""
    compiled = kernels(x)
    if compiled is None:  # first: this is asked in each step of each client
        return None
    alike = all(other.shape == x.shape and other.dtype == x.dtype for other in others)
    return compiled if alike else None
