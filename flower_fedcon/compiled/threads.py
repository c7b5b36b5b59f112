"""The number of threads of compiled loops: a setting.

`simulate(threads=...)` sets it for a run, the environment variable FEDCON_THREADS for a process.
Without either all cores are used. The number does not change a bit of the results.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import numpy as np

from flower_fedcon.errors import ConfigError

VARIABLE = "FEDCON_THREADS"
_own: ContextVar[int | None] = ContextVar("threads", default=None)


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def checked(name: str, value: object) -> int:
    """Return a number of threads that this machine has cores for.

    >>> checked("threads", 1)
    1
    >>> checked("threads", 0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: threads must be a whole number from 1 to ..., the cores ...
    """
    most, whole = cores(), isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 1 <= value <= most:  # type: ignore[operator]
        raise ConfigError(
            f"{name} must be a whole number from 1 to {most}, the cores that this process may "
            f"use, got {value!r}: leave it out to use all of them"
        )
    return int(value)  # type: ignore[call-overload, no-any-return]


@lru_cache(maxsize=8)
def _of_text(text: str) -> int:
    return checked(VARIABLE, int(text) if text.isdecimal() else text)


def chosen() -> int | None:
    """Return how many threads a loop may have; None if nothing is set.

    Raises
    ------
    ConfigError
        If the environment variable is not a number of threads.
    """
    number = _own.get()
    if number is not None:
        return number
    text = os.environ.get(VARIABLE)
    return _of_text(text) if text else None


def use(threads: int) -> None:
    """Set the number for this Python thread from now on."""
    _own.set(threads)


@contextmanager
def using(threads: int | None) -> Iterator[None]:
    """Set the number inside a `with` block; None leaves it unchanged.

    >>> with using(1):
    ...     chosen()
    1
    """
    token = _own.set(chosen() if threads is None else checked("threads", threads))
    try:
        yield
    finally:
        _own.reset(token)
