"""The end of a run: its rounds, a certificate, or a budget; and the time until then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.runs.history import EarlyStopping, Record, row_name
from flower_fedcon.validation import positive

SPENDING: dict[str, Callable[[Record], float]] = {
    "seconds": lambda record: record["seconds"],
    "simulated_seconds": lambda record: _simulated(record),
    "megabytes": lambda record: (record["uplink_bytes"] + record["downlink_bytes"]) / 1e6,
}
"""The costs of a run by name, from its record."""


def _simulated(record: Record) -> float:
    if "simulated_seconds" not in record:
        raise ConfigError(
            "a budget of simulated_seconds needs a clock: give simulate clock=Clock(...), or the "
            "experiment a table [clock]"
        )
    return record["simulated_seconds"]


class Budget:
    """A callback that stops a run once it has spent its budget.

    Parameters
    ----------
    **limits : float
        Limits > 0: "seconds" in the rounds, "simulated_seconds" of a clock, "megabytes" of all
        clients up and down. For a budget of epsilon use `GaussianDP(budget=...)`, which stops
        before it would be exceeded.

    Raises
    ------
    ConfigError
        If a limit has an unknown name, or is not positive.

    >>> spent = Budget(megabytes=2.0)
    >>> row = {"round": 1, "uplink_bytes": 1e6, "downlink_bytes": 5e5}
    >>> spent(row), spent({**row, "downlink_bytes": 1e6})
    (False, True)
    """

    def __init__(self, **limits: float) -> None:
        for name in limits:
            if name not in SPENDING:
                raise ConfigError(f"a budget cannot be of {name!r}: {nearest(name, SPENDING)}")
        self.limits = {name: positive(name, value) for name, value in limits.items()}

    def __call__(self, record: Record) -> bool:
        """Return whether a limit is reached."""
        return bool(self._spent(record))

    def why(self, record: Record) -> str:
        """Return why the run stops with a record.

        >>> Budget(megabytes=2.0).why({"round": 9, "uplink_bytes": 2e6, "downlink_bytes": 5e5})
        '2.5 of 2 megabytes are spent'
        """
        spent = self._spent(record).items()
        return ", ".join(f"{v:.4g} of {self.limits[name]:g} {name} are spent" for name, v in spent)

    def _spent(self, record: Record) -> dict[str, float]:
        """Return the costs that have reached their limit."""
        costs = {name: SPENDING[name](record) for name in self.limits}
        return {name: cost for name, cost in costs.items() if cost >= self.limits[name]}


class End(NamedTuple):
    """What will end a run first, by its progress so far.

    Attributes
    ----------
    seconds : float
        The time until then; inf if it is not known.
    what : str
        "round 100", "step 100", "kkt at most 1e-06", "2 megabytes".
    reached : bool
        Whether it has ended the run.
    """

    seconds: float
    what: str
    reached: bool


class Forecast:
    """Says after each record what will end a run, and when.

    Rounds and budgets are assumed to be spent at the pace since the first record that it has seen;
    after that record alone, at the pace of the seconds in it. A column is assumed to decrease
    geometrically, at the rate between these two records, or to rise at a steady one.

    Parameters
    ----------
    rounds : int
    callbacks : sequence of callables
        The run's callbacks, of which `EarlyStopping` and `Budget` count.
    clock : callable
        Returns seconds from any start.
    """

    def __init__(
        self,
        rounds: int,
        callbacks: Sequence[Any] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._rounds, self._clock, self._began = rounds, clock, 0.0
        self._stops = [c for c in callbacks if isinstance(c, EarlyStopping)]
        self._budgets = [c for c in callbacks if isinstance(c, Budget)]
        self._first: Record | None = None

    def __call__(self, record: Record) -> End:
        """Return what will end the run, or has ended it."""
        if self._first is None:  # in a resumed run, a later one
            self._first, self._began = record, self._clock()
        first = None if record is self._first else self._first
        elapsed = record.get("seconds", math.inf) if first is None else self._clock() - self._began

        def spent(of: Callable[[Record], float], limit: float, what: str) -> End:
            before = 0.0 if first is None else of(first)
            share = (of(record) - before) / (limit - before) if limit > before else 1.0
            return self._end(elapsed, share, what)

        last = f"{row_name([record])} {self._rounds}"
        ends = [spent(lambda one: one["round"], self._rounds, last)]
        for stop in self._stops:
            share = self._fallen(stop, record)
            ends.append(self._end(elapsed, share, f"{stop.column} {stop.level}"))
        for budget in self._budgets:
            for name, limit in budget.limits.items():
                ends.append(spent(SPENDING[name], limit, f"{limit:g} {name}"))
        return min(ends, key=lambda end: (not end.reached, end.seconds))

    @staticmethod
    def _end(elapsed: float, share: float, what: str) -> End:
        reached = share >= 1
        left = elapsed * (1 - share) / share if share > 0 else math.inf
        return End(0.0 if reached else left, what, reached)

    def _fallen(self, stop: EarlyStopping, record: Record) -> float:
        """Return the share of its way, downwards in decades, that a column has covered."""
        first, now = stop.value(self._first or record), stop.value(record)
        if now is not None and stop.reached(now):
            return 1.0
        if stop.at_least and now is not None and first is not None:
            return max(0.0, (now - first) / (stop.tolerance - first)) if now > first else 0.0
        if now is None or first is None or not (now < first and stop.tolerance > 0):
            return 0.0
        return math.log(first / now) / math.log(first / stop.tolerance)
