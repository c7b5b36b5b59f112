"""The interface of a constraint set, and scaled and shifted sets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.atoms import Atom
from flower_fedcon.sets.shapes import ByValue
from flower_fedcon.validation import Array, float_array, positive


def unbounded(name: str) -> str:
    """Return why an unbounded set has no linear minimisation oracle, and what to do."""
    return (
        f"{name} is unbounded, so it has no linear minimisation oracle: use an algorithm that "
        "projects, with Indicator(set) as its regularizer, or bound it"
    )


class ConstraintSet(ABC):
    """A closed convex set D of models (vectors, or arrays of any shape seen as vectors).

    `batch` is the number of leading axes of an argument that index clients: with `batch=1` the
    same call serves a stack of models. Sets are immutable, and their parameters are the fields of
    a dataclass, which cross the wire.
    """

    iterative: ClassVar[bool] = False
    """Whether `lmo` takes a tolerance."""

    @abstractmethod
    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Return the Euclidean projection of `x` onto D, in the shape and dtype of `x`."""

    @abstractmethod
    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return a vertex s of D that minimises <g, s>; ties go to the lowest index."""

    @property
    def coordinate_magnitude(self) -> float | None:
        """The factor r, if `lmo` returns -r sign(g_i) e_i at the largest |g_i|; else None."""
        return None

    @property
    def without_oracle(self) -> str:
        """Why the set has no linear minimisation oracle, and what to do; "" if it has one."""
        return ""

    @abstractmethod
    def excess(self, x: Array) -> float:
        """Return by how much `x` violates the set's own inequality; <= 0 inside D."""

    @abstractmethod
    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return max ||x - y|| over D, for models of `shape`."""

    @property
    def diameter(self) -> float:
        """The diameter, if it does not depend on the model's dimension.

        Raises
        ------
        ConfigError
            If it does: use `diameter_for(shape)`.
        """
        first, second = self.diameter_for((1,)), self.diameter_for((2,))
        if first != second:
            raise ConfigError(
                f"the diameter of {self!r} depends on the dimension: use diameter_for(shape)"
            )
        return first

    @property
    def scale(self) -> float:
        """The length, such as a radius, to which tolerances are relative."""
        return 1.0

    def check_shape(self, shape: tuple[int, ...]) -> None:  # noqa: B027  (a set of any shape)
        """Raise if models of `shape` do not fit this set."""

    def contains(self, x: Array, tolerance: float = 1e-12) -> bool:
        """Return whether `x` is in D, to `tolerance` relative to the set's scale."""
        self.check_shape(x.shape)
        return bool(self.excess(np.asarray(x)) <= tolerance * self.scale + rounding_of(x))

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to D."""
        if self.excess(x) <= 0:
            return 0.0
        return float(np.linalg.norm((x - self.project(x)).ravel()))

    def scaled(self, factor: float) -> ScaledSet:
        """Return the set {factor x : x in D}, for factor > 0."""
        return ScaledSet(self, factor)

    def shifted(self, shift: float | Array) -> ShiftedSet:
        """Return the set {x + shift : x in D}."""
        return ShiftedSet(self, shift)

    @abstractmethod
    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the atom whose `arrays` came over the wire, for models of `shape`.

        Raises
        ------
        ConfigError
            If the arrays are not those of an atom of this set.
        """


def rounding_of(x: Array) -> float:
    """Return the rounding error of x and of sums over its entries, a distance that counts as 0."""
    sizes = np.abs(x)
    largest = float(sizes.max(initial=0.0))
    if not 0 < largest < math.inf:
        return 4 * float(np.finfo(x.dtype).eps) * largest
    entries = 4.0 + float((sizes / largest).sum(dtype=np.float64))  # so that no sum overflows
    return float(np.finfo(x.dtype).eps) * largest * entries


class AffineAtom(Atom):
    """The point factor * s + shift, for an atom s.

    Only s crosses the wire.
    """

    __slots__ = ("atom", "dtype", "factor", "shape", "shift")

    def __init__(self, atom: Atom, factor: float, shift: float | Array) -> None:
        self.atom = atom
        self.factor = factor
        self.shift = shift
        self.shape = atom.shape
        self.dtype = atom.dtype

    def dense(self) -> Array:
        """Return factor * s + shift."""
        dense = self.atom.dense()
        moved: Array = (self.factor * dense + self.shift).astype(dense.dtype, copy=False)
        return moved

    @classmethod
    def sum(cls, atoms: Sequence[Any]) -> Array:
        """Return the sum of several, from the sum of their atoms s."""
        first = atoms[0]
        total = type(first.atom).sum([atom.atom for atom in atoms])
        moved: Array = first.factor * total + len(atoms) * first.shift
        return moved.astype(first.dtype, copy=False)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of s."""
        return self.atom.arrays()

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, those of s."""
        return self.atom.nbytes

    @property
    def stack_bytes(self) -> int:
        """Bytes on the wire, each atom in its own message."""
        return self.atom.stack_bytes

    def part(self, index: int) -> Atom:
        """Return the atom of one client."""
        return AffineAtom(self.atom.part(index), self.factor, self.shift)


