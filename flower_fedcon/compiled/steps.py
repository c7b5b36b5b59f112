"""Loops over the gradient steps of many clients, to be compiled: a client's rows stay in the cache.

Sums have the same order as in `gradients`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from flower_fedcon.compiled.gradients import add_mean, add_rows, find_both_scores, find_scores
from flower_fedcon.compiled.jit import jit
from flower_fedcon.compiled.links import LINEAR, LOGISTIC
from flower_fedcon.validation import Array


@jit
def _fill(drift: Array, linear: Array, less: Array, at: Any) -> None:
    """Write the linear term of the client at this place of the cohort."""
    own = linear[at if len(linear) > 1 else 0]
    if len(less):
        off = less[at]
        for j in range(len(drift)):
            drift[j] = own[j] - off[j]
    else:
        for j in range(len(drift)):
            drift[j] = own[j]


@jit
def _start(start: Array, at: Any) -> Array:
    """Return the start of a client's steps, in the thread's own memory.

    In shared memory, another thread's cache might first have to give up what it wrote last.
    """
    model: Array = start[at if len(start) > 1 else 0].copy()
    return model


@jit
def _end(
    model: Array, start: Array, linear: Array, less: Array, rate: Any, at: Any, models: Array,
    after: Array,
) -> None:  # fmt: skip
    """Write the end of a client's steps; or the move and the new control variate."""
    end = models[at]
    if len(after) == 0:
        for j in range(len(model)):
            end[j] = model[j]
        return
    first, mean = start[at if len(start) > 1 else 0], linear[at if len(linear) > 1 else 0]
    own, moved = less[at], after[at]
    for j in range(len(model)):
        change = model[j] - first[j]
        end[j] = change
        moved[j] = own[j] + (change * rate - mean[j])


def take_steps(
    tables: Array,
    targets: Array,
    places: Array,
    rows: Array,
    start: Array,
    factors: Array,
    ridges: Array,
    logistic: bool,
    linear: Array,
    less: Array,
    center: Array,
    first: Array,
    shift: Any,
    step: Any,
    of_z: Any,
    of_point: Any,
    thresholds: Array,
    divisors: Array,
    rate: Any,
    models: Array,
    after: Array,
) -> None:
    """Take gradient steps for some clients: a client's rows stay in the cache.

    Client i minimises factors[i] times its mean loss, plus ridges[i]/2 ||x||^2, <linear - less, x>
    and shift/2 ||x - center||^2. The gradient g of step k is taken at the point w, the model z
    soft-thresholded at thresholds[k] and divided by divisors[k]; then
    z := of_z z + of_point w - step g. With `after`, `models` receives z - start, and `after`
    receives less + (rate (z - start) - linear).

    Parameters
    ----------
    tables, targets, places
        See `gradients.add_gradients`.
    logistic : bool
        Whether the link of a score s is tanh(s / 2); else it is s.
    rows : array of int, shape (n, steps, batch size), or (0, 0, 0) for all rows in every step
    start : array, shape (n, d) or (1, d)
    factors, ridges : array, shape (N,)
    linear, center : array, shape (n, d), (1, d) or (0, 0)
    less : array, shape (n, d) or (0, 0)
    first : array, shape (d,) or (0,)
        The point of the first step, if it is given.
    models : array, shape (n, d)
    after : array, shape (n, d) or (0, 0)
    """
    every, zero, one = np.arange(tables.shape[1]), models.dtype.type(0), models.dtype.type(1)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        model, ridge, factor = _start(start, at), ridges[client], factors[client]
        point, gradient = np.empty(len(model), model.dtype), np.empty(len(model), model.dtype)
        drift = np.empty(len(model) if len(linear) else 0, model.dtype)
        if len(linear):
            _fill(drift, linear, less, at)
        for k in range(len(thresholds)):
            own = rows[at, k] if len(rows) else every
            level, shrink = thresholds[k], one / divisors[k]
            for j in range(len(model)):
                size = abs(model[j]) - level
                if size < zero:  # what is not a number stays so
                    size = zero
                point[j] = (size if model[j] >= zero else -size) * shrink
            if k == 0:
                for j in range(len(first)):
                    point[j] = first[j]
            for j in range(len(model)):
                gradient[j] = ridge * point[j]
            for j in range(len(drift)):
                gradient[j] += drift[j]
            if len(center):
                middle = center[at if len(center) > 1 else 0]
                for j in range(len(model)):
                    gradient[j] += shift * (point[j] - middle[j])
            link = LOGISTIC if logistic else LINEAR
            add_mean(tables[client], targets[client], own, point, gradient, factor, link)
            if of_point == zero:
                for j in range(len(model)):
                    model[j] = of_z * model[j] - step * gradient[j]
            else:
                for j in range(len(model)):
                    model[j] = of_z * model[j] + of_point * point[j] - step * gradient[j]
        _end(model, start, linear, less, rate, at, models, after)


