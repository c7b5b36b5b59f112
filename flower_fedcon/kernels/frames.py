"""What XLA hands a custom call on a CPU: a pointer to a frame of its C interface.

The interface (`xla/ffi/api/c_api.h`, which JAX ships) consists of structures of words of eight
bytes, read here by their places; these stay as they are in later versions, which only append.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from flower_fedcon.kernels.jit import jit

# Places in a frame: its extension, the list of arguments, and that of results; in the extension
# that asks for the interface's version: its kind, and where the answer goes; in a buffer, as the
# lists have them: the pointer to its entries, and that to the lengths of its axes.
_EXTENSION, _ARGUMENTS, _RESULTS = 1, 9, 14
_KIND, _METADATA = 1, 3
_DATA, _AXES = 3, 5
_MAJOR, _MINOR = 6, 7  # among the answer's words of four bytes


def _pointer_to(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


def _as_read_only(typing: Any, array: Any) -> Any:
    """Return an array as one of the type that the loops have been compiled for."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0]

    return array.copy(readonly=True)(array), generate


_array: Any = vars(numba)["carray"]
_pointer: Any = intrinsic(_pointer_to)
read_only: Any = intrinsic(_as_read_only)


@jit
def _words(address: Any, count: int) -> Any:
    return _array(_pointer(address), (count,), np.int64)


@jit
def asks_for_version(frame: Any) -> bool:
    """Return whether this is no call yet, and answer: version 0.1."""
    extension = _words(frame, _EXTENSION + 1)[_EXTENSION]
    if extension == 0:
        return False
    words = _words(extension, _METADATA + 1)
    if words[_KIND] & 0xFFFFFFFF != 1:
        return False
    answer = _array(_pointer(words[_METADATA]), (_MINOR + 1,), np.int32)
    answer[_MAJOR], answer[_MINOR] = 0, 1
    return True


@jit
def lists(frame: Any) -> Any:
    """Return the lists of a call's arguments and results."""
    words = _words(frame, _RESULTS + 1)
    return words[_ARGUMENTS], words[_RESULTS]


@jit
def _buffer(buffers: Any, place: int) -> Any:
    return _words(_words(buffers, place + 1)[place], _AXES + 1)


@jit
def vector(buffers: Any, place: int, number: Any) -> Any:
    """Return a buffer of a list, of numbers of this type, as an array with one axis."""
    buffer = _buffer(buffers, place)
    shape = _words(buffer[_AXES], 1)
    return _array(_pointer(buffer[_DATA]), (shape[0],), number)


@jit
def matrix(buffers: Any, place: int, number: Any) -> Any:
    """Return one with two axes."""
    buffer = _buffer(buffers, place)
    shape = _words(buffer[_AXES], 2)
    return _array(_pointer(buffer[_DATA]), (shape[0], shape[1]), number)


@jit
def cube(buffers: Any, place: int, number: Any) -> Any:
    """Return one with three axes."""
    buffer = _buffer(buffers, place)
    shape = _words(buffer[_AXES], 3)
    return _array(_pointer(buffer[_DATA]), (shape[0], shape[1], shape[2]), number)
