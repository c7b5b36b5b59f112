"""Polytopes with sparse vertices: the capped simplex and the K-sparse polytope."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom, each_atom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.compact import SparseSignAtom
from flower_fedcon.sets.shapes import each, expect_finite, only_array, size_of
from flower_fedcon.validation import Array, count, positive

_LANES, _ROUNDING, _MANY = 64, 2.0**-52, 2**14


def capped_projection(v: Array, cap: float, radius: float) -> Array:
    """Return clip(v - tau, 0, cap) for the tau that makes it sum to radius.

    Parameters
    ----------
    v : array, shape (d,)
    cap, radius : float
        > 0, with cap d >= radius.
    """
    # In units of the cap, and relative to an entry that is at most one cap above tau.
    total = radius / cap
    pivot = v.size - min(max(math.ceil(total), 1), v.size)
    wide = v.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        y = (wide - _in_order(wide, pivot)) / cap
    np.clip(y, -1.0, 1.0, out=y)
    middle = _piece(y, total)
    full = y >= middle + 1.0
    free, tau = (y > middle) & ~full, middle
    if number := np.count_nonzero(free):
        tau = float(np.where(free, y, 0.0).sum()) + float(np.count_nonzero(full)) - total
        tau /= number
    y -= tau
    np.clip(y, 0.0, 1.0, out=y)
    y *= cap
    return y.astype(v.dtype, copy=False)


def _in_order(y: Array, k: int) -> float:
    """Return the entry that has k = 0, 1, ... others before it in increasing order.

    Among many entries, only those between two entries of a sample are searched, if it is
    one of them.
    """
    if y.size > _MANY:
        sample = np.sort(y[:: y.size // 4096])
        middle, last = k * len(sample) // y.size, len(sample) - 1  # off by 30 in most samples
        low, high = sample[max(middle - 128, 0)], sample[min(middle + 128, last)]
        some, before = y[(y >= low) & (y <= high)], int(np.count_nonzero(y < low))
        if before <= k < before + some.size:
            y, k = some, k - before
    return float(np.partition(y, k)[k])


def _piece(y: Array, total: float) -> float:
    """Return a tau in the linear piece in which sum clip(y - tau, 0, 1) is the total.

    This is Newton's method, with bisection where it leaves the bracket. It continues until the sum
    is the total up to rounding: one step from afar is too coarse if the cap is large compared with
    the radius.

    Parameters
    ----------
    y : array, shape (d,)
        Between -1 and 1; ceil(total) entries are 0 or more, so that tau is below 0.
    total : float
    """
    low, high = -2.0 * min(1.0, total), 0.0
    tau = 0.25 * low
    rounding = (4 + y.size / _LANES) * _ROUNDING * total
    while True:
        reached, above, full = _clipped_sum(y, tau)
        over = reached - total
        if abs(over) <= rounding:
            return tau
        low, high = (tau, high) if over > 0 else (low, tau)
        tau = tau + over / (above - full) if above > full else low
        if not low < tau < high:
            tau = 0.5 * (low + high)
            if not low < tau < high:
                return tau


def _clipped_sum(y: Array, tau: float) -> tuple[float, int, int]:
    """Return sum clip(y - tau, 0, 1), the number of entries > tau, and the number >= tau + 1.

    The sum is taken in lanes that are then added in pairs, which bounds its rounding.
    """
    values = np.clip(y - tau, 0.0, 1.0)
    rest = values.size % _LANES
    sums = values[: values.size - rest].reshape(-1, _LANES).sum(axis=0)
    sums[:rest] += values[values.size - rest :]
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return float(sums[0]), int(np.count_nonzero(y > tau)), int(np.count_nonzero(y >= tau + 1.0))


def _decode(arrays: Mapping[str, Array], atom: SparseSignAtom, *, signed: bool) -> Atom:
    """Return `atom` with the codes that came over the wire."""
    size = size_of(atom.shape)
    codes = only_array(arrays, "codes", atom.codes.shape, SparseSignAtom.code(size))
    index = np.abs(codes.astype(np.int64))
    if not ((index >= 1) & (index <= size)).all() or not (signed or (codes > 0).all()):
        raise ConfigError(f"an index is outside a model of {size} entries")
    if np.unique(index).size != index.size:
        raise ConfigError("an index occurs twice")
    return SparseSignAtom(codes.astype(np.int64), atom.magnitude, atom.last, atom.shape, atom.dtype)


@dataclass(frozen=True)
class CappedSimplex(ConstraintSet):
    """The set 0 <= x <= cap, sum x = radius, over all entries of the model.

    Its vertices have as many entries at the cap as fit into the radius, and one with the rest.

    Parameters
    ----------
    cap : float
        > 0; a model needs at least radius / cap entries.
    radius : float
        > 0.

    Examples
    --------
    >>> CappedSimplex(cap=1.0, radius=1.5).lmo(np.array([3.0, 1.0, 2.0])).dense()
    array([0. , 1. , 0.5])
    >>> CappedSimplex(cap=1.0, radius=1.5).project(np.array([5.0, 1.0, 0.0]))
    array([1. , 0.5, 0. ])
    """

    cap: float
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "cap", positive("CappedSimplex(cap)", self.cap))
        object.__setattr__(self, "radius", positive("CappedSimplex(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise if models of `shape` have too few entries to reach the radius."""
        if self._full()[0] > size_of(shape):
            raise ConfigError(
                f"{self!r} is empty for a model of {size_of(shape)} entries: cap * entries must "
                "be at least the radius"
            )

    def _full(self) -> tuple[int, float]:
        """Return how many entries of a vertex are not 0, and the value of the last one."""
        ratio = self.radius / self.cap
        entries = max(1, round(ratio))
        if abs(ratio - entries) <= 1e-12 * ratio:
            return entries, self.cap if ratio >= 1 else self.radius
        entries = math.ceil(ratio)
        return entries, self.radius - (entries - 1) * self.cap

    def excess(self, x: Array) -> float:
        """Return the largest of |sum x - radius|, -min x and max x - cap."""
        self.check_shape(x.shape)
        off = abs(float(x.sum(dtype=np.float64)) - self.radius)
        return max(off, -float(x.min()), float(x.max()) - self.cap)

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to the set, or 0 within rounding."""
        return 0.0 if self.contains(x) else super().violation(x)

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return the distance between two vertices that overlap as little as possible."""
        self.check_shape(shape)
        size = size_of(shape)
        # By the symmetry x -> cap - x, use the smaller of radius and cap * size - radius.
        total = min(self.radius, max(size * self.cap - self.radius, 0.0)) / self.cap
        whole = math.floor(total * (1 + 1e-12))
        rest = max(total - whole, 0.0)
        rest = rest if 2 * (whole + 1) <= size else 0.0
        return self.cap * math.sqrt(2.0 * (whole + rest * rest))

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Subtract the threshold and clip."""
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)
        return each(
            x,
            batch,
            lambda model: capped_projection(model.reshape(-1), self.cap, self.radius).reshape(
                model.shape
            ),
        )

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return the vertex that fills the entries of smallest g up to the cap, in order."""
        self.check_shape(g.shape[batch:])
        expect_finite(self, g)
        return each_atom(g, batch, self._vertex)

    def _vertex(self, g: Array) -> SparseSignAtom:
        atom = self._atom(g.shape, g.dtype)
        atom.codes = _smallest(g.reshape(-1), atom.codes.size) + 1
        return atom

    def _atom(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> SparseSignAtom:
        entries, last = self._full()
        return SparseSignAtom(np.arange(1, entries + 1), self.cap, last, shape, dtype)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the vertex with these indices, of which the last takes the rest."""
        self.check_shape(shape)
        return _decode(arrays, self._atom(shape, dtype), signed=False)


@dataclass(frozen=True)
class KSparsePolytope(ConstraintSet):
    """The set ||x||_1 <= k radius, max |x_i| <= radius: the hull of vectors with k signs.

    Its vertices have k entries +-radius (all entries, in a model of fewer).

    Examples
    --------
    >>> KSparsePolytope(k=2, radius=1.0).lmo(np.array([0.1, -3.0, 2.0])).dense()
    array([ 0.,  1., -1.])
    >>> KSparsePolytope(k=1, radius=2.0).project(np.array([3.0, -1.0]))
    array([2., 0.])
    """

    k: int
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", count("KSparsePolytope(k)", self.k))
        object.__setattr__(self, "radius", positive("KSparsePolytope(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def excess(self, x: Array) -> float:
        """Return the larger of ||x||_1 - k radius and max |x_i| - radius."""
        magnitude = np.abs(x)
        total = float(magnitude.sum(dtype=np.float64))
        return max(total - self.k * self.radius, float(magnitude.max()) - self.radius)

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return 2 radius sqrt(min(k, d))."""
        return 2.0 * self.radius * math.sqrt(min(self.k, size_of(shape)))

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Clip; where the sum is still too large, subtract the threshold first."""
        expect_finite(self, x)
        return each(x, batch, self._project)

    def _project(self, x: Array) -> Array:
        flat = x.reshape(-1)
        magnitude = np.abs(flat)
        clipped = np.minimum(magnitude, x.dtype.type(self.radius))
        if clipped.sum(dtype=np.float64) > self.k * self.radius:
            clipped = capped_projection(magnitude, self.radius, self.k * self.radius)
        projected: Array = np.copysign(clipped, flat) + x.dtype.type(0)
        return projected.reshape(x.shape)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return -radius sign(g_i) at the k largest |g_i|; at g_i = 0 the sign is +."""
        expect_finite(self, g)
        return each_atom(g, batch, self._vertex)

    def _vertex(self, g: Array) -> SparseSignAtom:
        flat = g.reshape(-1)
        atom = self._atom(g.shape, g.dtype)
        index = np.sort(_smallest(-np.abs(flat), atom.codes.size))
        atom.codes = np.where(flat[index] > 0, -1, 1) * (index + 1)
        return atom

    def _atom(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> SparseSignAtom:
        codes = np.arange(1, min(self.k, size_of(shape)) + 1)
        return SparseSignAtom(codes, self.radius, self.radius, shape, dtype)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the vertex with these signed indices."""
        return _decode(arrays, self._atom(shape, dtype), signed=True)


def _smallest(flat: Array, k: int) -> Array:
    """Return the indices of the k smallest entries in order; ties go to the lowest index."""
    if k < flat.size:
        level = np.partition(flat, k - 1)[k - 1]
        candidates = np.flatnonzero(flat <= level)
    else:
        candidates = np.arange(flat.size)
    return candidates[np.argsort(flat[candidates], kind="stable")[:k]]
