"""Asynchronous runs in this process: the clients' times come from a clock, or from a log of events.

A reply is computed at the latest when it is due, from what its wave was sent; with an engine that
answers waves together, all that are under way are then computed in one pass. Nobody is told of the
time at which a client will end its work: who is asked depends on who is idle.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.core.clock import Timekeeper
from flower_fedcon.core.flow import START, Flow, Wave
from flower_fedcon.core.flow_head import differing
from flower_fedcon.core.gate import column_bytes
from flower_fedcon.core.protocol import TRAIN, Reply, Request
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, DivergedError, FedConError, printable

OUTCOMES = ("used", "stale", "dropped", "lost", "silent")
_SHOWN = 200  # characters of what is wrong with a line


class Task(NamedTuple):
    """A client at work; tasks are ordered by the time at which they end, then wave and client."""

    arrives: float  # seconds of the run's clock
    wave: int
    client: int


class SimulatedFlow(Flow):
    """Steps by a simulated clock.

    Parameters
    ----------
    server : Server
        With a clock.
    answer : callable
        An engine's `answer`.
    together : bool
        Whether it answers requests to clients of several waves.

    Raises
    ------
    ConfigError
        Without a clock.
    """

    def __init__(
        self,
        server: Server,
        answer: Callable[[Request], Iterable[Reply]],
        *,
        together: bool = False,
    ) -> None:
        super().__init__(server)
        if server.clock is None:
            raise ConfigError(
                f"{self._rule!r} needs a clock for the clients' times: give clock=Clock(...), in a "
                f"file a table [clock]"
            )
        self._clock: Timekeeper = server.clock
        self._answer = answer
        self._together = together and not self._clock.needs_replies
        self._due: set[int] = set()  # clients at work whose replies are not computed yet
        self._tasks: list[Task] = []
        self._replies: dict[int, Reply] = {}  # by client at work

    @property
    def seconds(self) -> float:
        """The clock's time."""
        return self._clock.seconds

    def _launch(self, wave: Wave) -> None:
        """Let a wave's replies come at their times."""
        self._assign(wave)
        came: list[Reply | None] = []
        up: Any = 0
        if self._clock.needs_replies:
            came = [self._replies.get(client) for client in wave.clients]
            payloads = [{} if one is None else one.payload for one in came]
            up = [sum(map(column_bytes, payload.values())) for payload in payloads]
        if self._clock.counts_gradients:
            work = [one.work[0] if one is not None and one.work else {} for one in came]
            self._clock.took(wave.clients, [each.get("gradients", 0) for each in work])
        down = [wave.sizes.down[client] for client in wave.clients]
        times = self._clock.times(wave.number, wave.clients, down, up)
        ends = self.seconds + self._clock.with_pauses(self.seconds, wave.clients, times)
        for client, arrives in zip(wave.clients, ends.tolist(), strict=True):
            heapq.heappush(self._tasks, Task(arrives, wave.number, client))

    def _assign(self, wave: Wave) -> None:
        """Let a wave's replies be computed: now, unless they may wait."""
        self._due.update(wave.clients)
        if not self._together:
            self._compute()

    def _compute(self) -> None:
        """Compute the replies of all clients at work that have none yet."""
        due, self._due = sorted(self._due), set()
        request = _joint({client: self._work[client] for client in due})
        for reply in self._answer(request):
            columns = reply.payload.items()
            self._stacked.update(name for name, column in columns if isinstance(column, np.ndarray))
            if self._together and len(reply.clients) > 1 and self._passes(reply, request.names):
                self._replies.update(dict.fromkeys(reply.clients, reply))
                continue
            for one in reply.single():
                (client,) = one.clients
                one.round = self._work[client].number
                self._replies[client] = one

    def _passes(self, reply: Reply, names: tuple[str, ...]) -> bool:
        """Return whether a reply of several clients passes the gate for all of them."""
        try:
            return not (reply.error or reply.lost) and bool(
                self._server.gate.admit(reply, TRAIN, names)
            )
        except FedConError:  # of one of them: each is judged when it is due
            return False

    def _next(self) -> tuple[Wave, int, Reply | None]:
        task = heapq.heappop(self._tasks)
        self._clock.seconds = max(self._clock.seconds, task.arrives)
        if task.client in self._due:
            self._compute()
        reply = self._replies.pop(task.client, None)
        return self._work[task.client], task.client, reply

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs, with the work that is under way."""
        return super().snapshot() | {
            "tasks": [list(task) for task in sorted(self._tasks)],
            "open": [wave.snapshot(clients) for wave, clients in _by_wave(self._work)],
        }

    def resume(self, found: Mapping[str, Any]) -> None:
        """Go on after a checkpoint: ask the waves that were under way again, uncounted."""
        if "done" in found and self._clock.events is None:
            raise ConfigError(
                "this run repeats the log of another so far, and no other clock knows when the "
                "work under way ends: give the same Clock(events=...), or another run_dir"
            )
        super().resume(found)
        self._tasks = [Task(*task) for task in found["tasks"]]
        for each in found["open"]:
            wave = Wave.resumed(self._server, each, self._restores)
            self._set_to_work(wave)
            self._server.audit.asked(wave.asked)
            self._assign(wave)


class ReplayedFlow(SimulatedFlow):
    """Steps in the order that a log has: who was asked, whose reply came, and what became of it.

    Replies that were lost on the way, or could not be used, count as such here, too.

    Parameters
    ----------
    server : Server
        Its clock has the events.
    answer : callable
        An engine's `answer`.
    """

    def __init__(self, server: Server, answer: Callable[[Request], Iterable[Reply]]) -> None:
        super().__init__(server, answer)  # eager: the log has all times
        assert self._clock.events is not None  # noqa: S101  (the caller's case)
        self._source = self._clock.events
        self._events, self._done = read_events(self._source, server), 0

    def _launch(self, wave: Wave) -> None:
        self._assign(wave)
        self._tasks += [Task(0.0, wave.number, client) for client in wave.clients]

    def _proceed(self) -> None:
        """Repeat the log's next event."""
        if self._done == len(self._events):
            raise ConfigError(
                f"Clock(events={str(self._source)!r}): the log ends in step "
                f"{self._server.round + 1}: give num_rounds={self._server.round}"
            )
        event = self._events[self._done]
        self._done += 1
        self._clock.seconds = float(event["seconds"])
        if "asked" in event:
            busy, wave = len(self._work) + len(self._held), event["wave"]
            idle = self._idle.issuperset(event["asked"])
            begins = wave > self.waves and wave % START == 1
            self._same(event, (wave == self.waves + 1 or begins) and idle)
            self._same(event, busy + len(event["asked"]) <= self._most)
            self._skip_to(wave - 1)
            self._send(event["asked"])
            return
        client, outcome = event["client"], event["outcome"]
        wave = self._work.get(client)
        self._same(event, wave is not None and wave.number == event["wave"])
        self._same(event, event["step"] == self._server.round + (outcome == "used"))
        assert wave is not None  # noqa: S101  (checked)
        self._tasks.remove(Task(0.0, wave.number, client))
        reply = self._replies.pop(client, None)
        if outcome == "silent":
            reply = None
        elif outcome == "lost":
            reply = Reply([client], wave.number, lost=True)
        elif outcome == "dropped" and not self._overflows(reply, wave):
            reply = Reply([client], wave.number, error=f"{self._source}: it was dropped")
        held = len(self._held)
        self._take(wave, client, reply)
        self._same(event, (len(self._held) > held) == (outcome == "used"))

    def _overflows(self, reply: Reply | None, wave: Wave) -> bool:
        """Return whether a reply's numbers are not finite: many such begin a run again."""
        try:
            if reply is not None:
                self._server.gate.admit(reply, TRAIN, wave.names)
        except DivergedError:
            return True
        except FedConError:
            pass
        return False

    def _check_hope(self) -> None:
        """Raise if the run starts again; whether it goes on otherwise is for the log to say."""
        if self._starts_again:
            super()._check_hope()

    def follow(self, before: Flow) -> None:
        """Continue after a server that was given up, at the same place of the log."""
        assert isinstance(before, ReplayedFlow)  # noqa: S101  (of the same run)
        self._done = before._done
        super().follow(before)

    def _give_up(self, wave: int, client: int, version: int) -> None:
        """Take the log's line on it, which logs of earlier versions do not have."""
        for event in self._events[self._done : self._done + 1]:
            if (event["wave"], event.get("client"), event.get("outcome")) == (
                wave,
                client,
                "silent",
            ):
                self._done, self._clock.seconds = self._done + 1, float(event["seconds"])
        super()._give_up(wave, client, version)

    def _same(self, event: Mapping[str, Any], same: bool) -> None:
        if not same:
            raise ConfigError(
                f"Clock(events={str(self._source)!r}): this run differs from the log's at "
                f"{event['seconds']:g} seconds, wave {event['wave']}: give it the same strategy, "
                f"settings, seed and clients"
            )

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs, with the place in the log."""
        return super().snapshot() | {"done": self._done}

    def resume(self, found: Mapping[str, Any]) -> None:
        """Go on after a checkpoint, at the same place of the log."""
        if "done" not in found:
            raise ConfigError(
                f"Clock(events={str(self._source)!r}) repeats a run from its beginning, and this "
                f"one has begun with another clock: give another run_dir"
            )
        super().resume(found)
        self._done = found["done"]


def read_events(path: Path, server: Server) -> list[dict[str, Any]]:
    """Return the events of a log of the same run; a log may have no first line that names it.

    Raises
    ------
    ConfigError
        If it cannot be read, or is of another run.
    """
    events: list[dict[str, Any]] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        if not lines[-1]:
            lines.pop()
        apart = differing(json.loads(lines[0]), server) if has_head(lines) else ""
        if not apart:
            events = [*parsed(lines, server.setup.num_clients)]
    except (OSError, ValueError, LookupError, RecursionError, TypeError) as error:
        why = str(error) if isinstance(error, ValueError) else repr(error)
        raise ConfigError(f"Clock(events={str(path)!r}): cannot read it: {why}") from None
    if apart:
        raise ConfigError(
            f"Clock(events={str(path)!r}): the log is of another run ({apart}): repeat it with "
            f"what it began with"
        )
    return events


def has_head(lines: Sequence[str]) -> bool:
    """Return whether a log's first line names its run; those of earlier versions do not."""
    return bool(lines) and '"algorithm"' in lines[0]


