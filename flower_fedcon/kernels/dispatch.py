"""Whether compiled kernels are there, and worth their start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

from flower_fedcon.validation import Array

# Entries from which on loading them (a third of a second) and entering them (5 us) pays.
WORTHWHILE: int = 2**15


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
    """Do without the kernels for a while."""
    global WORTHWHILE
    before, WORTHWHILE = WORTHWHILE, sys.maxsize
    try:
        yield
    finally:
        WORTHWHILE = before


def kernels(x: Array) -> ModuleType | None:
    """Return the compiled kernels for an array like this; None where NumPy has to do.

    None without numba, with NUMBA_DISABLE_JIT=1, for small arrays, and for those of other types
    than the machine's own float32 and float64.
    """
    if x.size < WORTHWHILE or x.dtype.char not in "fd" or not x.dtype.isnative:
        return None
    return _load()


def describe() -> str:
    """Return what there is, in a line."""
    if _load() is None:
        return "none: NumPy alone"
    import numba

    return f"numba {numba.__version__}, {numba.get_num_threads()} threads"
