"""Compressed arrays, in their form on the wire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.layout import array_bytes
from flower_fedcon.validation import Array

Shape: TypeAlias = tuple[int, ...]
DType: TypeAlias = np.dtype[Any]


class Compressed(ABC):
    """C(x), in its compact form on the wire.

    Attributes
    ----------
    shape : tuple of int
        Shape of x.
    dtype : dtype
        Type of x.
    """

    __slots__ = ("dtype", "shape")
    shape: Shape
    dtype: DType

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are sent, by short name."""

    @abstractmethod
    def dense(self) -> Array:
        """Return C(x) as an array."""

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return sum(array_bytes(a.shape, a.dtype) for a in self.arrays().values())

    def add_to(self, out: Array) -> None:
        """Add C(x) to `out` in place."""
        out += self.dense()


def dense(value: Compressed | Array) -> Array:
    """Return a compressor's result as an array."""
    return value if isinstance(value, np.ndarray) else value.dense()


class Sparse(Compressed):
    """Some entries of an array; the others are 0.

    Parameters
    ----------
    indices : array of int, shape (k,)
        Strictly increasing, into the flattened array.
    values : array, shape (k,)
    shape : tuple of int
        Shape of the dense array.
    """

    __slots__ = ("indices", "values")

    def __init__(self, indices: Array, values: Array, shape: Shape) -> None:
        self.indices, self.values = indices, values
        self.shape, self.dtype = shape, values.dtype

    def arrays(self) -> dict[str, Array]:
        """Return indices and values."""
        return {"indices": self.indices, "values": self.values}

    def dense(self) -> Array:
        """Return the dense array."""
        out = np.zeros(self.shape, dtype=self.dtype)
        self.add_to(out)
        return out

    def add_to(self, out: Array) -> None:
        """Add the entries to `out` in place, touching no others."""
        out.flat[self.indices] += self.values


class Quantized(Compressed):
    """norm * level / levels, entry by entry.

    Parameters
    ----------
    scale : array of float64, shape ()
        The norm of x.
    signed : array of int8 or int16
        The level of each entry, with its sign; the shape of x.
    levels : int
        s, the level of the norm itself.
    dtype : dtype
        Type of x.
    """

    __slots__ = ("levels", "scale", "signed")

    def __init__(self, scale: Array, signed: Array, levels: int, dtype: DType) -> None:
        self.scale, self.signed, self.levels = scale, signed, levels
        self.shape, self.dtype = signed.shape, dtype

    def arrays(self) -> dict[str, Array]:
        """Return the norm and the signed levels."""
        return {"norm": self.scale, "levels": self.signed}

    def dense(self) -> Array:
        """Return the dense array."""
        dense: Array = (float(self.scale) / self.levels * self.signed).astype(self.dtype)
        return dense
