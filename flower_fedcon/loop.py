"""The one loop over rounds, whatever carries the messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flower_fedcon.checks import Array, count
from flower_fedcon.coordinator import Coordinator
from flower_fedcon.errors import ConfigError
from flower_fedcon.history import Callback, History, Record
from flower_fedcon.protocol import Exchange
from flower_fedcon.rundir import RunDirectory

Evaluate = Callable[[Array], Record]


def run_rounds(
    coordinator: Coordinator,
    exchange: Exchange,
    num_rounds: int,
    *,
    evaluate: Evaluate,
    evaluate_every: int = 1,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> History:
    """Play the rounds and return the history.

    Every `evaluate_every`-th round and the last are recorded (0: only the last).
    """
    count("num_rounds", num_rounds, minimum=0)
    count("evaluate_every", evaluate_every, minimum=0)
    for callback in callbacks:
        if not callable(callback):
            raise ConfigError(f"a callback must be callable, got {callback!r}")
    directory = None if run_dir is None else RunDirectory.create(run_dir, coordinator, num_rounds)
    layout = coordinator.setup.layout
    history = History(layout.unpack(coordinator.x))
    seconds = 0.0
    try:
        for server_round in range(1, num_rounds + 1):
            began = time.perf_counter()
            coordinator.play(exchange)
            seconds += time.perf_counter() - began
            due = evaluate_every and server_round % evaluate_every == 0
            if not due and server_round != num_rounds:
                continue
            record = _record(coordinator, evaluate(coordinator.x), seconds)
            history.rows.append(record)
            if directory is not None:
                directory.write(record)
            # A list: every callback sees every record, also the one at which another stops.
            if any([callback(record) for callback in callbacks]):  # noqa: C419
                history.stopped = server_round < num_rounds
                break
    finally:
        # Also after an error: what the completed rounds reached is not lost.
        history.x = layout.unpack(coordinator.x)
        outputs = coordinator.strategy.outputs(coordinator.state)
        history.outputs = {name: layout.unpack(value) for name, value in outputs.items()}
        if directory is not None:
            directory.close(history)
    return history


def _record(coordinator: Coordinator, evaluation: Record, seconds: float) -> Record:
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
