"""The compiled loops as custom calls of XLA on a CPU, which compiled rounds make as they go.

Each function here takes the lists of a call's arguments and results, the type of its numbers, and
which clients of the call it is to serve: the first, and the one after the last. It hands them to
the loop of its name, which `compiled` or the loop itself describes. Arguments that are numbers come
in vectors. The first argument says how many threads the call may have, where what they share is
(see `sharing`), and other integers.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import numba
import numpy as np

from flower_fedcon.kernels import compiled, sharing
from flower_fedcon.kernels.frames import (
    asks_for_version,
    cube,
    length,
    lists,
    matrix,
    read_only,
    vector,
)
from flower_fedcon.kernels.jit import cached, jit, renamed
from flower_fedcon.kernels.threads import Pace
from flower_fedcon.validation import Array

# The loops, on the thread that calls.
_add, _steps, _steps_by_scores, _softmax_steps, _steep, _mix, _vertex_steps = (
    compiled.forms[name][True]
    for name in (
        "add_gradients",
        "take_steps",
        "take_steps_by_scores",
        "take_softmax_steps",
        "steepest",
        "mix_coordinates",
        "take_vertex_steps",
    )
)


@jit
def _of(rows: Array, first: Any, stop: Any) -> Any:
    """Return the rows of some clients; an array that has none, or one for all, as it is."""
    return rows[first:stop] if len(rows) > 1 else rows[: len(rows)]


@jit
def _data(given: Any, number: Any) -> Any:
    """Return the integers that a loop asks for, and the clients' tables and targets."""
    tables, targets = read_only(cube(given, 1, number)), read_only(matrix(given, 2, number))
    return vector(given, 0, np.int64)[2:], tables, targets


@jit
def _drift(given: Any, place: int, number: Any, i: Any, j: Any) -> Any:
    """Return the arrays from a place on: linear terms, what is taken off them, and centers."""
    return (
        read_only(_of(matrix(given, place, number), i, j)),
        read_only(_of(matrix(given, place + 1, number), i, j)),
        read_only(_of(matrix(given, place + 2, number), i, j)),
    )


@jit
def _add_gradients(given: Any, results: Any, number: Any, i: Any, j: Any) -> None:
    whole, tables, targets = _data(given, number)
    places, rows = vector(given, 3, np.int64)[i:j], _of(matrix(given, 4, np.int64), i, j)
    x, factors = read_only(_of(matrix(given, 5, number), i, j)), vector(given, 6, number)
    center, numbers = read_only(vector(given, 7, number)), vector(given, 8, np.float64)
    scale, pull, out = numbers[0], numbers[1], matrix(results, 0, number)[i:j]
    _add(tables, targets, places, rows, x, out, factors, scale, whole[0], center, pull)


@jit
def _take_steps(given: Any, results: Any, number: Any, i: Any, j: Any) -> None:
    whole, tables, targets = _data(given, number)
    places, rows = vector(given, 3, np.int64)[i:j], _of(cube(given, 4, np.int64), i, j)
    start, factors = read_only(_of(matrix(given, 5, number), i, j)), vector(given, 6, number)
    ridges, (linear, less, center) = vector(given, 7, number), _drift(given, 8, number, i, j)
    first, numbers = read_only(vector(given, 11, number)), vector(given, 12, number)
    thresholds, divisors = vector(given, 13, number), vector(given, 14, number)
    models, none = matrix(results, 0, number)[i:j], np.empty((0, 0), number)
    _steps(
        tables, targets, places, rows, start, factors, ridges, whole[0] != 0, linear, less, center,
        first, numbers[0], numbers[1], numbers[2], numbers[3], thresholds, divisors, number(0),
        models, none,
    )  # fmt: skip


