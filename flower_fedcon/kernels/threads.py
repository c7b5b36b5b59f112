"""How many threads a compiled loop gets: one, or all, whichever is faster now.

On a machine that does nothing else all cores are; where another process has a core, the loop's
threads wait for one another, and one thread is up to nine times as fast as two.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numba

_TRIALS = 3  # of each number, to begin with
# Calls after which the slower number is tried again, at first; then twice as many each time that it
# is slower still, up to _PATIENCE times its ratio to the faster one, where trials cost 1.6 %.
_RETRIES = 16
_PATIENCE = 64


class Pace:
    """Calls of one size of one loop: how long they took on one thread, and on all.

    >>> pace = Pace()
    >>> for _ in range(6):
    ...     pace.note(alone := pace.alone(), 1.0 if alone else 3.0)
    >>> [pace.alone() for _ in range(4)]
    [True, True, True, True]

    When the slower number is tried again and is the faster one now, what it took before is
    forgotten: a machine that had been busy for a moment is used in full after three calls.

    >>> pace.note(False, 0.5)
    >>> pace.alone()
    False
    """

    def __init__(self) -> None:
        self._seconds = {True: deque[float](maxlen=5), False: deque[float](maxlen=5)}
        self._usual = {True: 0.0, False: 0.0}  # about the medians of these
        self._since, self._pause = 0, _RETRIES  # calls since the slower number was tried; and until
        self._faster = True  # the number that was the faster one in the last call

    def alone(self) -> bool:
        """Return whether the next call is to have one thread."""
        for alone, seconds in self._seconds.items():
            if len(seconds) < _TRIALS:
                return alone
        one, every = self._usual.values()
        faster, ratio = one <= every, max(one, every) / min(one, every)
        if faster != self._faster:  # for a moment, perhaps
            self._faster, self._since, self._pause = faster, 0, _RETRIES
        self._since += 1
        if self._since <= self._pause:
            return faster
        self._since, self._pause = 0, min(2 * self._pause, int(_PATIENCE * ratio))
        return not faster

    def note(self, alone: bool, seconds: float) -> None:
        """Note how long a call took."""
        own, other = self._seconds[alone], self._seconds[not alone]
        tried = len(own) >= _TRIALS <= len(other)
        if tried and seconds < self._usual[not alone] < self._usual[alone]:
            own.clear()
        own.append(max(seconds, 1e-9))
        self._usual[alone] = sorted(own)[len(own) // 2]


class Paces:
    """The paces of all loops, by loop and size of the work."""

    def __init__(self) -> None:
        self._paces: dict[Any, Pace] = {}

    def call(self, kind: Any, loop: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Call a loop of some kind and size, on one thread or all, and learn how long it takes."""
        most = numba.get_num_threads()
        if most == 1:
            loop(*arguments)
            return
        pace = self._paces.get((kind, most))
        if pace is None:
            pace = self._paces[kind, most] = Pace()
        alone, began = pace.alone(), time.perf_counter()
        if alone:
            numba.set_num_threads(1)
        try:
            loop(*arguments)
        finally:
            if alone:
                numba.set_num_threads(most)
            pace.note(alone, time.perf_counter() - began)
