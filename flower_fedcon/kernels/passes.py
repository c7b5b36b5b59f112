"""Passes over the models of many clients, or models too large for the caches: as few as can be.

Compiled where `dispatch` says so, else by NumPy: bit for bit the same, but for square norms.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from flower_fedcon import validation
from flower_fedcon.arrays import in_order, known
from flower_fedcon.kernels.dispatch import kernels
from flower_fedcon.validation import Array

# Entries, and clients, from which on sums over clients are those of so many parts of the clients,
# which follow one another: few enough to be added by one thread, which has to fetch them.
_LARGE, _CLIENTS, _PARTS = 2**15, 16, 4


def mix_outer(x: Array, rest: float, u: Array, v: Array) -> Array | None:
    """Return rest x + u v' for matrices x, or None where no kernel is used.

    >>> mix_outer(np.eye(2), 0.5, np.ones(2), np.ones(2)) is None
    True
    """
    alike = x.ndim == 2 and u.dtype == v.dtype == x.dtype
    compiled = kernels(x) if alike else None
    return None if compiled is None else compiled.mix_outer(x, rest, u, v)


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
