"""The scaled simplex, whose projection the l1 ball shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.arrays import known
from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom, CoordinateAtom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.shapes import expect_finite, expect_floats, only_array, rows, size_of
from flower_fedcon.validation import Array, positive

_SORT_UP_TO = 2**14
_SAMPLE = 16384
_DEVIATIONS = 4.0
_PASSES = 12


def simplex_projection(v: Array, radius: float) -> Array:
    """Return max(v - tau, 0) for the tau that makes it sum to radius, along the last axis.

    By sorting (Held, Wolfe and Crowder 1974). In long vectors a sample shows where tau lies, and
    only the entries near it are sorted. Where that fails the entries are filtered: each pass drops
    those below the tau of the entries that are left (Michelot 1986), which never exceeds the true
    tau.

    Parameters
    ----------
    v : array, shape (..., d)
    radius : float
        > 0.

    Returns
    -------
    array, shape (..., d)
    """
    expect_floats("a projection", v)
    # Relative to the largest entry, so that a small radius is not lost beside large entries.
    below = v - v.max(axis=-1, keepdims=True)
    if v.shape[-1] <= _SORT_UP_TO or not known(v):
        level = _level(below, radius)
    else:
        levels = [_filtered_level(row, radius) for row in below.reshape(-1, v.shape[-1])]
        level = np.reshape(levels, (*v.shape[:-1], 1))
    projected: Array = np.maximum(below - level.astype(v.dtype, copy=False), 0)
    return projected


def _level(below: Array, radius: float) -> Array:
    """Return tau along the last axis, by sorting; the largest entry is 0."""
    ordered = np.sort(below, axis=-1)[..., ::-1]
    sums = np.cumsum(ordered, axis=-1, dtype=np.float64) - radius
    counts = np.arange(1.0, below.shape[-1] + 1.0)
    active = np.maximum((ordered * counts > sums).sum(axis=-1, keepdims=True), 1)
    level: Array = np.take_along_axis(sums, active - 1, axis=-1) / active
    return level


def _filtered_level(row: Array, radius: float) -> float:
    """Return tau of a long vector; its largest entry is 0."""
    stride = max(4, row.size // _SAMPLE)
    sample = row[::stride]
    # The tau of a sample, with its share of the radius, is near the true one.
    guess = float(_level(sample, radius / stride)[0])
    margin = _DEVIATIONS * float(sample.std(dtype=np.float64)) / math.sqrt(sample.size)
    if guess - margin > -radius:
        level = _level_between(row, radius, guess - margin, guess + margin)
        if level is not None:
            return level
    # The tau of the sample with the whole radius is always a lower bound.
    bound = max(float(_level(sample, radius)[0]), -radius)
    kept = np.compress(row > bound, row)
    for _ in range(_PASSES):
        level = (float(kept.sum(dtype=np.float64)) - radius) / kept.size
        above = kept > level
        fewer = int(np.count_nonzero(above))
        if fewer == kept.size:
            return level
        if fewer == 0:
            break
        kept = np.compress(above, kept)
    return float(_level(kept, radius)[0])


def _level_between(row: Array, radius: float, low: float, high: float) -> float | None:
    """Return tau if it lies between two bounds, else None; only entries in between are sorted."""
    low, high = float(row.dtype.type(low)), float(row.dtype.type(high))  # as compared below
    kept = np.compress(row > low, row)
    between = np.compress(kept <= high, kept)
    total = float(kept.sum(dtype=np.float64))
    if total - kept.size * low < radius:
        return None
    total -= float(between.sum(dtype=np.float64))
    count = kept.size - between.size
    if total - count * high > radius:
        return None
    ordered = np.sort(between)[::-1]
    sums = total - radius + np.concatenate(([0.0], np.cumsum(ordered, dtype=np.float64)))
    counts = np.arange(count, kept.size + 1.0)
    # The entries above tau are the longest run in which each exceeds the tau of those before it.
    active = int((ordered * counts[:-1] > sums[:-1]).sum())
    return float(sums[active] / counts[active]) if counts[active] else None


@dataclass(frozen=True)
class Simplex(ConstraintSet):
    """The set x >= 0, sum x = radius, over all entries of the model.

    Examples
    --------
    >>> Simplex().project(np.array([1.0, 1.0]))
    array([0.5, 0.5])
    >>> Simplex(radius=3.0).lmo(np.array([1.0, -1.0, 2.0])).dense()
    array([0., 3., 0.])
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("Simplex(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def excess(self, x: Array) -> float:
        """Return the larger of |sum x - radius| and -min x."""
        return max(abs(float(x.sum()) - self.radius), -float(x.min()))

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to the simplex, or 0 within rounding."""
        return 0.0 if self.contains(x) else super().violation(x)

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return sqrt(2) radius (0 for a single entry)."""
        return math.sqrt(2) * self.radius if size_of(shape) > 1 else 0.0

    @property
    def diameter(self) -> float:
        """The diameter with two or more entries, sqrt(2) radius."""
        return math.sqrt(2) * self.radius

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Subtract the threshold and clip at zero."""
        return simplex_projection(self._rows(x, batch), self.radius).reshape(x.shape)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return radius e_i at the smallest g_i."""
        best = self._rows(g, batch).argmin(axis=-1)
        code = int(best) + 1 if batch == 0 else best + 1
        return CoordinateAtom(code, self.radius, g.shape, g.dtype)

    def _rows(self, x: Array, batch: int) -> Array:
        expect_finite(self, x)
        if not size_of(x.shape[batch:]):
            raise ConfigError(
                f"Simplex has entries that sum to {self.radius:g}, got an array of shape {x.shape} "
                "without any: give a model with at least one entry"
            )
        return rows(x, batch)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the vertex with this index."""
        code = int(only_array(arrays, "code", (), np.dtype(np.int64)))
        if not 1 <= code <= size_of(shape):
            raise ConfigError(f"index {code - 1} is outside a model of {size_of(shape)} entries")
        return CoordinateAtom(code, self.radius, shape, dtype)