@jit
def _take_steps_by_scores(given: Any, results: Any, number: Any, i: Any, j: Any) -> None:
    whole, tables, targets = _data(given, number)
    products, losses = cube(given, 3, number), np.empty(0, number)
    places, start = vector(given, 4, np.int64)[i:j], read_only(_of(matrix(given, 5, number), i, j))
    factors, ridges = vector(given, 6, number), vector(given, 7, number)
    linear, less, center = _drift(given, 8, number, i, j)
    numbers, models = vector(given, 11, number), matrix(results, 0, number)[i:j]
    none = np.empty((0, 0), number)
    _steps_by_scores(
        tables, targets, products, losses, places, start, factors, ridges, whole[0] != 0, linear,
        less, center, numbers[0], numbers[1], whole[1], number(0), models, none,
    )  # fmt: skip


@jit
def _take_softmax_steps(given: Any, results: Any, number: Any, i: Any, j: Any) -> None:
    tables, targets = read_only(cube(given, 1, number)), read_only(matrix(given, 2, np.int64))
    places, rows = vector(given, 3, np.int64)[i:j], _of(cube(given, 4, np.int64), i, j)
    start, ridges = read_only(_of(matrix(given, 5, number), i, j)), vector(given, 6, number)
    linear, less, center = _drift(given, 7, number, i, j)
    first, numbers = read_only(vector(given, 10, number)), vector(given, 11, number)
    thresholds, divisors = vector(given, 12, number), vector(given, 13, number)
    models, none = cube(results, 0, number)[i:j], np.empty((0, 0), number)
    _softmax_steps(
        tables, targets, places, rows, start, ridges, linear, less, center, first, numbers[0],
        numbers[1], numbers[2], numbers[3], thresholds, divisors, number(0), models, none,
    )  # fmt: skip


@jit
def _steepest(given: Any, results: Any, number: Any, i: Any, j: Any) -> None:
    g = read_only(matrix(given, 1, number)[i:j])
    _steep(g, vector(results, 0, np.int64)[i:j], vector(results, 1, number)[i:j])


@jit
def _mix_coordinates(given: Any, results: Any, number: Any, i: Any, j: Any) -> None:
    codes, numbers = vector(given, 1, np.int64)[i:j], vector(given, 2, number)
    out = matrix(results, 0, number)[i:j]
    _mix(read_only(out), codes, numbers[0], numbers[1], out)


@jit
def _take_vertex_steps(given: Any, results: Any, number: Any, i: Any, j: Any) -> None:
    whole, tables, targets = _data(given, number)
    places, x = vector(given, 3, np.int64)[i:j], read_only(_of(matrix(given, 4, number), i, j))
    factors, ridges = vector(given, 5, number), vector(given, 6, number)
    center, numbers = read_only(vector(given, 7, number)), vector(given, 8, np.float64)
    codes, tops = vector(results, 0, np.int64)[i:j], vector(results, 1, number)[i:j]
    out = matrix(results, 2, number)[i:j]
    _vertex_steps(
        tables, targets, places, x, factors, ridges, numbers[0], whole[0], center, numbers[1],
        number(numbers[2]), number(numbers[3]), codes, tops, out,
    )  # fmt: skip


_BODIES = {
    "add_gradients": _add_gradients,
    "take_steps": _take_steps,
    "take_steps_by_scores": _take_steps_by_scores,
    "take_softmax_steps": _take_softmax_steps,
    "steepest": _steepest,
    "mix_coordinates": _mix_coordinates,
    "take_vertex_steps": _take_vertex_steps,
}
_like: Any = jax.ShapeDtypeStruct
_NUMBERS = np.dtype(np.float64), np.dtype(np.float32)
_slots = sharing.slots(len(_BODIES) * len(_NUMBERS))
_kept: list[Any] = []  # what XLA has the addresses of


# Of a handler and a task: each has its own.
body: Any = None
number: Any = None
serve: Any = None


def _serve(slot: Any, last: bool) -> None:
    part = sharing.claimed(slot, last)
    while part >= 0:
        given, results, first, stop = sharing.told(slot, part)
        body(given, results, number, first, stop)
        sharing.finish(slot)
        part = sharing.claimed(slot, last)


