"""Norm balls around the origin: l1, l2 and l-infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.arrays import known, placed
from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom, CoordinateAtom, CornerAtom, DenseAtom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.box import decode_corner
from flower_fedcon.sets.shapes import (
    expect_finite,
    only_array,
    rows,
    size_of,
)
from flower_fedcon.sets.simplex import simplex_projection
from flower_fedcon.validation import Array, positive

_INT = np.dtype(np.int64)


@dataclass(frozen=True)
class L1Ball(ConstraintSet):
    """The set ||x||_1 <= radius, over all entries of the model.

    Examples
    --------
    >>> L1Ball(radius=2.0).project(np.array([3.0, -1.0]))
    array([2., 0.])
    >>> L1Ball(radius=2.0).lmo(np.array([1.0, -5.0])).dense()
    array([0., 2.])
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("L1Ball(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def excess(self, x: Array) -> float:
        """Return ||x||_1 - radius."""
        return float(np.abs(x).sum()) - self.radius

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return 2 radius."""
        return 2.0 * self.radius

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Soft-threshold at the level that brings the norm to the radius."""
        flat = rows(x, batch)
        magnitude = np.abs(flat)
        total = magnitude.sum(axis=-1, keepdims=True)
        if not np.isfinite(total).all():
            expect_finite(self, x)  # else the sum overflowed
        outside = total > self.radius
        if known(outside) and not outside.any():
            return x.copy()
        # The sum turns -0 into 0.
        shrunk = np.copysign(simplex_projection(magnitude, self.radius), flat) + 0.0
        if not (known(outside) and outside.all()):
            shrunk = np.where(outside, shrunk, flat)
        return shrunk.reshape(x.shape)

    @property
    def coordinate_magnitude(self) -> float | None:
        """The radius: vertices have one entry."""
        return self.radius if type(self).lmo is L1Ball.lmo else None

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return -radius * sign(g_i) e_i at the largest |g_i|; at g_i = 0 the sign is +."""
        if batch == 0:
            high, low = g.argmax(), g.argmin()  # a NaN, if there is one
            top, bottom = g.item(high), -g.item(low)
            if not math.isfinite(top + bottom):
                expect_finite(self, g)
            first = top > bottom or (top == bottom and high < low)
            code = -1 - int(high) if first else 1 + int(low)
            return CoordinateAtom(code, self.radius, g.shape, g.dtype)
        flat = rows(g, batch).reshape(-1, math.prod(g.shape[batch:]))
        best = np.abs(flat).argmax(axis=1)  # a NaN, if there is one
        tops = flat[np.arange(len(best)), best]
        codes = np.where(tops > 0, -1, 1) * (best + 1)
        finite = np.count_nonzero(np.isfinite(tops)) == tops.size
        if not finite:
            expect_finite(self, g)
        return CoordinateAtom(codes.reshape(g.shape[:batch]), self.radius, g.shape, g.dtype)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the vertex with this signed index."""
        code = int(only_array(arrays, "code", (), _INT))
        size = size_of(shape)
        if not 1 <= abs(code) <= size:
            raise ConfigError(f"index {abs(code) - 1} is outside a model of {size} entries")
        return CoordinateAtom(code, self.radius, shape, dtype)


@dataclass(frozen=True)
class L2Ball(ConstraintSet):
    """The set ||x||_2 <= radius (for a matrix, the Frobenius norm).

    Examples
    --------
    >>> L2Ball(radius=1.0).project(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("L2Ball(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def excess(self, x: Array) -> float:
        """Return ||x||_2 - radius."""
        return float(np.linalg.norm(x.ravel())) - self.radius

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return 2 radius."""
        return 2.0 * self.radius

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Shrink to the radius where the norm exceeds it."""
        flat = rows(x, batch)
        expect_finite(self, x)
        units = flat / self.radius
        with np.errstate(over="ignore"):
            norm = np.linalg.norm(units, axis=-1, keepdims=True)
        if not np.isfinite(norm).all():  # the squares overflowed
            largest = np.maximum(np.abs(units).max(axis=-1, keepdims=True), 1)
            norm = largest * np.linalg.norm(units / largest, axis=-1, keepdims=True)
        projected: Array = flat / np.maximum(norm, 1)
        return projected.reshape(x.shape)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return -radius g / ||g||; for g = 0, +radius in the first entry."""
        expect_finite(self, g)
        flat = rows(g, batch)
        largest = np.abs(flat).max(axis=-1, keepdims=True)
        # Scaled first, so that the norm of a tiny or huge gradient does not under- or overflow.
        direction = flat / np.where(largest > 0, largest, 1)
        first = np.where(largest[..., 0] > 0, direction[..., 0], -1)
        direction = placed(direction, (..., 0), first)
        norm = np.linalg.norm(direction, axis=-1, keepdims=True)
        return DenseAtom((-self.radius * (direction / norm)).astype(g.dtype).reshape(g.shape))

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the dense point, which must lie in the ball."""
        value = only_array(arrays, "value", shape, dtype)
        if self.excess(value) > 1e-6 * self.radius:
            raise ConfigError(f"an atom lies outside {self!r}")
        return DenseAtom(value)


@dataclass(frozen=True)
class LInfBall(ConstraintSet):
    """The set max |x_i| <= radius.

    Examples
    --------
    >>> LInfBall(radius=1.0).lmo(np.array([2.0, -3.0])).dense()
    array([-1.,  1.])
    """

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("LInfBall(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def excess(self, x: Array) -> float:
        """Return max |x_i| - radius."""
        return float(np.abs(x).max()) - self.radius

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return 2 radius sqrt(d)."""
        return 2.0 * self.radius * math.sqrt(size_of(shape))

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Clip every entry."""
        expect_finite(self, x)
        return np.clip(x, -self.radius, self.radius)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return -radius sign(g); a zero entry takes +radius."""
        expect_finite(self, g)
        return CornerAtom(g <= 0, -self.radius, self.radius, g.dtype)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the corner that these bits describe."""
        return decode_corner(arrays, shape, dtype, -self.radius, self.radius)
