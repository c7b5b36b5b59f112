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
from flower_fedcon.validation import Array

FEW = 2**17  # multiply-adds that take as long as starting and ending other threads (20 us)
ALL_ROWS, ALL_STEPS = np.empty((0, 0), np.intp), np.empty((0, 0, 0), np.intp)


_PARALLEL = (
    gradients.add_gradients, gradients.find_losses, steps.take_steps, steps.take_steps_by_scores,
    steps.take_softmax_steps, vertices.take_vertex_steps,
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


def add_gradients(*arguments: Any) -> None:
    """Call `gradients.add_gradients`, which describes the arguments."""
    tables, places = arguments[0], arguments[2]
    call("add_gradients", len(places) * tables[0].size, *arguments)


Moved = tuple[Array, Array]
"""The points after the steps; or the moves and the new control variates (else of length 0)."""


def _stepped(
    loop: str, steps: int, shape: tuple[int, ...], rate: float | None, *given: Any
) -> Moved:
    """Call a loop over steps; `given` holds its arguments up to `rate`."""
    tables, number = given[0], given[0].dtype.type
    models = np.empty(shape, number)
    after = np.empty((0, 0) if rate is None else shape, number)
    flat = after.reshape(len(after), -1) if after.size and after.ndim > 2 else after
    work = steps * shape[0] * tables[0].size
    call(loop, work, *given, number(0.0 if rate is None else rate), models, flat)
    return models, after


def take_steps(rate: float | None, *given: Any) -> Moved:
    """Return the result of `steps.take_steps`, which describes the arguments."""
    tables, places, divisors = given[0], given[2], given[-1]
    return _stepped("take_steps", len(divisors), (len(places), tables.shape[2]), rate, *given)


def take_steps_by_scores(rate: float | None, *given: Any) -> Moved:
    """Return the result of `steps.take_steps_by_scores`, which describes the arguments."""
    tables, places = given[0], given[3]
    return _stepped("take_steps_by_scores", 2, (len(places), tables.shape[2]), rate, *given)


def find_losses(*arguments: Any) -> None:
    """Call `gradients.find_losses`, which describes the arguments."""
    call("find_losses", arguments[0].size, *arguments)


def take_softmax_steps(rate: float | None, classes: int, *given: Any) -> Moved:
    """Return the result of `steps.take_softmax_steps`, which describes the arguments."""
    tables, places, divisors = given[0], given[2], given[-1]
    shape = len(places), tables.shape[2], classes
    return _stepped("take_softmax_steps", len(divisors) * classes, shape, rate, *given)


def take_vertex_steps(
    tables: Array,
    targets: Array,
    places: Array,
    x: Array,
    factors: Array,
    ridges: Array,
    scale: float,
    link: int,
    center: Array,
    pull: float,
    step: float,
    magnitude: float,
) -> tuple[Array, Array, Array]:
    """Return the codes and tops of `vertices.take_vertex_steps`, and the points after the steps.

    The points are (1 - step) x + step s, where s has one entry, of this magnitude.
    """
    n, dtype = len(places), x.dtype
    codes, tops = np.empty(n, np.int64), np.empty(n, dtype)
    out, amount = np.empty((n, x.shape[1]), dtype), dtype.type(step) * dtype.type(magnitude)
    call(
        "take_vertex_steps", n * tables[0].size, tables, targets, places, x, factors, ridges,
        scale, link, center, pull, dtype.type(1.0 - step), amount, codes, tops, out,
    )  # fmt: skip
    return codes, tops, out


def read_only(x: Array) -> Array:
    """Return a read-only, contiguous view, so that numba compiles for one type of array only."""
    flags = x.flags
    if not flags.c_contiguous:
        view = np.array(x, order="C")
    elif flags.writeable:
        view = x.view()
    else:
        return x
    view.setflags(write=False)
    return view
