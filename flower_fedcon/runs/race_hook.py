"""The settings or methods between which a run chooses by a race."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.scales import Scales
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, DivergedError, RoundError, UnknownScaleError
from flower_fedcon.runs.directory import stated_algorithm
from flower_fedcon.runs.hooks import Playing, RunHook
from flower_fedcon.runs.race import Entry, Race, Runner, begin, entries, left_to_rules
from flower_fedcon.runs.scouting import with_scales
from flower_fedcon.validation import AUTO, Array

_log = logging.getLogger("flwr.strategies")
_BY = "fw_gap", "kkt", "objective"
_METHODS_FIRST = 3  # rounds of the first stage of methods; some need two for a step


class RaceHook(RunHook):
    """The settings behind "auto", or the methods, that race in one run; and the results.

    Without either there is one method, and no race.

    Parameters
    ----------
    strategy : Method
    rivals : sequence of Method
        Other methods that race with it, all without "auto".
    engine : Engine
    x0 : array
        The packed start.
    options : dict
        Further arguments of each server of the run.
    certificates : bool
        Whether the run records certificates, which then decide the race.

    Attributes
    ----------
    plain : Method
        The method with which the run continues if the winner diverges: the method with its rules'
        values, or the second in a race of methods.
    race : Race, optional
        The race, while it is under way.
    rows : list of dict
        One for each that took part, once the race is decided.
    """

    name = "race"

    def __init__(
        self,
        strategy: Method[Any],
        rivals: Sequence[Method[Any]],
        engine: Engine,
        x0: Array,
        options: Mapping[str, Any],
        *,
        certificates: bool = False,
    ) -> None:
        self._strategy, self._rivals, self._engine = strategy, rivals, engine
        self._start, self._options, self._certificates = x0, options, certificates
        self.plain: Method[Any] = left_to_rules(strategy)
        self.race: Race | None = None
        self._ended: dict[str, Any] = {}  # the winner, the next one, and a row for each

    @property
    def exists(self) -> bool:
        """Whether there is a choice to make."""
        return bool(self._rivals or self._strategy.raced())

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each that took part, in order; empty before the race is decided."""
        table: list[dict[str, Any]] = self._ended.get("rows", [])
        return table

    @property
    def chosen(self) -> bool:
        """Whether the run continues with the winner."""
        return any(row["chosen"] for row in self.rows)

    @property
    def runners(self) -> list[Runner]:
        """The runners in the current race."""
        return [] if self.race is None else self.race.runners

    def stated(self, server: Server) -> dict[str, Any]:
        """Return the algorithm's table of an experiment file that repeats the run.

        Parameters
        ----------
        server : Server
            Of the run.
        """
        if self._rivals:
            return {"name": AUTO, "participation": self._strategy.participation}
        return stated_algorithm(self._strategy if self._strategy.raced() else server.strategy)

    def first_server(self, setup: Setup, found: Mapping[str, Any]) -> Server:
        """Return the server with which a run begins, in a race or not.

        Constants that the rules need, and that clients do not state, are estimated.

        Parameters
        ----------
        setup : Setup
        found : dict
            The content of the checkpoint from which it is resumed; empty at the start.

        Raises
        ------
        ConfigError
            If a race is not allowed.
        """
        snapshot = found.get("server", {})
        scaled = "scales" in snapshot
        if scaled:
            setup = replace(setup, scales=Scales(*snapshot["scales"]))
        if self.exists:
            setup = self._set_up(setup, found.get(self.name, {}), scaled=scaled)
        if self.race is not None:
            return self.race.standing()
        try:
            return self._alone(setup, snapshot)
        except UnknownScaleError:
            setup = with_scales(self.strategy, setup, self._start, self._engine)
            return self._alone(setup, snapshot)

    def _alone(self, setup: Setup, snapshot: Mapping[str, Any]) -> Server:
        """Return the server of a run without a race, at the start or from a checkpoint."""
        server = Server(
            self.strategy,
            setup,
            self._start,
            run_id=snapshot.get("run_id"),
            incarnation=snapshot.get("incarnation", 0) + 1,
            **self._options,
        )
        if snapshot:
            server.resume(snapshot)
        return server

    def _set_up(self, setup: Setup, known: Mapping[str, Any], *, scaled: bool) -> Setup:
        """Begin the race; or continue with it, or with its winner, from a checkpoint.

        Parameters
        ----------
        setup : Setup
        known : dict
            The content of the checkpoint; empty at the start.
        scaled : bool
            Whether `setup` has the scales of an earlier start.

        Returns
        -------
        Setup
            The setup with all that their rules need.

        Raises
        ------
        ConfigError
            If a race is not allowed.
        """
        what = what_is_raced(self._strategy) or "a race of methods"
        check_race(self._strategy, setup, self._engine, what)
        if not scaled:
            several = "local_steps" in self._strategy.raced()
            for method in (self.plain, *self._rivals):
                setup = with_scales(method, setup, self._start, self._engine, several=several)
        if self._rivals:
            racers = [Entry(method.title, {}, method) for method in (self._strategy, *self._rivals)]
        else:
            racers = entries(self._strategy, setup)
        if "won" in known:
            self._take(racers, known)
        else:
            self._check_scores(known)
            first = _METHODS_FIRST if self._rivals else self.plain.bind(setup).first_stage()
            self.race = begin(racers, setup, self._start, known or None, first, **self._options)
        return setup

    def _check_scores(self, known: Mapping[str, Any]) -> None:
        """Refuse to compare certificates with objectives in a race that goes on.

        Raises
        ------
        ConfigError
        """
        then, now = known.get("certificates", self._certificates), self._certificates
        if then != now:
            kinds = {True: "certificates", False: "objectives"}
            raise ConfigError(
                f"cannot resume: the race under way compares {kinds[then]}, and with "
                f"certificates={now} it would go on with {kinds[now]}. Set certificates={then} "
                f"until it is decided, or use another run directory"
            )

    def _take(self, found: Sequence[Entry], ended: Mapping[str, Any]) -> None:
        """Hand the run to the winner."""
        self.race, self._ended = None, dict(ended)
        self._strategy = found[ended["won"]].strategy
        if self._rivals:
            self.plain = found[ended["next"]].strategy

    @property
    def strategy(self) -> Method[Any]:
        """The method with which the run continues: the winner, unless it has been given up."""
        return self._strategy if self.chosen or not self._ended else self.plain

    def give_up(self) -> None:
        """Give up the winner: the run starts again with `plain`."""
        for row in self.rows:
            if row["chosen"]:
                row |= {"chosen": False, "why": "given up"}

    def abandon(self) -> Server:
        """End the race without a choice, since everyone in it diverges.

        Returns
        -------
        Server
            The run with all costs of the race.
        """
        race = self.race
        assert race is not None  # noqa: S101  (the caller's case)
        ended = {"won": 0, "next": 0, "rows": race.rows(None)}
        self._take([runner.entry for runner in race.runners], ended)
        return race.standing()

    def begin(self, run: Playing, known: Any) -> None:
        """Show the race's results in the history."""
        run.history.race = self.rows

    def doubts(self, run: Playing) -> Iterator[str]:
        """Yield that the run ended before the race was decided."""
        race, history = self.race, run.history
        if race is None or history.stopped or not run.server.round:
            return
        leader = race.leader
        what, instead = what_is_raced(self._strategy), "give numbers"
        if self._rivals:
            what, instead = f"{len(race.runners)} methods", "name a method"
        yield (
            f"the race of {what} was not decided: it takes up to about {race.until_decided} "
            f"rounds, and the run ends after {race.rounds}. The model is that of "
            f"{leader.entry.label}, the best so far, after {leader.server.round} of its own "
            f"rounds. Give more rounds, or {instead}"
        )

    def snapshot(self) -> dict[str, Any] | None:
        """Return the race under way, or its results."""
        if self.race is None:
            return self._ended or None
        return {"certificates": self._certificates, **self.race.snapshot()}

    def lead(self, run: Playing) -> bool:
        """Play the race, within the run's rounds; return whether the run continues.

        A row is recorded after each turn: the best result so far, and the cost of all runners.
        """
        race, most, stop = self.race, run.plan.num_rounds, False
        if race is None:
            return True
        while (runner := race.next()) is not None and not stop:
            left = most - race.rounds
            if left <= 0:
                return False
            run.server = self._take_up(runner)
            self._turn(run, runner, min(race.goal, runner.server.round + left), race)
            decided = race.next() is None
            run.server = race.standing()
            last = decided or race.rounds >= most
            if race.leader.record and (run.plan.evaluate_every or last):
                record = race.leader.record
                # A resumed server does not know which clients took part in its last round.
                last_round = {name: record[name] for name in ("cohort", "replies")}
                row = record | run.recorder.costs(run.server) | last_round
                stop = run.enter(row)
            if decided:
                break
            run.pause(now=last or stop)
        if race.next() is None:
            self._decide(race, race.leader)
            self._take_up(race.leader)
            run.server = race.standing()
            run.server.audit.follow(run.server)
            run.history.race = self.rows
            run.pause(now=True)
        if stop:
            run.history.stopped = race.rounds < most
        return not stop and race.rounds < most

    def _turn(self, run: Playing, runner: Runner, goal: int, race: Race) -> None:
        """Let one runner play up to a round, and score it."""
        server, began = runner.server, time.perf_counter()
        try:
            while server.round < goal:
                if not self._engine.advance(server, goal - server.round):
                    run.play_round()
            run.recorder.seconds += time.perf_counter() - began
            raw = self._engine.evaluate(server.x)
            runner.record, _ = run.recorder.of(server, raw, race.rounds)
            runner.score = score(runner.record)
        except RoundError as error:
            # A value that diverges, or a method that does not work with these objectives.
            if not isinstance(error, DivergedError) and not self._rivals:
                raise
            runner.out, runner.score = str(error), math.inf
            _log.info("race: %s is out: %s", runner.entry.label, error)
            if not race.alive:
                raise
        runner.states = self._engine.save()

    def _take_up(self, runner: Runner) -> Server:
        """Let the engine hold the clients of one runner."""
        server = runner.server
        server.audit.follow(server)
        self._engine.open(server.info)
        if runner.states is not None:
            self._engine.load(runner.states)
        return server

    def _decide(self, race: Race, winner: Runner) -> None:
        """Continue with the winner alone."""
        runners = race.runners
        second = min(runners, key=lambda runner: (runner is winner, runner.score))
        ended = {
            "won": runners.index(winner),
            "next": runners.index(second if second.score < math.inf else winner),
            "rows": race.rows(winner),
        }
        self._take([runner.entry for runner in runners], ended)
        others = [r.server for r in race.runners if r is not winner and r.server.round]
        _log.info(
            "race: %s continues, at %.6g after %d rounds; %d of the %d rounds so far, %d bytes and "
            "%d gradients were spent on %d others",
            winner.entry.label,
            winner.score,
            winner.server.round,
            sum(other.round for other in others),
            race.rounds,
            sum(other.uplink_bytes + other.downlink_bytes for other in others),
            sum(other.work.get("gradients", 0) for other in others),
            len(others),
        )


