"""Gradients and Frank-Wolfe steps of many clients, compiled by numba.

The clients are spread over as many threads as `threads` says, or left to one where the work is too
little to share. A client's data are read once; NumPy reads them twice, copies each minibatch, and
works on one core. One thread takes all of a client's sums, so that the number of threads changes no
bit.

This module needs numba (the extra "fast"). `dispatch` decides whether it is used; NumPy finds the
same without it, up to rounding in the gradients and bit for bit in the steps.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numba
import numpy as np

from flower_fedcon.kernels import models, rows, steps, threads, vertices
from flower_fedcon.kernels.jit import jit, renamed
from flower_fedcon.validation import Array

FEW = 2**17  # multiply-adds, which take no longer than other threads to wake and to end (20 us)
_MOVE = 4  # of them take as long as reading an entry and writing another
ALL_ROWS, ALL_STEPS = np.empty((0, 0), np.intp), np.empty((0, 0, 0), np.intp)


_PARALLEL = (
    rows.add_gradients, rows.find_losses, steps.take_steps, steps.take_steps_by_scores,
    steps.take_softmax_steps, vertices.steepest, vertices.mix_coordinates,
    vertices.take_vertex_steps, models.mix_outer, models.squares, models.sum_parts,
)  # fmt: skip
forms: dict[str, tuple[Any, Any]] = {}  # of each loop: for all threads, and for one
lock = threading.Lock()  # two threads at once break some of numba's threading layers
forked = False


def _after_fork() -> None:
    """Use one thread in a forked child, which a parallel region of OpenMP would end."""
    global forked, lock
    forked, lock = True, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def spread(loop: Any) -> None:
    """Have a loop, by its name, as `call` calls it: its clients, or parts, by `numba.prange`."""
    forms[loop.__name__] = jit(loop, parallel=True), jit(renamed(loop, "alone"))


for _loop in _PARALLEL:
    spread(_loop)


def call(loop: str, work: int, *arguments: Any) -> None:
    """Call a loop: on one thread, or from `FEW` multiply-adds on as many as are set, else all."""
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
    """Call `rows.add_gradients`, which describes the arguments."""
    tables, places = arguments[0], arguments[2]
    call("add_gradients", len(places) * tables[0].size, *arguments)


Moved = tuple[Array, Array]
"""Where steps have led; or how far, and the control variates that follow, else of length 0."""


def _stepped(
    loop: str, steps: int, shape: tuple[int, ...], rate: float | None, *given: Any
) -> Moved:
    """Call a loop over so many steps; `given` is what it takes up to `rate`."""
    tables, number = given[0], given[0].dtype.type
    models = np.empty(shape, number)
    after = np.empty((0, 0) if rate is None else shape, number)
    flat = after.reshape(len(after), -1) if after.size and after.ndim > 2 else after
    work = steps * shape[0] * tables[0].size
    call(loop, work, *given, number(0.0 if rate is None else rate), models, flat)
    return models, after


def take_steps(rate: float | None, *given: Any) -> Moved:
    """Return what `steps.take_steps` finds, which describes the arguments."""
    tables, places, divisors = given[0], given[2], given[-1]
    return _stepped("take_steps", len(divisors), (len(places), tables.shape[2]), rate, *given)


def take_steps_by_scores(rate: float | None, *given: Any) -> Moved:
    """Return what `steps.take_steps_by_scores` finds, which describes the arguments."""
    tables, places = given[0], given[3]
    return _stepped("take_steps_by_scores", 2, (len(places), tables.shape[2]), rate, *given)


def find_losses(*arguments: Any) -> None:
    """Call `rows.find_losses`, which describes the arguments."""
    call("find_losses", arguments[0].size, *arguments)


def take_softmax_steps(rate: float | None, classes: int, *given: Any) -> Moved:
    """Return what `steps.take_softmax_steps` finds, which describes the arguments."""
    tables, places, divisors = given[0], given[2], given[-1]
    shape = len(places), tables.shape[2], classes
    return _stepped("take_softmax_steps", len(divisors) * classes, shape, rate, *given)


def steepest(g: Array) -> tuple[Array, Array]:
    """Return the codes and tops of `vertices.steepest`."""
    codes, tops = np.empty(len(g), np.int64), np.empty(len(g), g.dtype)
    call("steepest", _MOVE * g.size, read_only(g), codes, tops)
    return codes, tops


def mix_coordinates(x: Array, codes: Array, step: float, magnitude: float) -> Array:
    """Return (1 - step) x + step s, where each row of s has one entry.

    Parameters
    ----------
    x : array, shape (n, d)
    codes : array of int, shape (n,)
        The entry is sign(code) * magnitude, at |code| - 1.
    """
    out, number = np.empty(x.shape, x.dtype), x.dtype.type
    amount = number(step) * number(magnitude)
    call("mix_coordinates", _MOVE * x.size, read_only(x), codes, number(1.0 - step), amount, out)
    return out


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
    """Return the codes and tops, and what mixing finds, of `vertices.take_vertex_steps`.

    The numbers step and magnitude are those of `mix_coordinates`.
    """
    n, dtype = len(places), x.dtype
    codes, tops = np.empty(n, np.int64), np.empty(n, dtype)
    out, amount = np.empty((n, x.shape[1]), dtype), dtype.type(step) * dtype.type(magnitude)
    call(
        "take_vertex_steps", n * tables[0].size, tables, targets, places, x, factors, ridges,
        scale, link, center, pull, dtype.type(1.0 - step), amount, codes, tops, out,
    )  # fmt: skip
    return codes, tops, out


def mix_outer(x: Array, rest: float, u: Array, v: Array) -> Array:
    """Return rest x + u v'.

    Parameters
    ----------
    x : array, shape (m, n)
    rest : float
    u, v : array, shape (m,) and (n,)
    """
    out = np.empty(x.shape, x.dtype)
    call(
        "mix_outer",
        _MOVE * x.size,
        read_only(x),
        x.dtype.type(rest),
        read_only(u),
        read_only(v),
        out,
    )
    return out


def squares(x: Array) -> Array:
    """Return the square norm of each row."""
    out = np.empty(len(x), x.dtype)
    call("squares", _MOVE * x.size, read_only(x), out)
    return out


def sum_parts(x: Array, count: int) -> Array:
    """Return the sums of so many parts of the rows."""
    parts = np.empty((count, x.shape[1]), x.dtype)
    call("sum_parts", _MOVE * x.size, read_only(x), parts)
    return parts


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
