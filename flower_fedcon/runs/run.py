"""The one loop over rounds, whatever carries the messages."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from flower_fedcon.core import rng as streams
from flower_fedcon.core.coordinator import Coordinator
from flower_fedcon.core.protocol import Exchange, Setup
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.runs import checkpoint
from flower_fedcon.runs.certificates import certify
from flower_fedcon.runs.directory import RunDirectory
from flower_fedcon.runs.history import Callback, History, Record
from flower_fedcon.validation import Array, count

if TYPE_CHECKING:
    from flower_fedcon.strategies.base import FedConStrategy

Evaluate = Callable[[Array], Record]
_log = logging.getLogger("flwr")
_CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True)
class Plan:
    """How a run is to go: what `simulate` and `start` take beside strategy and clients."""

    num_rounds: int
    seed: int = 0
    evaluate_every: int = 1
    run_dir: str | Path | None = None
    resume: bool = False
    checkpoint_every: int | None = None
    allow_changes: Sequence[str] = ()
    certificates: bool = False
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        count("num_rounds", self.num_rounds, minimum=0)
        count("evaluate_every", self.evaluate_every, minimum=0)
        streams.check_seed(self.seed)
        if self.checkpoint_every is not None:
            count("checkpoint_every", self.checkpoint_every)
        for callback in self.callbacks:
            if not callable(callback):
                raise ConfigError(f"a callback must be callable, got {callback!r}")
        if self.resume and self.run_dir is None:
            raise ConfigError("resume=True needs the run_dir of the run to go on with")


class Run:
    """One run: a coordinator, and the folder that it leaves.

    Parameters
    ----------
    plan : Plan
    strategy : FedConStrategy
    setup : Setup
    x0 : array
        The packed start.
    """

    def __init__(self, plan: Plan, strategy: FedConStrategy[Any], setup: Setup, x0: Array) -> None:
        self.plan = plan
        self._fingerprint = checkpoint.fingerprint(strategy, setup, x0)
        self._found: dict[str, Any] | None = None
        if plan.resume and plan.run_dir is not None:
            folder, allowed = Path(plan.run_dir), plan.allow_changes
            self._found = checkpoint.load(folder, strategy, setup, x0, allowed)
        if self._found is None:
            self.coordinator = Coordinator(strategy, setup, x0)
        else:
            snapshot = self._found["coordinator"]
            run_id, incarnation = snapshot["run_id"], snapshot["incarnation"] + 1
            self.coordinator = Coordinator(
                strategy, setup, x0, run_id=run_id, incarnation=incarnation
            )
            self.coordinator.resume(snapshot)

    def play(self, exchange: Exchange, evaluate: Evaluate) -> History:
        """Play the rounds that are left and return the history.

        An exchange with `save` and `load` has clients that live here: their states are part of
        the checkpoint.
        """
        plan, coordinator, found = self.plan, self.coordinator, self._found
        self._exchange = exchange
        self._directory: RunDirectory | None = None
        rows: list[Record] = []
        self._seconds, self._saved = 0.0, time.monotonic()
        if plan.run_dir is not None:
            self._directory, rows = self._open(Path(plan.run_dir))
        if found is not None:
            self._seconds = found["seconds"]
            if found["clients"] is not None:
                exchange.load(found["clients"])  # type: ignore[attr-defined]
        layout = coordinator.setup.layout
        history = History(layout.unpack(coordinator.x), rows)
        try:
            with _graceful(self._directory is not None) as interrupted:
                self._rounds(history, evaluate, interrupted)
        finally:
            # Also after an error: what the completed rounds reached is not lost.
            history.x = layout.unpack(coordinator.x)
            outputs = coordinator.strategy.outputs(coordinator.state)
            history.outputs = {name: layout.unpack(value) for name, value in outputs.items()}
            if self._directory is not None:
                self._directory.close(history)
        return history

    def _rounds(self, history: History, evaluate: Evaluate, interrupted: list[int]) -> None:
        plan, coordinator = self.plan, self.coordinator
        if coordinator.round == 0:
            self._checkpoint(history)
        for server_round in range(coordinator.round + 1, plan.num_rounds + 1):
            began = time.perf_counter()
            coordinator.play(self._exchange)
            self._seconds += time.perf_counter() - began
            stop = False
            due = plan.evaluate_every and server_round % plan.evaluate_every == 0
            if due or server_round == plan.num_rounds:
                record = _record(coordinator, evaluate(coordinator.x), self._seconds)
                if plan.certificates:
                    record |= certify(coordinator, self._exchange)
                history.rows.append(record)
                if self._directory is not None:
                    self._directory.write(record)
                # A list: every callback sees every record, also the one at which another stops.
                stop = any([callback(record) for callback in plan.callbacks])  # noqa: C419
            last = stop or server_round == plan.num_rounds
            if last or interrupted or self._is_due(server_round):
                self._checkpoint(history)
            if interrupted:
                raise KeyboardInterrupt(f"signal {interrupted[0]} after round {server_round}")
            if stop:
                history.stopped = server_round < plan.num_rounds
                break

    def _open(self, folder: Path) -> tuple[RunDirectory, list[Record]]:
        if self._found is None:
            if self.plan.resume and folder.exists():
                _log.warning("no checkpoint in %s: starting from round 1", folder)
            directory = RunDirectory.create(
                folder, self.coordinator, self.plan.num_rounds, anew=self.plan.resume
            )
            return directory, []
        directory, rows = RunDirectory.reopen(folder, self._found["rows"])
        _log.info("resuming %s after round %d", folder, self.coordinator.round)
        return directory, rows

    def _is_due(self, server_round: int) -> bool:
        if self._directory is None:
            return False
        if self.plan.checkpoint_every is not None:
            return server_round % self.plan.checkpoint_every == 0
        return time.monotonic() - self._saved > _CHECKPOINT_SECONDS

    def _checkpoint(self, history: History) -> None:
        """Write all that a later start needs; from then on clients keep these versions."""
        self._saved = time.monotonic()
        if self._directory is None:
            return
        self._directory.sync()
        save = getattr(self._exchange, "save", None)
        checkpoint.save(
            self._directory.path,
            {
                "fingerprint": self._fingerprint,
                "coordinator": self.coordinator.snapshot(),
                "clients": None if save is None else save(),
                "rows": len(history.rows),
                "seconds": self._seconds,
            },
        )
        self.coordinator.kept = list(self.coordinator.acks)


def _record(coordinator: Coordinator, evaluation: Record, seconds: float) -> Record:
    objective = evaluation.get("objective", 0.0)
    if not math.isfinite(objective):
        raise FedConError(
            f"round {coordinator.round}: the objective is {objective}: the run diverges, take "
            "smaller steps"
        )
    counts = coordinator.counts
    return {
        "round": coordinator.round,
        **evaluation,
        **coordinator.strategy.report(coordinator.state),
        "uplink_bytes": coordinator.uplink_bytes,
        "downlink_bytes": coordinator.downlink_bytes,
        "seconds": seconds,
        "cohort": len(coordinator.cohort),
        "replies": coordinator.replies,
        "dropped": counts["dropped"],
        "retries": counts["retries"],
        "lost": counts["lost"],
        **{f"local_{name}": value for name, value in sorted(coordinator.work.items())},
    }


@contextmanager
def _graceful(wanted: bool) -> Iterator[list[int]]:
    """Let a first SIGINT or SIGTERM end the run after the round under way, checkpoint and all.

    Yields a list that then holds the signal's number; a second signal interrupts at once.
    """
    received: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
