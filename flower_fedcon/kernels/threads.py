"""How many threads compiled loops get: one, or all, whichever is faster now.

On a machine that does nothing else all cores are; where another process has a core, the loops'
threads wait for one another. Most calls then are as fast as ever and some take milliseconds, so
that only the mean over many shows it: one thread is up to fifty times as fast as two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any

import numba

_Loop = Callable[..., None]
# A trial has so many calls at least; and as many as take this part of all the time until
# now, or the seconds: more than the operating system's turns on a core, of up to 8 ms.
_CALLS, _PART, _SECONDS = 3, 1 / 16, 0.01
# The slower number is tried again after so many times what its last trial took, at first; then
# after twice as long each time that it is slower still: 1.6 % of the time.
_RETRY, _PATIENCE = 16, 64
_STALL = 0.01  # seconds that a call may wait for a core; what takes longer is no matter of threads


class Pace:
    """What calls of loops take on one thread, and on all.

    All loops get the same number of threads at a time: what one leaves in the caches of the cores
    is where the next one looks for it.

    Attributes
    ----------
    alone : bool
        Whether the next call is to have one thread.

    >>> pace = Pace()
    >>> for _ in range(8):
    ...     pace.note("loop", 1.0 if pace.alone else 3.0)
    >>> pace.alone
    True

    The faster number is timed, too: where it is so no more, the other one is tried at once.
    """

    def __init__(self) -> None:
        self.alone = True
        # Seconds of a call of each loop, in its last trial on one thread, and on all.
        self._means: dict[bool, dict[Hashable, float]] = {True: {}, False: {}}
        self._trial: dict[Hashable, list[float]] = {}  # seconds and calls in this one
        self._left, self._total = 0.0, 0.0  # seconds that this trial goes on, and of those before
        self._trying = False  # whether this trial is the slower number's
        self._doubted = False  # whether it only just was faster, by chance perhaps
        self._last, self._since = 0.0, 0.0  # seconds that the slower's last trial took; and since
        self._pause = _RETRY

    def note(self, loop: Hashable, seconds: float, calls: int = 1) -> None:
        """Note how long calls of a loop took, unless it is a trial's first one, or the loop's.

        It may wake threads and fill caches, or wait for a compiler.
        """
        kept = self._trial.get(loop)
        if kept is None:
            first = not self._trial or loop not in self._means[self.alone]
            kept = self._trial[loop] = [0.0, 0]
            if first and (calls < _CALLS or not self._means[True]):
                return
        if seconds > calls * _STALL:
            usual = [means[loop] for means in self._means.values() if loop in means]
            seconds = min([seconds, *(calls * (_STALL + 10 * mean) for mean in usual)])
        kept[0] += seconds
        kept[1] += calls
        self._left -= seconds
        if self._left <= 0.0 and sum(timed for _, timed in self._trial.values()) >= _CALLS:
            self._decide()

    def _decide(self) -> None:
        """End a trial: the next one is the same number's, or the other's."""
        took = sum(seconds for seconds, _ in self._trial.values())
        slower = self._compare(took)
        self._trial, self._total = {}, self._total + took
        self._left = min(_SECONDS, _PART * self._total)
        if self._trying:
            self._trying, self._last, self._since = False, took, 0.0
            if slower:
                self._pause = min(2 * self._pause, _PATIENCE)
                self.alone = not self.alone
            self._doubted = not slower
            return
        self._since += took
        due = self._since >= self._last * (_RETRY if slower else self._pause)
        self._trying = due or (slower and self._doubted)
        self._doubted = False
        if self._trying:
            self.alone = not self.alone

    def _compare(self, took: float) -> bool:
        """Return whether what was called has taken longer than it would with the other number."""
        own, other = self._means[self.alone], self._means[not self.alone]
        known, elsewhere = 0.0, 0.0
        for loop, (seconds, calls) in self._trial.items():
            if calls:
                own[loop] = seconds / calls
                if loop in other:
                    known += seconds
                    elsewhere += calls * other[loop]
        if 2 * known < took:  # most is new, and to be tried
            self._since = math.inf
        return known > elsewhere

    def call(self, loop: Hashable, forms: tuple[_Loop, _Loop], arguments: tuple[Any, ...]) -> None:
        """Call a loop of which these are the forms for all threads and for one, and time it."""
        if not self._trial and numba.get_num_threads() == 1:
            forms[True](*arguments)
            return
        began = perf_counter()
        forms[self.alone](*arguments)
        self.note(loop, perf_counter() - began)
