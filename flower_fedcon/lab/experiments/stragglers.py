"""Stragglers in the table ``[clock]`` of an experiment file.

    [clock]
    compute = { type = "Stragglers", count = 2, times = 20, spread = 1.0, tasks = 0.25 }

The keys are the fields of `Stragglers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flower_fedcon.core.clock import Clock
from flower_fedcon.core.rng import CLOCK, stream
from flower_fedcon.runs import toml
from flower_fedcon.runs.toml_schema import Table, check_keys, check_types, context
from flower_fedcon.validation import Array, count, nonnegative, parameters, positive

_ROWS = 500
"""The number of tasks after which the seconds begin again."""
_KEY = len(Clock.NAMES)  # of their stream: the clock's own have the keys before


@dataclass(frozen=True)
class Stragglers:
    """Seconds of clients' work: log-normal, with a few clients that are far slower.

    Attributes
    ----------
    count : int
        The number of slow clients, the first ones.
    times : float
        How many times slower they are than they would be otherwise, > 0.
    median : float
        The median of the clients' seconds, > 0.
    spread : float
        The standard deviation of the logarithm among clients, >= 0.
    tasks : float
        The same among a client's tasks, >= 0.
    """

    count: int = 1
    times: float = 10.0
    median: float = 1.0
    spread: float = 0.5
    tasks: float = 0.0

    def __post_init__(self) -> None:
        count("count", self.count, minimum=0)
        positive("times", self.times)
        positive("median", self.median)
        nonnegative("spread", self.spread)
        nonnegative("tasks", self.tasks)

    def rows(self, num_clients: int, seed: int) -> Array:
        """Return the seconds of each task (rows) of each client.

        >>> Stragglers(count=1, times=20.0, spread=0.0).rows(3, seed=0)[0]
        array([20.,  1.,  1.])
        """
        rng = stream(seed, CLOCK, 0, _KEY)
        usual = self.median * np.exp(self.spread * rng.standard_normal(num_clients))
        usual[: self.count] *= self.times
        rows: Array = usual * np.exp(self.tasks * rng.standard_normal((_ROWS, num_clients)))
        return rows


def timing(table: Table) -> Callable[[int, int], Clock]:
    """Return the clock that a table states, for a number of clients and a seed.

    >>> timing({"compute": 2.0})(3, 0)
    Clock(compute=2.0)
    """
    seconds = table.get("compute")
    if not isinstance(seconds, dict) or seconds.get("type") != Stragglers.__name__:
        clock = toml.clock_of(table)
        return lambda _clients, _seed: clock
    stated = {key: value for key, value in seconds.items() if key != "type"}
    with context("compute"):
        check_keys(stated, parameters(Stragglers))
        check_types(stated, parameters(Stragglers))
        slow = Stragglers(**stated)
    others = {key: value for key, value in table.items() if key != "compute"}
    toml.clock_of(others)  # raises before the first run
    return lambda clients, seed: toml.clock_of({**others, "compute": slow.rows(clients, seed)})
