"""A race: several settings or methods begin at one start, and the best continues.

A race has stages. In the first, every runner plays one round from x0, or a few if not all clients
take part. The best quarter continues to three times as many rounds, and so on, until one is left,
which continues from its own state as if it had been alone. Each runner has a separate run (a
`run_id`), so that clients keep separate states for each, on nodes as in this process. All have the
run's seed, hence the same cohorts and batches.

Values of a single number are ordered, and their scores after a few rounds usually improve towards
one of them and worsen beyond it. Not every value needs to play then: the first stage begins in the
middle and moves to neighbours as long as they are better. The best two play twice as many rounds.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.server import Server
from flower_fedcon.errors import FedConError

LONGER, STAGES, KEPT = 3, 3, 4
"""How much longer than a stage the next is, how many there are, and that one of so many is kept.

Everyone who is as good as the last of these stays, too: some methods do not move in their first
round. Where a share p of the clients is in a round, stages are p^(-3/4) times as long.
"""
LONGER_IN_LINE, STAGES_IN_LINE, KEPT_IN_LINE = 2, 2, 2
"""The same of values in a line, but that so many are kept, whatever their number."""


@dataclass
class Entry:
    """A candidate of a race.

    Attributes
    ----------
    label : str
    settings : dict
        Its values in place of "auto".
    strategy : Method
    """

    label: str
    settings: dict[str, Any]
    strategy: Method[Any]


@dataclass
class Runner:
    """One in the race.

    Attributes
    ----------
    entry : Entry
    server : Server
        The server of its run.
    score : float
        The certificate or objective that it has reached; infinite before that, and if it diverges.
    out : str
        Why it is out of the race; "" if it is in it.
    states : sequence, optional
        Its clients' states, if the engine holds them.
    record : dict
        The record of its last model, as in a history.
    """

    entry: Entry
    server: Server
    score: float = math.inf
    out: str = ""
    states: Any = field(default=None, repr=False)
    record: dict[str, float] = field(default_factory=dict, repr=False)

    def row(self, *, chosen: bool) -> dict[str, Any]:
        """Return its settings, costs and result."""
        server = self.server
        return {
            "label": self.entry.label,
            **self.entry.settings,
            "rounds": server.round,
            "score": self.score,
            "objective": self.record.get("objective", math.inf),
            "uplink_bytes": server.uplink_bytes,
            "downlink_bytes": server.downlink_bytes,
            "gradients": float(server.work.get("gradients", 0)),
            "chosen": chosen,
            "why": self.out or ("chosen" if chosen else "in the race"),
        }


class Race:
    """The race of one run.

    Parameters
    ----------
    runners : list of Runner
        The first has the rule's values.
    first : int
        Rounds of the first stage if everyone takes part.
    rung : int
        The current stage.
    """

    def __init__(self, runners: list[Runner], first: int, rung: int = 0) -> None:
        self.runners, self.first, self.rung = runners, first, rung
        self._line = _in_line(runners)

    @property
    def alive(self) -> list[Runner]:
        """The runners in the current stage."""
        return [runner for runner in self.runners if not runner.out]

    @property
    def goal(self) -> int:
        """The number of rounds that each has by the end of the stage."""
        return self._goal(self.rung)

    def _goal(self, rung: int) -> int:
        rate: float = self.runners[0].server.setup.rate
        longer = LONGER_IN_LINE if self._line else LONGER
        rounds: float = self.first * longer**rung * rate**-0.75
        return math.ceil(rounds - 1e-9)

    @property
    def until_decided(self) -> int:
        """The rounds of all runners at the end of the race, if no two of them are equally good.

        Of ordered values this is the most, since not every value needs to play.
        """
        rounds, rung, left = self.rounds, self.rung, len(self.alive)
        rounds += sum(max(0, self.goal - runner.server.round) for runner in self.alive)
        while (rung := rung + 1) < self._stages and (left := self._kept(rung, left)) > 1:
            rounds += left * (self._goal(rung) - self._goal(rung - 1))
        return rounds

    @property
    def _stages(self) -> int:
        return STAGES_IN_LINE if self._line else STAGES

    def _kept(self, rung: int, count: int) -> int:
        """Return how many of `count` runners are kept for a stage, unless some are equally good."""
        if self._line:
            return min(count, KEPT_IN_LINE if rung < STAGES_IN_LINE else 1)
        return max(1, count // KEPT)

    @property
    def rounds(self) -> int:
        """The number of rounds played by all runners."""
        return sum(runner.server.round for runner in self.runners)

    @property
    def leader(self) -> Runner:
        """The best runner so far; the first, if none has a score."""
        return min(self.alive or self.runners, key=lambda runner: runner.score)

    def next(self) -> Runner | None:
        """Return the runner that plays next; None if the race is decided."""
        while self.rung < self._stages and len(self.alive) > 1:
            waiting = [runner for runner in self.alive if runner.server.round < self.goal]
            if self._line and not self.rung and waiting and not self._tied():
                waiting = self._towards_the_best()
            if waiting:
                return waiting[0]
            self.rung += 1
            self._drop()
        return None

    def _tied(self) -> bool:
        """Whether the best are equally good, so that there is no direction to move in."""
        scores = [runner.score for runner in self.alive if runner.server.round >= self.goal]
        return bool(scores) and scores.count(min(scores)) > 1

    def _towards_the_best(self) -> list[Runner]:
        """Return the neighbour to try next, if there is one."""
        line, start = self._line, len(self._line) // 2
        best = start
        for step in (-1, 1):
            while 0 <= best + step < len(line):
                for runner in (line[best], line[best + step]):
                    if not runner.out and runner.server.round < self.goal:
                        return [runner]
                if line[best + step].score >= line[best].score < math.inf:
                    break
                best += step
            if best != start and line[best].score < math.inf:
                break
            best = start if line[best].score == math.inf else best
        return []

    def _drop(self) -> None:
        """Keep the best quarter, or the best two of ordered values."""
        scores = sorted(runner.score for runner in self.alive)
        last = scores[self._kept(self.rung, len(scores)) - 1]
        for runner in self.alive:
            played = runner.server.round
            if runner.score > last or not played:
                runner.out = f"behind after {played} rounds" if played else "not tried"

    def standing(self) -> Server:
        """Return the leader's run with the costs of the whole race so far."""
        leader = self.leader
        server = copy.copy(leader.server)
        others = [runner.server for runner in self.runners if runner is not leader]
        server.round += sum(other.round for other in others)
        server.counts, server.work = Counter(server.counts), Counter(server.work)
        for other in others:
            server.count_bytes(up=other.uplink_bytes, down=other.downlink_bytes)
            server.counts.update(other.counts)
            server.work.update(other.work)
            if server.clock is not None and other.clock is not None:
                server.clock = copy.copy(server.clock)
                server.clock.seconds += other.clock.seconds
        return server

    def rows(self, chosen: Runner | None) -> list[dict[str, Any]]:
        """Return a row for each runner, in their order."""
        return [runner.row(chosen=runner is chosen) for runner in self.runners]

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs to continue the race."""
        return {
            "rung": self.rung,
            "runners": [
                {
                    "label": runner.entry.label,
                    "server": runner.server.snapshot(),
                    "clients": runner.states,
                    "record": runner.record,
                    "score": runner.score,
                    "out": runner.out,
                }
                for runner in self.runners
            ],
        }


def _in_line(runners: Sequence[Runner]) -> list[Runner]:
    """Return runners that differ in one number, in its order; otherwise an empty list."""
    values = [[*runner.entry.settings.values()] for runner in runners]
    if any(len(numbers) != 1 or not isinstance(numbers[0], int | float) for numbers in values):
        return []
    return sorted(runners, key=lambda runner: next(iter(runner.entry.settings.values())))


def left_to_rules(strategy: Method[Any]) -> Method[Any]:
    """Return the strategy with its rules' values in place of "auto"."""
    return strategy.with_arguments(dict.fromkeys(strategy.raced()))


