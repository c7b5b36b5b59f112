"""Rows that a loop comes to next, asked for while it computes.

A core foresees what is read next within a page of memory, 4 KiB. Where a client's rows are a few
pages it waits at the start of each, as long as for the rest, unless it is told.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from flower_fedcon.kernels.jit import jit
from flower_fedcon.validation import Array

_LINE = 64  # bytes
_FAR = 2**23  # bytes of all tables up to which they stay in the caches, and asking costs 10 %
_PAGES = 2**15  # bytes of a table up to which its pages are few


def _prefetch(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        form = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", (place.type,), form)
        # For reading, of data, into the second cache: the first still holds what is in use.
        builder.call(function, [place, number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


_asked: Any = intrinsic(_prefetch)


@jit
def rows_ahead(tables: Array, places: Array, at: Any) -> Array:
    """Return the rows of the client that comes next; none where there is no need to ask for them.

    Parameters
    ----------
    tables : array, shape (N, m, d)
    places : array of int, shape (n,)
        The clients whose turn it is, one after another.
    at : int
        The place, among these, of the one that has its turn.
    """
    m, d = tables.shape[1], tables.shape[2]
    follows = at + 1 < len(places)
    far = tables.size * tables.itemsize > _FAR and m * d * tables.itemsize <= _PAGES
    found: Array = tables[places[at + 1 if follows else at]][: m if follows and far else 0]
    return found


@jit
def ask(rows: Array, first: Any, last: Any) -> None:
    """Have rows come to the caches, from the first to before the last one that there is."""
    each = rows.shape[1] * rows.itemsize
    start = rows.ctypes.data
    for place in range(first * each, min(last, len(rows)) * each, _LINE):
        _asked(start + place)
