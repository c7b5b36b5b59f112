"""A run on a Flower grid, for `start` and for Flower's own loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result

from flower_fedcon.core.agreement import Agreement
from flower_fedcon.core.attachment import Attachment
from flower_fedcon.core.buffered import Buffered, unit_of
from flower_fedcon.core.flow import Step
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import UNIFORM, WEIGHTINGS, ClientInfo
from flower_fedcon.core.round import Round
from flower_fedcon.core.server import Server
from flower_fedcon.core.start import shares_needed
from flower_fedcon.core.wings import bring
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.errors import ConfigError, FedConError, first_few, number_of
from flower_fedcon.flower import messages
from flower_fedcon.flower.app_side import AppSide
from flower_fedcon.flower.forms import agree_on_start
from flower_fedcon.flower.nodes import in_words, natural
from flower_fedcon.flower.summary import SummarisedMethod
from flower_fedcon.runs import checkpoint
from flower_fedcon.runs.directory import check_free
from flower_fedcon.runs.history import History, Record
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.runs.scouting import grown_losses
from flower_fedcon.validation import Array, choice

_log = logging.getLogger("flwr")
_SHOWN = 40  # numbers in one log line


@dataclass(repr=False)
class RunResult(Result):
    """Flower's `Result`, with this package's history."""

    history: History = field(default_factory=lambda: History(np.empty(0)))


class _Stop:
    """Flower's `should_stop` as a callback."""

    __name__ = "should_stop"

    def __init__(
        self,
        should_stop: Callable[[int, Result], bool],
        result: Result,
        arrays: Callable[[], ArrayRecord],
    ) -> None:
        self._should_stop, self._result, self._arrays = should_stop, result, arrays

    def __call__(self, record: Record) -> bool:
        """Return whether to stop after this round, with the result so far."""
        self._result.arrays = self._arrays()
        return bool(self._should_stop(int(record["round"]), self._result))


def in_one_line(numbers: Mapping[str, float], between: str = ", ") -> str:
    """Return numbers by name, the first of many.

    >>> in_one_line({"loss": 0.25, "accuracy": 0.5})
    'loss 0.25, accuracy 0.5'
    >>> in_one_line({f"m{i}": 1.0 for i in range(42)})[-16:]
    'm39 1 and 2 more'
    """
    told = [f"{name} {value:.6g}" for name, value in list(numbers.items())[:_SHOWN]]
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return between.join(told) + more


def partly(over: Sequence[str]) -> str:
    """Return which means in a line do not cover all clients, to be added to it.

    >>> partly(["loss over 2 of 3 clients"]), partly([])
    ('; loss over 2 of 3 clients', '')
    """
    return "".join(f"; {each}" for each in [first_few(over)] if over)


def in_kinds(method: Method[Any], names: Sequence[str]) -> str:
    """Return uploads in words, by their kinds.

    >>> from flower_fedcon.strategies import FedAvg
    >>> in_kinds(FedAvg, ["delta"]), in_kinds(FedAvg, [])
    ('the array "delta"', 'nothing')
    """

    def of(kind: str, those: Sequence[str]) -> str:
        return f"the {kind}{'s' if len(those) > 1 else ''} " + " and ".join(
            f'"{name}"' for name in those
        )

    numbers = [name for name in names if name in method.numbers]
    arrays = [name for name in names if name not in numbers]
    said = []
    if arrays:
        said.append(of("array", arrays) + (" in compact form" if method.compact else ""))
    if numbers:
        said.append(of("number", numbers))
    return ", and ".join(said) or "nothing"


