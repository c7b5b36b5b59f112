"""Prox and projections, compiled by numba: loops over entries, on one core but for large groups.

Each finds bit for bit what NumPy finds in `regularizers` and `sets`, so that nothing depends on
when `dispatch` turns to it. Results are written into `out`. What returns that it failed leaves the
rest to NumPy, which says what is wrong with an entry that is not finite. Loops go over slices: an
index such as start + j may be negative, for all that the compiler knows, and is slow. Those named
`..._own` change a copy of a few entries in place, which NumPy makes sooner than room for a result,
and take two arguments: each more is a tenth of the call.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from flower_fedcon.kernels import compiled, recursions
from flower_fedcon.kernels.assignment import assign_each as assign_each
from flower_fedcon.kernels.jit import jit, renamed
from flower_fedcon.kernels.simplex import below_largest as below_largest
from flower_fedcon.kernels.simplex import simplex as simplex
from flower_fedcon.validation import Array


def shrink(v: Array, level: float, divisor: float, beyond: float, out: Array) -> bool:
    """Write sign(v) max(|v| - level, 0) / divisor, but v where |v| > beyond, for vectors.

    Returns whether v is finite.
    """
    number, bad = v.dtype.type, 0
    least, most, by, far = number(-level), number(level), number(divisor), number(beyond)
    if level == 0.0:
        for i in range(len(v)):
            bad += not abs(v[i]) < np.inf
            out[i] = v[i] / by
    elif divisor == 1.0 and beyond == np.inf:
        for i in range(len(v)):
            kept = least if v[i] < least else v[i]
            kept = most if kept > most else kept
            bad += not abs(v[i]) < np.inf
            out[i] = v[i] - kept
    else:
        for i in range(len(v)):
            kept = least if v[i] < least else v[i]
            kept = most if kept > most else kept
            bad += not abs(v[i]) < np.inf
            out[i] = v[i] if abs(v[i]) > far else (v[i] - kept) / by
    return bad == 0


def soften_own(x: Array, level: float) -> bool:
    """Soft-threshold a vector in place, as `shrink` does; return whether it was finite."""
    done: bool = _shrink(x, level, 1.0, np.inf, x)
    return done


def shrink_each(v: Array, step: Any, weights: Array, out: Array) -> bool:
    """Soft-threshold models of shape (d,), one after another, at step * weights.

    Returns whether they are finite.
    """
    number, bad, d = v.dtype.type, 0, len(weights)
    for start in range(0, len(v), d):
        x, y = v[start : start + d], out[start : start + d]
        for j in range(d):
            most = number(step * weights[j])
            kept = -most if x[j] < -most else x[j]
            kept = most if kept > most else kept
            bad += not abs(x[j]) < np.inf
            y[j] = x[j] if most == 0.0 else x[j] - kept  # -0.0 stays so, as with NumPy
    return bad == 0


def clip(v: Array, lower: float, upper: float, out: Array) -> bool:
    """Write min(max(v, lower), upper); return whether v is finite."""
    number, bad = v.dtype.type, 0
    least, most = number(lower), number(upper)
    for i in range(len(v)):
        kept = least if v[i] < least else v[i]
        bad += not abs(v[i]) < np.inf
        out[i] = most if kept > most else kept
    return bad == 0


def shrink_groups(
    models: Array, width: int, labels: Array, level: float, thresholds: Array, out: Array
) -> bool:
    """Soft-threshold entries, then norms of groups; return whether squares are ordinary numbers.

    Parameters
    ----------
    models, out : array, shape (n, d)
    width : int
        The size of contiguous groups; 0 if there are labels.
    labels : array of int, shape (d,) or (0,)
    level : float
    thresholds : array, shape (groups,) or (1,)
        Of the norms.
    """
    factors = np.empty(models.shape[1] // width if width else labels.max() + 1)
    for i in range(len(models)):
        if not _shrink_model(models[i], width, labels, level, thresholds, factors, out[i]):
            return False
    return True


def _shrink_model(
    x: Array, width: int, labels: Array, level: float, thresholds: Array, factors: Array, y: Array
) -> bool:
    """Do what `shrink_groups` does, for one model; `factors` is memory for a number per group."""
    d, number = len(x), x.dtype.type
    if level > 0.0:
        if not shrink(x, level, 1.0, np.inf, y):
            return False
        x = y
    small = large = 0
    for j in range(d):
        small += abs(x[j]) <= 1e-100
        large += not abs(x[j]) < 1e100
    if large or (small == d and (x != 0.0).any()):
        return False
    if width:
        for g in range(len(factors)):
            group, total = x[g * width : (g + 1) * width], 0.0
            for j in range(width):
                total += np.float64(group[j]) * np.float64(group[j])
            factors[g] = total
    else:
        factors[:] = 0.0
        for j in range(d):
            factors[labels[j]] += np.float64(x[j]) * np.float64(x[j])
    for g in range(len(factors)):
        norm = np.sqrt(factors[g])
        left = max(norm - thresholds[g if len(thresholds) > 1 else 0], 0.0)
        factors[g] = left / norm if norm > 0.0 else 0.0
    if width:
        for g in range(len(factors)):
            first, last, factor = g * width, (g + 1) * width, factors[g]
            group, shrunk = x[first:last], y[first:last]
            for j in range(width):
                shrunk[j] = number(group[j] * factor)
    else:
        for j in range(d):
            y[j] = number(x[j] * factors[labels[j]])
    return True


def shrink_parts(
    parts: Array, width: int, level: float, thresholds: Array, out: Array, done: Array
) -> None:
    """Do what `shrink_groups` does with contiguous groups and one threshold, row by row.

    Parameters
    ----------
    parts, out : array, shape (n, m)
        Models, or parts of them; m is a multiple of the width.
    done : array of bool, shape (n,)
        Whether squares are ordinary numbers.
    """
    none = np.empty(0, np.int64)
    for i in numba.prange(len(parts)):
        factors = np.empty(parts.shape[1] // width)
        done[i] = _shrink_model(parts[i], width, none, level, thresholds, factors, out[i])


def _square_norm(x: Array) -> float:
    """Return the sum of squares, in the order of `sets.shapes.square_norms`."""
    whole, lanes = len(x) - len(x) % 64, np.zeros(64)
    for j in range(0, whole, 64):
        for k in range(64):
            lanes[k] += np.float64(x[j + k]) * np.float64(x[j + k])
    for j in range(whole, len(x)):
        lanes[j - whole] += np.float64(x[j]) * np.float64(x[j])
    for j in range(8, 64):
        lanes[j % 8] += lanes[j]
    total = 0.0
    for k in range(8):
        total += lanes[k]
    return total


def shrink_norm(v: Array, d: int, level: float, ball: bool, out: Array) -> bool:
    """Change the norms of vectors of d entries, one after another; see `sets.shapes.square_norms`.

    They are clipped at a level, for a ball, or else soft-thresholded. Returns whether the norms are
    ordinary numbers, whose squares are so, too.
    """
    number = v.dtype.type
    for start in range(0, len(v), d):
        x, y = v[start : start + d], out[start : start + d]
        total = _square_norm(x)
        if not 1e-200 < total < 1e200:
            return False
        norm = np.sqrt(total)
        if ball:
            over = number(max(norm / level, 1.0))
            for j in range(d):
                y[j] = x[j] / over
        else:
            factor = max(norm - level, 0.0) / norm
            for j in range(d):
                y[j] = number(x[j] * factor)
    return True


def soften_norm_own(x: Array, level: float) -> bool:
    """Soft-threshold a vector's norm in place, as `shrink_norm` does; return as that does."""
    done: bool = _shrink_norm(x, len(x), level, False, x)
    return done


