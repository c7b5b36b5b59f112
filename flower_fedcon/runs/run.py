"""The loop over rounds, the same for every engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from flower_fedcon.core.availability import short_trace
from flower_fedcon.core.buffered import unit_of
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.flow import Step
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.round import Round
from flower_fedcon.core.server import Server
from flower_fedcon.core.start import check_participation, short_of_rows
from flower_fedcon.errors import GO_ON, ConfigError, DivergedError, RoundError, StorageError
from flower_fedcon.runs import hook_registry
from flower_fedcon.runs.certificates import check_certificates
from flower_fedcon.runs.checkpoint import states_in
from flower_fedcon.runs.flowing import Flowing
from flower_fedcon.runs.history import History, Record
from flower_fedcon.runs.hooks import Callbacks, Hooks
from flower_fedcon.runs.kept import Kept
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.race_hook import RaceHook
from flower_fedcon.runs.recording import Recorder
from flower_fedcon.runs.restarts import Restarts
from flower_fedcon.runs.signals import graceful
from flower_fedcon.validation import Array

_RESUME = f"The run is complete up to its last checkpoint: fix this, and continue with {GO_ON}"
_strategies_log = logging.getLogger("flwr.strategies")


class Run:
    """One run: the server, an engine that holds the clients, and hooks, such as a folder.

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

    Attributes
    ----------
    server : Server
        Another one after a race, or if the run starts again.
    history : History
        So far; while the run is played.
    asking : bool
        Whether a round has begun and is not being applied.
    """

    server: Server
    history: History

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
        self.plan, self.engine, self.start = plan, engine, x0
        self.asking = False
        self._interrupted: list[int] = []
        options = {
            "max_retries": engine.max_retries,
            "round_deadline": engine.round_deadline,
            "clock": plan.clock,
        }
        race_hook = RaceHook(strategy, rivals, engine, x0, options, certificates=plan.certificates)
        check_certificates(plan.certificates, strategy)
        wings = [kind.of(plan, strategy, setup) for kind in hook_registry.hooks()]
        self.recorder = Recorder(plan, strategy, engine)
        check_participation(strategy, setup)
        if repeated := short_trace(strategy.participation, plan.num_rounds):
            _strategies_log.info("%s", repeated)
        for text in strategy.cautions(setup):
            _strategies_log.warning("%s: %s", strategy.title, text)
        kept = None if plan.run_dir is None else Kept(plan, engine, race_hook, problem)
        self._kept = kept
        try:
            content = {} if kept is None else kept.found(strategy, setup, x0, rivals)
            self.server = race_hook.first_server(setup, content)
            engine.open(self.server.info)
            restarts = Restarts(race_hook, self.server, x0, engine)
            self._flowing = Flowing.of_run(self.server, engine, plan.run_dir, strategy, rivals)
        except BaseException:
            self.close()
            raise
        folder = [] if kept is None else kept.parts(self.server, rounds=self._flowing is None)
        brought = [hook for hook in wings if hook is not None]
        flowing = [] if self._flowing is None else [self._flowing]
        self.hooks = Hooks([*folder, *flowing, race_hook, restarts, Callbacks(), *brought])
        self._states = states_in(content)
        if few := short_of_rows(race_hook.strategy.batch_size, self.server.setup.clients):
            _strategies_log.warning("%s", few)

    def play(self, after_round: Callable[[Round | Step], None] | None = None) -> History:
        """Play the remaining rounds and return the history.

        `after_round` is called with every round once it is complete.
        """
        with closing(self):
            self.history = History(self.server.setup.layout.unpack(self.start))
            self.hooks.begin(self, self._states)
            try:
                with graceful(self._kept is not None) as self._interrupted:
                    if self._lead():
                        self._rounds(after_round)
            except BaseException as error:
                with suppress(StorageError):  # the first error is the cause
                    if self._kept is not None:
                        self._kept.rescue(self)
                    self._conclude(whole=False)
                    self.server.audit.ended(str(error) or type(error).__name__)
                if self._kept is None or type(error) not in (StorageError, RoundError):
                    raise
                raise type(error)(f"{error}. {_RESUME}") from error
            try:
                self._conclude(whole=True)
            except Exception as error:
                with suppress(StorageError):
                    self.server.audit.ended(str(error) or type(error).__name__)
                if self._kept is not None and isinstance(error, StorageError):
                    raise StorageError(f"{error}. {_RESUME}") from error
                if self._kept is not None:
                    error.add_note(_RESUME)
                raise
            for text in self._doubts():
                _strategies_log.warning("%s", text)
            self.server.audit.ended()
            return self.history

    def _lead(self) -> bool:
        """Let hooks play the first rounds, such as a race; return whether the run goes on."""
        try:
            return self.hooks.lead(self)
        except DivergedError as error:
            if not self.hooks.diverged(self, error):
                raise
            return True

    def _rounds(self, after_round: Callable[[Round | Step], None] | None) -> None:
        """Play round after round, and record, to the plan's end or an earlier one."""
        plan, history, ended = self.plan, self.history, time.perf_counter()
        stop_at = self.server.round
        while self.server.round < plan.num_rounds:
            if history.rows and self.server.exhausted:
                history.stopped = True
                break
            began = ended if self.engine.wall_clock else time.perf_counter()
            if self.server.round >= stop_at:
                stop_at = plan.next_stop(self.server.round)
            round_ = self._advance(stop_at - self.server.round)
            ended = time.perf_counter()
            self.recorder.seconds += ended - began
            if after_round is not None and round_ is not None:
                after_round(round_)
            del round_  # with its uploads, before the next one
            done, stop = self.server.round, self.server.exhausted
            last = done == plan.num_rounds
            if stop or last or (plan.evaluate_every and done % plan.evaluate_every == 0):
                stop |= self._record()
            self.pause(now=stop or last)
            if stop:
                history.stopped = not last
                break

    def _advance(self, most: int) -> Round | Step | None:
        """Play the next round, or let the engine do up to so many by itself."""
        round_: Round | Step | None = None
        try:
            most = self.hooks.before_round(self, most)
            if self._flowing is not None or not self.engine.advance(self.server, most):
                try:
                    round_ = self.play_round() if self._flowing is None else self._step()
                finally:
                    self.hooks.writing(self)
            self.hooks.after_round(self)
        except DivergedError as error:
            if not self.hooks.diverged(self, error):
                raise
        return round_

    def _step(self) -> Step:
        """Do the next step of a run that does not wait for its clients."""
        assert self._flowing is not None  # noqa: S101  (the caller's case)
        self.asking = True
        step = self._flowing.step(self)
        self.engine.observe(step)
        return step

    def play_round(self, begun: Round | None = None) -> Round:
        """Play the next round, or the rest of a begun one: ask until it can be applied."""
        if self._flowing is not None:
            raise ConfigError(
                f"{self.server.strategy.participation!r} has steps, and this plays rounds: give "
                f"another rule of participation"
            )
        self.asking = True
        round_ = Round.begin(self.server) if begun is None else begun
        while (request := round_.next_request()) is not None:
            round_.take(self.engine.answer(request))
        self.asking = False  # mirrors change in place
        round_.finish()
        self.engine.observe(round_)
        return round_

    def _record(self) -> bool:
        """Record the model, and return whether the run ends with this row."""
        raw = self.recorder.evaluated(self.server)
        try:
            self.hooks.after_round(self, raw)
        except DivergedError as error:
            if not self.hooks.diverged(self, error):
                raise
            raw = self.recorder.evaluated(self.server)
        first = not self.history.rows
        return self.enter(*self.recorder.of(self.server, raw, self.server.round, first=first))

    def enter(self, row: Record, seen: Mapping[bool, Record] | None = None) -> bool:
        """Record a row, and return whether a hook ends the run.

        `seen` has the record for unsafe callbacks and the record for the others.
        """
        self.hooks.writing(self)  # the gradients of a certificate, too
        self.history.rows.append(row)
        return self.hooks.recorded(self, row, {True: row, False: row} if seen is None else seen)

    def pause(self, *, now: bool) -> None:
        """Write a checkpoint `now`, if one is due by the round, or after a signal.

        Raises
        ------
        KeyboardInterrupt
            If a signal has come.
        """
        self.hooks.pause(self, now=now or bool(self._interrupted))
        if self._interrupted:
            unit = unit_of(self.server.strategy.participation)
            goes_on = "" if self.plan.run_dir is None else ": resume=True goes on from here"
            raise KeyboardInterrupt(
                f"signal {self._interrupted[0]} after {unit} {self.server.round}{goes_on}"
            )

    def _conclude(self, *, whole: bool) -> None:
        """Put the model of the completed rounds into the history; write it, also after an error."""
        server, unpack = self.server, self.server.setup.layout.unpack
        outputs = server.strategy.outputs(server.state)
        self.history.outputs = {name: unpack(value) for name, value in outputs.items()}
        self.history.x = unpack(server.x)
        try:
            self.hooks.conclude(self, whole=whole)
        finally:  # the model is there, whatever a hook makes of it
            self.hooks.writing(self)
            self.hooks.ended(self)

    def _doubts(self) -> Iterator[str]:
        """Yield doubts about the result."""
        server, rows = self.server, self.history.rows
        if server.round:
            silent = (server.acknowledgements.rounds == 0).nonzero()[0].tolist()
            unheard = [server.setup.names[j] for j in silent]
            last = rows[-1] if rows else {}
            yield from server.strategy.doubts(server.state, last, unheard)
        yield from server.bound.doubts()
        yield from self.hooks.doubts(self)

    def close(self) -> None:
        """Unlock the run directory."""
        if self._kept is not None:
            self._kept.close()
