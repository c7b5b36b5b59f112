"""What numba compiles is kept on disk, and used as long as no loop here has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _digest() -> str:
    """Return what tells one state of these loops from another."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"".join(f.read_bytes() for f in files), digest_size=4).hexdigest()


# What numba keeps of a function it would use until that function's own file changes; but what a
# function calls becomes a part of it.
_SOURCES = "_" + _digest()


def cached(compiler: Any, function: Any, *arguments: Any, **options: Any) -> Any:
    """Compile a function, and keep the result on disk if a folder there is writable."""
    function.__qualname__ += _SOURCES
    try:
        return compiler(*arguments, cache=True, **options)(function)
    except RuntimeError:  # no writable folder
        return compiler(*arguments, **options)(function)


def jit(function: _Function, **options: Any) -> _Function:
    """Compile at the first call."""
    compiled: _Function = cached(numba.njit, function, **options)
    return compiled


def renamed(function: Any, *suffixes: str, **others: Any) -> Any:
    """Return the function under another name, which numba's files need, with other globals."""
    name = "_".join((function.__name__, *suffixes))
    named = FunctionType(function.__code__, {**function.__globals__, **others}, name)
    named.__module__, named.__qualname__ = function.__module__, name
    return named
