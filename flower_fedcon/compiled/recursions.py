"""Recursions over numbers, one after another: on lists in Python, compiled on arrays."""

from __future__ import annotations

from typing import Any

from flower_fedcon.validation import Array


def fused(y: Any, level: float, x: Any, a: Any, b: Any, low: Any, high: Any, best: Any) -> None:
    """Write argmin over b of ||b - y||^2 / 2 + level sum |b_{i+1} - b_i| into `best`.

    The derivative of the cost of the first k entries, as a function of the last of them, is kept
    as knots x with the changes (a, b) of its slope and offset; clipping it to [-level, level]
    gives the bounds between which the entry follows its successor (Johnson 2013, "A dynamic
    programming algorithm for the fused lasso").

    Parameters
    ----------
    y, low, high, best : list or array of n >= 2 numbers
    x, a, b : list or array of 2 n numbers
    level : float
        > 0.
    """
    n = len(y)
    left, right = n - 1, n
    low[0], high[0] = y[0] - level, y[0] + level
    x[left], x[right] = low[0], high[0]
    a[left], b[left] = 1.0, level - y[0]
    a[right], b[right] = -1.0, level + y[0]
    for k in range(1, n - 1):
        slope, offset = 1.0, -level - y[k]
        i = left
        while i <= right and slope * x[i] + offset <= -level:
            slope += a[i]
            offset += b[i]
            i += 1
        fall, back = -1.0, y[k] - level
        j = right
        while j >= i and -fall * x[j] - back >= level:
            fall += a[j]
            back += b[j]
            j -= 1
        low[k] = (-level - offset) / slope
        high[k] = (level + back) / -fall
        left, right = i - 1, j + 1
        x[left], a[left], b[left] = low[k], slope, offset + level
        x[right], a[right], b[right] = high[k], fall, back + level
    slope, offset = 1.0, -level - y[n - 1]
    i = left
    while i <= right and slope * x[i] + offset <= 0:
        slope += a[i]
        offset += b[i]
        i += 1
    last = -offset / slope
    best[n - 1] = last
    for k in range(n - 2, -1, -1):
        last = min(max(last, low[k]), high[k])
        best[k] = last


def nonincreasing(y: Any, sums: Any, means: Any, counts: Any) -> None:
    """Write the nearest sequence that does not increase over y, in linear time.

    Blocks of equal values lie on a stack; a new entry is pooled with the smaller ones before it.

    Parameters
    ----------
    y, sums, means : list or array of n numbers
    counts : list or array of n whole numbers
    """
    top = -1
    for k in range(len(y)):
        total, count, mean = y[k], 1, y[k]
        while top >= 0 and means[top] <= mean:
            total += sums[top]
            count += counts[top]
            top -= 1
            mean = total / count
        top += 1
        sums[top], counts[top], means[top] = total, count, mean
    k = 0
    for block in range(top + 1):
        for _ in range(counts[block]):
            y[k] = means[block]
            k += 1


def descend(gram: Array, gradient: Array, x: Array, l1: Array, epochs: int) -> None:
    """Minimise over each coordinate in turn, in place: x'gram x/2 - linear'x + sum_i l1_i |x_i|.

    Parameters
    ----------
    gram : array, shape (n, n)
        Symmetric; a coordinate with a diagonal entry of 0 is not changed.
    gradient : array, shape (n,)
        gram x - linear, updated in place.
    x, l1 : array, shape (n,)
    epochs : int
        Passes over all coordinates.
    """
    for _ in range(epochs):
        for j in range(len(x)):
            slope, curvature = gradient[j], gram[j, j]
            if curvature <= 0.0 or (x[j] == 0.0 and abs(slope) <= l1[j]):
                continue
            goal, level = x[j] - slope / curvature, l1[j] / curvature
            move = goal - min(max(goal, -level), level) - x[j]
            if move != 0.0:
                x[j] += move
                gradient += move * gram[j]
