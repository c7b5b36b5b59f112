"""The compiled loops as custom calls of XLA on a CPU, which compiled rounds make as they go.

Each function here takes the lists of a call's arguments and results, and the type of its numbers;
it hands them to the loop of its name, which `compiled` or the loop itself describes. Arguments that
are numbers come in vectors; the last one says whether one thread is to do, and other integers.
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

from flower_fedcon.kernels import compiled
from flower_fedcon.kernels.frames import (
    asks_for_version,
    cube,
    lists,
    matrix,
    read_only,
    vector,
)
from flower_fedcon.kernels.jit import cached, jit, renamed
from flower_fedcon.kernels.threads import Pace

_GRADIENTS, _GRADIENTS_ALONE = compiled.forms["add_gradients"]
_STEPS, _STEPS_ALONE = compiled.forms["take_steps"]
_BY_SCORES, _BY_SCORES_ALONE = compiled.forms["take_steps_by_scores"]
_SOFTMAX, _SOFTMAX_ALONE = compiled.forms["take_softmax_steps"]
_STEEPEST, _STEEPEST_ALONE = compiled.forms["steepest"]
_MIX, _MIX_ALONE = compiled.forms["mix_coordinates"]
_VERTEX, _VERTEX_ALONE = compiled.forms["take_vertex_steps"]


@jit
def _add_gradients(given: Any, results: Any, number: Any) -> None:
    tables, targets = read_only(cube(given, 0, number)), read_only(matrix(given, 1, number))
    places, rows = vector(given, 2, np.int64), matrix(given, 3, np.int64)
    x, factors = read_only(matrix(given, 4, number)), vector(given, 5, number)
    center, numbers = read_only(vector(given, 6, number)), vector(given, 7, np.float64)
    whole, out = vector(given, 8, np.int64), matrix(results, 0, number)
    scale, pull, link = numbers[0], numbers[1], whole[1]
    every = tables, targets, places, rows, x, out, factors, scale, link, center, pull
    if whole[0]:
        _GRADIENTS_ALONE(*every)
    else:
        _GRADIENTS(*every)


@jit
def _take_steps(given: Any, results: Any, number: Any) -> None:
    tables, targets = read_only(cube(given, 0, number)), read_only(matrix(given, 1, number))
    places, rows = vector(given, 2, np.int64), cube(given, 3, np.int64)
    factors, ridges = vector(given, 4, number), vector(given, 5, number)
    linear, less = read_only(matrix(given, 6, number)), read_only(matrix(given, 7, number))
    center, first = read_only(matrix(given, 8, number)), read_only(vector(given, 9, number))
    numbers, thresholds = vector(given, 10, number), vector(given, 11, number)
    divisors, whole = vector(given, 12, number), vector(given, 13, np.int64)
    models = matrix(results, 0, number)
    logistic = whole[1] != 0
    every = (
        tables, targets, places, rows, models, factors, ridges, logistic, linear, less, center,
        first, numbers[0], numbers[1], numbers[2], numbers[3], thresholds, divisors,
    )  # fmt: skip
    if whole[0]:
        _STEPS_ALONE(*every)
    else:
        _STEPS(*every)


@jit
def _take_steps_by_scores(given: Any, results: Any, number: Any) -> None:
    tables, targets = read_only(cube(given, 0, number)), read_only(matrix(given, 1, number))
    products, losses = cube(given, 2, number), np.empty(0, number)
    places, factors = vector(given, 3, np.int64), vector(given, 4, number)
    ridges, linear = vector(given, 5, number), read_only(matrix(given, 6, number))
    less, center = read_only(matrix(given, 7, number)), read_only(matrix(given, 8, number))
    numbers, whole = vector(given, 9, number), vector(given, 10, np.int64)
    models = matrix(results, 0, number)
    logistic, count = whole[1] != 0, whole[2]
    every = (
        tables, targets, products, losses, places, models, factors, ridges, logistic, linear,
        less, center, numbers[0], numbers[1], count,
    )  # fmt: skip
    if whole[0]:
        _BY_SCORES_ALONE(*every)
    else:
        _BY_SCORES(*every)


@jit
def _take_softmax_steps(given: Any, results: Any, number: Any) -> None:
    tables, targets = read_only(cube(given, 0, number)), read_only(matrix(given, 1, np.int64))
    places, rows = vector(given, 2, np.int64), cube(given, 3, np.int64)
    ridges, linear = vector(given, 4, number), read_only(matrix(given, 5, number))
    less, center = read_only(matrix(given, 6, number)), read_only(matrix(given, 7, number))
    first, numbers = read_only(vector(given, 8, number)), vector(given, 9, number)
    thresholds, divisors = vector(given, 10, number), vector(given, 11, number)
    whole, models = vector(given, 12, np.int64), cube(results, 0, number)
    every = (
        tables, targets, places, rows, models, ridges, linear, less, center, first,
        numbers[0], numbers[1], numbers[2], numbers[3], thresholds, divisors,
    )  # fmt: skip
    if whole[0]:
        _SOFTMAX_ALONE(*every)
    else:
        _SOFTMAX(*every)


@jit
def _steepest(given: Any, results: Any, number: Any) -> None:
    g, whole = read_only(matrix(given, 0, number)), vector(given, 1, np.int64)
    codes, tops = vector(results, 0, np.int64), vector(results, 1, number)
    if whole[0]:
        _STEEPEST_ALONE(g, codes, tops)
    else:
        _STEEPEST(g, codes, tops)


@jit
def _mix_coordinates(given: Any, results: Any, number: Any) -> None:
    codes, numbers = vector(given, 0, np.int64), vector(given, 1, number)
    whole, out = vector(given, 2, np.int64), matrix(results, 0, number)
    if whole[0]:
        _MIX_ALONE(read_only(out), codes, numbers[0], numbers[1], out)
    else:
        _MIX(read_only(out), codes, numbers[0], numbers[1], out)


@jit
def _take_vertex_steps(given: Any, results: Any, number: Any) -> None:
    tables, targets = read_only(cube(given, 0, number)), read_only(matrix(given, 1, number))
    places, x = vector(given, 2, np.int64), read_only(matrix(given, 3, number))
    factors, ridges = vector(given, 4, number), vector(given, 5, number)
    center, numbers = read_only(vector(given, 6, number)), vector(given, 7, np.float64)
    whole, codes = vector(given, 8, np.int64), vector(results, 0, np.int64)
    tops, out = vector(results, 1, number), matrix(results, 2, number)
    every = (
        tables, targets, places, x, factors, ridges, numbers[0], whole[1], center, numbers[1],
        number(numbers[2]), number(numbers[3]), codes, tops, out,
    )  # fmt: skip
    if whole[0]:
        _VERTEX_ALONE(*every)
    else:
        _VERTEX(*every)


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
_kept: list[Any] = []  # what XLA has the addresses of


body: Any = None  # of a handler: each has its own
number: Any = None


def _handler(frame: Any) -> int:
    if not asks_for_version(frame):
        given, results = lists(frame)
        body(given, results, number)
    return 0


@cache
def _registered(loop: str, dtype: np.dtype[Any]) -> str:
    """Return the name by which XLA knows a loop for numbers of a type."""
    numba.get_num_threads()  # has the threads launched that code from the cache refers to
    own = renamed(_handler, loop, dtype.name, body=_BODIES[loop], number=dtype.type)
    handler = cached(numba.cfunc, own, "int64(int64)")
    name = f"flower_fedcon.{loop}.{dtype.name}"
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    jax.ffi.register_ffi_target(name, capsule(handler.address, None, None), platform="cpu")
    _kept.append(handler)
    return name


def changed(loop: str, given: Sequence[Any], whole: Sequence[Any], out: Any) -> Any:
    """Return what a loop makes of `out`, which it would change in place.

    Parameters
    ----------
    loop : str
    given : sequence of jax.Array
        As above, up to the integers.
    whole : sequence of int
        These.
    out : jax.Array
    """
    operands = (*given, _together(whole), out)
    call: Any = jax.ffi.ffi_call(
        _registered(loop, np.dtype(out.dtype)),
        _like(out.shape, out.dtype),
        input_output_aliases={len(operands) - 1: 0},
    )
    return call(*operands)


def found(loop: str, given: Sequence[Any], whole: Sequence[Any], like: Sequence[Any]) -> Any:
    """Return what a loop writes.

    Parameters
    ----------
    loop, given, whole
        As of `changed`.
    like : sequence of (shape, dtype)
        Of its results; the last one's type is that of the numbers.
    """
    forms = tuple(_like(*form) for form in like)
    call: Any = jax.ffi.ffi_call(_registered(loop, np.dtype(forms[-1].dtype)), forms)
    return call(*given, _together(whole))


def _together(whole: Sequence[Any]) -> Any:
    return jax.numpy.stack([jax.numpy.asarray(one, np.int64) for one in whole])


@contextmanager
def on_threads(pace: Pace, rounds: int) -> Iterator[bool]:
    """Say whether loops are to have one thread in so many rounds, and learn how long they take.

    >>> with on_threads(Pace(), 1) as alone:
    ...     alone
    True
    """
    if compiled.forked or numba.get_num_threads() == 1:
        yield True
        return
    with compiled.lock:
        alone, began = pace.alone(), time.perf_counter()
        yield alone
        pace.note(alone, (time.perf_counter() - began) / rounds)