def take_steps_by_scores(
    tables: Array,
    targets: Array,
    products: Array,
    places: Array,
    start: Array,
    factors: Array,
    ridges: Array,
    logistic: bool,
    linear: Array,
    less: Array,
    center: Array,
    shift: Any,
    step: Any,
    count: int,
    rate: Any,
    models: Array,
    after: Array,
) -> None:
    """Take gradient steps on all rows without prox: the result of `take_steps`, up to rounding.

    Without a prox z stays in the span of its start, the drift h (linear and center) and the rows. K
    steps therefore read the rows twice, and otherwise need only the products of rows,

        s := q s - step (G r + t),   c := q c + r,   e := q e + 1,   q = 1 - step (ridge + shift)
        z := q^K z - step (A' c + e h)

    with scores s = A z, t = A h, and the weights r that the rows have in the gradient.

    Parameters
    ----------
    products : array, shape (N, m, m)
        G = A A' of all clients.
    count : int
        K >= 1.
    """
    m, d = tables.shape[1], tables.shape[2]
    zero, one, number = models.dtype.type(0), models.dtype.type(1), models.dtype.type(m)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        model, table, own = _start(start, at), tables[client], targets[client]
        factor = factors[client] / number
        kept = one - step * (ridges[client] + shift)
        rows = np.zeros((4, m), model.dtype)  # one allocation costs as much as a row
        scores, weights, sums, drifts = rows[0], rows[1], rows[2], rows[3]
        drift = np.empty(d if len(linear) or len(center) else 0, model.dtype)
        if len(linear):
            _fill(drift, linear, less, at)
        else:
            drift[:] = zero
        if len(center):
            middle = center[at if len(center) > 1 else 0]
            for j in range(d):
                drift[j] -= shift * middle[j]
        if len(drift):
            find_both_scores(table, model, drift, scores, drifts)
        else:
            find_scores(table, model, scores)
        power, drifted = one, zero
        for k in range(count):
            if k > 0:
                for r in range(m):
                    scores[r] = kept * scores[r] - step * drifts[r]
                own_products = products[client]
                add_rows(own_products, weights, -step, scores)
            for r in range(m):
                link = np.tanh(scores[r] / (one + one)) if logistic else scores[r]
                weights[r] = factor * (link - own[r])
                sums[r] = kept * sums[r] + weights[r]
            power *= kept
            drifted = kept * drifted + one
        if len(drift):
            for j in range(d):
                model[j] = power * model[j] - step * drifted * drift[j]
        else:
            for j in range(d):
                model[j] *= power
        add_rows(table, sums, -step, model)
        _end(model, start, linear, less, rate, at, models, after)


def take_softmax_steps(
    tables: Array,
    targets: Array,
    places: Array,
    rows: Array,
    start: Array,
    ridges: Array,
    linear: Array,
    less: Array,
    center: Array,
    first: Array,
    shift: Any,
    step: Any,
    of_z: Any,
    of_point: Any,
    thresholds: Array,
    divisors: Array,
    rate: Any,
    models: Array,
    after: Array,
) -> None:
    """Take steps as `take_steps` does, on the mean cross-entropy of the logits A x.

    Parameters
    ----------
    targets : array of int, shape (N, m)
        Classes.
    start : array, shape (n, d * classes) or (1, d * classes)
    linear, center : array, shape (n, d * classes), (1, d * classes) or (0, 0)
    less, after : array, shape (n, d * classes) or (0, 0)
    first : array, shape (d * classes,) or (0,)
    models : array, shape (n, d, classes)
    """
    m, d, classes = tables.shape[1], tables.shape[2], models.shape[2]
    size = rows.shape[2] if len(rows) else m
    zero, one = models.dtype.type(0), models.dtype.type(1)
    share = one / models.dtype.type(size)
    ends = models.reshape(len(models), d * classes)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        table, labels, flat = tables[client], targets[client], _start(start, at)
        model = flat.reshape(d, classes)
        point = np.empty((classes, d), model.dtype)  # a row for each class: sums run along rows
        gradient = np.empty((classes, d), model.dtype)
        scores = np.empty((classes, size), model.dtype)
        drift = np.empty(d * classes if len(linear) else 0, model.dtype)
        if len(linear):
            _fill(drift, linear, less, at)
        batch = np.empty((size if len(rows) else 0, d), model.dtype)
        for k in range(len(thresholds)):
            level, shrink = thresholds[k], one / divisors[k]
            for j in range(d):
                for c in range(classes):
                    z = model[j, c]
                    length = abs(z) - level
                    if length < zero:  # what is not a number stays so
                        length = zero
                    w = (length if z >= zero else -length) * shrink
                    if k == 0 and len(first):
                        w = first[j * classes + c]
                    g = ridges[client] * w
                    if len(drift):
                        g += drift[j * classes + c]
                    if len(center):
                        g += shift * (w - center[at if len(center) > 1 else 0, j * classes + c])
                    point[c, j], gradient[c, j] = w, g
            for r in range(len(batch)):
                batch[r] = table[rows[at, k, r]]
            for c in range(classes):
                find_scores(batch if len(rows) else table, point[c], scores[c])
            for r in range(size):
                own = labels[rows[at, k, r] if len(rows) else r]
                top, total = scores[0, r], zero
                for c in range(1, classes):
                    top = max(top, scores[c, r])
                for c in range(classes):
                    scores[c, r] = np.exp(scores[c, r] - top)
                    total += scores[c, r]
                for c in range(classes):
                    scores[c, r] = scores[c, r] / total - (one if c == own else zero)
            for c in range(classes):
                add_rows(batch if len(rows) else table, scores[c], share, gradient[c])
            for j in range(d):
                for c in range(classes):
                    model[j, c] = (
                        of_z * model[j, c] + of_point * point[c, j] - step * gradient[c, j]
                    )
        _end(flat, start, linear, less, rate, at, ends, after)
