"""Ray's workers in Flower's simulation, which goes on without those whose machine is lost.

Flower gives each message to the worker that was idle last, and a worker without a machine fails
at once and is idle again. So it would take message after message. Here it is put aside until it
answers again, and its message goes to another worker. A reply that did not arrive has changed no
state, so the iterates stay the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger("flwr")
_RESTART = 10.0  # seconds in which a worker that has died starts again on its own machine
_NOBODY = 60.0  # seconds for which a message waits if no worker is left
_LOOK = 0.5  # seconds between looks for an idle worker


class NoWorkerError(RuntimeError):
    """No machine is left on which a worker could answer."""


class Workers:
    """The workers of a run, of which some may be put aside.

    Parameters
    ----------
    idle : list
        Workers that wait for a message; it is changed.
    lives : callable
        `lives(worker, seconds)` returns whether a worker answers within this time.
    """

    def __init__(self, idle: list[Any], lives: Callable[[Any, float], bool]) -> None:
        self._idle, self._lives = idle, lives
        self.count = len(idle)
        self._aside: list[Any] = []
        self._changed = threading.Condition()

    def take(self) -> Any:
        """Return an idle worker; wait for one.

        Raises
        ------
        NoWorkerError
            If all are aside, and none has come back in time.
        """
        end = time.monotonic() + _NOBODY
        while True:
            self._take_back()
            with self._changed:
                if self._idle:
                    return self._idle.pop()
                if len(self._aside) < self.count:  # others are at work
                    end = time.monotonic() + _NOBODY
                elif time.monotonic() > end:
                    raise NoWorkerError(f"no machine with a worker is left for {_NOBODY:g} s")
                self._changed.wait(_LOOK)

    def put_back(self, worker: Any) -> None:
        """Let a worker take the next message."""
        with self._changed:
            self._idle.append(worker)
            self._changed.notify()

    def has_lost(self, worker: Any) -> bool:
        """Put a worker aside if it does not answer; return whether it is aside."""
        if self._lives(worker, _RESTART):
            return False
        with self._changed:
            self._aside.append(worker)
            left = self.count - len(self._aside)
        _log.warning("the machine of a worker is lost: %d of %d workers go on", left, self.count)
        return True

    def _take_back(self) -> None:
        """Put workers that answer again among the idle ones."""
        with self._changed:
            aside = list(self._aside)
        for worker in aside:
            if not self._lives(worker, 0.0):
                continue
            with self._changed:
                if worker not in self._aside:  # another thread has found it
                    continue
                self._aside.remove(worker)
                self._idle.append(worker)
            _log.info("a worker that was lost is back")


class Pings:
    """Asks workers whether they are there, one question at a time to each."""

    def __init__(self) -> None:
        self._asked: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, worker: Any, seconds: float) -> bool:
        """Return whether a worker answers within this time."""
        import ray

        end = time.monotonic() + seconds
        while True:
            with self._lock:
                if worker not in self._asked:
                    self._asked[worker] = worker.__ray_ready__.remote()
                question = self._asked[worker]
            ready, _ = ray.wait([question], timeout=max(0.0, end - time.monotonic()))
            if not ready:
                return False
            with self._lock:
                self._asked.pop(worker, None)
            try:
                ray.get(question)
            except ray.exceptions.RayError:
                if time.monotonic() >= end:
                    return False
                time.sleep(min(_LOOK, seconds))
            else:
                return True


@contextmanager
def lasting_workers() -> Iterator[None]:
    """Let the simulations that start meanwhile go on without workers that are lost.

    If Flower has moved its backend, they have Flower's own choice of workers.
    """
    import ray

    try:
        from flwr.server.superlink.fleet.vce.backend import raybackend
    except ImportError:
        yield
        return

    lost = ray.exceptions.RayActorError, ray.exceptions.ObjectLostError

    class LastingBackend(raybackend.RayBackend):
        """Flower's backend, with another choice of the worker for a message."""

        def build(self, app_fn: Any) -> None:
            super().build(app_fn)
            assert self.pool is not None  # noqa: S101  (made just above)
            self._workers = Workers(self.pool.pool, Pings())

        def process_message(self, message: Any, context: Any) -> Any:
            place, tries = str(context.node_config["partition-id"]), 0
            while True:
                worker, tries = self._workers.take(), tries + 1
                aside = False
                try:
                    answer = worker.run.remote(self.app_fn, message, place, context)
                    _, reply, after = ray.get(answer)
                except lost:
                    aside = self._workers.has_lost(worker)
                    if not aside or tries > self._workers.count:
                        raise
                else:
                    return reply, after
                finally:
                    if not aside:
                        self._workers.put_back(worker)

    names = vars(raybackend)  # Flower looks there when a simulation starts
    flowers = names["RayBackend"]
    names["RayBackend"] = LastingBackend
    try:
        yield
    finally:
        names["RayBackend"] = flowers