def parsed(lines: Sequence[str], num_clients: int) -> Iterator[dict[str, Any]]:
    """Yield the events in the lines of a log, without the line that names the run.

    Raises
    ------
    ValueError
        If a line is not an event of so many clients, in the order of time. It has its number.
    """
    now, head = 0.0, has_head(lines)
    for number, line in enumerate(lines[head:], start=1 + head):
        try:
            event = json.loads(line)
            clients = event["asked"] if "asked" in event else [event["client"]]
            numbers = [*clients, event["wave"], event["step"]]
            whole = all(type(each) is int and 0 <= each < 2**63 for each in numbers)
            ascending = whole and clients and clients == sorted({*clients})
            if not ascending or clients[-1] >= num_clients:
                raise ValueError(f"it has no clients below {num_clients}, wave and step")
            seconds = event["seconds"]
            if type(seconds) not in (int, float) or not now <= float(seconds) < math.inf:
                raise ValueError(f"{seconds!r} seconds after {now:g}")
            now = float(seconds)
            if "asked" not in event and event["outcome"] not in OUTCOMES:
                raise ValueError(f"unknown outcome {event['outcome']!r}")
        except json.JSONDecodeError:
            raise ValueError(f"line {number} is not whole") from None
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            why = str(error) if type(error) is ValueError else repr(error)
            raise ValueError(f"line {number}: {printable(why, _SHOWN)}") from None
        yield event


