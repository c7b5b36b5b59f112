"""Loops over the gradient steps of many clients, to be compiled: a client's rows stay in the cache.

Sums have the same order as in `gradients`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from flower_fedcon.compiled.gradients import add_mean, add_rows, find_both_scores, find_scores
from flower_fedcon.compiled.jit import jit
from flower_fedcon.compiled.records import LOGISTIC, SOFTMAX, Data, Steps
from flower_fedcon.validation import Array


@jit
def _fill(drift: Array, steps: Steps, at: Any) -> None:
    """Write the linear term of the client at this place of the cohort."""
    linear = steps.linear[at if len(steps.linear) > 1 else 0]
    if len(steps.less):
        off = steps.less[at]
        for j in range(len(drift)):
            drift[j] = linear[j] - off[j]
    else:
        for j in range(len(drift)):
            drift[j] = linear[j]


@jit
def _start(start: Array, at: Any) -> Array:
    """Return the start of a client's steps, in the thread's own memory.

    In shared memory, another thread's cache might first have to give up what it wrote last.
    """
    model: Array = start[at if len(start) > 1 else 0].copy()
    return model


@jit
def _end(model: Array, steps: Steps, at: Any, models: Array, after: Array) -> None:
    """Write the end of a client's steps; or the move and the new control variate."""
    end, start, linear = models[at], steps.start, steps.linear
    if len(after) == 0:
        for j in range(len(model)):
            end[j] = model[j]
        return
    first, mean = start[at if len(start) > 1 else 0], linear[at if len(linear) > 1 else 0]
    variate, moved = steps.less[at], after[at]
    for j in range(len(model)):
        change = model[j] - first[j]
        end[j] = change
        moved[j] = variate[j] + (change * steps.variate_rate - mean[j])


def take_steps(data: Data, steps: Steps, places: Array, models: Array, after: Array) -> None:
    """Take gradient steps for some clients: a client's rows stay in the cache.

    Parameters
    ----------
    data : Data
    steps : Steps
        The steps, of models with d entries.
    places : array of int, shape (n,)
        The clients.
    models : array, shape (n, d)
        Receives the end z of each client's steps, or with `after` the move z - start.
    after : array, shape (n, d) or (0, 0)
        Receives the new control variates.
    """
    every, zero, one = np.arange(data.tables.shape[1]), models.dtype.type(0), models.dtype.type(1)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        model, ridge, factor = _start(steps.start, at), data.ridges[client], data.factors[client]
        point, gradient = np.empty(len(model), model.dtype), np.empty(len(model), model.dtype)
        drift = np.empty(len(model) if len(steps.linear) else 0, model.dtype)
        if len(steps.linear):
            _fill(drift, steps, at)
        for k in range(len(steps.thresholds)):
            some = steps.rows[at, k] if len(steps.rows) else every
            level, shrink = steps.thresholds[k], one / steps.divisors[k]
            for j in range(len(model)):
                size = abs(model[j]) - level
                if size < zero:  # what is not a number stays so
                    size = zero
                point[j] = (size if model[j] >= zero else -size) * shrink
            if k == 0:
                for j in range(len(steps.first)):
                    point[j] = steps.first[j]
            for j in range(len(model)):
                gradient[j] = ridge * point[j]
            for j in range(len(drift)):
                gradient[j] += drift[j]
            if len(steps.center):
                middle = steps.center[at if len(steps.center) > 1 else 0]
                for j in range(len(model)):
                    gradient[j] += steps.shift * (point[j] - middle[j])
            add_mean(
                data.tables[client], data.targets[client], some, point, gradient, factor, data.link
            )
            if steps.of_point == zero:
                for j in range(len(model)):
                    model[j] = steps.of_z * model[j] - steps.step * gradient[j]
            else:
                for j in range(len(model)):
                    model[j] = (
                        steps.of_z * model[j] + steps.of_point * point[j] - steps.step * gradient[j]
                    )
        _end(model, steps, at, models, after)


