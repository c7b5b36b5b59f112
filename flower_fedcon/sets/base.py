"""The interface of a constraint set, and what every set shares."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom, StackedAtom
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from flower_fedcon.sets.composed import ScaledSet, ShiftedSet


def rows(x: Array, batch: int) -> Array:
    """Return `x` with the axes behind the first `batch` flattened into one: (..., d)."""
    return x.reshape((*x.shape[:batch], -1))


def each(x: Array, batch: int, function: Callable[[Array], Array]) -> Array:
    """Return `function` of every model in a stack, stacked again; of `x` itself if batch = 0."""
    if batch == 0:
        return function(x)
    models = x.reshape((-1, *x.shape[batch:]))
    return np.stack([function(model) for model in models]).reshape(x.shape)


def each_atom(g: Array, batch: int, function: Callable[[Array], Atom]) -> Atom:
    """Return the atom that `function` finds for every model in a stack."""
    if batch == 0:
        return function(g)
    atoms = [function(model) for model in g.reshape((-1, *g.shape[batch:]))]
    return StackedAtom(atoms, g.shape[:batch])


def expect_floats(owner: str, x: Array) -> None:
    """Raise unless `x` is of floats: in whole numbers a result would be cut off."""
    if x.dtype.kind != "f":
        raise ConfigError(
            f"{owner} takes arrays of floats, got {x.dtype}: pass np.asarray(x, dtype=float)"
        )


def expect_finite(owner: object, x: Array) -> None:
    """Raise if an entry of `x` is not a finite float."""
    expect_floats(type(owner).__name__, x)
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise ConfigError(
            f"{type(owner).__name__} was given a value that is not finite ({x[where]}) at {where}: "
            "has the run diverged? Check the data and the step sizes"
        )


class ByValue:
    """Equality by fields, for dataclasses that may hold arrays."""

    def _key(self) -> tuple[Any, ...]:
        return tuple(_hashable(getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and type(self) is type(other)
            and (self._key() == other._key())
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return value


class ConstraintSet(ABC):
    """A closed convex set D of models (vectors, or arrays of any shape seen as vectors).

    `batch` is the number of leading axes of an argument that index clients: with `batch=1` the
    same call serves a stack of models. Sets are immutable, and their parameters are the fields of
    a dataclass: that is what crosses the wire.
    """

    iterative: ClassVar[bool] = False
    """Whether `lmo` takes a tolerance."""

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

    def scaled(self, factor: float) -> ScaledSet:
        """Return the set {factor x : x in D}, for factor > 0."""
        from flower_fedcon.sets.composed import ScaledSet

        return ScaledSet(self, factor)

    def shifted(self, shift: float | Array) -> ShiftedSet:
        """Return the set {x + shift : x in D}."""
        from flower_fedcon.sets.composed import ShiftedSet

        return ShiftedSet(self, shift)

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


def expect_matrix(owner: object, shape: tuple[int, ...]) -> None:
    """Raise unless `shape` is that of a matrix."""
    if len(shape) != 2:
        raise ConfigError(f"{owner!r} is a set of matrices, the model has shape {shape}")


def expect_names(arrays: Mapping[str, Array], names: tuple[str, ...]) -> None:
    """Raise unless a message has the arrays with these names, and no others."""
    if set(arrays) != set(names):
        raise ConfigError(f"expected the arrays {sorted(names)}, got {sorted(arrays)}")


def expect_unit(array: Array) -> None:
    """Raise unless `array` is a unit vector to 1e-6."""
    norm = float(np.linalg.norm(array.astype(np.float64)))
    if not abs(norm - 1.0) <= 1e-6:
        raise ConfigError(f"a direction has the norm {norm:.9g}, expected 1")


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
