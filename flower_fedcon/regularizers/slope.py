"""SLOPE, the sorted l1 norm."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flower_fedcon.compiled import recurse, recursions
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers.base import Regularizer, check_prox, weight_or_weights
from flower_fedcon.sets.shapes import ByValue, each, expect_floats, size_of
from flower_fedcon.validation import Array, nonnegative


@dataclass(frozen=True, eq=False)
class SLOPE(ByValue, Regularizer):
    """psi(x) = sum_i weights_i |x|_(i), |x|_(1) >= |x|_(2) >= ... the sorted sizes of the entries.

    Entries with similar effects get equal sizes. With equal weights it is the l1 norm; with one
    non-zero weight it is the largest size.

    Parameters
    ----------
    weights : array, shape (d,)
        Non-increasing weights >= 0, one for each entry of the model.

    Raises
    ------
    ConfigError
        If the weights increase somewhere, or their number is not the model's number of entries.

    Notes
    -----
    The prox is that of Bogdan, van den Berg, Sabatti, Su and Candes, "SLOPE: adaptive variable
    selection via convex optimization", 2015, Algorithm 4.

    Examples
    --------
    >>> SLOPE(np.array([2.0, 1.0])).prox(np.array([3.0, -2.9]), 1.0)
    array([ 1.45, -1.45])
    """

    weights: Array

    def __post_init__(self) -> None:
        given = weight_or_weights("SLOPE(weights)", self.weights)
        if isinstance(given, float) or given.ndim != 1:
            raise ConfigError(
                "SLOPE(weights) must be a vector with a weight for each entry of the model, got "
                f"{self.weights!r}"
            )
        rises = np.flatnonzero(np.diff(given) > 0)
        if rises.size:
            i = int(rises[0])
            raise ConfigError(
                f"SLOPE(weights) must not increase, but weights[{i + 1}] = {given[i + 1]:g} is "
                f"larger than weights[{i}] = {given[i]:g}: sort them, the largest first"
            )
        object.__setattr__(self, "weights", given)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless there are as many weights as entries."""
        if size_of(shape) != self.weights.size:
            raise ConfigError(
                f"SLOPE has {self.weights.size} weights, for a model of shape {shape}: give one "
                "for each of its entries"
            )

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        self.check_shape(x.shape)
        return float(np.sort(np.abs(x), axis=None)[::-1].astype(np.float64) @ self.weights)

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Sort the sizes, subtract step * weights, average where they increase, clip at 0.

        It is exact and takes d log d operations: pooling adjacent violators gives the nearest
        sequence that does not increase.
        """
        shape = v.shape[batch:]
        step = check_prox(self, v, step)
        expect_floats("SLOPE", v)
        self.check_shape(shape)
        if step == 0:
            return v

        def shrink(model: Array) -> Array:
            flat = model.reshape(-1)
            size = np.abs(flat).astype(np.float64)
            order = np.argsort(-size, kind="stable")
            fitted = np.maximum(nonincreasing(size[order] - step * self.weights), 0.0)
            out = np.empty_like(size)
            out[order] = fitted
            shrunk: Array = np.copysign(out, flat) + 0.0
            return shrunk.astype(model.dtype, copy=False).reshape(model.shape)

        return each(v, batch, shrink)

    def subgradient(self, x: Array) -> Array:
        """Return weights by rank times sign(x), with sign(0) = 0; ties go to the lowest index."""
        self.check_shape(x.shape)
        out = np.empty(x.size)
        out[np.argsort(-np.abs(x), axis=None, kind="stable")] = self.weights
        signed: Array = out.reshape(x.shape) * np.sign(x)
        return signed.astype(x.dtype, copy=False)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x.

        On entries of equal size, q lies in the convex hull of the permutations of their weights,
        and at size 0 also of all signs. The distance is the norm of the sorted gradient's prox.
        """
        self.check_shape(x.shape)
        size, sign = np.abs(x.reshape(-1)), np.sign(x.reshape(-1))
        wanted = -grad.reshape(-1).astype(np.float64)
        order = np.argsort(-size, kind="stable")
        ends = [0, *(np.flatnonzero(np.diff(size[order])) + 1).tolist(), size.size]
        total = 0.0
        for start, stop in pairwise(ends):
            one = order[start:stop]
            zero = bool(size[one[0]] == 0)
            target = np.abs(wanted[one]) if zero else wanted[one] * sign[one]
            rest = nonincreasing(-np.sort(-target) - self.weights[start:stop])
            rest = np.maximum(rest, 0.0) if zero else rest
            total += float(rest @ rest)
        return float(np.sqrt(total))

    def scaled(self, factor: float) -> SLOPE:
        """Return factor * psi."""
        return SLOPE(nonnegative("factor", factor) * self.weights)


def nonincreasing(y: Array) -> Array:
    """Return the sequence that does not increase and is nearest to y, in linear time.

    Examples
    --------
    >>> nonincreasing(np.array([3.0, 1.0, 2.0, 0.0]))
    array([3. , 1.5, 1.5, 0. ])
    """
    fitted, sums, means = y.astype(np.float64), np.empty(len(y)), np.empty(len(y))
    recurse(recursions.nonincreasing, fitted, sums, means, np.empty(len(y), np.int64))
    return fitted
