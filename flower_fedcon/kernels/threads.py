"""How many threads compiled loops get: one, or all, whichever is faster now.

On a machine that does nothing else all cores are; where another process has a core, the loops'
threads wait for one another. Most calls then are as fast as ever and some take milliseconds, so
that only the mean over many shows it: one thread is up to fifty times as fast as two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any

import numba

_Loop = Callable[..., None]
# A trial goes on for so many calls, or three times the seconds; and for the seconds, or this part
# of all the time until now if that is less. The operating system's turns on a core have 8 ms.
_CALLS, _PART, _SECONDS = 3, 1 / 16, 0.01
# And until loops that usually take this part of the time have been timed, unless none comes for so
# many seconds, and twice what all of them usually take: the calls are others now.
_MOST, _LONG = 0.75, 0.25
_MEMORY = 0.5  # seconds of calls for which it is known what is usual
# The slower number is tried again after so many times what its last trial took, at first; then
# after twice as long each time that it is slower still: 1.6 % of the time.
_RETRY, _PATIENCE = 16, 64
_STALL = 0.03  # seconds that a call may wait for a core; longer, it waits for something else
_WAKING = 1e-3  # seconds of a call from which on it is no matter whether it wakes threads


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

    The faster number is timed, too: where it is so no more, the other one is tried soon.
    """

    def __init__(self) -> None:
        self.alone = True
        # Seconds of a call of each loop, in its last trial on one thread, and on all.
        self._means: dict[bool, dict[Hashable, float]] = {True: {}, False: {}}
        self._seen: dict[bool, set[Hashable]] = {True: set(), False: set()}
        self._trial: dict[Hashable, list[float]] = {}  # seconds and calls in this one
        # Seconds and calls of late, on the faster number.
        self._usual: dict[Hashable, tuple[float, float]] = {}
        self._changed = False  # whether the next call is the first one with its number of threads
        self._left, self._total = 0.0, 0.0  # seconds that this trial goes on, and of those before
        self._trying = False  # whether this trial is the slower number's
        self._doubted = False  # whether it only just was faster, by chance perhaps
        self._last, self._since = 0.0, 0.0  # seconds that the slower's last trial took; and since
        self._pause = _RETRY

    def note(self, loop: Hashable, seconds: float, calls: int = 1) -> None:
        """Note how long calls of a loop took, but for the first ones that `_skips` describes."""
        kept = self._trial.get(loop)
        if kept is None:
            if self._skips(loop, calls):
                return
            kept = self._trial[loop] = [0.0, 0]
        if seconds > _STALL and (known := self._known(loop)):
            seconds = min(seconds, _STALL + 10 * calls * min(known))
        kept[0] += seconds
        kept[1] += calls
        self._left -= seconds
        if self._left <= 0.0:
            took = sum(spent for spent, _ in self._trial.values())
            if self._is_whole(took):
                self._decide(took)

    def _known(self, loop: Hashable) -> list[float]:
        return [means[loop] for means in self._means.values() if loop in means]

    def _skips(self, loop: Hashable, calls: int) -> bool:
        """Return whether a call is not counted: a loop's first one with a number of threads.

        It may wait for a compiler. And after a change a short one, which wakes threads.
        """
        changed, self._changed = self._changed, False
        if loop in self._seen[self.alone]:
            return changed and min(self._known(loop), default=_WAKING) < _WAKING
        self._seen[self.alone].add(loop)
        return calls < _CALLS or not self._means[True]

    def _is_whole(self, took: float) -> bool:
        """Return whether a trial that is long enough has timed most of what there is to time."""
        count = sum(calls for _, calls in self._trial.values())
        if took < 3 * _SECONDS and count < _CALLS:
            return False
        timed, usual = self._timed(took, count)
        new = sum(
            own
            for loop, (own, calls) in self._trial.items()
            if loop not in self._usual and calls >= _CALLS
        )
        return timed >= _MOST * usual or 2 * new >= took or took >= max(_LONG, 2 * usual)

    def _timed(self, took: float = 0.0, count: float = 0.0) -> tuple[float, float]:
        """Return what usually the loops of this trial take, and all that still are called.

        Those are not that did not come where they usually come `_CALLS` times: in so many seconds,
        and among so many calls.
        """
        whole = sum(seconds for seconds, _ in self._usual.values())
        among = sum(calls for _, calls in self._usual.values())
        timed = missing = 0.0
        for loop, (seconds, calls) in self._usual.items():
            if loop in self._trial:
                timed += seconds
            elif took * calls < _CALLS * whole or count * calls < _CALLS * among:
                missing += seconds
        return timed, timed + missing

    def _decide(self, took: float) -> None:
        """End a trial: the next one is the same number's, or the other's."""
        slower = self._compare(took)
        self._total += took
        self._left = min(_SECONDS, _PART * self._total)
        if self._trying:
            self._trying, self._last, self._since = False, took, 0.0
            if slower:
                self._pause = min(2 * self._pause, _PATIENCE)
                self._change()
            else:
                self._doubted, self._pause = True, _RETRY
        else:
            self._remember(took)
            self._since += took
            due = self._since >= self._last * (_RETRY if slower else self._pause)
            self._trying = due or (slower and self._doubted)
            self._doubted = False
            if self._trying:
                self._change()
        self._trial = {}

    def _remember(self, took: float) -> None:
        """Add a trial on the faster number to what is usual; if the calls differ, it is all."""
        timed, usual = self._timed()
        kept = max(0.0, 1.0 - took / _MEMORY) if timed >= _MOST * usual else 0.0
        self._usual = {loop: (kept * s, kept * c) for loop, (s, c) in self._usual.items() if kept}
        for loop, (seconds, calls) in self._trial.items():
            s, c = self._usual.get(loop, (0.0, 0.0))
            self._usual[loop] = s + seconds, c + calls

    def _change(self) -> None:
        self.alone, self._changed = not self.alone, True

    def _compare(self, took: float) -> bool:
        """Keep a trial's means; return whether it took longer than it would on the other number.

        Or whether most of it is new to that one.
        """
        own, other = self._means[self.alone], self._means[not self.alone]
        known = elsewhere = 0.0
        for loop, (seconds, calls) in self._trial.items():
            own[loop] = seconds / calls
            if loop in other:
                known += seconds
                elsewhere += calls * other[loop]
        return known > elsewhere or 2 * known < took

    def call(self, loop: Hashable, forms: tuple[_Loop, _Loop], arguments: tuple[Any, ...]) -> None:
        """Call a loop of which these are the forms for all threads and for one, and time it."""
        if not self._trial and numba.get_num_threads() == 1:
            forms[True](*arguments)
            return
        began = perf_counter()
        forms[self.alone](*arguments)
        self.note(loop, perf_counter() - began)
