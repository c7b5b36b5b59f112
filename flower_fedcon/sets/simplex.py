"""The scaled simplex, whose projection the l1 ball shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.checks import Array, positive
from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom, CoordinateAtom
from flower_fedcon.sets.base import ConstraintSet, expect_array, rows, size_of


def simplex_projection(v: Array, radius: float) -> Array:
    """Return max(v - tau, 0) for the tau that makes it sum to radius, along the last axis.

    By sorting (Held, Wolfe and Crowder 1974).

    Parameters
    ----------
    v : array, shape (..., d)
    radius : float
        > 0.

    Returns
    -------
    array, shape (..., d)
    """
    # Relative to the largest entry: a small radius is not lost beside large entries.
    below = v - v.max(axis=-1, keepdims=True)
    ordered = np.sort(below, axis=-1)[..., ::-1]
    sums = np.cumsum(ordered, axis=-1, dtype=np.float64) - radius
    counts = np.arange(1.0, v.shape[-1] + 1.0)
    active = np.maximum((ordered * counts > sums).sum(axis=-1, keepdims=True), 1)
    level = np.take_along_axis(sums, active - 1, axis=-1) / active
    projected: Array = np.maximum(below - level.astype(v.dtype, copy=False), 0)
    return projected


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
        return simplex_projection(rows(x, batch), self.radius).reshape(x.shape)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return radius e_i at the smallest g_i."""
        best = rows(g, batch).argmin(axis=-1)
        code = int(best) + 1 if batch == 0 else best + 1
        return CoordinateAtom(code, self.radius, g.shape, g.dtype)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the vertex of an index."""
        code = int(expect_array(arrays, "code", (), np.dtype(np.int64)))
        if not 1 <= code <= size_of(shape):
            raise ConfigError(f"index {code - 1} is outside a model of {size_of(shape)} entries")
        return CoordinateAtom(code, self.radius, shape, dtype)
