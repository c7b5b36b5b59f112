"""Atoms: the vertices that linear minimization oracles return, in their compact form.

An atom may stand for a stack of atoms, one for each client, along leading axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from flower_fedcon.checks import Array
from flower_fedcon.wire import array_bytes


class Atom(ABC):
    """A point s of a constraint set, as small as the set allows.

    Attributes
    ----------
    shape : tuple of int
        Shape of the dense form, leading client axes included.
    """

    shape: tuple[int, ...]

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


class DenseAtom(Atom):
    """A point with no form smaller than its entries."""

    __slots__ = ("shape", "value")

    def __init__(self, value: Array) -> None:
        self.value = value
        self.shape = value.shape

    def dense(self) -> Array:
        """Return s."""
        return self.value

    def arrays(self) -> dict[str, Array]:
        """Return the entries."""
        return {"value": self.value}


_CODE = np.dtype(np.int64)
_CODE_BYTES = array_bytes((), _CODE)


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
        self._add(out, 1.0)
        return out

    def arrays(self) -> dict[str, Array]:
        """Return the one signed index."""
        return {"code": np.array(self.code, dtype=_CODE)}

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        if isinstance(self.code, np.ndarray):
            return array_bytes(self.code.shape, _CODE)
        return _CODE_BYTES

    def mix(self, x: Array, step: float) -> Array:
        """Return (1 - step) x + step s, touching s at one entry only."""
        out: Array = (1.0 - step) * x
        self._add(out, step)
        return out

    def add_to(self, out: Array) -> None:
        """Add s to `out`, touching one entry only."""
        self._add(out, 1.0)

    def _add(self, out: Array, step: float) -> None:
        # In the type of `out`, as the dense form would be; `flat` serves every memory layout.
        number = out.dtype.type
        amount = number(step) * number(self.magnitude)
        code = self.code
        if isinstance(code, np.ndarray):
            codes = code.reshape(-1)
            index = np.arange(codes.size) * (out.size // codes.size) + np.abs(codes) - 1
            out.flat[index] += np.where(codes > 0, amount, -amount)
        elif code > 0:
            out.flat[code - 1] += amount
        else:
            out.flat[-code - 1] -= amount


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
        """Return one bit an entry."""
        return {"bits": np.packbits(self.upper_side.ravel())}

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return array_bytes(((self.upper_side.size + 7) // 8,), np.dtype(np.uint8))