@dataclass(frozen=True, eq=False)
class _Moved(ByValue, ConstraintSet):
    """What scaled and shifted sets share."""

    inner: ConstraintSet

    def __post_init__(self) -> None:
        if not isinstance(self.inner, ConstraintSet):
            raise ConfigError(f"{type(self).__name__} needs a constraint set, got {self.inner!r}")

    @property
    def _affine(self) -> tuple[float, float | Array]:
        """The factor and the shift."""
        raise NotImplementedError

    @property
    def without_oracle(self) -> str:
        """Why the inner set has no linear minimisation oracle."""
        return self.inner.without_oracle

    @property
    def scale(self) -> float:
        """The inner set's scale, times the factor."""
        return self._affine[0] * self.inner.scale

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise if models of `shape` do not fit the inner set."""
        shift = self._affine[1]
        if isinstance(shift, np.ndarray) and shift.shape != shape:
            raise ConfigError(f"the shift has shape {shift.shape}, the model {shape}")
        self.inner.check_shape(shape)

    def _back(self, x: Array, batch: int = 0) -> Array:
        """Return (x - shift) / factor, the point of the inner set's space."""
        self.check_shape(x.shape[batch:])
        factor, shift = self._affine
        back: Array = ((x - shift) / factor).astype(x.dtype, copy=False)
        return back

    def _forth(self, y: Array) -> Array:
        """Return factor * y + shift."""
        factor, shift = self._affine
        forth: Array = (factor * y + shift).astype(y.dtype, copy=False)
        return forth

    def excess(self, x: Array) -> float:
        """Return the inner set's excess, times the factor."""
        return self._affine[0] * self.inner.excess(self._back(x))

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to the set."""
        return self._affine[0] * self.inner.violation(self._back(x))

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return the inner set's diameter, times the factor."""
        return self._affine[0] * self.inner.diameter_for(shape)

    @property
    def diameter(self) -> float:
        """The inner set's diameter, times the factor."""
        return self._affine[0] * self.inner.diameter

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Return factor * p + shift, for the inner set's projection p of (x - shift) / factor."""
        return self._forth(self.inner.project(self._back(x, batch), batch=batch))

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return the inner set's vertex s as factor * s + shift."""
        self.check_shape(g.shape[batch:])
        return AffineAtom(self.inner.lmo(g, batch=batch), *self._affine)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the inner set's atom s as factor * s + shift."""
        self.check_shape(shape)
        return AffineAtom(self.inner.decode_atom(arrays, shape, dtype), *self._affine)


@dataclass(frozen=True, eq=False)
class ScaledSet(_Moved):
    """The set {factor x : x in inner}.

    Parameters
    ----------
    inner : ConstraintSet
    factor : float
        > 0.

    Examples
    --------
    >>> from flower_fedcon.sets import Box
    >>> ScaledSet(Box(0.0, 1.0), 3.0).project(np.array([5.0, -1.0]))
    array([3., 0.])
    """

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "factor", positive("ScaledSet(factor)", self.factor))

    @property
    def _affine(self) -> tuple[float, float | Array]:
        return self.factor, 0.0


@dataclass(frozen=True, eq=False)
class ShiftedSet(_Moved):
    """The set {x + shift : x in inner}.

    Parameters
    ----------
    inner : ConstraintSet
    shift : float or array of the model's shape

    Examples
    --------
    >>> from flower_fedcon.sets import L2Ball
    >>> ShiftedSet(L2Ball(1.0), np.array([5.0, 0.0])).project(np.array([0.0, 0.0]))
    array([4., 0.])
    """

    shift: float | Array

    def __post_init__(self) -> None:
        super().__post_init__()
        shift = float_array("ShiftedSet(shift)", self.shift)
        object.__setattr__(self, "shift", shift if shift.ndim else float(shift))

    @property
    def _affine(self) -> tuple[float, float | Array]:
        return 1.0, self.shift
