"""Gradients and Frank-Wolfe steps of many clients, compiled by numba.

The clients are spread over the threads that `threads` sets; small work stays on one thread. A
client's data are read once, where NumPy reads them twice, copies each minibatch, and uses one core.
One thread computes all sums of a client, so that the number of threads does not change a bit.

This module needs numba.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numba
import numpy as np

from flower_fedcon.compiled import gradients, steps, threads, vertices
from flower_fedcon.compiled.jit import jit, renamed
from flower_fedcon.compiled.records import Data, Point, Steps
from flower_fedcon.validation import Array

FEW = 2**17  # multiply-adds that take as long as starting and ending other threads (20 us)


_PARALLEL = (
    gradients.add_gradients, gradients.find_losses, steps.take_steps, steps.take_steps_by_scores,
    steps.take_column_steps, vertices.take_vertex_steps,
)  # fmt: skip
forms: dict[str, tuple[Any, Any]] = {}  # by loop: the form for all threads, and for one
lock = threading.Lock()  # two simultaneous calls break some of numba's threading layers
forked = False


def _after_fork() -> None:
    """Use one thread in a forked child: a parallel region of OpenMP would end it."""
    global forked, lock
    forked, lock = True, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


for _loop in _PARALLEL:  # over clients, by `numba.prange`
    forms[_loop.__name__] = jit(_loop, parallel=True), jit(renamed(_loop, "alone"))


def call(loop: str, work: int, *arguments: Any) -> None:
    """Call a loop on one thread, or from `FEW` multiply-adds on the number set (else all)."""
    parallel, alone = forms[loop]
    if work < FEW or forked:
        alone(*arguments)
        return
    before = numba.get_num_threads()
    number = min(threads.chosen() or before, vars(numba.config)["NUMBA_NUM_THREADS"])
    if number == 1:
        alone(*arguments)
        return
    with lock:
        if number != before:
            numba.set_num_threads(number)
        try:
            parallel(*arguments)
        finally:
            if number != before:
                numba.set_num_threads(before)


def add_gradients(data: Data, point: Point, places: Array, rows: Array, out: Array) -> None:
    """Call `gradients.add_gradients`."""
    call("add_gradients", len(places) * data.tables[0].size, data, point, places, rows, out)


def find_losses(data: Data, x: Array, out: Array) -> None:
    """Call `gradients.find_losses`."""
    call("find_losses", data.tables.size, data, x, out)


Moved = tuple[Array, Array]
"""The points after the steps; or the moves and the new control variates (else of length 0)."""


def _stepped(
    loop: str, passes: int, shape: tuple[int, ...], variates: bool, data: Data, *more: Any
) -> Moved:
    """Call a loop over steps, which passes so many times over the clients' data."""
    dtype = data.tables.dtype
    models, after = np.empty(shape, dtype), np.empty(shape if variates else (0, 0), dtype)
    flat = after.reshape(len(after), -1) if after.size and after.ndim > 2 else after
    call(loop, passes * shape[0] * data.tables[0].size, data, *more, models, flat)
    return models, after


def take_steps(data: Data, steps: Steps, places: Array, variates: bool) -> Moved:
    """Return the result of `steps.take_steps`."""
    shape = len(places), data.tables.shape[2]
    return _stepped("take_steps", len(steps.divisors), shape, variates, data, steps, places)


def take_steps_by_scores(
    data: Data, steps: Steps, places: Array, products: Array, variates: bool
) -> Moved:
    """Return the result of `steps.take_steps_by_scores`."""
    shape = len(places), data.tables.shape[2]
    return _stepped("take_steps_by_scores", 2, shape, variates, data, steps, places, products)


def take_column_steps(
    data: Data, steps: Steps, places: Array, columns: int, variates: bool
) -> Moved:
    """Return the result of `steps.take_column_steps`."""
    shape, passes = (len(places), data.tables.shape[2], columns), len(steps.divisors) * columns
    return _stepped("take_column_steps", passes, shape, variates, data, steps, places)


def take_vertex_steps(
    data: Data, point: Point, places: Array, step: float, magnitude: float
) -> tuple[Array, Array, Array]:
    """Return the codes and tops of `vertices.take_vertex_steps`, and the points after the steps.

    The points are (1 - step) x + step s, where s has one entry, of this magnitude.
    """
    n, dtype = len(places), point.x.dtype
    codes, tops = np.empty(n, np.int64), np.empty(n, dtype)
    out, amount = np.empty((n, point.x.shape[1]), dtype), dtype.type(step) * dtype.type(magnitude)
    work, rest = n * data.tables[0].size, dtype.type(1.0 - step)
    call("take_vertex_steps", work, data, point, places, rest, amount, codes, tops, out)
    return codes, tops, out