def entries(strategy: Method[Any], setup: Setup) -> list[Entry]:
    """Return the settings that a strategy's "auto" stands for; the rule's are first.

    Of several arguments, one at a time differs from its rule's value, and the rules of the others
    take it into account.

    Raises
    ------
    ConfigError
        If the rule's own settings are not valid.
    """
    names, plain = strategy.raced(), left_to_rules(strategy)
    by_rule = plain.bind(setup)

    def settled(bound: Method[Any]) -> dict[str, Any]:
        """Return the values of all of them."""
        return {name: bound.rule_value(name) for name in names}

    tried = [settled(by_rule)]
    for name in names:
        for value in by_rule.ladder(name, tried[0][name]):
            with suppress(FedConError):  # outside the method's range
                point = settled(plain.with_arguments({name: value}).bind(setup))
                if point not in tried:
                    tried.append(point)
    return [
        Entry(", ".join(f"{n}={_shown(v)}" for n, v in point.items()), point,
              strategy.with_arguments(point))
        for point in tried
    ]  # fmt: skip


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def begin(
    found: Sequence[Entry],
    setup: Setup,
    x0: Any,
    snapshot: Mapping[str, Any] | None,
    first: int,
    **more: Any,
) -> Race:
    """Return a race at its start, or from a checkpoint."""
    if snapshot is None:
        return Race([Runner(e, Server(e.strategy, setup, x0, **more)) for e in found], first)
    runners = []
    for entry, saved in zip(found, snapshot["runners"], strict=True):
        kept = saved["server"]
        server = Server(
            entry.strategy,
            setup,
            x0,
            run_id=kept["run_id"],
            incarnation=kept["incarnation"] + 1,
            **more,
        )
        server.resume(kept)
        record, states = saved["record"], saved["clients"]
        runners.append(Runner(entry, server, saved["score"], saved["out"], states, record))
    return Race(runners, first, snapshot["rung"])