def what_is_raced(strategy: Method[Any]) -> str:
    """Return the arguments to be chosen, as they are written."""
    return ", ".join(f'{name}="{AUTO}"' for name in strategy.raced())


def check_race(strategy: Method[Any], setup: Setup, engine: Engine, what: str) -> None:
    """Raise if a race is not allowed.

    Parameters
    ----------
    what : str
        The choice to be made, as the user has written it.

    Raises
    ------
    ConfigError
    """
    if strategy.privacy is not None:
        raise ConfigError(
            f"{what} compares objectives, or certificates, which no noise protects. With "
            f"privacy=... the choice would reveal something of them: give a number, or leave the "
            f"argument out for its default"
        )
    if engine.ledgers():
        raise ConfigError(
            f"{what} runs rounds for each value that it tries, and private examples would spend "
            f"for all of them: give a number, or leave the argument out for its default"
        )
    if setup.any_own_loop:
        raise ConfigError(
            f"{what} compares objectives, which clients with their own train loop do not have: "
            f"give a number"
        )
    if engine.why_no_gradients:  # nor evaluations of single clients
        raise ConfigError(
            f"{what} needs each client's state by the round: {engine.why_no_gradients}"
        )


def score(record: Mapping[str, float]) -> float:
    """Return what runners are compared by: a certificate if recorded, otherwise the objective.

    Raises
    ------
    ConfigError
        If neither is recorded.
    """
    for name in _BY:
        value = record.get(name)
        if value is not None:
            return float(value) if math.isfinite(value) else math.inf
    raise ConfigError(
        '"auto" compares recorded objectives, and this run records none: give numbers instead'
    )
