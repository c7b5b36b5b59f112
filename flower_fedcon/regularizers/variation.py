"""Total variation along a line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flower_fedcon.compiled import recurse
from flower_fedcon.compiled.recursions import fused
from flower_fedcon.regularizers.base import Regularizer, check_prox, norm
from flower_fedcon.sets.shapes import expect_floats
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

        Dynamic programming follows the derivative of the cost, which is piecewise linear (Johnson
        2013, "A dynamic programming algorithm for the fused lasso").
        """
        level = check_prox(self, v, step) * self.weight
        expect_floats("TotalVariation1D", v)
        if level == 0 or v.ndim == 0:
            return v
        lines = v.reshape(-1, v.shape[-1])
        return np.array([_denoise(line, level) for line in lines], dtype=v.dtype).reshape(v.shape)

    def subgradient(self, x: Array) -> Array:
        """Return weight D' sign(D x), with sign(0) = 0, where D takes the differences."""
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
                rest = _denoise(target[start:stop], self.weight)
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


def _denoise(values: Array, level: float) -> Array:
    """Return argmin over b of ||b - y||^2 / 2 + level sum |b_{i+1} - b_i|, by `fused`."""
    n, y = len(values), values.astype(np.float64)
    if level == 0:
        return y
    mean = float(np.cumsum(y)[-1]) / n + 0.0  # not -0
    y -= mean  # fewer digits are lost to rounding
    if np.abs(np.cumsum(y)).max() <= level:  # a far larger level would swamp y
        return np.full(n, mean)
    best, (x, a, b), (low, high) = np.empty(n), np.empty((3, 2 * n)), np.empty((2, n))
    recurse(fused, y, float(level), x, a, b, low, high, best)
    return best + mean