class GridRun:
    """One run of a strategy over a grid.

    Parameters
    ----------
    strategy : SummarisedMethod
    engine : GridEngine
    train_config, evaluate_config, buffers, weighting, schema, site_effects
        As for `start`.
    """

    def __init__(
        self,
        strategy: SummarisedMethod[Any],
        engine: GridEngine,
        train_config: Mapping[str, Any] | None = None,
        evaluate_config: Mapping[str, Any] | None = None,
        buffers: Sequence[str] | None = None,
        weighting: str = UNIFORM,
        schema: Any = None,
        site_effects: str = "common",
    ) -> None:
        self._agreement: Agreement | None = None
        if schema is not None:
            agreement = bring("AGREEMENTS", "schema", "schema=... is for clients with tables")
            self._agreement = agreement(schema, site_effects, weighting)
        elif site_effects != "common":
            raise ConfigError(
                f"site_effects={site_effects!r} is for clients with tables: give their schema"
            )
        self._weighting = choice("weighting", weighting, WEIGHTINGS)
        self._strategy, self._engine = strategy, engine
        self._unit = unit_of(strategy.participation)
        self._train_config = dict(train_config or {})
        self._evaluate_config = dict(evaluate_config or {})
        self._buffers = buffers
        self._app: AppSide | None = None

    def play(
        self,
        initial: ArrayRecord | Any | None,
        plan: Plan,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        should_stop: Callable[[int, Result], bool] | None = None,
    ) -> RunResult:
        """Meet the clients, play the rounds, and return model and history."""
        began, unit = time.monotonic(), self._unit.upper()
        result = RunResult()
        absent: dict[str, list[str]] = {}  # the rounds without a client that was asked

        def report(record: Record) -> None:
            left_out = {"round"}
            if self._strategy.constraint is None:
                left_out.add("violation")  # always 0
            if self._app is not None:
                left_out |= self._app.of_single_clients  # the history has them
            text = in_one_line({k: v for k, v in record.items() if k not in left_out})
            over = "" if self._app is None else partly(self._app.evaluated_over)
            _log.info("[%s %d/%d] %s%s", unit, record["round"], plan.num_rounds, text, over)
            number, app = int(record["round"]), self._app
            result.train_metrics_clientapp[number] = MetricRecord({**record})
            if app is not None:
                result.train_metrics_clientapp[number] = MetricRecord({**app.trained})
                result.evaluate_metrics_clientapp[number] = MetricRecord({**app.evaluated})
            elif "objective" in record:
                measured = MetricRecord({"objective": record["objective"]})
                result.evaluate_metrics_clientapp[number] = measured

        def evaluate(server_round: int, x: Array) -> Record:
            measured = {} if plan.evaluate is None else plan.evaluate(server_round, x)
            taken = {*measured} if self._app is None else {*measured, *self._app.columns}
            for name, value in centrally(server_round).items():
                if isinstance(value, int | float):
                    measured[f"server_{name}" if name in taken else name] = value
            return measured

        def centrally(server_round: int) -> Mapping[str, Any]:
            metrics = None if evaluate_fn is None else evaluate_fn(server_round, self.arrays())
            if metrics is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
            return metrics or {}

        def progress(round_: Round | Step) -> None:
            done, clients = round_.number - before, self._server.setup.clients
            seconds = time.monotonic() - started
            left = seconds / done * (plan.num_rounds - round_.number)
            missing = {clients[j].name: why for j, why in round_.missing().items()}
            for name in missing:
                absent.setdefault(name, []).append(str(round_.number))
            means = {} if self._app is None else self._app.trained_means
            over = "" if self._app is None else partly(self._app.trained_over)
            if means:
                result.train_metrics_clientapp[round_.number] = MetricRecord({**means})
            _log.info(
                "[%s %d/%d] %d of %d replies%s; %s so far%s%s",
                unit,
                round_.number,
                plan.num_rounds,
                self._server.replies,
                len(round_.cohort),
                (f"; {in_one_line(means, '; ')}" if means else "") + over,
                duration(seconds),
                f", about {duration(left)} left" if left else "",
                f"; without {in_words(missing)}" if missing else "",
            )

        if not plan.num_rounds:
            _log.warning(
                "num_rounds is 0 (num-server-rounds in a run configuration): no %s is played, and "
                "the result is the model that the run starts from",
                self._unit,
            )
        callbacks = [report, *plan.callbacks]
        if should_stop is not None:
            callbacks.append(_Stop(should_stop, result, self.arrays))
        self.open(initial, replace(plan, callbacks=callbacks, evaluate=evaluate))
        started, before = time.monotonic(), self._server.round
        if not before:
            first = centrally(0)  # like Flower's strategies
            if first:
                _log.info("[%s 0/%d] evaluate_fn: %s", unit, plan.num_rounds, dict(first))
        self._introduce(plan)
        result.history = self._run.play(progress)
        result.arrays = self._record(result.history.x)
        for record in result.history.rows:  # in a resumed run, the earlier rounds
            number = int(record["round"])
            result.train_metrics_clientapp.setdefault(number, MetricRecord({**record}))
        if result.history.report is not None:
            _log.info("The model:\n%s", result.history.report.text)
        if absent:
            _log.warning("%s", self._without(absent))
        if self._app is not None and (lacking := self._app.lacking()):
            _log.warning("means are without values that were no numbers: %s", lacking)
        parts = (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        )
        for grown in filter(None, map(grown_losses, parts)):
            _log.warning("%s", grown)
        _log.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        of_single = set[str]() if self._app is None else self._app.of_single_clients
        _log.info("Final results: ArrayRecord (%.2f MB)", _megabytes(result.arrays))
        for title, measured in (
            ("ClientApp-side train metrics", result.train_metrics_clientapp),
            ("ClientApp-side evaluate metrics", result.evaluate_metrics_clientapp),
            ("ServerApp-side evaluate metrics", result.evaluate_metrics_serverapp),
        ):
            if measured:
                last = {k: v for k, v in measured[max(measured)].items() if k not in of_single}
                shown = dict(list(last.items())[:_SHOWN])
                more = f" and {len(last) - _SHOWN} more" if len(last) > _SHOWN else ""
                _log.info("\t%s, %s %d: %s%s", title, self._unit, max(measured), shown, more)
        return result

    def _without(self, absent: Mapping[str, Sequence[str]]) -> str:
        """Return which clients were asked and not heard in which rounds."""
        rounds = number_of(len({number for each in absent.values() for number in each}), self._unit)
        of_each = [
            f"client {name} in {first_few(numbers, what=self._unit)}"
            for name, numbers in sorted(absent.items(), key=lambda item: natural(item[0]))
        ]
        return f"{rounds} went on without clients that were asked: {first_few(of_each)}"

    def _introduce(self, plan: Plan) -> None:
        """Log the run's settings, like Flower's strategies."""
        setup, first = self._server.setup, self.arrays()
        _log.info("Starting %s strategy:", self._strategy.title)
        _log.info("\t├── Number of %ss: %d", self._unit, plan.num_rounds)
        _log.info("\t├── Clients: %d, weighting: %s", setup.num_clients, self._weighting)
        _log.info("\t├── ArrayRecord (%.2f MB)", _megabytes(first))
        if plan.run_dir is not None:
            _log.info("\t├── Run directory: %s", Path(plan.run_dir).resolve())
        if self._form is not None and self._form.buffers:
            _log.info("\t├── Averaged, not trained: %s", ", ".join(self._form.buffers))
        if self._app is not None:
            for kind, given in (("train", self._train_config), ("evaluate", self._evaluate_config)):
                _log.info("\t├── ConfigRecord (%s): %s", kind, given or "(empty!)")
        self._strategy.summary(self._weighting)
        bound, coming = self._server.strategy, self._server.round + 1
        if coming > plan.num_rounds:
            return
        named = [*bound.queries, *bound.expects(self._server.state)]
        what = in_kinds(bound, named)
        _log.info("In %s %d each client uploads %s", self._unit, coming, what)

    @property
    def _server(self) -> Server:
        """The run's server, which changes when the run starts again."""
        return self._run.server

    def open(self, initial: ArrayRecord | Any | None, plan: Plan) -> None:
        """Meet the clients, and agree on the start."""
        rule = self._strategy.participation
        if isinstance(rule, Buffered) and (known := self._known(plan)):
            self._engine.go_on(known, rule.buffer)
        if plan.run_dir is not None and not plan.resume:
            check_free(Path(plan.run_dir))
        if needed := shares_needed(self._strategy, self._weighting):
            _log.info("%s", needed)  # before nodes are waited for: whether they have loops they say
        infos, preparation = self._prepared(self._engine.describe())
        if initial is None and preparation is not None:
            initial = preparation.start
        if preparation is not None:
            preparation.check_method(self._strategy)
        agreed = agree_on_start(
            self._strategy,
            infos,
            messages.own_arrays(initial) if isinstance(initial, ArrayRecord) else initial,
            name="initial_arrays",
            num_rounds=plan.num_rounds,
            seed=plan.seed,
            declared=self._buffers,
            weighting=self._weighting,
            preparation=preparation,
        )
        self._form = agreed.form
        self._check_loops(agreed.loops, plan)
        if agreed.loops:
            self._engine.settings = {"train_config": self._train_config}
        self._run = Run(plan, self._strategy, agreed.setup, agreed.x0, self._engine)
        self._engine.check(
            self._server.strategy, certificates=plan.certificates, inference=self._run.hooks.asks
        )
        if agreed.form is not None and agreed.loops:
            app = self._app = AppSide(agreed.form, self._train_config, self._evaluate_config)
            app.open(self._server, agreed.buffers)
            self._engine.serve(app)
        elif agreed.form is not None:
            self._server.start_buffers(agreed.buffers, agreed.form.buffers)

    def _known(self, plan: Plan) -> list[ClientInfo]:
        """Return the clients of the run to go on with, if they need not all answer first.

        Clients with tables agree on their columns at every start.
        """
        if self._agreement is not None or not plan.resume or plan.run_dir is None:
            return []
        changed = {"clients", "data"} & {*plan.allow_changes}
        return [] if changed else checkpoint.known_clients(Path(plan.run_dir))

    def _prepared(self, infos: list[ClientInfo]) -> tuple[list[ClientInfo], Attachment | None]:
        """Let clients agree before round 1, if they have to; return their new descriptions.

        Raises
        ------
        ConfigError
            If some have tables and others not, or their schema is not the server's.
        """
        if self._agreement is not None:
            return self._agreement.reached(infos, self._engine, self._strategy.name)
        if not any(info.schema for info in infos):
            return infos, self._engine.preparation
        raise ConfigError(
            "the clients have tables: give the server their schema, server_app(..., schema=...)"
        )

    def _check_loops(self, loops: bool, plan: Plan) -> None:
        """Raise if the settings do not go with the clients."""
        given = self._train_config | self._evaluate_config
        if given and not loops:
            raise ConfigError(
                f"train_config and evaluate_config are for the app's own train and evaluate "
                f"functions, got {given}: for clients with an objective give hyperparameters to "
                f"the strategy"
            )
        if plan.certificates and loops:
            raise ConfigError(
                "certificates need the clients' gradients, which their own train loops do not "
                "give: leave certificates out"
            )

    def arrays(self) -> ArrayRecord:
        """Return the current model as Flower's record."""
        return self._record(self._server.setup.layout.unpack(self._server.x))

    def _record(self, x: Any) -> ArrayRecord:
        layers = x if isinstance(x, list) else [x]
        if self._form is None:
            return messages.to_record(layers)
        return messages.named_record(self._form.join(layers, self._server.buffers))

    # --- Flower's own loop, one call at a time ---------------------------------------------------

    def train_messages(self, server_round: int) -> list[Message]:
        """Begin a round and return its messages."""
        if self._server.round + 1 != server_round:
            raise FedConError(
                f"round {server_round} was asked for after round {self._server.round}"
            )
        if isinstance(rule := self._server.strategy.participation, Buffered):
            raise ConfigError(
                f"{rule!r}: Flower's own loop waits for each round: call strategy.start(...)"
            )
        self._round = Round.begin(self._server)
        request = self._round.next_request()
        return [] if request is None else self._engine.messages(request)

    def apply(self, received: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Take the replies of a round, ask again where needed, and apply the round."""
        self._round.take(self._engine.read(received, self._round.number))
        self._run.play_round(self._round)
        return self.arrays(), MetricRecord(
            {"replies": self._server.replies, **self._server.spent()}
        )

    def evaluate_messages(self) -> list[Message]:
        """Return the messages of a federated evaluation of the model; empty in a private run."""
        return [] if self._run.recorder.covered else self._engine.evaluation(self._server.x)

    def evaluation(self, received: Iterable[Message]) -> Record:
        """Return the mean of the clients' evaluations of the current model."""
        return self._engine.mean(received, self._server.x)


def _megabytes(arrays: ArrayRecord) -> float:
    return sum(len(array.data) for array in arrays.values()) / 1024**2


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(0.04), duration(95), duration(7260), duration(200_000)
    ('0 s', '95 s', '2 h 1 min', '55 h 33 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
