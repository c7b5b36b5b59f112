"""Whether the compiled kernels are used: they need numba, and arrays large enough to pay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

from flower_fedcon.arrays import known
from flower_fedcon.validation import Array

# The number of entries from which loading (a third of a second) and calling them (5 us) pays.
WORTHWHILE: int = 2**15
_interpreted = 0  # numbers that recursions have gone over so far


@cache
def _load() -> ModuleType | None:
    try:
        import numba

        from flower_fedcon.kernels import compiled as kernels
    except ImportError:
        return None
    interpreted = vars(numba.config)["DISABLE_JIT"]  # these loops would take forever
    return None if interpreted else kernels


@contextmanager
def numpy_only() -> Iterator[None]:
    """Use NumPy instead of the kernels inside a `with` block."""
    global WORTHWHILE
    before, WORTHWHILE = WORTHWHILE, sys.maxsize
    try:
        yield
    finally:
        WORTHWHILE = before


def kernels(x: Array) -> ModuleType | None:
    """Return the compiled kernels for arrays such as `x`, or None if NumPy is to be used.

    None without numba, with NUMBA_DISABLE_JIT=1, for arrays of fewer than `WORTHWHILE` entries,
    and for dtypes other than float32 and float64 in the machine's byte order.
    """
    if x.size < WORTHWHILE or x.dtype.char not in "fd" or not x.dtype.isnative or not known(x):
        return None
    return _load()


def scalar_loops(work: int) -> ModuleType | None:
    """Return the compiled kernels for a recursion over `work` numbers, or None to interpret it.

    Interpreted, a number costs as much as a hundred compiled; but a process that meets few of them
    does not wait for numba. Either way finds the same bits.
    """
    global _interpreted
    if _interpreted > WORTHWHILE:
        return _load()
    _interpreted += work
    return _load() if _interpreted > WORTHWHILE else None


def describe() -> str:
    """Return in one line which kernels there are, and on how many threads."""
    if _load() is None:
        return "none: NumPy alone"
    import numba

    return f"numba {numba.__version__}, up to {numba.get_num_threads()} threads"
