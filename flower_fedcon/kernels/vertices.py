"""Loops for Frank-Wolfe steps over l1 balls, to be compiled: vertices, and steps towards them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from flower_fedcon.kernels.jit import jit
from flower_fedcon.kernels.rows import add_mean
from flower_fedcon.validation import Array

_BLOCK = 64  # entries among which the largest is found again, one by one


def _integers(x: Any) -> Any:
    """Return floats as integers of as many bytes, and all the bits of one but the sign."""
    raise NotImplementedError


@overload(_integers)
def _integers_of(x: Any) -> Any:
    whole = np.int32 if x.dtype.bitwidth == 32 else np.int64
    mask = whole(np.iinfo(whole).max)

    def integers(x: Any) -> Any:
        return x.view(whole), mask

    return integers


@jit
def _largest(row: Array, mask: Any) -> Any:
    top = row.dtype.type(0)
    for j in range(len(row)):
        top = max(top, row[j] & mask)
    return top


@jit
def _code(x: Array) -> Any:
    # Floats are ordered as the integers of their bits, but for the sign, and NaN above all; and of
    # integers, the largest of several is found at once.
    row, mask = _integers(x)
    first, largest = 0, _largest(row[:_BLOCK], mask)
    for start in range(_BLOCK, len(row), _BLOCK):
        top = _largest(row[start : start + _BLOCK], mask)
        if top > largest:
            largest, first = top, start
    at = first
    while row[at] & mask != largest:
        at += 1
    return -1 - at if row[at] > 0 else 1 + at


@jit
def _mix(x: Array, code: Any, rest: Any, amount: Any, out: Array) -> None:
    for j in range(len(out)):
        out[j] = rest * x[j]
    if code > 0:
        out[code - 1] += amount
    else:
        out[-code - 1] -= amount


def steepest(g: Array, codes: Array, tops: Array) -> None:
    """Write -sign(g_j) (j + 1) and g_j at each row's largest |g_j|, or at a NaN.

    Parameters
    ----------
    g : array, shape (n, d)
    codes : array of int, shape (n,)
        j + 1 where g_j = 0.
    tops : array, shape (n,)
    """
    for i in numba.prange(len(g)):
        code = _code(g[i])
        tops[i], codes[i] = g[i, abs(code) - 1], code


def mix_coordinates(x: Array, codes: Array, rest: Any, amount: Any, out: Array) -> None:
    """Write rest x + amount s, where each row of s is sign(code) at |code| - 1."""
    for i in numba.prange(len(x)):
        _mix(x[i], codes[i], rest, amount, out[i])


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
    rest: Any,
    amount: Any,
    codes: Array,
    tops: Array,
    out: Array,
) -> None:
    """Take a Frank-Wolfe step of some clients over an l1 ball: each one's rows are read once.

    Client i's gradient g is scale times that of factors[i] times its mean loss, plus
    ridges[i]/2 ||x||^2, and pull * (x - center). What follows is as of `steepest`, and then as of
    `mix_coordinates`.

    Parameters
    ----------
    tables, targets, places, link
        See `rows.add_gradients`.
    x : array, shape (n, d) or (1, d)
    factors, ridges : array, shape (N,)
    center : array, shape (d,)
    codes, tops
        See `steepest`.
    out : array, shape (n, d)
    """
    every, strength = np.arange(tables.shape[1]), x.dtype.type(pull)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        model = x[at if len(x) > 1 else 0]
        ridge = x.dtype.type(scale * ridges[client])
        gradient = np.empty(len(model), model.dtype)
        for j in range(len(model)):
            gradient[j] = (model[j] - center[j]) * strength
        factor = scale * factors[client]
        add_mean(tables[client], targets[client], every, model, gradient, factor, link)
        if ridge:
            for j in range(len(model)):
                gradient[j] += ridge * model[j]
        code = _code(gradient)
        tops[at], codes[at] = gradient[abs(code) - 1], code
        _mix(model, code, rest, amount, out[at])
