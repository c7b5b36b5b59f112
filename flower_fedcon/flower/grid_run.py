"""A run on a Flower grid, as `start` and Flower's own loop see it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result

from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.round import Round
from flower_fedcon.core.start import common_layout, start_point
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.errors import FedConError
from flower_fedcon.flower import messages
from flower_fedcon.flower.nodes import in_words
from flower_fedcon.runs.history import History, Record
from flower_fedcon.runs.run import Plan, Run
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from flower_fedcon.strategies.base import FedConStrategy

_log = logging.getLogger("flwr")


@dataclass(repr=False)
class RunResult(Result):
    """Flower's `Result`, with this package's history."""

    history: History = field(default_factory=lambda: History(np.empty(0)))


class GridRun:
    """One run of a strategy over a grid.

    Parameters
    ----------
    strategy : FedConStrategy
    engine : GridEngine
    """

    def __init__(self, strategy: FedConStrategy[Any], engine: GridEngine) -> None:
        self._strategy, self._engine = strategy, engine

    def play(
        self,
        initial: ArrayRecord | Any | None,
        plan: Plan,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> RunResult:
        """Meet the clients, play the rounds, and return model and history."""
        began = time.monotonic()
        result = RunResult()

        def report(record: Record) -> None:
            text = ", ".join(f"{k} {v:.6g}" for k, v in record.items() if k != "round")
            _log.info("[ROUND %d/%d] %s", record["round"], plan.num_rounds, text)
            result.train_metrics_clientapp[int(record["round"])] = MetricRecord({**record})

        def evaluate(server_round: int, x: Array) -> Record:
            metrics = None if evaluate_fn is None else evaluate_fn(server_round, self.arrays())
            if metrics is None:
                return {}
            result.evaluate_metrics_serverapp[server_round] = metrics
            return {k: v for k, v in metrics.items() if isinstance(v, int | float)}

        def progress(round_: Round) -> None:
            done, clients = round_.number - before, self._server.setup.clients
            seconds = time.monotonic() - started
            left = seconds / done * (plan.num_rounds - round_.number)
            missing = {clients[j].name: why for j, why in round_.missing().items()}
            _log.info(
                "[ROUND %d/%d] %d of %d replies; %s so far, about %s left%s",
                round_.number,
                plan.num_rounds,
                self._server.replies,
                len(round_.cohort),
                duration(seconds),
                duration(left),
                f"; without {in_words(missing)}" if missing else "",
            )

        self.open(
            initial,
            replace(
                plan, callbacks=[report, *plan.callbacks], evaluate=evaluate, after_round=progress
            ),
        )
        started, before = time.monotonic(), self._server.round
        _log.info("Starting %s:", self._strategy.title)
        self._strategy.summary()
        result.history = self._run.play()
        result.arrays = self.arrays()
        _log.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        return result

    def open(self, initial: ArrayRecord | Any | None, plan: Plan) -> None:
        """Meet the clients, and agree on the start."""
        infos = self._engine.describe()
        x0 = messages.from_record(initial) if isinstance(initial, ArrayRecord) else initial
        known = [info.layout for info in infos]
        if isinstance(x0, list) and len(x0) == 1 and not any(k and k.layered for k in known):
            x0 = x0[0]
        layout = common_layout(known, [info.name for info in infos], x0)
        start = start_point(layout, x0, self._strategy.constraint)
        rule = self._strategy.participation
        setup = Setup.of(infos, plan.num_rounds, layout, rule, plan.seed)
        self._run = Run(plan, self._strategy, setup, start, self._engine)
        self._server = self._run.server

    def arrays(self) -> ArrayRecord:
        """Return the current model as Flower's record."""
        x = self._server.setup.layout.unpack(self._server.x)
        return messages.to_record(x if isinstance(x, list) else [x])

    # --- Flower's own loop, one call at a time ---------------------------------------------------

    def train_messages(self, server_round: int) -> list[Message]:
        """Begin a round and return its messages."""
        if self._server.round + 1 != server_round:
            raise FedConError(
                f"round {server_round} was asked for after round {self._server.round}"
            )
        self._round = self._server.begin()
        request = self._round.next_request()
        return [] if request is None else self._engine.messages(request)

    def apply(self, received: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Take the replies of a round, ask again where needed, and apply the round."""
        self._round.take(self._engine.read(received, self._round.number))
        self._run.finish_round(self._round)
        return self.arrays(), MetricRecord({"replies": self._server.replies})

    def evaluate_messages(self) -> list[Message]:
        """Return the messages of a federated evaluation of the current model."""
        return self._engine.evaluation(self._server.x)

    def evaluation(self, received: Iterable[Message]) -> Record:
        """Return the mean of the clients' evaluations of the current model."""
        return self._engine.mean(received, self._server.x)


def duration(seconds: float) -> str:
    """Return a duration as it is spoken of.

    >>> duration(0.04), duration(95), duration(7260), duration(200_000)
    ('0 s', '95 s', '2 h 1 min', '55 h 33 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
