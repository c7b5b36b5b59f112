"""Gradient steps in the form of compiled loops: flat arrays and numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.validation import Array


def drift_of(module: Any, steps: LocalPass, start: Array) -> tuple[Array, Array, Array, Array]:
    """Return the arrays for steps from the rows of `start`, flattened for the loops.

    These are the linear term, the part subtracted from it, the center, and the first point. A
    missing array has length 0.
    """
    (none, nowhere), size = _nothing(start.dtype), start.shape[1]
    linear = less = center = none
    if steps.linear is not None:
        linear = steps.linear.reshape(-1, size)
        if steps.less is not None:
            less = steps.less if steps.less.ndim == 2 else steps.less.reshape(-1, size)
    if steps.shift:
        middle = np.zeros(size, start.dtype) if steps.center is None else steps.center
        center = middle.reshape(-1, size)
    read_only = module.read_only
    first = nowhere if steps.first is None else read_only(steps.first.reshape(-1))
    return read_only(linear), read_only(less), read_only(center), first


@cache
def _nothing(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the matrix and the vector that replace a missing one; they are cached."""
    none, nowhere = np.empty((0, 0), dtype), np.empty(0, dtype)
    none.setflags(write=False)
    nowhere.setflags(write=False)
    return none, nowhere


def numbers_of(steps: LocalPass) -> tuple[Any, ...]:
    """Return the numbers of steps for the loops, and two arrays with a number for each step.

    The numbers are shift, step, and the factors of z and of the point; the arrays are thresholds
    and divisors.
    """
    dtype, each = steps.start.dtype, zip(*steps.points, strict=True)
    singles = (steps.shift, steps.rate, *steps.onward)
    return *(dtype.type(x) for x in singles), *(np.array(numbers, dtype) for numbers in each)
