"""The engine with clients in worker processes, for objectives with slow gradients.

Each process holds the data and states of its clients for the whole run. A round sends it the
requests of its clients and takes their replies, which are those of the local engine.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing import current_process
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from flower_fedcon.compiled.threads import chosen, cores, use
from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.protocol import Reply, Request, RunInfo
from flower_fedcon.engines.base import InProcess
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.registry import client_class, register_client

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem

_here: dict[int, LocalEngine] = {}  # in a worker: the engine of its clients


class WorkersEngine(InProcess):
    """Clients distributed over processes: client i is in process i % workers.

    Parameters
    ----------
    problem : FederatedProblem
        The objectives are sent once, by cloudpickle.
    workers : int
        Number of processes, >= 1; the processors are divided among them.
    """

    def __init__(self, problem: FederatedProblem, workers: int) -> None:
        super().__init__(problem)
        self._workers = workers
        self._count = min(workers, problem.num_clients)
        self._pools: list[ProcessPoolExecutor] = []

    def open(self, run: RunInfo) -> None:
        """Start the processes."""
        if current_process().daemon:
            raise ConfigError(
                f"workers={self._workers}: this is itself a worker process (a daemon of "
                "multiprocessing), which may not start others: leave out workers=, or start it "
                "with daemon=False"
            )
        self.check_batches(run)
        self.close()  # a race opens it for each runner
        objectives, count = self._problem.objectives, self._count
        share = max(1, cores() // count)
        threads = min(share, chosen() or share)
        client = client_class(run.algorithm)
        # One executor for each process, so that each task goes to a given process.
        self._pools = [
            ProcessPoolExecutor(
                max_workers=1,
                timeout=None,
                initializer=_start,
                initargs=(os.getpid(), client, objectives[part::count], run, part, count, threads),
            )
            for part in range(count)
        ]
        try:
            for pool in self._pools:  # the processes start here, all at the same time
                pool.submit(_save, None)
        except (PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"workers={self._workers}: the objectives cannot be sent to other processes "
                f"({error}): leave out what cannot be pickled (locks, files), or use workers=1"
            ) from None

    def answer(self, request: Request) -> list[Reply]:
        """Return the clients' replies."""
        mine: list[list[int]] = [[] for _ in self._pools]
        for place, client in enumerate(request.clients):
            mine[client % self._count].append(place)
        parts = [request.only(places) for places in mine]
        return [reply for part in self._each(_answer, parts) for reply in part]

    def save(self) -> list[Versions] | None:
        """Return the clients' states, for a checkpoint; None if they keep none."""
        parts = self._each(_save, [()] * self._count)
        if parts[0] is None:
            return None
        total = sum(len(part) for part in parts)
        return [parts[i % self._count][i // self._count] for i in range(total)]

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        self._each(_load, [states[part :: self._count] for part in range(self._count)])

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.shutdown(wait=True, kill_workers=True)

    def _each(self, function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
        """Return a function's value in each process."""
        try:
            waiting = [
                pool.submit(function, argument)
                for pool, argument in zip(self._pools, arguments, strict=True)
            ]
            return [future.result() for future in waiting]
        except TerminatedWorkerError as error:
            raise FedConError(
                "a worker process ended unexpectedly, perhaps out of memory: use fewer workers, "
                "and resume=True if the run has a run directory"
            ) from error


# --- in a worker ---------------------------------------------------------------------------------


class _Share(LocalEngine):
    """The clients of one process, without their problem."""

    def __init__(self, objectives: Sequence[Any], run: RunInfo, first: int, every: int) -> None:
        self.make_clients(objectives, run, first, every)


@cache
def leave_with(parent: int) -> None:
    """End this process when the one that started it has ended in any way."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _start(
    parent: int,
    client: type[Any],
    objectives: Sequence[Any],
    run: RunInfo,
    first: int,
    every: int,
    threads: int,
) -> None:
    """Hold these clients."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    leave_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run, after the round
    threadpool_limits(threads)
    use(threads)
    register_client(client)  # the user's own algorithm is not known here
    _here[0] = _Share(objectives, run, first, every)


def _answer(request: Request) -> list[Reply]:
    return _here[0].answer(request)


def _save(nothing: object) -> list[Versions] | None:
    return _here[0].save()


def _load(states: Sequence[Versions]) -> None:
    _here[0].load(states)
