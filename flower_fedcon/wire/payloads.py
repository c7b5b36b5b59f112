"""What crosses the wire: arrays in NumPy's own format, counted byte by byte, never pickled.

A payload is a mapping from the names that an algorithm declares to values. A value is a float,
a NumPy array, or a compact form (a linear minimisation oracle's atom) that knows its arrays.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import array_bytes
from flower_fedcon.validation import Array

SCALAR_BYTES = 8
_DTYPES = frozenset(["<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u4", "<u2", "|u1", "|b1"])


@runtime_checkable
class Compact(Protocol):
    """A value with a form on the wire that is smaller than a dense array."""

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are sent, by short name."""


Value: TypeAlias = "Array | float | Compact"
Payload: TypeAlias = dict[str, Any]


def payload_bytes(payload: Mapping[str, Any]) -> int:
    """Return the bytes of a payload on the wire; a scalar counts 8."""
    total = 0
    for value in payload.values():
        if isinstance(value, np.ndarray):
            total += array_bytes(value.shape, value.dtype)
        elif isinstance(value, (float, int)):
            total += SCALAR_BYTES
        else:
            total += value.nbytes
    return total


def flatten(payload: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, float]]:
    """Split a payload into named arrays (compact forms expanded) and scalars."""
    arrays: dict[str, Array] = {}
    scalars: dict[str, float] = {}
    for name, value in payload.items():
        if isinstance(value, np.ndarray):
            arrays[name] = np.ascontiguousarray(value).reshape(value.shape)
        elif isinstance(value, float | int):
            scalars[name] = float(value)
        else:
            for part, array in value.arrays().items():
                arrays[f"{name}.{part}"] = array
    return arrays, scalars


def save_array(array: Array) -> bytes:
    """Return an array in NumPy's format, in C order: the bytes of `numpy.save`, with a single copy.

    >>> load_array(save_array(np.array([[1.0, 2.0]])))
    array([[1., 2.]])
    """
    whole = np.ascontiguousarray(array).reshape(array.shape)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(whole))
    return b"".join([header.getvalue(), whole.reshape(-1).view(np.uint8).data])


def load_array(data: bytes, *, own: bool = True) -> Array:
    """Return the array in `data`, which is in NumPy's format.

    The header's shape is checked against the number of bytes before anything is allocated, and only
    plain numbers are read: a sender cannot choose an allocation size or a type. Without `own` the
    array is a read-only view of `data`, if its order allows it.

    Raises
    ------
    ConfigError
        If the bytes are not exactly one array of numbers.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"format version {version}")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if dtype.str not in _DTYPES:
            raise ValueError(f"dtype {dtype.str} is not accepted")
        start = stream.tell()
        whole = all(type(n) is int and 0 <= n <= len(data) for n in shape)
        if not whole or math.prod(shape) * dtype.itemsize != len(data) - start:
            raise ValueError(f"shape {shape} does not fit its {len(data) - start} bytes")
        flat = np.frombuffer(data, dtype=dtype, offset=start)
        array = flat.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # NumPy parses the header as Python: anything may go wrong
        raise ConfigError(f"not an array in NumPy's format: {error!r}"[:300]) from None
    if not own and not fortran and flat.flags.aligned:
        return array
    # A copy: aligned and writable as the sender's array was, and always in C order.
    return array.copy(order="C")
