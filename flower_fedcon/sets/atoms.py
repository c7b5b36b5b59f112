"""Atoms: the vertices that linear minimisation oracles return, in their compact form.

An atom may stand for a stack of atoms, one for each client, along leading axes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flower_fedcon.arrays import added, is_array, known
from flower_fedcon.layout import array_bytes
from flower_fedcon.validation import Array


class Atom(ABC):
    """A point s of a constraint set, in the most compact form that the set allows.

    Attributes
    ----------
    shape : tuple of int
        Shape of the dense form, leading client axes included.
    dtype : dtype
        Type of the dense form.
    """

    __slots__ = ()  # instances have the slots of their subclass only

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @abstractmethod
    def dense(self) -> Array:
        """Return s as an array of `shape`."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return the arrays that cross the wire, by short name."""

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return sum(array_bytes(a.shape, a.dtype) for a in self.arrays().values())

    def mix(self, x: Array, step: float) -> Array:
        """Return the Frank-Wolfe step (1 - step) x + step s."""
        return (1.0 - step) * x + step * self.dense()

    def add_to(self, out: Array) -> None:
        """Add s to `out` in place."""
        out += self.dense()

    @classmethod
    def bytes_of(cls, atoms: Sequence[Any]) -> int:
        """Return the bytes of several atoms of this class on the wire, each on its own."""
        return sum([atom.nbytes for atom in atoms])

    @classmethod
    def sum(cls, atoms: Sequence[Any]) -> Array:
        """Return the sum of several atoms of this class, added in order, as a new array."""
        total = np.zeros(atoms[0].shape, dtype=atoms[0].dtype)
        for atom in atoms:
            atom.add_to(total)
        return total

    # For a stack along one leading axis:

    def part(self, index: int) -> Atom:
        """Return the atom of one client."""
        return DenseAtom(self.dense()[index])

    def total(self) -> Array:
        """Return the sum over the clients."""
        return self.dense().sum(axis=0)  # type: ignore[no-any-return]

    @property
    def stack_bytes(self) -> int:
        """Bytes on the wire, each atom in its own message."""
        return self.shape[0] * self.part(0).nbytes


class DenseAtom(Atom):
    """A point stored as all of its entries."""

    __slots__ = ("dtype", "shape", "value")

    def __init__(self, value: Array) -> None:
        self.value = value
        self.shape = value.shape
        self.dtype = value.dtype

    def dense(self) -> Array:
        """Return s."""
        return self.value

    def arrays(self) -> dict[str, Array]:
        """Return the entries."""
        return {"value": self.value}


_DOUBLE = np.dtype(np.float64)
_CODE = np.dtype(np.int64)
_CODE_BYTES = array_bytes((), _CODE)
_FEW = 32  # atoms up to which a loop takes less time than NumPy's calls


