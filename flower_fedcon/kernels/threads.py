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

_Loop = Callable[..., None]
_TRIALS = 3  # of each number, to begin with
_UNTIMED = 3  # calls that follow a timed one: with timing, they would cost 3 us more each
# Timed calls after which the slower number is tried again, at first; then twice as many each time
# that it is slower still, up to _PATIENCE times its ratio to the faster one: 1.6 % of the time.
_RETRIES = 4
_PATIENCE = 16


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
        self.faster = True  # whether one thread was the faster number in the last timed call
        self.untimed = 0  # how many calls are left to the faster number before the next timed one

    def alone(self) -> bool:
        """Return whether the next call is to have one thread."""
        for alone, seconds in self._seconds.items():
            if len(seconds) < _TRIALS:
                return alone
        one, every = self._usual.values()
        faster, ratio = one <= every, max(one, every) / min(one, every)
        if faster != self.faster:  # for a moment, perhaps
            self.faster, self._since, self._pause = faster, 0, _RETRIES
        self._since += 1
        if self._since <= self._pause:
            self.untimed = _UNTIMED
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

    def call(self, kind: Any, forms: tuple[_Loop, _Loop], arguments: tuple[Any, ...]) -> None:
        """Call a loop of some kind and size, and learn how long it takes.

        `forms` are those for all threads and for one.
        """
        pace = self._paces.get(kind)
        if pace is None:
            pace = self._paces[kind] = Pace()
        if pace.untimed:
            pace.untimed -= 1
            forms[pace.faster](*arguments)
            return
        if numba.get_num_threads() == 1:
            forms[True](*arguments)
            return
        alone, began = pace.alone(), time.perf_counter()
        try:
            forms[alone](*arguments)
        finally:
            pace.note(alone, time.perf_counter() - began)
