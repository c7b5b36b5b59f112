"""Gradients and Frank-Wolfe steps of many clients, compiled by numba.

The clients are spread over numba's threads (at most NUMBA_NUM_THREADS, by default one for each
core), or left to one where others are busy with the cores (see `threads`). A client's data are read
once; NumPy reads them twice, copies each minibatch, and works on one core. One thread takes all of
a client's sums, so that the number of threads changes no bit.

This module needs numba (the extra "fast"). `dispatch` decides whether it is used; NumPy finds the
same without it, up to rounding in the gradients and bit for bit in the steps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from flower_fedcon.kernels import recursions
from flower_fedcon.kernels.threads import Paces
from flower_fedcon.validation import Array

ALL_ROWS = np.empty((0, 0), np.intp)


def _add_mean(
    table: Array, targets: Array, rows: Array, x: Array, out: Array, factor: float, logistic: bool
) -> None:
    """Add factor times the mean over `rows` of (link(<a, x>) - target) a to `out`."""
    d, count, number = len(x), len(rows), x.dtype.type
    factor /= count
    whole = count - count % 4
    # Four rows at a time: they are still in the first-level cache when they are added to `out`.
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
    """Add the gradients of some clients to `out`; all floats in arrays have one dtype.

    Parameters
    ----------
    tables, targets : array, shape (N, m, d) and (N, m)
        Of all clients.
    places : array of int, shape (n,)
        The clients.
    rows : array of int, shape (n, batch size), or ALL_ROWS
        The rows of each of them that count.
    x : array, shape (n, d) or (1, d)
    out : array, shape (n, d)
    factors : array, shape (N,)
    scale : float
        Client i's gradient is multiplied by factors[i] and scale.
    logistic : bool
        Whether the link of a score s is tanh(s / 2); else it is s.
    center : array, shape (d,) or (0,)
    pull : float
        If there is a center, `out` is overwritten by pull * (x - center) first.
    """
    every, strength = np.arange(tables.shape[1]), x.dtype.type(pull)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)  # numba's i is unsigned, and i + 0 a float
        own = rows[at] if len(rows) else every
        model, gradient = x[at if len(x) > 1 else 0], out[at]
        for j in range(len(center)):
            gradient[j] = (model[j] - center[j]) * strength
        factor = scale * factors[client]
        _add_mean(tables[client], targets[client], own, model, gradient, factor, logistic)


def _take_steps(
    tables: Array,
    targets: Array,
    places: Array,
    rows: Array,
    models: Array,
    factors: Array,
    ridges: Array,
    logistic: bool,
    linear: Array,
    center: Array,
    shift: Any,
    step: Any,
    thresholds: Array,
    divisors: Array,
    from_point: bool,
) -> None:
    """Take gradient steps of some clients on `models`, in place: a client's rows stay in the cache.

    Client i minimises factors[i] times its mean loss, plus ridges[i]/2 ||x||^2, <linear, x> and
    shift/2 ||x - center||^2. The gradient of step k is taken at the model soft-thresholded at
    thresholds[k] and divided by divisors[k]; with `from_point` the step leads on from there.

    Parameters
    ----------
    tables, targets, places, logistic
        See `_add_gradients`.
    rows : array of int, shape (n, steps, batch size), or (0, 0, 0) for all rows in every step
    models : array, shape (n, d)
    factors, ridges : array, shape (N,)
    linear : array, shape (n, d) or (0, 0)
    center : array, shape (n, d), (1, d) or (0, 0)
    """
    every, zero = np.arange(tables.shape[1]), models.dtype.type(0)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        model, ridge, factor = models[at], ridges[client], factors[client]
        point, gradient = np.empty(len(model), model.dtype), np.empty(len(model), model.dtype)
        for k in range(len(thresholds)):
            own = rows[at, k] if len(rows) else every
            level, divisor = thresholds[k], divisors[k]
            for j in range(len(model)):
                size = abs(model[j]) - level
                if size < zero:  # what is not a number stays so
                    size = zero
                point[j] = (size if model[j] >= zero else -size) / divisor
                gradient[j] = ridge * point[j]
            if len(linear):
                for j in range(len(model)):
                    gradient[j] += linear[at, j]
            if len(center):
                middle = center[at if len(center) > 1 else 0]
                for j in range(len(model)):
                    gradient[j] += shift * (point[j] - middle[j])
            _add_mean(tables[client], targets[client], own, point, gradient, factor, logistic)
            for j in range(len(model)):
                start = point[j] if from_point else model[j]
                model[j] = start - step * gradient[j]


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


def _pulled(x: Array, center: Array, strength: Any, out: Array) -> None:
    for i in numba.prange(len(x)):
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - center[i, j]) * strength


def _pulled_twice(
    x: Array, center: Array, strength: Any, y: Array, step: Any, out: Array, moved: Array
) -> None:
    for i in numba.prange(len(x)):
        for j in range(x.shape[1]):
            difference = x[i, j] - center[i, j]
            moved[i, j] = y[i, j] + step * difference
            out[i, j] = difference * strength


def _mix_outer(x: Array, rest: Any, u: Array, v: Array, out: Array) -> None:
    for i in numba.prange(len(x)):
        for j in range(x.shape[1]):
            out[i, j] = rest * x[i, j] + u[i] * v[j]


def _jit(function: Callable[..., None], **options: Any) -> Callable[..., None]:
    """Compile at the first call; keep the result on disk if a folder there is writable."""
    compiled: Callable[..., None]
    try:
        compiled = numba.njit(function, cache=True, **options)
    except RuntimeError:  # no writable folder
        compiled = numba.njit(function, **options)
    return compiled


_fused = _jit(recursions.fused)  # as it stands, so that no bit is another
# Sums may be taken in any order, as in BLAS; non-finite values propagate.
_add_mean = _jit(_add_mean, fastmath={"reassoc", "contract", "nsz"})
_PARALLEL = (
    _add_gradients, _steepest, _mix_coordinates, _pulled, _pulled_twice, _mix_outer, _take_steps
)  # fmt: skip
_loops: list[Any] = [_jit(function, parallel=True) for function in _PARALLEL]
_paces = Paces()
_lock = (
    threading.Lock()
)  # not all of numba's threading layers are safe to call from two threads at once


def _after_fork() -> None:
    """Use one thread in a forked child, which a parallel region of OpenMP would end.

    Compiled anew: numba's files on disk hold the parallel form under the same name.
    """
    global _loops, _lock
    _loops, _lock = [numba.njit(function) for function in _PARALLEL], threading.Lock()
    _paces.alone = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _call(loop: int, work: int, *arguments: Any) -> None:
    """Call a loop, on as many threads as are fastest for so many entries."""
    with _lock, _paces.threads(loop, work):
        _loops[loop](*arguments)


def add_gradients(*arguments: Any) -> None:
    """Call `_add_gradients`, which describes the arguments."""
    tables, places = arguments[0], arguments[2]
    _call(0, len(places) * tables[0].size, *arguments)


def take_steps(*arguments: Any) -> None:
    """Call `_take_steps`, which describes the arguments."""
    tables, places, steps = arguments[0], arguments[2], arguments[-2]
    _call(6, len(steps) * len(places) * tables[0].size, *arguments)


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
    _call(1, g.size, read_only(g), codes, tops)
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
    _call(2, x.size, read_only(x), codes, number(1.0 - step), amount, out)
    return out


def pulled(x: Array, center: Array, pull: float) -> Array:
    """Return pull (x - center), for matrices."""
    out = np.empty(x.shape, x.dtype)
    _call(3, x.size, read_only(x), read_only(center), x.dtype.type(pull), out)
    return out


def pulled_twice(
    x: Array, center: Array, pull: float, y: Array, step: float
) -> tuple[Array, Array]:
    """Return pull (x - center) and y + step (x - center), for matrices."""
    out, moved, number = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype), x.dtype.type
    strength, step = number(pull), number(step)
    _call(4, x.size, read_only(x), read_only(center), strength, read_only(y), step, out, moved)
    return out, moved


def mix_outer(x: Array, rest: float, u: Array, v: Array) -> Array:
    """Return rest x + u v'.

    Parameters
    ----------
    x : array, shape (m, n)
    rest : float
    u, v : array, shape (m,) and (n,)
    """
    out = np.empty(x.shape, x.dtype)
    _call(5, x.size, read_only(x), x.dtype.type(rest), read_only(u), read_only(v), out)
    return out


def denoise(y: Array, level: float) -> Array:
    """Return the solution of `recursions.fused`."""
    n = len(y)
    knots, bounds, best = np.zeros((3, 2 * n)), np.zeros((2, n)), np.empty(n)
    _fused(y, level, *knots, *bounds, best)
    return best


def read_only(x: Array) -> Array:
    """Return a read-only, contiguous view, so that numba compiles for one type of array only."""
    view = np.ascontiguousarray(x).view()
    view.flags.writeable = False
    return view
