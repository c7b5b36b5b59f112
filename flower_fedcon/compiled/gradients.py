"""Loops over the rows of many clients' tables, to be compiled: gradients and losses.

The order of a client's sums does not depend on the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from flower_fedcon.compiled.jit import jit
from flower_fedcon.compiled.records import LOGISTIC, PRODUCT, Data, Point
from flower_fedcon.validation import Array

_PART = 512  # entries, 4 KiB of doubles, of two vectors


def _sums(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile sums whose order is free, as in BLAS; non-finite values propagate."""
    return jit(function, fastmath={"reassoc", "contract", "nsz"})


@_sums
def add_mean(
    table: Array, targets: Array, rows: Array, x: Array, out: Array, factor: float, link: int
) -> None:
    """Add factor times the mean over `rows` of the weight of <a, x> times a to `out`.

    The weight of a score s, in a row with the target t, is s - t, or with the link `LOGISTIC`
    tanh(s / 2) - t, or with the link `PRODUCT` s t.
    """
    d, count, number = len(x), len(rows), x.dtype.type
    factor /= count
    whole, zero = count - count % 4, number(0)
    s1, s2, s3, s4 = number(0), number(0), number(0), number(0)
    if whole:
        a1, a2, a3, a4 = table[rows[0]], table[rows[1]], table[rows[2]], table[rows[3]]
        for j in range(d):
            s1 += a1[j] * x[j]
            s2 += a2[j] * x[j]
            s3 += a3[j] * x[j]
            s4 += a4[j] * x[j]
    # Four rows are added from the first-level cache while the next four are loaded.
    for k in range(0, whole, 4):
        i1, i2, i3, i4 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        a1, a2, a3, a4 = table[i1], table[i2], table[i3], table[i4]
        t1, t2, t3, t4 = targets[i1], targets[i2], targets[i3], targets[i4]
        if link == PRODUCT:
            s1, s2, s3, s4, t1, t2, t3, t4 = (
                s1 * t1,
                s2 * t2,
                s3 * t3,
                s4 * t4,
                zero,
                zero,
                zero,
                zero,
            )
        elif link == LOGISTIC:
            s1, s2, s3, s4 = np.tanh(s1 / 2), np.tanh(s2 / 2), np.tanh(s3 / 2), np.tanh(s4 / 2)
        w1, w2 = number(factor * (s1 - t1)), number(factor * (s2 - t2))
        w3, w4 = number(factor * (s3 - t3)), number(factor * (s4 - t4))
        if k + 4 == whole:
            for j in range(d):
                out[j] += w1 * a1[j] + w2 * a2[j] + w3 * a3[j] + w4 * a4[j]
            break
        i1, i2, i3, i4 = rows[k + 4], rows[k + 5], rows[k + 6], rows[k + 7]
        b1, b2, b3, b4 = table[i1], table[i2], table[i3], table[i4]
        s1, s2, s3, s4 = number(0), number(0), number(0), number(0)
        for j in range(d):
            out[j] += w1 * a1[j] + w2 * a2[j] + w3 * a3[j] + w4 * a4[j]
            s1 += b1[j] * x[j]
            s2 += b2[j] * x[j]
            s3 += b3[j] * x[j]
            s4 += b4[j] * x[j]
    for k in range(whole, count):
        a, s = table[rows[k]], number(0)
        for j in range(d):
            s += a[j] * x[j]
        t = targets[rows[k]]
        if link == PRODUCT:
            s, t = s * t, zero
        elif link == LOGISTIC:
            s = np.tanh(s / 2)
        s = number(factor * (s - t))
        for j in range(d):
            out[j] += s * a[j]


@_sums
def square(x: Array) -> Any:
    """Return ||x||^2."""
    total = x.dtype.type(0)
    for j in range(len(x)):
        total += x[j] * x[j]
    return total


@_sums
def find_scores(table: Array, x: Array, out: Array) -> None:
    """Write <a, x> of each row a into `out`."""
    d, count, number = len(x), len(table), x.dtype.type
    whole = count - count % 4
    for k in range(0, whole, 4):
        a1, a2, a3, a4 = table[k], table[k + 1], table[k + 2], table[k + 3]
        s1, s2, s3, s4 = number(0), number(0), number(0), number(0)
        for j in range(d):
            s1 += a1[j] * x[j]
            s2 += a2[j] * x[j]
            s3 += a3[j] * x[j]
            s4 += a4[j] * x[j]
        out[k], out[k + 1], out[k + 2], out[k + 3] = s1, s2, s3, s4
    for k in range(whole, count):
        a, s = table[k], number(0)
        for j in range(d):
            s += a[j] * x[j]
        out[k] = s


