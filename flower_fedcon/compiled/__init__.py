"""The only entrance to compiled loops, for code that numba (the extra "fast") makes much faster.

These are a cohort's local pass for losses of rows, its gradients and Frank-Wolfe steps (`calls`),
and recursions over numbers, which arrays cannot express (`recursions`). Without numba, NumPy and
Python give the same results, up to rounding in sums and bit for bit in recursions, only slower.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from flower_fedcon.arrays import known
from flower_fedcon.compiled import threads
from flower_fedcon.validation import Array

# From this number of entries on, loading (a third of a second) and calling the loops (5 us) pays.
WORTHWHILE: int = 2**15
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
_interpreted = 0  # numbers that recursions have processed so far


def loops(x: Array, times: int = 1) -> ModuleType | None:
    """Return the compiled loops over arrays such as `x`; None if NumPy should be used.

    NumPy should be used without numba, with NUMBA_DISABLE_JIT=1, if `times` passes over x make
    fewer than `WORTHWHILE` entries, and for types other than float32 and float64 in the machine's
    byte order.
    """
    large = x.size * times >= WORTHWHILE
    return _loaded() if large and known(x) and x.dtype in _FLOATS else None


def recursion(function: Callable[..., None], numbers: int) -> Callable[..., None] | None:
    """Return a recursion compiled for arrays; None if it should be interpreted.

    Interpreted code is a hundred times slower, but a process with few numbers need not wait for
    numba.
    """
    global _interpreted
    _interpreted += min(numbers, WORTHWHILE)
    return _compiled(function) if _interpreted > WORTHWHILE else None


def recurse(function: Callable[..., None], *arguments: Any) -> None:
    """Call a recursion, compiled or on lists; it writes its results into its array arguments.

    >>> doubled = np.ones(2)
    >>> def double(x):
    ...     for k in range(len(x)):
    ...         x[k] *= 2.0
    >>> recurse(double, doubled)
    >>> doubled
    array([2., 2.])
    """
    first = next(x for x in arguments if isinstance(x, np.ndarray))
    loop = recursion(function, first.size)
    if loop is not None:
        loop(*arguments)
        return
    lists = [x.tolist() if isinstance(x, np.ndarray) else x for x in arguments]
    function(*lists)
    for x, values in zip(arguments, lists, strict=True):
        if isinstance(x, np.ndarray):
            x[...] = values


@contextmanager
def numpy_only() -> Iterator[None]:
    """Use no compiled loop inside a `with` block."""
    global WORTHWHILE
    before, WORTHWHILE = WORTHWHILE, sys.maxsize
    try:
        yield
    finally:
        WORTHWHILE = before


def describe() -> str:
    """Return one line about the compiler and the number of threads of the loops."""
    if _loaded() is None:
        return "none: NumPy alone"
    import numba

    return f"numba {numba.__version__}, up to {threads.chosen() or numba.get_num_threads()} threads"


@cache
def _loaded() -> ModuleType | None:
    try:
        import numba

        from flower_fedcon.compiled import calls as found
    except ImportError:
        return None
    return None if vars(numba.config)["DISABLE_JIT"] else found  # these would take forever


@cache
def _compiled(function: Callable[..., None]) -> Callable[..., None] | None:
    if _loaded() is None:
        return None
    from flower_fedcon.compiled.jit import jit

    return jit(function)