def _task(slot: Any) -> int:
    serve(slot, True)
    return 0


def _handler(frame: Any) -> int:
    if not asks_for_version(frame):
        given, results = lists(frame)
        how, clients, parts = vector(given, 0, np.int64), length(results), 0
        if how[0] > 1 and clients > 1:
            parts = sharing.offer(how[1], frame, given, results, clients, how[0])
        if parts:
            serve(how[1], False)
            sharing.wait(how[1], parts)
        else:
            body(given, results, number, 0, clients)
    return 0


def _place(loop: str, dtype: np.dtype[Any]) -> int:
    """Return the place of a loop's slot, for numbers of a type."""
    return len(_NUMBERS) * [*_BODIES].index(loop) + _NUMBERS.index(dtype)


@cache
def _registered(loop: str, dtype: np.dtype[Any]) -> str:
    """Return the name by which XLA knows a loop for numbers of a type."""
    own = {"body": _BODIES[loop], "number": dtype.type}
    own["serve"] = jit(renamed(_serve, loop, dtype.name, **own))
    both = (renamed(one, loop, dtype.name, **own) for one in (_handler, _task))
    called, run = (cached(numba.cfunc, one, "int64(int64)") for one in both)
    sharing.give_task(_slots[_place(loop, dtype)], run.address)
    name = f"flower_fedcon.{loop}.{dtype.name}"
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    jax.ffi.register_ffi_target(name, capsule(called.address, None, None), platform="cpu")
    _kept.extend((called, run))
    return name


def changed(loop: str, threads: Any, whole: Sequence[Any], given: Sequence[Any], out: Any) -> Any:
    """Return what a loop makes of `out`, which it would change in place.

    Parameters
    ----------
    loop : str
    threads : jax.Array of int, shape (2,)
        What `on_threads` says, or `ALONE`.
    whole : sequence of int
        The other integers.
    given : sequence of jax.Array
        What else there is, up to `out`.
    out : jax.Array
    """
    dtype = np.dtype(out.dtype)
    operands = (_how(loop, dtype, threads, whole), *given, out)
    call: Any = jax.ffi.ffi_call(
        _registered(loop, dtype),
        _like(out.shape, dtype),
        input_output_aliases={len(operands) - 1: 0},
    )
    return call(*operands)


def found(
    loop: str, threads: Any, whole: Sequence[Any], given: Sequence[Any], like: Sequence[Any]
) -> Any:
    """Return what a loop writes.

    Parameters
    ----------
    loop, threads, whole, given
        As of `changed`.
    like : sequence of (shape, dtype)
        Of its results; the last one's type is that of the numbers.
    """
    forms, dtype = tuple(_like(*form) for form in like), np.dtype(like[-1][1])
    call: Any = jax.ffi.ffi_call(_registered(loop, dtype), forms)
    return call(_how(loop, dtype, threads, whole), *given)


def _how(loop: str, dtype: np.dtype[Any], threads: Any, whole: Sequence[Any]) -> Any:
    """Return a call's first argument."""
    slot = threads[1] + _slots[0].nbytes * _place(loop, dtype)
    each = (threads[0], slot, *whole)
    return jax.numpy.stack([jax.numpy.asarray(one, np.int64) for one in each])


ALONE = (1, 0)
"""That a call is to have one thread."""


@contextmanager
def on_threads(pace: Pace, rounds: int) -> Iterator[Array]:
    """Say how many threads loops may have in so many rounds, and learn how long these take.

    With their number goes the address of what they share, which differs from process to process.

    >>> with on_threads(Pace(), 1) as threads:
    ...     int(threads[0])
    1
    """
    every = numba.get_num_threads()
    alone, began = every == 1 or pace.alone, time.perf_counter()
    yield np.array(ALONE if alone else (every, _slots.ctypes.data))
    if every > 1:
        pace.note("rounds", time.perf_counter() - began, rounds)
