"""Loops for Frank-Wolfe steps over l1 balls, to be compiled: vertices, and steps towards them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from flower_fedcon.compiled.gradients import add_mean
from flower_fedcon.compiled.jit import jit
from flower_fedcon.compiled.records import Data, Point
from flower_fedcon.validation import Array

_BLOCK = 64  # entries that are searched one by one for the largest


def _integers(x: Any) -> Any:
    """Return floats as integers of the same size, and a mask of all bits but the sign."""
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
    # Without their signs, floats are ordered like the integers of their bits, with NaN above all;
    # and the largest of several integers is found in one instruction.
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


def take_vertex_steps(
    data: Data, point: Point, places: Array, rest: Any, amount: Any, codes: Array, tops: Array,
    out: Array,
) -> None:  # fmt: skip
    """Take a Frank-Wolfe step over an l1 ball for some clients: each client's rows are read once.

    Client i's gradient g is scale times the gradient of factors[i] times its mean loss plus
    ridges[i]/2 ||x||^2, plus pull * (x - center). The vertex is at the largest |g_j|, or at a NaN:
    `codes` receives -sign(g_j) (j + 1), or j + 1 if g_j = 0, and `tops` receives g_j. The step ends
    at rest x + amount s, where s is sign(code) in that entry and 0 elsewhere.

    Parameters
    ----------
    data, point, places
        See `gradients.add_gradients`; the point has a center.
    rest, amount : number
    codes : array of int, shape (n,)
    tops : array, shape (n,)
    out : array, shape (n, d)
    """
    x, center, number = point.x, point.center, point.x.dtype.type
    every, strength = np.arange(data.tables.shape[1]), number(point.pull)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        model = x[at if len(x) > 1 else 0]
        ridge = number(point.scale * data.ridges[client])
        gradient = np.empty(len(model), model.dtype)
        for j in range(len(model)):
            gradient[j] = (model[j] - center[j]) * strength
        factor = point.scale * data.factors[client]
        add_mean(
            data.tables[client], data.targets[client], every, model, gradient, factor, data.link
        )
        if ridge:
            for j in range(len(model)):
                gradient[j] += ridge * model[j]
        code = _code(gradient)
        tops[at], codes[at] = gradient[abs(code) - 1], code
        for j in range(len(model)):
            out[at, j] = rest * model[j]
        if code > 0:
            out[at, code - 1] += amount
        else:
            out[at, -code - 1] -= amount
