"""Loops over the models of many clients, a row for each, to be compiled.

A thread goes over the rows of the clients whose steps it has taken: their lines are in its caches,
and another core would have to fetch them, and the next step to fetch them back.
"""

from __future__ import annotations

from typing import Any

import numba

from flower_fedcon.kernels.rows import square
from flower_fedcon.validation import Array


def mix_outer(x: Array, rest: Any, u: Array, v: Array, out: Array) -> None:
    """Write rest x + u v'."""
    for i in numba.prange(len(x)):
        for j in range(x.shape[1]):
            out[i, j] = rest * x[i, j] + u[i] * v[j]


def squares(x: Array, out: Array) -> None:
    """Write the square norm of each row."""
    for i in numba.prange(len(x)):
        out[i] = square(x[i])


def sum_parts(x: Array, parts: Array) -> None:
    """Write the sum of each part of the rows, one after another: there are len(parts) of them."""
    n, count = len(x), len(parts)
    for p in numba.prange(count):
        total = parts[p]
        total[:] = 0.0
        for i in range(n * p // count, n * (p + 1) // count):
            row = x[i]
            for j in range(len(total)):
                total[j] += row[j]
