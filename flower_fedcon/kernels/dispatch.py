"""Whether the compiled kernels are used: they need numba, and arrays large enough to pay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from flower_fedcon.arrays import known
from flower_fedcon.kernels import threads
from flower_fedcon.validation import Array

# The number of entries from which loading (a third of a second) and calling them (5 us) pays.
WORTHWHILE: int = 2**15
_SPARED = 2**28  # entries, from which on loading costs less than it has cost to do without
_CALL = 2048  # entries that take NumPy as long as what a call costs it whatever their number
FEW = 512  # entries up to which a copy, changed in place, is found sooner than a result elsewhere
FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
_interpreted = 0  # numbers that recursions have gone over so far
_entries = 0  # that prox and projections have gone over by NumPy so far
_loaded: ModuleType | None = None  # the compiled kernels, once they are in use
oracles_in_use: ModuleType | None = None  # the compiled prox and projections, once they are


@cache
def _load() -> ModuleType | None:
    try:
        import numba

        from flower_fedcon.kernels import compiled as kernels
    except ImportError:
        return None
    interpreted = vars(numba.config)["DISABLE_JIT"]  # these loops would take forever
    global _loaded
    _loaded = None if interpreted else kernels
    return _loaded


@contextmanager
def numpy_only() -> Iterator[None]:
    """Use NumPy instead of the kernels inside a `with` block."""
    global WORTHWHILE, oracles_in_use
    before = WORTHWHILE, oracles_in_use
    WORTHWHILE, oracles_in_use = sys.maxsize, None
    try:
        yield
    finally:
        WORTHWHILE, oracles_in_use = before


def kernels(x: Array, times: int = 1) -> ModuleType | None:
    """Return the compiled kernels for arrays such as `x`, or None if NumPy is to be used.

    None without numba, with NUMBA_DISABLE_JIT=1, for arrays of fewer than `WORTHWHILE` entries, of
    which one call goes over each so many `times`, and for dtypes other than float32 and float64 in
    the machine's byte order.
    """
    large = x.size * times >= WORTHWHILE
    return _load() if large and _double_or_single(x) else None


def kernels_at_hand(x: Array) -> Any:
    """Return the compiled kernels for arrays such as `x`, of any size once they are loaded."""
    if not known(x):
        return None
    if _loaded is None or sys.maxsize == WORTHWHILE:
        return kernels(x)
    return _loaded if x.dtype in FLOATS else None


def _double_or_single(x: Array) -> bool:
    return known(x) and x.dtype in FLOATS


def oracles(x: Array) -> ModuleType | None:
    """Return the compiled prox and projections for `x`, or None if NumPy is to be used.

    Either way finds the same bits. They are loaded for an array of `WORTHWHILE` entries, or when so
    many smaller ones have come that the time would have been won back; once loaded, they are used
    for arrays of any size. As for `kernels`, some arrays are NumPy's; so are those not contiguous.
    """
    if type(x) is not np.ndarray or x.dtype not in FLOATS:
        return None
    return (oracles_in_use or _met(x.size + _CALL)) if x.flags.c_contiguous and x.size else None


def few(x: Array) -> Any:
    """Return the compiled prox in use, if `x` has few entries; else None."""
    loops = oracles_in_use
    return loops if type(x) is np.ndarray and x.size <= FEW and x.dtype in FLOATS else None


def flat(x: Array) -> Array:
    """Return a contiguous array as a vector."""
    return x if x.ndim == 1 else x.reshape(-1)


def _met(entries: int) -> ModuleType | None:
    """Note entries that NumPy is about to go over, and load the compiled loops if that pays."""
    global _entries, oracles_in_use
    _entries += entries
    if entries - _CALL >= WORTHWHILE or (_entries >= _SPARED and sys.maxsize > WORTHWHILE):
        oracles_in_use = _load_oracles()
    return oracles_in_use


@cache
def _load_oracles() -> ModuleType | None:
    if _load() is None:
        return None
    from flower_fedcon.kernels import oracles as loops

    return loops


def scalar_loops(x: Array) -> ModuleType | None:
    """Return the compiled prox for a recursion over the numbers in `x`, or None to interpret it.

    Interpreted, a number costs as much as a hundred compiled; but a process that meets few of them
    does not wait for numba. Either way finds the same bits.
    """
    global _interpreted
    if oracles_in_use is None:
        _interpreted += min(x.size, WORTHWHILE)
        if _interpreted > WORTHWHILE:
            _met(WORTHWHILE + _CALL)
    return oracles(x)


def describe() -> str:
    """Return in one line which kernels there are, and on how many threads."""
    if _load() is None:
        return "none: NumPy alone"
    import numba

    number = min(
        threads.chosen() or numba.get_num_threads(), vars(numba.config)["NUMBA_NUM_THREADS"]
    )
    return f"numba {numba.__version__}, up to {number} threads"
