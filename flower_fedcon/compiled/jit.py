"""What numba compiles is kept on disk, and used as long as no loop here has changed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache

_log = logging.getLogger("flwr")
_told: set[str] = set()  # the folders that a warning has named
_filled: set[str] = set()  # and those that were said to be filled
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _digest() -> str:
    """Return what tells one state of these loops from another."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"".join(f.read_bytes() for f in files), digest_size=4).hexdigest()


# What numba keeps of a function it would use until that function's own file changes; but what a
# function calls becomes a part of it.
_SOURCES = "_" + _digest()


class _Files(FunctionCache):
    """numba's files of one function, without which it is compiled anew."""

    def load_overload(self, *arguments: Any) -> Any:
        try:
            found = super().load_overload(*arguments)  # type: ignore[no-untyped-call]
        except Exception as error:  # of a damaged file, nearly any
            self.discard(error)
            return None
        if found is None and not _filled:
            _filled.add(self.cache_path)
            what = "compiling loops, some ten seconds for this installation; they are kept in %s"
            _log.info(what, self.cache_path)
        return found

    def save_overload(self, *arguments: Any) -> None:
        try:
            super().save_overload(*arguments)  # type: ignore[no-untyped-call]
        except Exception as error:
            self.discard(error)

    def discard(self, error: Exception) -> None:
        """Remove the index of the files: it may name one that is damaged, or another function's."""
        with suppress(OSError):
            Path(self._cache_file._index_path).unlink(missing_ok=True)
        if self.cache_path not in _told:
            _told.add(self.cache_path)
            what = "numba's files in %s cannot be used, and its loops are compiled anew: %s: %s"
            _log.warning(what, self.cache_path, type(error).__name__, error)


def jit(function: _Function, **options: Any) -> _Function:
    """Compile at the first call, and keep the result on disk if a folder there is writable."""
    function.__qualname__ += _SOURCES
    try:
        files = _Files(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no folder is
        return numba.njit(**options)(function)  # type: ignore[no-any-return]
    compiled: Any = numba.njit(cache=True, **options)(function)
    compiled._cache = files
    return compiled  # type: ignore[no-any-return]


def renamed(function: Any, suffix: str) -> Any:
    """Return the function under another name, which numba's files need."""
    name = f"{function.__name__}_{suffix}"
    named = FunctionType(function.__code__, function.__globals__, name)
    named.__module__, named.__qualname__ = function.__module__, name
    return named
