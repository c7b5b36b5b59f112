"""What XLA hands a custom call on a CPU: a pointer to a frame of its C interface.

The interface (`xla/ffi/api/c_api.h`, which JAX ships) consists of structures of words of eight
bytes, read here by their places; these stay as they are in later versions, which only append.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from flower_fedcon.kernels.jit import jit

# Places in a frame: its extension, the functions that XLA offers, what these want to see, the list
# of arguments, and that of results; in the extension that asks for the interface's version: its
# kind, and where the answer goes; in a buffer, as the lists have them: the pointer to its entries,
# and that to the lengths of its axes; among the functions, the one that has a task run.
_EXTENSION, _FUNCTIONS, _CONTEXT, _ARGUMENTS, _RESULTS = 1, 2, 3, 9, 14
_SCHEDULE = 17
_KIND, _METADATA = 1, 3
_DATA, _AXES = 3, 5
_MAJOR, _MINOR = 6, 7  # among the answer's words of four bytes


def _pointer_to(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


def _call(typing: Any, function: Any, argument: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word]).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], kind), [arguments[1]])

    return types.int64(types.int64, types.int64), generate


def _as_read_only(typing: Any, array: Any) -> Any:
    """Return an array as one of the type that the loops have been compiled for."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0]

    return array.copy(readonly=True)(array), generate


_array: Any = vars(numba)["carray"]
_pointer: Any = intrinsic(_pointer_to)
_called: Any = intrinsic(_call)
read_only: Any = intrinsic(_as_read_only)


@jit
def words(address: Any, count: int) -> Any:
    """Return so many words of memory as an array."""
    return _array(_pointer(address), (count,), np.int64)


@jit
def asks_for_version(frame: Any) -> bool:
    """Return whether this is no call yet, and answer: version 0.1."""
    extension = words(frame, _EXTENSION + 1)[_EXTENSION]
    if extension == 0:
        return False
    asked = words(extension, _METADATA + 1)
    if asked[_KIND] & 0xFFFFFFFF != 1:
        return False
    answer = _array(_pointer(asked[_METADATA]), (_MINOR + 1,), np.int32)
    answer[_MAJOR], answer[_MINOR] = 0, 1
    return True


@jit
def lists(frame: Any) -> Any:
    """Return the lists of a call's arguments and results."""
    call = words(frame, _RESULTS + 1)
    return call[_ARGUMENTS], call[_RESULTS]


@jit
def schedules(frame: Any, memory: Any, task: Any, argument: Any) -> bool:
    """Have one of XLA's threads call a task, by its address; return whether that will be.

    `memory` is the address of five words.
    """
    call, handed = words(frame, _CONTEXT + 1), words(memory, 5)
    handed[0], handed[1], handed[2], handed[3], handed[4] = 40, 0, call[_CONTEXT], task, argument
    function = words(call[_FUNCTIONS], _SCHEDULE + 1)[_SCHEDULE]
    return bool(_called(function, memory) == 0)


@jit
def length(buffers: Any) -> Any:
    """Return the length of the first axis of a list's first buffer."""
    return words(_buffer(buffers, 0)[_AXES], 1)[0]


@jit
def _buffer(buffers: Any, place: int) -> Any:
    return words(words(buffers, place + 1)[place], _AXES + 1)


@jit
def vector(buffers: Any, place: int, number: Any) -> Any:
    """Return a buffer of a list, of numbers of this type, as an array with one axis."""
    buffer = _buffer(buffers, place)
    shape = words(buffer[_AXES], 1)
    return _array(_pointer(buffer[_DATA]), (shape[0],), number)


@jit
def matrix(buffers: Any, place: int, number: Any) -> Any:
    """Return one with two axes."""
    buffer = _buffer(buffers, place)
    shape = words(buffer[_AXES], 2)
    return _array(_pointer(buffer[_DATA]), (shape[0], shape[1]), number)


@jit
def cube(buffers: Any, place: int, number: Any) -> Any:
    """Return one with three axes."""
    buffer = _buffer(buffers, place)
    shape = words(buffer[_AXES], 3)
    return _array(_pointer(buffer[_DATA]), (shape[0], shape[1], shape[2]), number)
