"""The interface of a constraint set, and what every set shares."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from flower_fedcon.checks import Array
from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom


def rows(x: Array, batch: int) -> Array:
    """Return `x` with the axes behind the first `batch` flattened into one: (..., d)."""
    return x.reshape((*x.shape[:batch], -1))


class ConstraintSet(ABC):
    """A closed convex set D of models (vectors, or arrays of any shape seen as vectors).

    `batch` is the number of leading axes of an argument that index clients: with `batch=1` the
    same call serves a stack of models. Sets are immutable, and their parameters are the fields of
    a dataclass: that is what crosses the wire.
    """

    @abstractmethod
    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Return the Euclidean projection of `x` onto D, in the shape and dtype of `x`."""

    @abstractmethod
    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return a vertex s of D that minimises <g, s>; ties go to the lowest index."""

    @abstractmethod
    def excess(self, x: Array) -> float:
        """Return by how much `x` breaks the set's own inequality; <= 0 inside D."""

    @abstractmethod
    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return max ||x - y|| over D, for models of `shape`."""

    @property
    def diameter(self) -> float:
        """The diameter where it does not depend on the model's dimension.

        Raises
        ------
        ConfigError
            If it does: `diameter_for(shape)` answers then.
        """
        first, second = self.diameter_for((1,)), self.diameter_for((2,))
        if first != second:
            raise ConfigError(
                f"the diameter of {self!r} depends on the dimension: use diameter_for(shape)"
            )
        return first

    @property
    def scale(self) -> float:
        """A length that tolerances are relative to (a radius)."""
        return 1.0

    def check_shape(self, shape: tuple[int, ...]) -> None:  # noqa: B027  (a set of any shape)
        """Raise if models of `shape` do not fit this set."""

    def contains(self, x: Array, tolerance: float = 1e-12) -> bool:
        """Return whether `x` is in D, to `tolerance` relative to the set's scale."""
        self.check_shape(x.shape)
        return bool(self.excess(np.asarray(x)) <= tolerance * self.scale)

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to D."""
        if self.excess(x) <= 0:
            return 0.0
        return float(np.linalg.norm((x - self.project(x)).ravel()))

    @abstractmethod
    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the atom whose `arrays` came over the wire, for models of `shape`.

        Raises
        ------
        ConfigError
            If they are not the arrays of an atom of this set.
        """


def expect_array(
    arrays: Mapping[str, Array], name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> Array:
    """Return the only array of a message if it has the name, shape and dtype, and is finite."""
    if set(arrays) != {name}:
        raise ConfigError(f"expected the array {name!r}, got {sorted(arrays)}")
    array = arrays[name]
    if array.shape != shape or array.dtype != dtype:
        raise ConfigError(
            f"{name!r} has shape {array.shape} and dtype {array.dtype}, expected {shape}, {dtype}"
        )
    if not np.isfinite(array).all():
        raise ConfigError(f"{name!r} holds values that are not finite")
    return array


def size_of(shape: tuple[int, ...]) -> int:
    """Return the number of entries of an array of `shape`."""
    return math.prod(shape)
