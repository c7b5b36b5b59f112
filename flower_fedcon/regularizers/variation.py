"""Total variation along a line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from flower_fedcon.regularizers.base import Regularizer, check_prox, norm
from flower_fedcon.validation import Array, nonnegative


@dataclass(frozen=True)
class TotalVariation1D(Regularizer):
    """psi(x) = weight sum_i |x_{i+1} - x_i| along the last axis, summed over the others.

    Parameters
    ----------
    weight : float
        >= 0.

    Examples
    --------
    >>> TotalVariation1D(1.0).prox(np.array([0.0, 0.0, 9.0, 9.0]), 1.0)
    array([0.5, 0.5, 8.5, 8.5])
    """

    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", nonnegative("TotalVariation1D(weight)", self.weight))

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        return self.weight * float(np.abs(np.diff(np.atleast_1d(x), axis=-1)).sum())

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the exact minimiser, in time proportional to the number of entries.

        By dynamic programming over the derivative of the cost, which is piecewise linear (Johnson
        2013, "A dynamic programming algorithm for the fused lasso").
        """
        level = check_prox(self, v, step) * self.weight
        if level == 0 or v.ndim == 0:
            return v
        lines = v.reshape(-1, v.shape[-1])
        return np.array([_denoise(line, level) for line in lines], dtype=v.dtype).reshape(v.shape)

    def subgradient(self, x: Array) -> Array:
        """Return weight D' sign(D x), with sign(0) = 0, D the differences."""
        return self._pull_back(np.sign(np.diff(np.atleast_1d(x), axis=-1))).reshape(x.shape)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x.

        On each run of equal entries the best q solves the dual of a proximal step.
        """
        fixed = grad + self.subgradient(x)
        lines, targets = np.atleast_2d(x), np.atleast_2d(fixed)
        total = 0.0
        for line, target in zip(
            lines.reshape(-1, lines.shape[-1]), targets.reshape(-1, lines.shape[-1]), strict=True
        ):
            ends = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), line.size]
            for start, stop in pairwise(ends):
                rest = np.asarray(_denoise(target[start:stop], self.weight))
                total += float(rest @ rest)
        return norm(np.array([np.sqrt(total)]))

    def _pull_back(self, signs: Array) -> Array:
        """Return weight D' signs."""
        zero = np.zeros((*signs.shape[:-1], 1), dtype=signs.dtype)
        pulled: Array = self.weight * -np.diff(signs, axis=-1, prepend=zero, append=zero)
        return pulled

    def scaled(self, factor: float) -> TotalVariation1D:
        """Return factor * psi."""
        return TotalVariation1D(nonnegative("factor", factor) * self.weight)


def _denoise(values: Array, level: float) -> list[float]:
    """Return argmin over b of ||b - y||^2 / 2 + level sum |b_{i+1} - b_i|.

    The derivative of the cost of the first k entries, as a function of the last of them, is kept
    as knots x with the changes (a, b) of its slope and offset; clipping it to [-level, level]
    gives the bounds between which the entry follows its successor.
    """
    mean = float(values.mean(dtype=np.float64))
    y = [float(number) - mean for number in values]  # fewer digits are lost to rounding
    n = len(y)
    if n == 1 or level == 0:
        return [number + mean for number in y]
    if max(map(abs, accumulate(y))) <= level:  # a far larger level would swamp y
        return [mean] * n
    x, a, b = [0.0] * (2 * n), [0.0] * (2 * n), [0.0] * (2 * n)
    low, high = [0.0] * (n - 1), [0.0] * (n - 1)
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
    slope, offset = 1.0, -level - y[-1]
    i = left
    while i <= right and slope * x[i] + offset <= 0:
        slope += a[i]
        offset += b[i]
        i += 1
    best = [0.0] * n
    best[-1] = last = -offset / slope
    for k in range(n - 2, -1, -1):
        last = min(max(last, low[k]), high[k])
        best[k] = last
    return [number + mean for number in best]
