"""Compiled loops are kept on disk, and used until a loop here changes."""

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
_filled: set[str] = set()  # the folders that a log line has named
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _digest() -> str:
    """Return a digest of the loops' sources."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"".join(f.read_bytes() for f in files), digest_size=4).hexdigest()


# numba uses a kept function until the function's own file changes; but functions that it calls are
# compiled into it.
_SOURCES = "_" + _digest()


class _Files(FunctionCache):
    """numba's files of one function; without them it is compiled again."""

    def load_overload(self, *arguments: Any) -> Any:
        try:
            loaded = super().load_overload(*arguments)  # type: ignore[no-untyped-call]
        except Exception as error:  # a damaged file can raise nearly anything
            self.discard(error)
            return None
        if loaded is None and not _filled:
            _filled.add(self.cache_path)
            what = "compiling loops, some ten seconds for this installation; they are kept in %s"
            _log.info(what, self.cache_path)
        return loaded

    def save_overload(self, *arguments: Any) -> None:
        try:
            super().save_overload(*arguments)  # type: ignore[no-untyped-call]
        except Exception as error:
            self.discard(error)

    def discard(self, error: Exception) -> None:
        """Remove the index of the files: it may name a damaged one, or another function's."""
        with suppress(OSError):
            Path(self._cache_file._index_path).unlink(missing_ok=True)
        if self.cache_path not in _told:
            _told.add(self.cache_path)
            what = "numba's files in %s cannot be used, and its loops are compiled anew: %s: %s"
            _log.warning(what, self.cache_path, type(error).__name__, error)


def jit(function: _Function, **options: Any) -> _Function:
    """Compile at the first call, and keep the result on disk if a writable folder exists."""
    function.__qualname__ += _SOURCES
    try:
        files = _Files(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no folder is writable
        return numba.njit(**options)(function)  # type: ignore[no-any-return]
    compiled: Any = numba.njit(cache=True, **options)(function)
    compiled._cache = files
    return compiled  # type: ignore[no-any-return]


def renamed(function: Any, suffix: str) -> Any:
    """Return the function under another name: numba's files need distinct names."""
    name = f"{function.__name__}_{suffix}"
    named = FunctionType(function.__code__, function.__globals__, name)
    named.__module__, named.__qualname__ = function.__module__, name
    return named