def _ties_in_order(size: Array, order: Array) -> None:
    """Sort the indices of equal sizes, as a stable sort leaves them."""
    start = 0
    for i in range(1, len(order) + 1):
        if i == len(order) or size[order[i]] != size[order[start]]:
            if i - start > 1:
                order[start:i] = np.sort(order[start:i])
            start = i


def shrink_sorted(v: Array, step: Any, weights: Array, orders: Array, out: Array) -> bool:
    """Write the prox of SLOPE for vectors of d entries, one after another.

    Parameters
    ----------
    v, out : array, shape (n d,)
    step : float, of the weights' type
    weights : array, shape (d,)
    orders : array of int, shape (n d,) or (0,)
        Indices that sort -|v|, ties in any order; without them they are found here.

    Returns
    -------
    bool
        Whether v is finite.
    """
    number, d = v.dtype.type, len(weights)
    room, counts = np.empty((4, d)), np.empty(d, np.int64)
    size, fitted = room[0], room[1]
    for start in range(0, len(v), d):
        x, bad = v[start : start + d], 0
        for i in range(d):
            size[i] = -abs(x[i])
            bad += not abs(x[i]) < np.inf
        if bad:
            return False
        order = orders[start : start + d] if len(orders) else np.argsort(size)
        _ties_in_order(size, order)
        for i in range(d):
            fitted[i] = -size[order[i]] - step * weights[i]
        _nonincreasing(fitted, room[2], room[3], counts)
        for i in range(d):
            j = order[i]
            left = number(max(fitted[i], 0.0))
            out[start + j] = -left if x[j] < 0 and left > 0 else left
    return True


