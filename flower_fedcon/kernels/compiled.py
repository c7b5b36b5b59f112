"""Steps of many clients, compiled: each client's on one core, which reads its data once.

NumPy reads them twice, copies each minibatch, and works on one core. This module needs numba (the
extra "fast"); `accelerate` finds it, and what it finds missing is done by NumPy, up to rounding.
A client's sums are all one core's: the number of cores changes no bit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from flower_fedcon.validation import Array

ALL_ROWS = np.empty((0, 0), np.intp)


def _add_mean(
    table: Array, targets: Array, rows: Array, x: Array, out: Array, factor: float, logistic: bool
) -> None:
    """Add factor times the mean over `rows` of (link(<a, x>) - b) a to `out`."""
    d, count, number = len(x), len(rows), x.dtype.type
    factor /= count
    whole = count - count % 4
    # Four rows at a time: they are in the first cache when the gradient takes them.
    for k in range(0, whole, 4):
        i1, i2, i3, i4 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        a1, a2, a3, a4 = table[i1], table[i2], table[i3], table[i4]
        s1, s2, s3, s4 = number(0), number(0), number(0), number(0)
        for j in range(d):
            s1 += a1[j] * x[j]
            s2 += a2[j] * x[j]
            s3 += a3[j] * x[j]
            s4 += a4[j] * x[j]
        if logistic:
            s1, s2, s3, s4 = np.tanh(s1 / 2), np.tanh(s2 / 2), np.tanh(s3 / 2), np.tanh(s4 / 2)
        s1, s2 = number(factor * (s1 - targets[i1])), number(factor * (s2 - targets[i2]))
        s3, s4 = number(factor * (s3 - targets[i3])), number(factor * (s4 - targets[i4]))
        for j in range(d):
            out[j] += s1 * a1[j] + s2 * a2[j] + s3 * a3[j] + s4 * a4[j]
    for k in range(whole, count):
        a, s = table[rows[k]], number(0)
        for j in range(d):
            s += a[j] * x[j]
        if logistic:
            s = np.tanh(s / 2)
        s = number(factor * (s - targets[rows[k]]))
        for j in range(d):
            out[j] += s * a[j]


def _add_gradients(
    tables: Array,
    targets: Array,
    places: Array,
    rows: Array,
    x: Array,
    out: Array,
    factors: Array,
    scale: float,
    logistic: bool,
    center: Array,
    pull: float,
) -> None:
    every, strength = np.arange(tables.shape[1]), x.dtype.type(pull)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)  # else numba's unsigned i makes a float of i + 0
        own = rows[at] if len(rows) else every
        model, gradient = x[at if len(x) > 1 else 0], out[at]
        for j in range(len(center)):
            gradient[j] = (model[j] - center[j]) * strength
        factor = scale * factors[client]
        _add_mean(tables[client], targets[client], own, model, gradient, factor, logistic)


def _steepest(g: Array, codes: Array, tops: Array) -> None:
    for i in numba.prange(len(g)):
        largest, at = g.dtype.type(-1), 0
        for j in range(g.shape[1]):
            magnitude = abs(g[i, j])
            if not magnitude <= largest:
                largest, at = magnitude, j
                if np.isnan(magnitude):
                    break
        tops[i] = g[i, at]
        codes[i] = -1 - at if g[i, at] > 0 else 1 + at


def _mix_coordinates(x: Array, codes: Array, rest: Any, amount: Any, out: Array) -> None:
    for i in numba.prange(len(x)):
        for j in range(x.shape[1]):
            out[i, j] = rest * x[i, j]
        code = codes[i]
        if code > 0:
            out[i, code - 1] += amount
        else:
            out[i, -code - 1] -= amount


def _jit(function: Callable[..., None], **options: Any) -> Callable[..., None]:
    """Compile at the first call, and keep the result on disk where there is a place for it."""
    compiled: Callable[..., None]
    try:
        compiled = numba.njit(function, cache=True, **options)
    except RuntimeError:  # nowhere to write
        compiled = numba.njit(function, **options)
    return compiled


# Sums may be taken in any order, as BLAS does; what is not finite stays so.
_add_mean = _jit(_add_mean, fastmath={"reassoc", "contract", "nsz"})
_PARALLEL = (_add_gradients, _steepest, _mix_coordinates)
_loops: list[Any] = [_jit(function, parallel=True) for function in _PARALLEL]
_lock = threading.Lock()  # not every threading layer of numba can be entered twice


def _after_fork() -> None:
    """Work on one core in a forked child: a parallel region of OpenMP would end it.

    Not from numba's files, which hold the parallel form under the same name.
    """
    global _loops, _lock
    _loops, _lock = [numba.njit(function) for function in _PARALLEL], threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def add_gradients(
    tables: Array,
    targets: Array,
    places: Array,
    rows: Array,
    x: Array,
    out: Array,
    factors: Array,
    scale: float,
    logistic: bool,
    center: Array,
    pull: float,
) -> None:
    """Add the gradients of some clients to `out`; all arrays but integers have one dtype.

    Parameters
    ----------
    tables, targets : array, shape (N, m, d) and (N, m)
        Of all clients.
    places : array of int, shape (n,)
        The clients.
    rows : array of int, shape (n, batch size), or ALL_ROWS
        Of each of them.
    x : array, shape (n, d) or (1, d)
    out : array, shape (n, d)
    factors : array, shape (N,)
    scale : float
        Client i's gradient is multiplied by factors[i] and scale.
    logistic : bool
        Whether a score s counts as tanh(s / 2), else as s.
    center : array, shape (d,) or (0,)
    pull : float
        If there is a center, `out` is overwritten by pull * (x - center) first.
    """
    with _lock:
        _loops[0](
            tables, targets, places, rows, x, out, factors, scale, logistic, center, float(pull)
        )


def steepest(g: Array) -> tuple[Array, Array]:
    """Return -sign(g_j) (j + 1) and g_j at each row's largest |g_j|, or at its first NaN.

    Parameters
    ----------
    g : array, shape (n, d)

    Returns
    -------
    codes : array of int, shape (n,)
        j + 1 where g_j = 0.
    tops : array, shape (n,)
    """
    codes, tops = np.empty(len(g), np.int64), np.empty(len(g), g.dtype)
    with _lock:
        _loops[1](constant(g), codes, tops)
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
    with _lock:
        _loops[2](constant(x), codes, number(1.0 - step), number(step) * number(magnitude), out)
    return out


def constant(x: Array) -> Array:
    """Return a contiguous view not to be written to: one type for what is compiled, not several."""
    view = np.ascontiguousarray(x).view()
    view.flags.writeable = False
    return view
