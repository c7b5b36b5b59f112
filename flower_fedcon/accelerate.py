"""Whether compiled kernels are there, and worth their start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

# Entries from which on loading them (a third of a second) and entering them (5 us) pays.
WORTHWHILE: int = 2**15


@cache
def _load() -> ModuleType | None:
    try:
        import numba

        from flower_fedcon import kernels
    except ImportError:
        return None
    interpreted = vars(numba.config)["DISABLE_JIT"]  # these loops would take for ever
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


def kernels(entries: int) -> ModuleType | None:
    """Return the compiled kernels for arrays of this size; None where NumPy has to do.

    None without numba, with NUMBA_DISABLE_JIT=1, and for small arrays.
    """
    return _load() if entries >= WORTHWHILE else None


def describe() -> str:
    """Return what there is, in a line."""
    if _load() is None:
        return "none: NumPy alone"
    import numba

    return f"numba {numba.__version__}, {numba.get_num_threads()} threads"