def simulated_flow(
    server: Server, answer: Callable[[Request], Iterable[Reply]], *, together: bool
) -> SimulatedFlow:
    """Return what plays the steps of a run in this process."""
    if server.clock is not None and server.clock.events is not None:
        return ReplayedFlow(server, answer)
    return SimulatedFlow(server, answer, together=together)


def _by_wave(work: Mapping[int, Wave]) -> list[tuple[Wave, list[int]]]:
    """Return the waves under way, in their order, with the clients that are at work on each."""
    waves = {wave.number: wave for wave in work.values()}
    clients: dict[int, list[int]] = {number: [] for number in sorted(waves)}
    for client, wave in sorted(work.items(), key=itemgetter(0)):
        clients[wave.number].append(client)
    return [(waves[number], own) for number, own in clients.items()]


def _joint(due: Mapping[int, Wave]) -> Request:
    """Return one request to clients of one wave or of several, ascending; each gets its own."""
    parts = [wave.part(clients) for wave, clients in _by_wave(due)]
    if len(parts) == 1:
        return parts[0]
    clients = [client for part in parts for client in part.clients]
    order = np.argsort(clients)
    return replace(
        parts[0],
        clients=sorted(clients),
        round=max(part.round for part in parts),
        rounds=np.repeat([p.round for p in parts], [len(p.clients) for p in parts])[order],
        acknowledged=np.concatenate([part.acknowledged for part in parts])[order],
        kept=np.concatenate([part.kept for part in parts])[order],
        broadcast={},
        personal={client: part.down(client) for part in parts for client in part.clients},
        restore={client: given for part in parts for client, given in part.restore.items()},
    )