@_sums
def find_both_scores(table: Array, x: Array, y: Array, out: Array, other: Array) -> None:
    """Write <a, x> and <a, y> of each row a, reading it once."""
    d, count, number = len(x), len(table), x.dtype.type
    whole = count - count % 4
    # In parts of x and y that stay in the first-level cache while four rows pass through it.
    for start in range(0, d, _PART):
        first, last = np.uintp(start), np.uintp(min(d, start + _PART))
        for k in range(0, whole, 4):
            a1, a2, a3, a4 = table[k], table[k + 1], table[k + 2], table[k + 3]
            s1, s2, s3, s4 = number(0), number(0), number(0), number(0)
            t1, t2, t3, t4 = number(0), number(0), number(0), number(0)
            for j in range(first, last):
                s1 += a1[j] * x[j]
                t1 += a1[j] * y[j]
                s2 += a2[j] * x[j]
                t2 += a2[j] * y[j]
                s3 += a3[j] * x[j]
                t3 += a3[j] * y[j]
                s4 += a4[j] * x[j]
                t4 += a4[j] * y[j]
            if start > 0:
                s1, s2, s3, s4 = s1 + out[k], s2 + out[k + 1], s3 + out[k + 2], s4 + out[k + 3]
                t1, t2 = t1 + other[k], t2 + other[k + 1]
                t3, t4 = t3 + other[k + 2], t4 + other[k + 3]
            out[k], out[k + 1], out[k + 2], out[k + 3] = s1, s2, s3, s4
            other[k], other[k + 1], other[k + 2], other[k + 3] = t1, t2, t3, t4
    for k in range(whole, count):
        a, s, t = table[k], number(0), number(0)
        for j in range(d):
            s += a[j] * x[j]
            t += a[j] * y[j]
        out[k], other[k] = s, t


@_sums
def add_rows(table: Array, weights: Array, factor: Any, out: Array) -> None:
    """Add factor times the sum of the rows, each times its weight, to `out`."""
    d, count = len(out), len(table)
    whole = count - count % 4
    for k in range(0, whole, 4):
        a1, a2, a3, a4 = table[k], table[k + 1], table[k + 2], table[k + 3]
        w1, w2 = factor * weights[k], factor * weights[k + 1]
        w3, w4 = factor * weights[k + 2], factor * weights[k + 3]
        for j in range(d):
            out[j] += w1 * a1[j] + w2 * a2[j] + w3 * a3[j] + w4 * a4[j]
    for k in range(whole, count):
        a, w = table[k], factor * weights[k]
        for j in range(d):
            out[j] += w * a[j]


def add_gradients(data: Data, point: Point, places: Array, rows: Array, out: Array) -> None:
    """Add the gradients of some clients' losses to `out`, without l2.

    Parameters
    ----------
    data : Data
        With `PRODUCT` as link, and the second derivatives of the rows' losses as targets, the
        products of the Hessians with x are added.
    point : Point
        If it has a center, `out` is overwritten by pull * (x - center) first.
    places : array of int, shape (n,)
        The clients.
    rows : array of int, shape (n, batch size), or ALL_ROWS
        The rows used of each of these clients.
    out : array, shape (n, d)
    """
    x, center, strength = point.x, point.center, point.x.dtype.type(point.pull)
    every = np.arange(data.tables.shape[1])
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)  # numba's i is unsigned, and i + 0 a float
        own = rows[at] if len(rows) else every
        model, gradient = x[at if len(x) > 1 else 0], out[at]
        for j in range(len(center)):
            gradient[j] = (model[j] - center[j]) * strength
        factor = point.scale * data.factors[client]
        add_mean(data.tables[client], data.targets[client], own, model, gradient, factor, data.link)


@jit
def mean_loss(scores: Array, targets: Array, logistic: bool) -> Any:
    """Return the mean of half of (s - t)^2, or of log(1 + exp(-t s))."""
    number = scores.dtype.type
    total, zero, one = number(0), number(0), number(1)
    for r in range(len(scores)):
        if logistic:
            margin = targets[r] * scores[r]
            total += np.log1p(np.exp(-abs(margin))) + (-margin if margin < zero else zero)
        else:
            total += (scores[r] - targets[r]) * (scores[r] - targets[r]) / (one + one)
    return total / number(len(scores))


def find_losses(data: Data, x: Array, out: Array) -> None:
    """Write each client's mean loss at x, shape (d,), into `out`, shape (N,)."""
    for i in numba.prange(len(data.tables)):
        scores = np.empty(data.tables.shape[1], x.dtype)
        find_scores(data.tables[i], x, scores)
        out[i] = mean_loss(scores, data.targets[i], data.link == LOGISTIC)
