"""Clients' data and gradient steps in the form of compiled loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flower_fedcon.compiled.records import ALL_STEPS, Data, Steps, read_only
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.validation import Array


class CompiledSteps:
    """The base of what compiled loops do for several clients.

    Parameters
    ----------
    module : module
        `flower_fedcon.compiled.calls`.
    data : Data
    ridged : bool
        Whether l2 is one number a client; else no steps are taken.
    """

    def __init__(self, module: Any, data: Data, ridged: bool) -> None:
        self.module, self.data, self.ridged = module, data, ridged

    def takes(self, *arrays: Array) -> bool:
        """Return whether the arrays have the data's dtype, which the loops need."""
        dtype = self.data.tables.dtype
        return all([array.dtype == dtype for array in arrays])  # noqa: C419  (no generator: faster)


def steps_of(steps: LocalPass, size: int, rows: Array | None, rate: float | None) -> Steps:
    """Return steps for the loops, of models with `size` entries.

    Parameters
    ----------
    rows : array of int, shape (n, steps, batch size), optional
        The rows of each client that count; all by default.
    rate : float, optional
        The rate of control variates, if they move.
    """
    start, number = steps.start.reshape(-1, size), steps.start.dtype.type
    none, nowhere = _nothing(start.dtype)
    linear = less = center = none
    if steps.linear is not None:
        linear = steps.linear.reshape(-1, size)
        if steps.less is not None:
            less = steps.less if steps.less.ndim == 2 else steps.less.reshape(-1, size)
    if steps.shift:
        middle = np.zeros(size, start.dtype) if steps.center is None else steps.center
        center = middle.reshape(-1, size)
    thresholds, divisors = zip(*steps.points, strict=True)
    return Steps(
        rows=ALL_STEPS if rows is None else rows,
        start=read_only(start),
        linear=read_only(linear),
        less=read_only(less),
        center=read_only(center),
        first=nowhere if steps.first is None else read_only(steps.first.reshape(-1)),
        shift=number(steps.shift),
        step=number(steps.rate),
        of_z=number(steps.onward[0]),
        of_point=number(steps.onward[1]),
        thresholds=np.array(thresholds, start.dtype),
        divisors=np.array(divisors, start.dtype),
        variate_rate=number(0.0 if rate is None else rate),
    )


@cache
def _nothing(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the matrix and the vector that replace a missing one; they are cached."""
    none, nowhere = np.empty((0, 0), dtype), np.empty(0, dtype)
    none.setflags(write=False)
    nowhere.setflags(write=False)
    return none, nowhere