class CoordinateAtom(Atom):
    """A point with one non-zero entry: sign * magnitude at one index.

    Parameters
    ----------
    code : int or array of int
        sign * (index + 1), the index into the flattened model; one for each leading axis.
    magnitude : float
        Absolute value of the entry.
    shape : tuple of int
        Dense shape, leading axes included.
    dtype : dtype
        Type of the dense form.
    """

    __slots__ = ("code", "dtype", "magnitude", "shape")

    def __init__(
        self,
        code: int | Array,
        magnitude: float,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
    ) -> None:
        self.code = code
        self.magnitude = magnitude
        self.shape = shape
        self.dtype = dtype

    def dense(self) -> Array:
        """Return s."""
        out = np.zeros(self.shape, dtype=self.dtype)
        self._added(out, 1.0)
        return out

    def arrays(self) -> dict[str, Array]:
        """Return the one signed index."""
        return {"code": np.array(self.code, dtype=_CODE)}

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        code: Any = self.code
        if is_array(code):
            return array_bytes(code.shape, _CODE)
        return _CODE_BYTES

    @property
    def stack_bytes(self) -> int:
        """Bytes on the wire, each atom in its own message."""
        return self.shape[0] * _CODE_BYTES

    @classmethod
    def bytes_of(cls, atoms: Sequence[Any]) -> int:
        """Return the bytes of several atoms of one model each."""
        return len(atoms) * _CODE_BYTES

    @classmethod
    def sum(cls, atoms: Sequence[Any]) -> Array:
        """Return the sum of several atoms, added in order, as a new array."""
        first = atoms[0]
        if first.dtype != _DOUBLE:
            return super().sum(atoms)
        if len(atoms) < _FEW:
            total = np.zeros(first.shape)
            entries = total.reshape(-1).data  # reads single entries in half of an array's time
            for atom in atoms:
                if (code := atom.code) > 0:
                    entries[code - 1] += atom.magnitude
                else:
                    entries[-code - 1] -= atom.magnitude
            return total
        codes = np.array([atom.code for atom in atoms])
        amounts = np.copysign([atom.magnitude for atom in atoms], codes)
        size = math.prod(first.shape)
        return np.bincount(np.abs(codes) - 1, amounts, size).reshape(first.shape)

    def part(self, index: int) -> Atom:
        """Return the atom of one client."""
        codes: Any = self.code  # of a stack
        return CoordinateAtom(int(codes[index]), self.magnitude, self.shape[1:], self.dtype)

    def total(self) -> Array:
        """Return the sum over the clients, from one signed count for each entry."""
        codes: Any = self.code
        size = math.prod(self.shape[1:])
        counts = np.bincount(np.abs(codes) - 1, weights=np.sign(codes), minlength=size)
        return (self.magnitude * counts).astype(self.dtype, copy=False).reshape(self.shape[1:])

    def mix(self, x: Array, step: float) -> Array:
        """Return (1 - step) x + step s, reading one entry of s only."""
        code = self.code
        if type(code) is int and x.ndim == 1 and x.dtype == _DOUBLE:  # the same as below, faster
            mixed: Array = (1.0 - step) * x
            amount = step * self.magnitude
            mixed[abs(code) - 1] += amount if code > 0 else -amount
            return mixed
        rest: Array = (1.0 - step) * x
        return self._added(rest, step)

    def add_to(self, out: Array) -> None:
        """Add s to `out`, touching one entry only."""
        self._added(out, 1.0)

    def _added(self, out: Array, step: float) -> Array:
        """Return `out` with step s added, in place where its entries are known."""
        code: Any = self.code
        # In the dtype of `out`, as the dense form would be; `flat` works for every memory layout.
        number = out.dtype.type
        amount: Any = step if not known(step) else number(step)
        amount = amount * number(self.magnitude)
        if is_array(code):
            codes = code.reshape(-1)
            index = np.arange(codes.size) * (out.size // codes.size) + np.abs(codes) - 1
            numbers = np.where(codes > 0, amount, -amount)
            entries: Any = out.reshape(-1) if out.flags.c_contiguous else out.flat
            entries = added(entries, index, numbers)
            return out if known(out) else entries.reshape(out.shape)
        if code > 0:
            out.flat[code - 1] += amount
        else:
            out.flat[-code - 1] -= amount
        return out


class CornerAtom(Atom):
    """A corner of a box: each entry is its lower or its upper bound.

    Parameters
    ----------
    upper_side : array of bool
        Whether the entry is at its upper bound; the dense shape, leading axes included.
    lower, upper : float or array
        The bounds, broadcast over the leading axes.
    dtype : dtype
        Type of the dense form.
    """

    __slots__ = ("dtype", "lower", "shape", "upper", "upper_side")

    def __init__(
        self,
        upper_side: Array,
        lower: float | Array,
        upper: float | Array,
        dtype: np.dtype[np.generic],
    ) -> None:
        self.upper_side = upper_side
        self.lower = lower
        self.upper = upper
        self.shape = upper_side.shape
        self.dtype = dtype

    def dense(self) -> Array:
        """Return s."""
        return np.where(self.upper_side, self.upper, self.lower).astype(self.dtype, copy=False)

    def arrays(self) -> dict[str, Array]:
        """Return one bit for each entry."""
        return {"bits": np.packbits(self.upper_side.ravel())}

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return array_bytes(((self.upper_side.size + 7) // 8,), np.dtype(np.uint8))

    def part(self, index: int) -> Atom:
        """Return the atom of one client."""
        return CornerAtom(self.upper_side[index], self.lower, self.upper, self.dtype)


def number_arrays(atoms: Sequence[Atom]) -> dict[str, Array]:
    """Return the arrays of several atoms, numbered: "2.u" is the array u of the third."""
    numbered: dict[str, Array] = {}
    for i, atom in enumerate(atoms):
        numbered |= {f"{i}.{name}": array for name, array in atom.arrays().items()}
    return numbered


class StackedAtom(Atom):
    """Atoms of any form, one for each client.

    Parameters
    ----------
    atoms : sequence of Atom
        In C order of the leading axes.
    lead : tuple of int
        The leading client axes.
    """

    __slots__ = ("atoms", "dtype", "lead", "shape")

    def __init__(self, atoms: Sequence[Atom], lead: tuple[int, ...]) -> None:
        self.atoms = list(atoms)
        self.lead = lead
        self.shape = (*lead, *self.atoms[0].shape)
        self.dtype = self.atoms[0].dtype

    def dense(self) -> Array:
        """Return all of them in one array."""
        return np.stack([atom.dense() for atom in self.atoms]).reshape(self.shape)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of each, numbered."""
        return number_arrays(self.atoms)

    @property
    def stack_bytes(self) -> int:
        """Bytes on the wire, each atom in its own message."""
        return self.atoms[0].bytes_of(self.atoms)

    def part(self, index: int) -> Atom:
        """Return the atom of one client."""
        return self.atoms[index]

    def mix(self, x: Array, step: float) -> Array:
        """Return (1 - step) x + step s, model by model."""
        models = x.reshape((-1, *self.shape[len(self.lead) :]))
        mixed = [atom.mix(model, step) for atom, model in zip(self.atoms, models, strict=True)]
        return np.stack(mixed).reshape(x.shape)

    def total(self) -> Array:
        """Return the sum over the clients."""
        return type(self.atoms[0]).sum(self.atoms)

    def add_to(self, out: Array) -> None:
        """Add s to `out`, model by model."""
        for i, atom in enumerate(self.atoms):
            atom.add_to(out[np.unravel_index(i, self.lead)])


def each_atom(g: Array, batch: int, function: Callable[[Array], Atom]) -> Atom:
    """Return the atom that `function` finds for every model in a stack."""
    if batch == 0:
        return function(g)
    atoms = [function(model) for model in g.reshape((-1, *g.shape[batch:]))]
    return StackedAtom(atoms, g.shape[:batch])