def take_steps_by_scores(
    data: Data, steps: Steps, places: Array, products: Array, models: Array, after: Array
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
    """
    m, d = data.tables.shape[1], data.tables.shape[2]
    zero, one, number = models.dtype.type(0), models.dtype.type(1), models.dtype.type(m)
    step, shift, center, logistic = steps.step, steps.shift, steps.center, data.link == LOGISTIC
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        model, table, targets = _start(steps.start, at), data.tables[client], data.targets[client]
        factor = data.factors[client] / number
        kept = one - step * (data.ridges[client] + shift)
        rows = np.zeros((4, m), model.dtype)  # one allocation costs as much as a row
        scores, weights, sums, drifts = rows[0], rows[1], rows[2], rows[3]
        drift = np.empty(d if len(steps.linear) or len(center) else 0, model.dtype)
        if len(steps.linear):
            _fill(drift, steps, at)
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
        for k in range(len(steps.thresholds)):
            if k > 0:
                for r in range(m):
                    scores[r] = kept * scores[r] - step * drifts[r]
                own_products = products[client]
                add_rows(own_products, weights, -step, scores)
            for r in range(m):
                link = np.tanh(scores[r] / (one + one)) if logistic else scores[r]
                weights[r] = factor * (link - targets[r])
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
        _end(model, steps, at, models, after)


def take_column_steps(data: Data, steps: Steps, places: Array, models: Array, after: Array) -> None:
    """Take steps as `take_steps` does, for models that give each row a score for each column.

    With the link `SOFTMAX` the loss is the mean cross-entropy of the logits A x, else half the mean
    of ||A x - b||^2 over rows with several outputs.

    Parameters
    ----------
    steps : Steps
        The steps, of models with d * columns entries.
    models : array, shape (n, d, columns)
    after : array, shape (n, d * columns) or (0, 0)
    """
    m, d, columns = data.tables.shape[1], data.tables.shape[2], models.shape[2]
    rows, first, center = steps.rows, steps.first, steps.center
    size = rows.shape[2] if len(rows) else m
    zero, one = models.dtype.type(0), models.dtype.type(1)
    number, softmax = models.dtype.type(size), data.link == SOFTMAX
    ends = models.reshape(len(models), d * columns)
    for i in numba.prange(len(places)):
        client, at = places[i], np.int64(i)
        table, targets, flat = data.tables[client], data.targets[client], _start(steps.start, at)
        model = flat.reshape(d, columns)
        point = np.empty((columns, d), model.dtype)  # a row for each column: sums run along rows
        gradient = np.empty((columns, d), model.dtype)
        scores = np.empty((columns, size), model.dtype)
        drift = np.empty(d * columns if len(steps.linear) else 0, model.dtype)
        if len(steps.linear):
            _fill(drift, steps, at)
        share = (one if softmax else data.factors[client]) / number
        batch = np.empty((size if len(rows) else 0, d), model.dtype)
        for k in range(len(steps.thresholds)):
            level, shrink = steps.thresholds[k], one / steps.divisors[k]
            for j in range(d):
                for c in range(columns):
                    z = model[j, c]
                    length = abs(z) - level
                    if length < zero:  # what is not a number stays so
                        length = zero
                    w = (length if z >= zero else -length) * shrink
                    if k == 0 and len(first):
                        w = first[j * columns + c]
                    g = data.ridges[client] * w
                    if len(drift):
                        g += drift[j * columns + c]
                    if len(center):
                        middle = center[at if len(center) > 1 else 0, j * columns + c]
                        g += steps.shift * (w - middle)
                    point[c, j], gradient[c, j] = w, g
            for r in range(len(batch)):
                batch[r] = table[rows[at, k, r]]
            for c in range(columns):
                find_scores(batch if len(rows) else table, point[c], scores[c])
            for r in range(size):
                row = rows[at, k, r] if len(rows) else r
                if not softmax:
                    for c in range(columns):
                        scores[c, r] -= targets[row * columns + c]
                    continue
                label = targets[row]
                top, total = scores[0, r], zero
                for c in range(1, columns):
                    top = max(top, scores[c, r])
                for c in range(columns):
                    scores[c, r] = np.exp(scores[c, r] - top)
                    total += scores[c, r]
                for c in range(columns):
                    scores[c, r] = scores[c, r] / total - (one if c == label else zero)
            for c in range(columns):
                add_rows(batch if len(rows) else table, scores[c], share, gradient[c])
            for j in range(d):
                for c in range(columns):
                    z = steps.of_z * model[j, c] + steps.of_point * point[c, j]
                    model[j, c] = z - steps.step * gradient[c, j]
        _end(flat, steps, at, ends, after)
