"""In process, with the clients in worker processes: for objectives whose gradients take long.

Each process holds its clients for the whole run, data and states: a round sends it the requests of
its clients and takes their replies, which are those of the local engine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pickle import PicklingError
from typing import Any

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from flower_fedcon.core.protocol import Reply, Request, RunInfo
from flower_fedcon.engines.local import LocalExchange
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower.stores import Versions

_here: dict[int, LocalExchange] = {}  # in a worker: the one exchange of its clients


class WorkersExchange:
    """The exchange of a run whose clients are shared out among processes.

    Parameters
    ----------
    objectives : sequence of objects
        All clients'; client i is in process i % workers. Sent once, by cloudpickle.
    run : RunInfo
    workers : int
        Number of processes, >= 1; the processors are shared out among them.
    """

    def __init__(self, objectives: Sequence[Any], run: RunInfo, workers: int) -> None:
        self._count = min(workers, len(objectives))
        threads = max(1, (os.cpu_count() or 1) // self._count)
        # One executor for each process: only then is it known which one a task goes to.
        self._pools = [
            ProcessPoolExecutor(
                max_workers=1,
                timeout=None,
                initializer=_start,
                initargs=(objectives[part :: self._count], run, threads),
            )
            for part in range(self._count)
        ]
        try:
            for pool in self._pools:  # the processes start here, all at the same time
                pool.submit(_save, 0, None)
        except (PicklingError, TypeError, AttributeError) as error:
            self.close()
            raise ConfigError(
                f"workers={workers}: the objectives cannot be sent to other processes ({error}): "
                "leave out what cannot be pickled (locks, files), or take workers=1"
            ) from None

    def __call__(self, requests: list[Request]) -> list[Reply]:
        """Return the clients' replies."""
        mine: list[list[Request]] = [[] for _ in self._pools]
        for request in requests:
            mine[request.client % self._count].append(request)
        replies = [reply for part in self._each(_handle, mine) for reply in part]
        return sorted(replies, key=lambda reply: reply.client)

    def save(self) -> list[Versions]:
        """Return the clients' states, for a checkpoint."""
        parts = self._each(_save, [()] * self._count)
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
        """Return the function's value in each process that has something to do."""
        try:
            waiting = [
                pool.submit(function, self._count, argument)
                for pool, argument in zip(self._pools, arguments, strict=True)
            ]
            return [future.result() for future in waiting]
        except TerminatedWorkerError as error:
            raise FedConError(
                "a worker process ended unexpectedly, out of memory perhaps: take fewer workers, "
                "and resume=True if the run has a folder"
            ) from error


# --- in a worker ---------------------------------------------------------------------------------


def _start(objectives: Sequence[Any], run: RunInfo, threads: int) -> None:
    """Hold these clients."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run, after the round
    threadpool_limits(threads)
    _here[0] = LocalExchange(objectives, run)


def _handle(count: int, requests: list[Request]) -> list[Reply]:
    clients = [request.client for request in requests]
    return _here[0](requests, [client // count for client in clients])


def _save(count: int, nothing: object) -> list[Versions]:
    return _here[0].save()


def _load(count: int, states: Sequence[Versions]) -> None:
    _here[0].load(states)
