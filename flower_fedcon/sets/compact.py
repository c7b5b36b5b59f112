"""The compact atoms of matrices, groups and K-sparse vectors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.sets.atoms import Atom
from flower_fedcon.validation import Array

_CACHED = 2**15  # entries, a quarter of a megabyte of doubles


def outer(u: Array, v: Array) -> Array:
    """Return the matrix u v'."""
    product: Array = u[:, None] * v
    return product


def add_outer(out: Array, u: Array, v: Array) -> None:
    """Add u v' to `out` in place, in blocks of rows that stay in the cache."""
    rows = max(1, _CACHED // v.size)
    for first in range(0, u.size, rows):
        out[first : first + rows] += outer(u[first : first + rows], v)


class OuterAtom(Atom):
    """A matrix u v': the base of the atoms of matrix sets."""

    __slots__ = ()

    @abstractmethod
    def factors(self, step: float) -> tuple[Array, Array]:
        """Return the two vectors whose outer product is step s."""

    def dense(self) -> Array:
        """Return s."""
        return outer(*self.factors(1.0))

    def mix(self, x: Array, step: float) -> Array:
        """Return (1 - step) x + step s."""
        out: Array = (1.0 - step) * x
        add_outer(out, *self.factors(step))
        return out

    def add_to(self, out: Array) -> None:
        """Add s to `out`, without making it dense first."""
        add_outer(out, *self.factors(1.0))

    @classmethod
    def sum(cls, atoms: Sequence[Any]) -> Array:
        """Return the sum of several, as one product of two thin matrices."""
        columns, rows = zip(*(atom.factors(1.0) for atom in atoms), strict=True)
        total: Array = np.stack(columns, axis=1) @ np.stack(rows)
        return total


class RankOneAtom(OuterAtom):
    """The matrix -radius u v', for unit vectors u and v: an extreme point of a nuclear-norm ball.

    Parameters
    ----------
    u, v : arrays of shape (m,) and (n,)
    radius : float
    """

    __slots__ = ("dtype", "radius", "shape", "u", "v")

    def __init__(self, u: Array, v: Array, radius: float) -> None:
        self.u, self.v = u, v
        self.radius = radius
        self.shape = (u.size, v.size)
        self.dtype = u.dtype

    def arrays(self) -> dict[str, Array]:
        """Return the two vectors."""
        return {"u": self.u, "v": self.v}

    def factors(self, step: float) -> tuple[Array, Array]:
        """Return -step radius u and v."""
        return self.u.dtype.type(-step * self.radius) * self.u, self.v


class SquareAtom(OuterAtom):
    """The matrix radius u u' for a unit vector u, or 0 for u = 0.

    Parameters
    ----------
    u : array of shape (n,)
    radius : float
    """

    __slots__ = ("dtype", "radius", "shape", "u")

    def __init__(self, u: Array, radius: float) -> None:
        self.u = u
        self.radius = radius
        self.shape = (u.size, u.size)
        self.dtype = u.dtype

    def arrays(self) -> dict[str, Array]:
        """Return the vector."""
        return {"u": self.u}

    def factors(self, step: float) -> tuple[Array, Array]:
        """Return sqrt(step radius) u twice, so that the product is symmetric to the last bit."""
        half = self.u.dtype.type(math.sqrt(step * self.radius)) * self.u
        return half, half


class PermutationAtom(Atom):
    """A permutation matrix: a one in each row i, at column columns[i].

    Parameters
    ----------
    columns : array of int, shape (..., q)
        One permutation, or one for each leading axis.
    dtype : dtype
        Type of the dense form.
    shape : tuple of int, optional
        The shape of the dense form, if it is known.
    """

    __slots__ = ("columns", "dtype", "shape")

    def __init__(
        self,
        columns: Array,
        dtype: np.dtype[np.generic],
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.columns, self.dtype = columns, dtype
        self.shape = shape or (*columns.shape, columns.shape[-1])

    @staticmethod
    def code(size: int) -> np.dtype[np.generic]:
        """Return the smallest type that crosses the wire for `size` columns."""
        small = (np.uint8, np.int16, np.int32)
        return np.dtype(next(kind for kind in small if size - 1 <= np.iinfo(kind).max))

    def dense(self) -> Array:
        """Return s."""
        out = np.zeros(self.shape, dtype=self.dtype)
        self._add(out, 1.0)
        return out

    def arrays(self) -> dict[str, Array]:
        """Return the column of each row."""
        return {"columns": self.columns.astype(self.code(self.shape[-1]))}

    def part(self, index: int) -> Atom:
        """Return the atom of one client."""
        return PermutationAtom(self.columns[index], self.dtype)

    def mix(self, x: Array, step: float) -> Array:
        """Return (1 - step) x + step s, touching one entry in each row."""
        out: Array = (1.0 - step) * x
        self._add(out, step)
        return out

    def add_to(self, out: Array) -> None:
        """Add s to `out`, touching one entry in each row."""
        self._add(out, 1.0)

    def _add(self, out: Array, step: float) -> None:
        columns = self.columns
        one = columns.ndim == 1  # the faster form
        rows = (np.arange(columns.size),) if one else np.indices(columns.shape, sparse=True)
        out[(*rows, columns)] += out.dtype.type(step)


class SparseAtom(Atom):
    """A point with a few non-zero entries: the base of group and K-sparse atoms."""

    __slots__ = ()

    @abstractmethod
    def entries(self) -> tuple[Array, Array]:
        """Return the flat indices and the values of the entries that may differ from 0."""

    def dense(self) -> Array:
        """Return s."""
        out = np.zeros(self.shape, dtype=self.dtype)
        self.add_to(out)
        return out

    def mix(self, x: Array, step: float) -> Array:
        """Return (1 - step) x + step s, touching s at its entries only."""
        out: Array = (1.0 - step) * x
        index, values = self.entries()
        out.flat[index] += out.dtype.type(step) * values
        return out

    def add_to(self, out: Array) -> None:
        """Add s to `out`, touching its entries only."""
        index, values = self.entries()
        out.flat[index] += values


class SparseSignAtom(SparseAtom):
    """A point with k non-zero entries of one magnitude; the last may have another.

    Parameters
    ----------
    codes : array of int, shape (k,)
        sign * (index + 1), indices into the flattened model.
    magnitude, last : float
        Absolute value of the entries, and of the last one.
    shape : tuple of int
    dtype : dtype
    """

    __slots__ = ("codes", "dtype", "last", "magnitude", "shape")

    def __init__(
        self,
        codes: Array,
        magnitude: float,
        last: float,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
    ) -> None:
        self.codes = codes
        self.magnitude = magnitude
        self.last = last
        self.shape = shape
        self.dtype = dtype

    @staticmethod
    def code(size: int) -> np.dtype[np.generic]:
        """Return the type that crosses the wire for models of `size` entries."""
        return np.dtype(np.int32 if size < 2**31 else np.int64)

    def entries(self) -> tuple[Array, Array]:
        """Return the indices and the signed magnitudes."""
        values = np.full(self.codes.size, self.magnitude, dtype=self.dtype)
        values[-1:] = self.last
        return np.abs(self.codes) - 1, np.where(self.codes > 0, values, -values)

    def arrays(self) -> dict[str, Array]:
        """Return the signed indices."""
        return {"codes": self.codes.astype(self.code(math.prod(self.shape)))}


class GroupAtom(SparseAtom):
    """The point -radius u on one group of entries, 0 elsewhere.

    Parameters
    ----------
    group : int
        The group's number.
    unit : array of float
        u, a unit vector, one entry for each index of the group.
    index : array of int
        The group's flat indices.
    radius : float
    shape : tuple of int
    """

    __slots__ = ("dtype", "group", "index", "radius", "shape", "unit")

    def __init__(
        self, group: int, unit: Array, index: Array, radius: float, shape: tuple[int, ...]
    ) -> None:
        self.group = group
        self.unit = unit
        self.index = index
        self.radius = radius
        self.shape = shape
        self.dtype = unit.dtype

    def entries(self) -> tuple[Array, Array]:
        """Return the group's entries."""
        return self.index, self.unit * self.dtype.type(-self.radius)

    def arrays(self) -> dict[str, Array]:
        """Return the group's number and the unit vector."""
        return {"group": np.array(self.group, dtype=np.int32), "unit": self.unit}
