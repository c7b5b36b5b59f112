"""The box lower <= x <= upper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom, CornerAtom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.shapes import ByValue, expect_finite, only_array, size_of
from flower_fedcon.validation import Array, float_array


@dataclass(frozen=True, eq=False)
class Box(ByValue, ConstraintSet):
    """The set lower <= x <= upper, entry by entry.

    Parameters
    ----------
    lower, upper : float or array of the model's shape
        Finite bounds, lower <= upper.

    Examples
    --------
    >>> Box(0.0, 1.0).project(np.array([-2.0, 0.5, 7.0]))
    array([0. , 0.5, 1. ])
    """

    lower: float | Array
    upper: float | Array

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            given = getattr(self, name)
            entries = np.asarray(given)
            if entries.dtype.kind == "f" and (endless := entries[np.isinf(entries)]).size:
                raise ConfigError(
                    f"Box needs finite bounds, got {name} = {endless[0]:g}: methods for sets take "
                    f"steps to its corners. Give a bound that the model does not reach, or for "
                    f"x >= 0 alone the regularizer Nonnegative()"
                )
            bound = float_array(f"Box({name})", given)
            object.__setattr__(self, name, float(bound) if bound.ndim == 0 else bound)
        try:
            ordered = bool(np.all(np.asarray(self.lower) <= np.asarray(self.upper)))
        except ValueError:
            raise ConfigError(
                f"Box: lower has shape {np.shape(self.lower)}, upper {np.shape(self.upper)}"
            ) from None
        if not ordered:
            raise ConfigError(f"Box needs lower <= upper, got {self.lower!r} and {self.upper!r}")

    @property
    def scale(self) -> float:
        """The largest bound in absolute value, at least 1."""
        return max(1.0, float(np.abs(self.lower).max()), float(np.abs(self.upper).max()))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless array bounds have the model's shape."""
        for bound in (self.lower, self.upper):
            if isinstance(bound, np.ndarray) and bound.shape != shape:
                raise ConfigError(f"Box has bounds of shape {bound.shape}, the model {shape}")

    def excess(self, x: Array) -> float:
        """Return the largest amount by which a bound is violated."""
        return float(max(np.max(self.lower - x), np.max(x - self.upper)))

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return ||upper - lower|| over all entries."""
        lengths = np.asarray(self.upper) - np.asarray(self.lower)
        if lengths.ndim == 0:
            lengths = np.broadcast_to(lengths, shape)
        return float(np.linalg.norm(lengths.ravel()))

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Clip every entry."""
        expect_finite(self, x)
        return np.clip(x, self.lower, self.upper).astype(x.dtype, copy=False)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return lower where g > 0 and upper elsewhere."""
        expect_finite(self, g)
        return CornerAtom(g <= 0, self.lower, self.upper, g.dtype)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the corner that these bits describe."""
        return decode_corner(arrays, shape, dtype, self.lower, self.upper)


def decode_corner(
    arrays: Mapping[str, Array],
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    lower: float | Array,
    upper: float | Array,
) -> CornerAtom:
    """Return the corner whose bits came over the wire."""
    size = size_of(shape)
    bits = only_array(arrays, "bits", ((size + 7) // 8,), np.dtype(np.uint8))
    upper_side = np.unpackbits(bits, count=size).astype(bool).reshape(shape)
    return CornerAtom(upper_side, lower, upper, dtype)
