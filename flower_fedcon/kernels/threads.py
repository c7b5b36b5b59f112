"""How many threads compiled loops get: one, or all, whichever is faster now.

On a machine that does nothing else all cores are; where another process has a core, the loops'
threads wait for one another. Most calls then are as fast as ever and some take milliseconds, so
that only the mean over many shows it: one thread is up to fifty times as fast as two. Where one
thread is preempted again and again, too, more are seldom tried.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any

import numba

if sys.platform != "win32":
    import resource

_Loop = Callable[..., None]
# A trial goes on for so many calls, or three times the seconds; and for the seconds, or this part
# of all the time until now if that is less. The operating system's turns on a core have 8 ms.
_CALLS, _PART, _SECONDS = 3, 1 / 16, 0.01
# And until loops that usually take this part of the time have been timed, unless none comes for so
# many seconds, and twice what all of them usually take: the calls are others now.
_MOST, _LONG = 0.75, 0.25
_MEMORY = 0.5  # seconds of calls for which it is known what is usual
_LATE = 0.3  # and in which, but for stalls, the faster number shows what it takes, with them
# The slower number is tried again after so many times what its last trial took, at first; then
# after twice as long each time that it is slower still: 1.6 % of the time. And once it would have
# saved as much as its last trial took, as far as is known; of loops new to it, this part is lost.
_RETRY, _PATIENCE, _NEW = 16, 64, 1 / 16
# And after this many times as long if it is all threads, and one is preempted so often in a second
# on a core: measured, of two cores, 3 times beside no busy process, 8 beside one, 140 beside two.
_CROWDED, _OFTEN = 8, 30
_OTHER = 4  # times its calls' seconds are so many that a trial's process did something else, too
# Seconds that a call may wait for a core, which a quota takes away for 0.1; longer, it waits for
# something else.
_STALL = 0.25
_WAKING = 1e-3  # seconds of a call from which on it is no matter whether it wakes threads


def usage() -> tuple[float, float]:
    """Return how often this process was preempted, and its seconds on cores; 0 if not known."""
    if sys.platform == "win32":
        return 0.0, 0.0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return float(used.ru_nivcsw), used.ru_utime + used.ru_stime


class Pace:
    """What calls of loops take on one thread, and on all.

    All loops get the same number of threads at a time: what one leaves in the caches of the cores
    is where the next one looks for it.

    Parameters
    ----------
    usage : function without arguments
        Returns how often the process was preempted, and its seconds on cores.

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

    def __init__(self, usage: Callable[[], tuple[float, float]] = usage) -> None:
        self.alone = True
        self._usage, self._before = usage, usage()  # and what it returned before this trial
        self._preempted, self._used = 0.0, 0.0  # how often, in what seconds, on one thread of late
        # Seconds and calls of each loop, of late on one thread, and on all.
        self._spent: dict[bool, dict[Hashable, tuple[float, float]]] = {True: {}, False: {}}
        self._seen: dict[bool, set[Hashable]] = {True: set(), False: set()}
        self._trial: dict[Hashable, list[float]] = {}  # seconds and calls in this one
        # Seconds and calls of late, on the faster number.
        self._usual: dict[Hashable, tuple[float, float]] = {}
        self._changed = False  # whether the next call is the first one with its number of threads
        self._left, self._total = 0.0, 0.0  # seconds that this trial goes on, and of those before
        self._trying = False  # whether this trial is the slower number's
        self._doubted = False  # whether it only just was faster, by chance perhaps
        self._again = False  # whether this trial is the one that follows such a doubt
        self._last, self._since = 0.0, 0.0  # seconds that the slower's last trial took; and since
        self._lost = 0.0  # seconds more than on the slower number, since then or a gain
        self._pause = _RETRY

    def note(self, loop: Hashable, seconds: float, calls: int = 1) -> None:
        """Note how long calls of a loop took, but for the first ones that `_skips` describes."""
        kept = self._trial.get(loop)
        if kept is None:
            if calls < 1 or self._skips(loop, calls):
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
        spent = (number[loop] for number in self._spent.values() if loop in number)
        return [seconds / calls for seconds, calls in spent]

    def _skips(self, loop: Hashable, calls: int) -> bool:
        """Return whether a call is not counted: a loop's first one with a number of threads.

        It may wait for a compiler. And after a change a short one, which wakes threads.
        """
        changed, self._changed = self._changed, False
        if loop in self._seen[self.alone]:
            return changed and min(self._known(loop), default=_WAKING) < _WAKING
        self._seen[self.alone].add(loop)
        return calls < _CALLS or not self._spent[True]

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
        lost = self._compare(took)
        self._count(took)
        self._total += took
        self._left = min(_SECONDS, _PART * self._total)
        if self._trying:
            self._trying, self._last, self._since = False, took, 0.0
            if lost > 0.0 or self._again:
                self._pause = min(2 * self._pause, _PATIENCE)
            self._doubted = lost <= 0.0 and not self._again
            if lost > 0.0:
                self._change()
            else:  # the other number cost this before it was left, and may again
                self._last += self._lost
            self._lost = 0.0
        else:
            self._remember(took)
            self._since += took
            self._lost = max(0.0, self._lost + lost)
            if self._doubted and lost <= 0.0:
                self._pause = _RETRY
            self._again = self._doubted and lost > 0.0
            self._trying = self._again or self._is_due()
            self._doubted = False
            if self._trying:
                self._change()
        self._trial = {}

    def _is_due(self) -> bool:
        """Return whether the slower number is to be tried again."""
        crowded = self.alone and self._preempted > _OFTEN * self._used
        last = self._last * (_CROWDED if crowded else 1)
        return self._since >= self._pause * last or self._lost >= last

    def _count(self, took: float) -> None:
        """Count how often this process was preempted, if it was by these calls on one thread."""
        (preempted, used), self._before = self._before, self._usage()
        used = self._before[1] - used
        if self.alone and 0.0 <= used < _OTHER * took:
            kept = max(0.0, 1.0 - took / _MEMORY)
            self._preempted = kept * self._preempted + self._before[0] - preempted
            self._used = kept * self._used + used

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

    def _compare(self, took: float) -> float:
        """Keep a trial's times; return how much longer it took than it would on the other number.

        Or a part of what it took, if most of it is new to that one.
        """
        own, other = self._spent[self.alone], self._spent[not self.alone]
        usual = sum(
            min([spent, *(calls * mean for mean in self._known(loop))])
            for loop, (spent, calls) in self._trial.items()
        )
        kept = 0.0 if self._trying else max(0.0, 1.0 - usual / _LATE)
        known = elsewhere = 0.0
        for loop, (seconds, calls) in self._trial.items():
            before = own.get(loop, (0.0, 0.0))
            own[loop] = kept * before[0] + seconds, kept * before[1] + calls
            if loop in other:
                known += seconds
                elsewhere += calls * other[loop][0] / other[loop][1]
        return known - elsewhere if 2 * known >= took else _NEW * took

    def call(self, loop: Hashable, forms: tuple[_Loop, _Loop], arguments: tuple[Any, ...]) -> None:
        """Call a loop of which these are the forms for all threads and for one, and time it."""
        if not self._trial and numba.get_num_threads() == 1:
            forms[True](*arguments)
            return
        began = perf_counter()
        forms[self.alone](*arguments)
        self.note(loop, perf_counter() - began)