def denoise(v: Array, n: int, level: float, out: Array) -> bool:
    """Write the prox of the total variation for lines of n entries, one after another.

    Parameters
    ----------
    v, out : array, shape (number n,)
    n : int
    level : float
        > 0.

    Returns
    -------
    bool
        Whether v is finite.
    """
    room = np.empty((10, n))
    y, best, low, high = room[0], room[1], room[2], room[3]
    x, a, b = room[4:6].reshape(-1), room[6:8].reshape(-1), room[8:].reshape(-1)
    for start in range(0, len(v), n):
        total, bad = 0.0, 0
        for k in range(start, start + n):
            total += v[k]
            bad += not abs(v[k]) < np.inf
        if bad:
            return False
        mean, partial, largest = total / n, 0.0, 0.0
        for k in range(n):
            y[k] = v[start + k] - mean
            partial += y[k]
            largest = max(largest, abs(partial))
        if largest <= level:
            best[:] = 0.0
        else:
            _fused(y, level, x, a, b, low, high, best)
        for k in range(n):
            out[start + k] = best[k] + mean
    return True


def clipped_sum(y: Array, tau: float, lanes: Array) -> tuple[float, int, int]:
    """Return sum clip(y - tau, 0, 1), and how many entries are above tau, and tau + 1 or more.

    The sum is that of lanes, each over every so many-th entry, which are added by halves.
    """
    count, above, full = len(lanes), 0, 0
    lanes[:] = 0.0
    for start in range(0, len(y), count):
        some = y[start : start + count]
        for j in range(len(some)):
            lanes[j] += min(max(some[j] - tau, 0.0), 1.0)
            above += some[j] > tau
            full += some[j] >= tau + 1.0
    while count > 1:
        count //= 2
        for j in range(count):
            lanes[j] += lanes[count + j]
    return lanes[0], above, full


# As they stand, without fast mathematics, so that no bit is another than NumPy's.
_fused, _nonincreasing = jit(recursions.fused), jit(recursions.nonincreasing)
clipped_sum, descend = jit(clipped_sum), jit(recursions.descend)
_ties_in_order, _square_norm = jit(_ties_in_order), jit(_square_norm)
# Part of their callers, so that the compiler sees one array, not two that may overlap.
_shrink, _shrink_norm = (
    jit(renamed(loop, "inlined"), inline="always") for loop in (shrink, shrink_norm)
)
shrink, shrink_each, shrink_sorted = jit(shrink), jit(shrink_each), jit(shrink_sorted)
_shrink_model = jit(_shrink_model)
shrink_groups, shrink_norm, denoise = jit(shrink_groups), jit(shrink_norm), jit(denoise)
soften_own, soften_norm_own = jit(soften_own), jit(soften_norm_own)
clip = jit(clip)
compiled.spread(shrink_parts)
