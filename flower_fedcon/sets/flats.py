"""Unbounded sets: half-spaces and hyperplanes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom
from flower_fedcon.sets.base import ConstraintSet, unbounded
from flower_fedcon.sets.shapes import ByValue, each, expect_finite
from flower_fedcon.validation import Array, float_array


class Unbounded(ConstraintSet):
    """A set with projections only."""

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Raise: a linear function has no minimum here."""
        raise ConfigError(self.without_oracle)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Raise: there are no atoms."""
        raise ConfigError(self.without_oracle)

    @property
    def without_oracle(self) -> str:
        """Why there is no oracle: the set is unbounded."""
        return unbounded(type(self).__name__)


@dataclass(frozen=True, eq=False)
class _Flat(ByValue, Unbounded):
    """The base of half-spaces and hyperplanes: a normal and an offset."""

    normal: Array
    offset: float = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        normal = float_array(f"{name}(normal)", self.normal)
        if normal.size == 0 or not normal.any():
            raise ConfigError(f"{name}(normal) must have an entry that is not 0")
        offset = float_array(f"{name}(offset)", self.offset, ndim=0)
        object.__setattr__(self, "normal", normal)
        object.__setattr__(self, "offset", float(offset))

    @cached_property
    def _unit(self) -> tuple[Array, float]:
        """The normal and the offset, divided by the normal's norm."""
        wide = self.normal.astype(np.float64)
        largest = float(np.abs(wide).max())
        norm = float(np.linalg.norm((wide / largest).ravel()))
        return wide / largest / norm, self.offset / largest / norm

    @property
    def scale(self) -> float:
        """The distance from the origin to the boundary, at least 1."""
        return max(1.0, abs(self._unit[1]))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models have the normal's shape."""
        if shape != self.normal.shape:
            raise ConfigError(
                f"{type(self).__name__} has a normal of shape {self.normal.shape}, the model "
                f"{shape}"
            )

    def _distance(self, x: Array) -> float:
        """Return the signed distance of `x` from the boundary."""
        unit, level = self._unit
        return float(np.vdot(unit, x.astype(np.float64, copy=False))) - level

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return infinity."""
        return math.inf

    def _moved(self, x: Array, batch: int, *, always: bool) -> Array:
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)

        def move(model: Array) -> Array:
            distance = self._distance(model)
            if distance <= 0 and not always:
                return model.copy()
            moved = model - distance * self._unit[0]
            rest = self._distance(moved)
            if abs(rest) > 1e-14 * self.scale:  # rounding, where the distance was large
                moved = moved - rest * self._unit[0]
            return moved.astype(model.dtype, copy=False)

        return each(x, batch, move)


@dataclass(frozen=True, eq=False)
class HalfSpace(_Flat):
    """The set <normal, x> <= offset. It is unbounded: projections only.

    Parameters
    ----------
    normal : array of the model's shape
        Not zero.
    offset : float

    Examples
    --------
    >>> HalfSpace(np.array([0.0, 2.0]), 1.0).project(np.array([2.0, 1.0]))
    array([2. , 0.5])
    """

    def excess(self, x: Array) -> float:
        """Return the signed distance from the boundary, positive outside."""
        self.check_shape(x.shape)
        return self._distance(x)

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Move to the boundary from outside."""
        return self._moved(x, batch, always=False)


@dataclass(frozen=True, eq=False)
class Hyperplane(_Flat):
    """The set <normal, x> = offset. It is unbounded: projections only.

    Parameters
    ----------
    normal : array of the model's shape
        Not zero.
    offset : float

    Examples
    --------
    >>> Hyperplane(np.array([0.0, 2.0]), 1.0).project(np.array([2.0, -3.0]))
    array([2. , 0.5])
    """

    def excess(self, x: Array) -> float:
        """Return the distance."""
        self.check_shape(x.shape)
        return abs(self._distance(x))

    def violation(self, x: Array) -> float:
        """Return the distance, or 0 within rounding."""
        return 0.0 if self.contains(x) else self.excess(x)

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Move along the normal."""
        return self._moved(x, batch, always=True)
