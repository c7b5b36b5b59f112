"""Rounds on a machine that others use: on as many threads as are chosen, on one, and on all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from flower_fedcon.lab.benchmarks.in_process import rounds_of, small_clients
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.strategies import FedAvg

_CASES = (100, 100), (1000, 100), (100, 1000)  # clients, d
_SECONDS = 0.4  # of a turn on one thread, on a machine that does nothing else
_TOGETHER = 6  # turns, which have all orders; in their sum a stall has the part it has in a run


class _Fixed:
    """In place of a pace: always one thread, or always all."""

    def __init__(self, alone: bool) -> None:
        self.alone = alone

    def call(self, loop: object, forms: Any, arguments: tuple[Any, ...]) -> None:
        """Call a loop of which these are the forms for all threads and for one."""
        forms[self.alone](*arguments)


def busy(quick: bool = False) -> Iterator[Result]:
    """Time rounds beside 0, 1 and as many busy processes as cores, on one thread, all, as chosen.

    The yardstick is one thread or all, whichever takes less in all turns together.
    """
    from flower_fedcon.kernels import compiled

    one, every = _Fixed(True), _Fixed(False)
    paces = {"one thread": one, "chosen": compiled.pace, "all threads": every}
    for clients, d in ((30, 100),) if quick else _CASES:
        problem = FederatedProblem(small_clients(clients, d, rows=20).objectives)
        plays = {
            name: rounds_of(FedAvg(client_lr=0.01, local_steps=5), problem, "stacked")
            for name in paces
        }

        def played(name: str, rounds: int, plays: Any = plays) -> None:
            with mock.patch.object(compiled, "pace", paces[name]):
                plays[name](rounds)

        played("one thread", 10)
        began = time.perf_counter()
        played("one thread", 10)
        rounds = 2 if quick else int(10 * _SECONDS / (time.perf_counter() - began)) + 1
        works: dict[str, Work] = {name: partial(played, name, rounds) for name in paces}
        for others in sorted({0, 1, os.cpu_count() or 1}):
            with _beside(others):
                for _ in range(2 if quick else 5):  # until what it was beside others is forgotten
                    works["chosen"]()
                turns = in_turn(works, _TOGETHER if quick else 3 * _TOGETHER)
            times = {name: _summed(seconds) for name, seconds in turns.items()}
            base = min(("one thread", "all threads"), key=lambda name: sum(times[name]))
            yield ratio(
                f"FedAvg, {clients} clients, d={d}, beside {others} busy processes: stacked",
                base,
                times["chosen"],
                times[base],
                steps=_TOGETHER * rounds,
                unit="us a round",
                target="<= 1.1",
            )


def _summed(seconds: list[float]) -> list[float]:
    """Return the sums of so many turns that follow one another."""
    return [sum(seconds[i : i + _TOGETHER]) for i in range(0, len(seconds), _TOGETHER)]


@contextmanager
def _beside(others: int) -> Iterator[None]:
    """Have so many processes count for as long as this lasts, or this process does."""
    counts = f"import os\nwhile os.getppid() == {os.getpid()}:\n    for _ in range(10**6): pass"
    command = [sys.executable, "-c", counts]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(others):
            processes.append(subprocess.Popen(command))  # noqa: S603  (from above)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
