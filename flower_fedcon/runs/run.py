"""The loop over rounds, the same for every engine."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.method import Method
from flower_fedcon.core.participation import check_rule
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.core.round import Round
from flower_fedcon.core.scales import Scales
from flower_fedcon.core.server import Server
from flower_fedcon.core.start import short_of_rows
from flower_fedcon.errors import (
    ConfigError,
    DivergedError,
    StorageError,
    UnknownScaleError,
)
from flower_fedcon.runs import asked_rounds, audit_log, checkpoint
from flower_fedcon.runs.audit_log import AuditLog
from flower_fedcon.runs.coefficients import check_counts, check_inference
from flower_fedcon.runs.contest import Contest
from flower_fedcon.runs.directory import RunDirectory, versions
from flower_fedcon.runs.final_exchanges import Ending, final_exchanges
from flower_fedcon.runs.history import History, Record
from flower_fedcon.runs.observing import is_unsafe
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.recording import Recorder
from flower_fedcon.runs.scouting import Guard, sharper, with_scales
from flower_fedcon.runs.table_report import Report, fitted_model
from flower_fedcon.validation import Array
from flower_fedcon.wire.ledgers import RunLedgers

_log, _strategies_log = logging.getLogger("flwr"), logging.getLogger("flwr.strategies")
_CHECKPOINT_SECONDS = 10.0
_RESTARTS = 40


class Run:
    """One run: the server, an engine that holds the clients, and a folder.

    Parameters
    ----------
    plan : Plan
    strategy : Method
    setup : Setup
    x0 : array
        The packed start.
    engine : Engine
        Opened here; its owner closes it.
    problem : dict, optional
        The problem's table in an experiment file.
    rivals : sequence of Method
        Other methods that race with it, all without "auto".
    """

    def __init__(
        self,
        plan: Plan,
        strategy: Method[Any],
        setup: Setup,
        x0: Array,
        engine: Engine,
        problem: Mapping[str, Any] | None = None,
        rivals: Sequence[Method[Any]] = (),
    ) -> None:
        self._rivals = rivals
        self._problem = problem
        self.plan, self._engine, self._start = plan, engine, x0
        self._restarts = 0
        self._interrupted: list[int] = []
        self.server: Server
        self._contest = Contest(
            strategy, rivals, engine, x0, self._options, certificates=plan.certificates
        )
        if plan.certificates and strategy.privacy is not None:
            raise ConfigError(
                "certificates use the clients' gradients, which no noise protects: with "
                "privacy=... leave certificates out"
            )
        self.inference = check_inference(plan, strategy, setup)
        check_counts(strategy, setup)
        noisy = strategy.privacy is not None and strategy.privacy.noise_multiplier > 0
        noisy |= bool(engine.ledgers())  # private examples, of which this process knows all
        self.recorder = Recorder(plan, engine, noisy=noisy)
        if setup.sampled:
            rng = partial(stream, setup.seed, COHORT)
            rule = strategy.participation.for_clients(setup.clients)
            check_rule(rule, setup.names, rng, weighed=strategy.weighs(rule))
        self._directory = None if plan.run_dir is None else RunDirectory(plan.run_dir)
        self._ledgers: RunLedgers | None = None
        self._whole: dict[str, Any] | None = None  # during a round: the state that it began with
        try:
            self._found = self._checkpoint_to_resume(strategy, setup, x0)
            snapshot = {} if self._found is None else self._found["server"]
            scaled = "scales" in snapshot
            if scaled:
                setup = replace(setup, scales=Scales(*snapshot["scales"]))
            if self._contest.exists:
                known = {} if self._found is None else self._found.get("race", {})
                setup = self._contest.set_up(setup, known, scaled=scaled)
            if self._contest.race is not None:
                self.server = self._contest.race.standing()
            else:
                strategy = self._contest.strategy
                try:
                    self.server = self._resumed(strategy, setup, snapshot)
                except UnknownScaleError:
                    setup = with_scales(strategy, setup, x0, engine)
                    self.server = self._resumed(strategy, setup, snapshot)
            engine.open(self.server.info)
            self._guard = self._guarded(setup)
            if few := short_of_rows(strategy.batch_size, setup.clients):
                _strategies_log.warning("%s", few)
        except BaseException:
            self.close()
            raise

    def _resumed(self, strategy: Method[Any], setup: Setup, snapshot: Mapping[str, Any]) -> Server:
        """Return the server at the start, or from a checkpoint."""
        server = Server(
            strategy,
            setup,
            self._start,
            run_id=snapshot.get("run_id"),
            incarnation=snapshot.get("incarnation", 0) + 1,
            **self._options,
        )
        if snapshot:
            server.resume(snapshot)
        return server

    @property
    def _options(self) -> dict[str, Any]:
        """Further arguments of each server of the run."""
        engine = self._engine
        return {
            "max_retries": engine.max_retries,
            "round_deadline": engine.round_deadline,
            "clock": self.plan.clock,
        }

    def _guarded(self, setup: Setup) -> Guard | None:
        """Return the guard against growth, if steps are estimates or come from a race."""
        falls = [row["objective"] for row in self._contest.rows if self._contest.chosen]
        falls = [value for value in falls if math.isfinite(value)]
        guard = Guard.of_estimates(setup, self._start, self._engine)
        if not falls:
            return guard
        first = self._engine.evaluate(self._start).get("objective", math.nan)
        fall = first - min(falls)
        if fall < 0:  # no value fell, perhaps since all diverge
            fall = -fall if guard is None else min(-fall, guard.fall)
        return Guard(self._engine, first, fall)

    def _checkpoint_to_resume(
        self, strategy: Method[Any], setup: Setup, x0: Array
    ) -> dict[str, Any] | None:
        """Return the checkpoint to continue from, if there is one."""
        if self._directory is None:
            return None
        self._fingerprint = checkpoint.fingerprint(
            strategy, setup, x0, self._engine, self.plan.clock, self._rivals
        )
        if not (self.plan.resume and self._directory.exists):
            return None
        return checkpoint.load(
            self._directory.path,
            strategy,
            setup,
            self._fingerprint,
            self.plan.allow_changes,
            rivals=self._rivals,
        )

    def play(self, after_round: Callable[[Round], None] | None = None) -> History:
        """Play the remaining rounds and return the history.

        `after_round` is called with every round once it is complete.
        """
        with closing(self):
            history = self._begin()
            try:
                with _graceful(self._directory is not None) as self._interrupted:
                    self._rounds(history, after_round)
            except BaseException as error:
                with suppress(StorageError):  # the first error is the cause
                    if self._whole is not None:
                        self._write(self._whole)
                    self._save_model(history)
                    self.server.audit.ended(str(error) or type(error).__name__)
                if self._directory is None or not isinstance(error, StorageError):
                    raise
                raise StorageError(
                    f"{error}. The run is complete up to its last checkpoint: fix this, and "
                    f"continue with resume=True (--resume)"
                ) from error
            self._save_model(history, ended=True)
            self._warn(history)
            self.server.audit.ended()
            return history

    def _warn(self, history: History) -> None:
        """Warn of doubts about the result."""
        server = self.server
        if server.round:
            silent = (server.acknowledgements.rounds == 0).nonzero()[0].tolist()
            unheard = [server.setup.names[j] for j in silent]
            last = history.rows[-1] if history.rows else {}
            for text in server.strategy.doubts(server.state, last, unheard):
                _strategies_log.warning("%s", text)
            if not history.stopped and (undecided := self._contest.doubt()):
                _strategies_log.warning("%s", undecided)
            if self._guard is not None and (doubt := self._guard.doubt(server, last)):
                _strategies_log.warning("%s: %s", server.strategy.title, doubt)
        reached = None if history.report is None else history.report.reached
        if reached is not None and (reached.separated or not reached.converged):
            _strategies_log.warning("%s", reached.text)
        for text in () if history.report is None else history.report.doubts:
            _strategies_log.warning("%s", text)

    def _save_model(self, history: History, *, ended: bool = False) -> None:
        """Put the model of the completed rounds into the history; write it, also after an error."""
        server, unpack = self.server, self.server.setup.layout.unpack
        outputs = server.strategy.outputs(server.state)
        history.outputs = {name: unpack(value) for name, value in outputs.items()}
        ending = Ending(server.x, history.rows[-1] if history.rows else {})
        if ended and server.round and server.setup.preparation is not None:
            ending = final_exchanges(
                server, self._engine, self._start, ending.record, inference=self.inference,
                alone=self.plan.heterogeneity, covered=self.recorder.covered,
            )  # fmt: skip
        self._save_ledgers()  # noisy counts of private rows spend privacy, too
        history.x = unpack(ending.x)
        history.report = Report.of(server, ending)
        if self._directory is not None:
            beside = dict(zip(server.buffer_names, server.buffers, strict=True))
            self._directory.save_model(history, server.setup.layout.names, beside)
            if history.report is not None:
                history.report.write(self._directory.path)
                fitted_model(server, ending, history.report).write(self._directory.path)

    def _save_ledgers(self) -> None:
        """Write what private examples have spent, before anything that they paid for."""
        if self._ledgers is not None:
            self._ledgers.save()

    def close(self) -> None:
        """Unlock the run directory."""
        if self._directory is not None:
            self._directory.close()

    def _rounds(self, history: History, after_round: Callable[[Round], None] | None) -> None:
        plan, recorder, private = self.plan, self.recorder, self.server.private
        if private is not None and self._directory is not None:
            asked_rounds.keep(private, self._directory.path)
        if self._directory is not None:
            known = (self._found or {}).get("ledgers")
            self._ledgers = RunLedgers(self._engine.ledgers(), self._directory.path, known)
        self._checkpoint(history)  # in a resumed run, too: each start is a new incarnation
        if self._contest.race is not None:
            try:
                if not self._contest.play(self, history):
                    return
                self._guard = self._guarded(self.server.setup)
            except DivergedError as error:  # in everyone who takes part
                if self._guard is None:
                    raise
                self.server, history.race = self._contest.abandon(), self._contest.rows
                self._shortened(error)
        server = self.server
        ended = time.perf_counter()
        stop_at = server.round
        while server.round < plan.num_rounds:
            if private is not None and private.exhausted and history.rows:
                history.stopped = True
                break
            began = ended if self._engine.wall_clock else time.perf_counter()
            round_: Round | None = None
            if server.round >= stop_at:
                stop_at = plan.next_stop(server.round)
            try:
                rounds = stop_at - server.round
                if self._guard is not None:
                    rounds = min(rounds, self._guard.until_due(server.round))
                if not self._engine.advance(server, rounds):
                    if self._engine.clients_keep_states and self._directory is not None:
                        self._whole = self._content(history)
                    try:
                        round_ = self.play_round()
                    finally:
                        self._save_ledgers()
                if self._guard is not None and self._guard.is_due(server.round):
                    self._guard.check(server)
            except DivergedError as error:
                server = self._shortened(error)
            server_round, ended = server.round, time.perf_counter()
            recorder.seconds += ended - began
            if after_round is not None and round_ is not None:
                after_round(round_)
            stop = private is not None and private.exhausted
            due = stop or (plan.evaluate_every and server_round % plan.evaluate_every == 0)
            if due or server_round == plan.num_rounds:
                raw = recorder.evaluated(server)
                try:
                    if self._guard is not None and raw:
                        self._guard.check(server, raw.get("objective"))
                except DivergedError as error:
                    server = self._shortened(error)
                    raw = recorder.evaluated(server)
                first = not history.rows
                record, seen = recorder.of(server, raw, server_round, first=first)
                stop |= self.enter(history, record, seen)
            self.pause(history, now=stop or server_round == plan.num_rounds)
            if stop:
                history.stopped = server_round < plan.num_rounds
                break

    def enter(
        self, history: History, row: Record, seen: Mapping[bool, Record] | None = None
    ) -> bool:
        """Record a row, and return whether a callback ends the run.

        `seen` has the record for unsafe callbacks and the record for the others.
        """
        self._save_ledgers()  # the gradients of a certificate, too
        history.rows.append(row)
        if self._directory is not None:
            self._directory.write(row)
        # A list: every callback sees every record, also the one at which another one stops.
        shown = {True: row, False: row} if seen is None else seen
        return any([one(shown[is_unsafe(one)]) for one in self.plan.callbacks])  # noqa: C419

    def pause(self, history: History, *, now: bool) -> None:
        """Write a checkpoint `now`, if one is due by the round, or after a signal.

        Raises
        ------
        KeyboardInterrupt
            If a signal has come.
        """
        interrupted, server_round = self._interrupted, self.server.round
        if now or interrupted or self._is_due(server_round):
            self._checkpoint(history)
        if interrupted:
            raise KeyboardInterrupt(f"signal {interrupted[0]} after round {server_round}")

    def _shortened(self, error: DivergedError) -> Server:
        """Start again from x0 in the next round, with shorter steps, if L is an estimate.

        Raises
        ------
        DivergedError
            If L is not an estimate, or if several such starts have not helped.
        """
        old = self.server
        if self._guard is None or self._restarts >= _RESTARTS:
            raise error
        self._restarts += 1
        setup, why = old.setup, str(error).partition(": the run diverges")[0]
        if self._contest.chosen:
            self._contest.give_up()
            _strategies_log.warning(
                "%s: %s. The race's choice is dropped: the run starts again from x0 with %s and "
                "its defaults",
                old.strategy.title,
                why,
                self._contest.plain.title,
            )
        else:
            setup = sharper(setup)
            _strategies_log.warning(
                "%s: %s. The clients' smoothness was estimated, and is now taken as %.3g: the run "
                "starts again from x0",
                old.strategy.title,
                why,
                setup.smoothness,
            )
        self._whole = None
        self.server = old.anew(self._contest.plain, setup, self._start, self.plan.clock)
        self._engine.open(self.server.info)
        self._guard = Guard.of_estimates(setup, self._start, self._engine)
        return self.server

    def play_round(self, begun: Round | None = None) -> Round:
        """Play the next round, or the rest of a begun one: ask until it can be applied."""
        round_ = Round.begin(self.server) if begun is None else begun
        while (request := round_.next_request()) is not None:
            round_.take(self._engine.answer(request))
        self._whole = None  # mirrors change in place
        round_.finish()
        self._engine.observe(round_)
        return round_

    def _begin(self) -> History:
        """Begin or continue the run directory, and return the history so far."""
        directory, plan, found = self._directory, self.plan, self._found
        history = History(self.server.setup.layout.unpack(self.server.x))
        history.race = self._contest.rows
        self._saved = time.monotonic()
        if directory is None:
            return history
        if found is None:
            if plan.resume:
                lacks = "no checkpoint in" if directory.exists else "there is no folder"
                _log.warning("%s %s to resume: starting from round 1", lacks, directory.path)
            directory.create(self.server, plan, self._contest.stated(self.server), self._problem)
            self._begin_audit(directory.path)
            return history
        history.rows = directory.reopen(found["rows"])
        self.recorder.seconds = found["seconds"]
        if found["clients"] is not None:
            self._engine.load(found["clients"])
        self._begin_audit(directory.path)
        _log.info("resuming %s after round %d", directory.path, self.server.round)
        if self.server.round > plan.num_rounds:
            _log.warning(
                "%s holds %d rounds, more than the requested %d: this is its whole history",
                directory.path,
                self.server.round,
                plan.num_rounds,
            )
        return history

    def _begin_audit(self, folder: Path) -> None:
        """Begin an audit log, if the plan or the engine asks for one."""
        wanted = self._engine.clients_keep_states if self.plan.audit is None else self.plan.audit
        if wanted:
            data = self._fingerprint.get("data", {}).get("digest", ())
            log = AuditLog(folder / audit_log.NAME, self.server, data)
            for runner in self._contest.runners:
                runner.server.audit = log
            self.server.audit = log

    def _is_due(self, server_round: int) -> bool:
        if self._directory is None:
            return False
        if self.plan.checkpoint_every is not None:
            return server_round % self.plan.checkpoint_every == 0
        private = self.server.private
        return (private is not None and private.remembers) or (
            time.monotonic() - self._saved > _CHECKPOINT_SECONDS
        )

    def _content(self, history: History) -> dict[str, Any]:
        """Return the content of the server's checkpoint."""
        race = self._contest.snapshot()
        spent = {} if self._ledgers is None else self._ledgers.entries()
        return {
            "fingerprint": self._fingerprint,
            "server": self.server.snapshot(),
            "rows": len(history.rows),
            "seconds": self.recorder.seconds,
        } | {name: own for name, own in (("race", race), ("ledgers", spent)) if own}

    def _write(self, content: dict[str, Any]) -> None:
        """Write a checkpoint."""
        assert self._directory is not None  # noqa: S101  (the callers' case)
        self._save_ledgers()  # never less than a checkpoint has
        self._directory.sync()
        self.server.audit.sync()
        states = {"clients": self._engine.save(), "versions": versions()}
        checkpoint.save(self._directory.path, content | states)

    def _checkpoint(self, history: History) -> None:
        """Write all that a later start needs; clients then keep these versions."""
        if self._directory is None:
            return
        self._write(self._content(history))
        for runner in self._contest.runners:
            if not runner.out:
                runner.server.acknowledgements.keep()
        self.server.acknowledgements.keep()
        self._saved = time.monotonic()  # the next is due this long after the end of this one


@contextmanager
def _graceful(wanted: bool) -> Iterator[list[int]]:
    """Let a first SIGINT or SIGTERM end the run after the current round, with a checkpoint.

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
