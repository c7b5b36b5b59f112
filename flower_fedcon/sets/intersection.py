"""Intersections of sets, by Dykstra's algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.sets.atoms import Atom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.shapes import each, expect_finite
from flower_fedcon.validation import Array, positive

_CYCLES = 100, 1_000, 10_000, 100_000  # of successive attempts
_FEASIBLE = 1e-11  # how far a projection may be from a set, relative to move and scale
_FAR = 1e3  # sets are disjoint if a common point must be this much farther away


@dataclass(frozen=True)
class Intersection(ConstraintSet):
    """The points that lie in all of several sets. It has projections only.

    Half-spaces, hyperplanes and boxes together are faster as a `Polyhedron`.

    Parameters
    ----------
    sets : sequence of ConstraintSet
        At least two.
    tolerance : float (default: 1e-6)
        In [1e-7, 1): how near a projection is to the exact one, relative to the distance that it
        moves and the sets' scale, which for boxes and flats is at least 1.

    Raises
    ------
    ConfigError
        If an argument is not a set, or is out of range. `project` raises it if no point lies in all
        sets.

    Notes
    -----
    With corrections p_i, normal to set i at its last point x_i, and x = v - sum_i p_i, the duality
    gap sum_i <p_i, x_i - x> bounds half the square of x's distance to the exact projection, if x
    lies in all sets. Dykstra's algorithm (Boyle and Dykstra 1986) stops where x lies within 1e-11
    of all sets and the gap is below the tolerance's square. All common points y have <sum_i
    p_i, y> <= sum_i <p_i, x_i>: if there is no common point, the corrections grow until they
    prove it. The number of cycles grows with v's distance relative to the sets' size.

    Examples
    --------
    >>> from flower_fedcon.sets import Box, L2Ball
    >>> Intersection([L2Ball(1.0), Box(0.0, 0.6)]).project(np.array([3.0, 0.5])).round(9)
    array([0.6, 0.5])
    """

    sets: tuple[ConstraintSet, ...]
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        sets = tuple(self.sets) if isinstance(self.sets, list | tuple) else ()
        if len(sets) < 2 or not all(isinstance(one, ConstraintSet) for one in sets):
            raise ConfigError(f"Intersection(sets) must be two or more sets, got {self.sets!r}")
        object.__setattr__(self, "sets", sets)
        tolerance = positive("Intersection(tolerance)", self.tolerance)
        if not 1e-7 <= tolerance < 1:
            raise ConfigError(
                f"Intersection(tolerance) must be in [1e-7, 1), got {tolerance!r}: below that the "
                "duality gap is rounding"
            )
        object.__setattr__(self, "tolerance", tolerance)

    @property
    def scale(self) -> float:
        """The largest of the sets' scales."""
        return max(one.scale for one in self.sets)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models of `shape` fit every set."""
        for one in self.sets:
            one.check_shape(shape)

    def excess(self, x: Array) -> float:
        """Return the largest of the sets' excesses."""
        return max(one.excess(x) for one in self.sets)

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to the set, or 0 within rounding."""
        return 0.0 if self.contains(x) else super().violation(x)

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return the smallest of the sets' diameters, an upper bound."""
        self.check_shape(shape)
        return min(one.diameter_for(shape) for one in self.sets)

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Project onto one set after another, each time with the set's correction.

        Raises
        ------
        ConfigError
            If no point lies in all sets.
        FedConError
            If the gap stays too large: the sets meet at too small an angle, or barely.
        """
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)
        return each(x, batch, self._nearest)

    def _nearest(self, model: Array) -> Array:
        v = model.astype(np.float64)
        anywhere, reach = [math.inf] * len(self.sets), None
        for cycles in _CYCLES:
            x, away = self._cycle(v, cycles, anywhere)
            if away is None:
                return x.astype(model.dtype)
            # From a point near the sets, fewer cycles show that they are disjoint.
            reach = reach or [one.diameter_for(v.shape) for one in self.sets]
            self._cycle(x, cycles, reach)
        raise FedConError(
            f"the projection onto {self!r} came within {away:.3g} of all sets after {cycles} "
            f"cycles, not within its tolerance: the sets barely meet, or meet at too small an "
            f"angle (widen one), or the point is too far away (its norm is {_length(v):.3g}, the "
            f"sets' scale {self.scale:.3g}: use smaller steps)"
        )

    def _cycle(self, v: Array, cycles: int, reach: list[float]) -> tuple[Array, float | None]:
        """Return the projection of v, or the last cycle's point and its distance from the sets.

        `reach` has the sets' diameters.
        """
        x, corrections, away = v, [np.zeros_like(v) for _ in self.sets], math.inf
        points = list(corrections)
        for _ in range(cycles):
            for i, one in enumerate(self.sets):
                moved = x + corrections[i]
                points[i] = x = one.project(moved)
                corrections[i] = moved - x
            away = max(_length(x - point) for point in points)
            size = self.scale + _length(v - x)
            pairs = list(zip(corrections, points, strict=True))
            if away <= _FEASIBLE * size:
                gap = math.fsum(float(np.vdot(p, point - x)) for p, point in pairs)
                if gap <= 0.5 * (self.tolerance * size) ** 2:
                    return x, None
            total = v - x
            level = math.fsum(float(np.vdot(p, point)) for p, point in pairs)
            length = _length(total)
            # Every common point is at least this far from v.
            least = (float(np.vdot(total, v)) - level) / length if length else 0.0
            farthest = min(_length(v - p) + d for p, d in zip(points, reach, strict=True))
            if least > min(farthest * (1 + 1e-9), _FAR * size):
                raise ConfigError(
                    f"the sets of {self!r} have no common point: they are {away:.3g} apart, and no "
                    f"common point lies within {least:.3g} of that place"
                )
        return x, away

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Raise: the vertices of an intersection are not those of its sets."""
        raise ConfigError(self.without_oracle)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Raise: there are no atoms."""
        raise ConfigError(self.without_oracle)

    @property
    def without_oracle(self) -> str:
        """Why there is no oracle: an intersection has projections only."""
        return (
            "an Intersection has no linear minimisation oracle: use an algorithm that projects, "
            "with Indicator(set) as its regularizer, or a Polyhedron"
        )


def _length(x: Array) -> float:
    return float(np.linalg.norm(x.reshape(-1)))
