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
# Calls that follow a timed one without being timed: timing may take 10 us, to be 1 % of theirs.
_UNTIMED, _WORTH = 7, 1e-3
# Calls after which the slower number is tried again, at first; then twice as many each time that it
# is slower still, up to _PATIENCE times its ratio to the faster one: 1.6 % of the time.
_RETRIES = 16
_PATIENCE = 64
_WAKING = 1e-4  # seconds that it may take until other threads run


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
        self._asleep, self._awake = True, False  # the other threads; and only just now
        self.faster = True  # whether one thread was the faster number in the last timed call
        self.untimed = 0  # how many calls are left to the faster number before the next timed one
        self._untimed = 0  # how many there were at first

    def alone(self) -> bool:
        """Return whether the next call is to have one thread."""
        if self._awake:
            return False
        for alone, seconds in self._seconds.items():
            if len(seconds) < _TRIALS:
                return alone
        one, every = self._usual.values()
        faster, ratio = one <= every, max(one, every) / min(one, every)
        if faster != self.faster:  # for a moment, perhaps
            self.faster, self._since, self._pause = faster, 0, _RETRIES
        self._since += 1 + self._untimed - self.untimed
        if self._since <= self._pause:
            self._untimed = self.untimed = min(_UNTIMED, int(_WORTH / min(one, every)))
            return faster
        self._since, self._pause = 0, min(2 * self._pause, int(_PATIENCE * ratio))
        self._untimed = 0
        return not faster

    def note(self, alone: bool, seconds: float) -> None:
        """Note how long a call took, unless it woke threads and may be slow for that alone."""
        woke, self._asleep = self._asleep and not alone, alone
        self._awake = woke and seconds < self._usual[True] + _WAKING
        if self._awake:
            return
        own, other = self._seconds[alone], self._seconds[not alone]
        tried = len(own) >= _TRIALS <= len(other)
        if tried and seconds < self._usual[not alone] < self._usual[alone]:
            own.clear()
        own.append(max(seconds, 1e-9))
        self._usual[alone] = sorted(own)[len(own) // 2]

    def call(self, forms: tuple[_Loop, _Loop], arguments: tuple[Any, ...]) -> None:
        """Call a loop of which these are the forms for all threads and for one, and time it."""
        if numba.get_num_threads() == 1:
            forms[True](*arguments)
            return
        alone, began = self.alone(), time.perf_counter()
        try:
            forms[alone](*arguments)
        finally:
            self.note(alone, time.perf_counter() - began)
