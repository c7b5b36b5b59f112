"""Products: one set for each layer of a model, and their atoms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom, each_atom, number_arrays
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.shapes import ByValue, size_of
from flower_fedcon.validation import Array, count

Part = TypeVar("Part")


def check_parts(name: str, parts: Any, kind: Any) -> tuple[tuple[Any, tuple[int, ...]], ...]:
    """Return `parts` as pairs of an object of `kind` and a shape.

    Raises
    ------
    ConfigError
        If `parts` is not a sequence of such pairs.
    """
    hint = f"{name} must be pairs such as (L1Ball(1.0), (3, 2)), one for each layer; got {parts!r}"
    if not isinstance(parts, list | tuple) or not parts:
        raise ConfigError(hint)
    checked = []
    for pair in parts:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], kind):
            raise ConfigError(hint)
        if not isinstance(pair[1], list | tuple):
            raise ConfigError(hint)
        checked.append((pair[0], tuple(count(f"{name}: a length", n) for n in pair[1])))
    return tuple(checked)


def split(x: Array, shapes: Sequence[tuple[int, ...]], batch: int) -> list[Array]:
    """Return the layers of packed vectors, (..., d), as arrays (..., *shape)."""
    ends = np.cumsum([size_of(shape) for shape in shapes])[:-1]
    parts = np.split(x, ends, axis=-1)
    lead = x.shape[:batch]
    return [part.reshape((*lead, *shape)) for part, shape in zip(parts, shapes, strict=True)]


def join(parts: Sequence[Array], batch: int) -> Array:
    """Return layers packed into vectors."""
    return np.concatenate([p.reshape((*p.shape[:batch], -1)) for p in parts], axis=-1)


class OfLayers(ByValue, Generic[Part]):
    """The base of products and sums over the layers of a packed model, with a part for each layer.

    Attributes
    ----------
    parts : tuple of (part, shape)
        In the order of the layers.
    """

    parts: tuple[tuple[Part, tuple[int, ...]], ...]

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [shape for _, shape in self.parts]

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models are vectors of as many entries as the layers have."""
        size = sum(map(size_of, self._shapes))
        if shape != (size,):
            raise ConfigError(
                f"a {type(self).__name__} of {size} entries in all takes a list of layers, or a "
                f"vector of that length; the model has shape {shape}"
            )

    def _layers(self, x: Array, batch: int = 0) -> list[tuple[Part, Array]]:
        self.check_shape(x.shape[batch:])
        layers = split(x, self._shapes, batch)
        return [(part, layer) for (part, _), layer in zip(self.parts, layers, strict=True)]


class ProductAtom(Atom):
    """Atoms of a product's parts, packed into one vector."""

    __slots__ = ("atoms", "dtype", "shape")

    def __init__(self, atoms: Sequence[Atom]) -> None:
        self.atoms = list(atoms)
        self.shape = (sum(size_of(atom.shape) for atom in self.atoms),)
        self.dtype = self.atoms[0].dtype

    def dense(self) -> Array:
        """Return s."""
        return np.concatenate([atom.dense().reshape(-1) for atom in self.atoms])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of each part, numbered."""
        return number_arrays(self.atoms)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return sum(atom.nbytes for atom in self.atoms)

    def mix(self, x: Array, step: float) -> Array:
        """Return (1 - step) x + step s, part by part."""
        parts = [atom.mix(part, step).reshape(-1) for atom, part in self._split(x)]
        return np.concatenate(parts)

    def add_to(self, out: Array) -> None:
        """Add s to the vector `out`, part by part."""
        for atom, part in self._split(out):
            atom.add_to(part)

    @classmethod
    def sum(cls, atoms: Sequence[Any]) -> Array:
        """Return the sum of several, part by part."""
        parts = zip(*(atom.atoms for atom in atoms), strict=True)
        return np.concatenate([type(part[0]).sum(part).reshape(-1) for part in parts])

    def _split(self, x: Array) -> list[tuple[Atom, Array]]:
        """Return each atom with its part of `x`, a view."""
        pairs, start = [], 0
        for atom in self.atoms:
            stop = start + size_of(atom.shape)
            pairs.append((atom, x[start:stop].reshape(atom.shape)))
            start = stop
        return pairs


@dataclass(frozen=True, eq=False)
class Product(OfLayers[ConstraintSet], ConstraintSet):
    """One set for each layer of a model that is a list of arrays.

    The layers are packed one after another into a vector, as for every algorithm.

    Parameters
    ----------
    parts : sequence of (ConstraintSet, shape)

    Examples
    --------
    >>> from flower_fedcon.sets import L1Ball, Simplex
    >>> both = Product([(L1Ball(1.0), (2,)), (Simplex(), (1, 2))])
    >>> both.project(np.array([3.0, 0.0, 1.0, 1.0]))
    array([1. , 0. , 0.5, 0.5])
    >>> both.lmo(np.array([1.0, -2.0, 1.0, 0.0])).dense()
    array([0., 1., 0., 1.])
    """

    parts: tuple[tuple[ConstraintSet, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        parts = check_parts("Product(parts)", self.parts, ConstraintSet)
        object.__setattr__(self, "parts", parts)
        for part, shape in parts:
            part.check_shape(shape)

    @property
    def scale(self) -> float:
        """The largest scale of a part."""
        return max(part.scale for part, _ in self.parts)

    def contains(self, x: Array, tolerance: float = 1e-12) -> bool:
        """Return whether every layer is in its set."""
        return all(part.contains(layer, tolerance) for part, layer in self._layers(x))

    def excess(self, x: Array) -> float:
        """Return the largest excess of a layer."""
        return max(part.excess(layer) for part, layer in self._layers(x))

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to the set."""
        return math.hypot(*(part.violation(layer) for part, layer in self._layers(x)))

    @property
    def without_oracle(self) -> str:
        """Why the first of the parts without a linear minimisation oracle has none."""
        return next((part.without_oracle for part, _ in self.parts if part.without_oracle), "")

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return the diameter."""
        self.check_shape(shape)
        return self.diameter

    @property
    def diameter(self) -> float:
        """The root of the sum of the parts' squared diameters."""
        return math.hypot(*(part.diameter_for(shape) for part, shape in self.parts))

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Project each layer."""
        layers = self._layers(x, batch)
        return join([part.project(layer, batch=batch) for part, layer in layers], batch)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return the product of the parts' vertices."""
        self.check_shape(g.shape[batch:])
        return each_atom(
            g, batch, lambda model: ProductAtom([p.lmo(layer) for p, layer in self._layers(model)])
        )

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the product of the parts' atoms."""
        self.check_shape(shape)
        by_part: list[dict[str, Array]] = [{} for _ in self.parts]
        for name, array in arrays.items():
            number, _, rest = name.partition(".")
            if number not in map(str, range(len(by_part))):
                raise ConfigError(f"the array {name!r} belongs to no part of {len(by_part)}")
            by_part[int(number)][rest] = array
        atoms = [
            part.decode_atom(mine, shape, dtype)
            for (part, shape), mine in zip(self.parts, by_part, strict=True)
        ]
        return ProductAtom(atoms)
