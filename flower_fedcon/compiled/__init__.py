"""Compiled loops, and their one door: what numba (the extra "fast") compiles where it pays much.

That is a cohort's local pass for losses of rows, its gradients and Frank-Wolfe steps (`calls`), and
recursions over numbers, which have no form in arrays (`recursions`). Without numba NumPy and Python
find the same, up to rounding in sums and bit for bit in recursions; all that changes is time.
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

# The number of entries from which loading (a third of a second) and calling them (5 us) pays.
WORTHWHILE: int = 2**15
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
_interpreted = 0  # numbers that recursions have gone over so far


def loops(x: Array, times: int = 1) -> ModuleType | None:
    """Return the compiled loops over arrays such as `x`; None where NumPy is to be used.

    That is without numba, with NUMBA_DISABLE_JIT=1, for arrays of fewer than `WORTHWHILE` entries,
    of which one call goes over each so many `times`, and for other types than float32 and float64
    in the machine's byte order.
    """
    large = x.size * times >= WORTHWHILE
    return _loaded() if large and known(x) and x.dtype in _FLOATS else None


def recursion(function: Callable[..., None], numbers: int) -> Callable[..., None] | None:
    """Return a recursion over so many numbers compiled for arrays; None where it is not to be.

    Interpreted, a number costs as much as a hundred compiled; but a process that meets few of them
    does not wait for numba.
    """
    global _interpreted
    _interpreted += min(numbers, WORTHWHILE)
    return _compiled(function) if _interpreted > WORTHWHILE else None


def recurse(function: Callable[..., None], *arguments: Any) -> None:
    """Call a recursion, compiled or on lists, that writes into its arguments that are arrays.

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
    own = [x.tolist() if isinstance(x, np.ndarray) else x for x in arguments]
    function(*own)
    for x, values in zip(arguments, own, strict=True):
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
    """Return in one line what compiles loops, and how many threads these have."""
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
