"""Recursions over numbers, one after another: for lists as they are, and compiled for arrays."""

from __future__ import annotations

from typing import Any


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
