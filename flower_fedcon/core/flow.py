"""Asynchronous runs: waves of requests, replies as they come, and steps (`core.buffered`).

A *wave* is one broadcast to the clients that are idle at that moment. Its number takes the place of
a round's in requests, replies, acknowledgements and random streams, so that clients, messages and
states are those of any run. A *step* is a call of the method's `aggregate`, and a round of the
history. Four rules make each upload count exactly once:

1. A client is in one wave at a time, and waves have ascending numbers.
2. A client whose reply is held for the coming step is not asked. So the clients of a step are
   distinct, and nobody is asked between its reply and the acknowledgement of that reply.
3. A reply that is late, refused or lost frees its client, and is never acknowledged: the client's
   next answer builds on the last one that was used.
4. Between two steps no reply is held, so that checkpoints and records are of a whole state.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.dispatch import Dispatch
from flower_fedcon.core.gate import column_bytes
from flower_fedcon.core.protocol import Reply, Request
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.core.server import Server
from flower_fedcon.core.stopwatch import Untimed
from flower_fedcon.core.uploads import Staleness, Uploads
from flower_fedcon.errors import ConfigError, DivergedError, RoundError, clients_by_name
from flower_fedcon.wire.payloads import Payload, payload_bytes

_log = logging.getLogger("flwr")
_UNEQUAL = 1.5  # times an equal share, from which a client counts as favoured
_OLD = 10  # times the usual age of a reply
_VAIN = 4  # replies in a row for each client, none of which can be used, after which a run ends


class Task(NamedTuple):
    """A client at work; tasks are ordered by the time at which they end, then wave and client."""

    arrives: float  # seconds of the run's clock
    wave: int
    client: int


class _Sizes(Untimed):
    """Notes how many bytes each client of a wave is sent."""

    def __init__(self) -> None:
        self.down: dict[int, int] = {}

    def sent(
        self, clients: Sequence[int], common: int, apart: Sequence[Mapping[int, Payload]]
    ) -> None:
        """Add up the bytes by client."""
        self.down = dict.fromkeys(clients, common)
        for parts in apart:
            for client, part in parts.items():
                self.down[client] += payload_bytes(part)


class Wave(Dispatch):
    """One broadcast to idle clients, and their replies.

    Attributes
    ----------
    version : int
        How many steps the server had done.
    open : set of int
        The clients that are still at work on it.
    asked : Request
    """

    word = "wave"
    asked: Request

    def __init__(
        self, server: Server, number: int, clients: list[int], restores: dict[int, Payload]
    ) -> None:
        self.sizes = _Sizes()
        super().__init__(server, number, clients, self.sizes, restores)
        self.version, self.open = server.round, set(clients)

    def ask(self) -> Request:
        """Return the request, and count it."""
        self.asked = self.request(self.clients, wanted=1, attempt=1, seconds_left=np.inf)
        return self.asked

    def snapshot(self) -> dict[str, Any]:
        """Return what a checkpoint holds of a wave that is under way."""
        asked, clients = self.asked, sorted(self.open)
        part = asked.only([asked.clients.index(client) for client in clients])
        return {
            "number": self.number,
            "version": self.version,
            "clients": clients,
            "broadcast": part.broadcast,
            "acknowledged": part.acknowledged.tolist(),
            "kept": part.kept.tolist(),
            "personal": [[c, payload] for c, payload in part.personal.items()],
            "restore": [[c, payload] for c, payload in part.restore.items()],
            "names": list(part.names),
        }

    @classmethod
    def resumed(
        cls, server: Server, found: Mapping[str, Any], restores: dict[int, Payload]
    ) -> Wave:
        """Return a wave of a checkpoint, to be asked again with what it was sent then."""
        wave = cls(server, found["number"], list(found["clients"]), restores)
        wave.version, wave.names = found["version"], tuple(found["names"])
        wave.broadcast = found["broadcast"]
        wave.asked = Request(
            wave.clients,
            wave.number,
            np.array(found["acknowledged"], dtype=np.int64),
            wave.broadcast,
            np.array(found["kept"], dtype=np.int64),
            personal={client: payload for client, payload in found["personal"]},
            restore={client: payload for client, payload in found["restore"]},
            names=wave.names,
        )
        return wave


class Held(NamedTuple):
    """A reply that is held for the coming step."""

    wave: Wave
    reply: Reply  # of one client

    @property
    def client(self) -> int:
        """The client."""
        return self.reply.clients[0]


class Event(NamedTuple):
    """What happens in an asynchronous run: clients are asked, or one's reply comes in."""

    seconds: float
    wave: int
    clients: tuple[int, ...]
    outcome: str  # "asked", "used", "stale", "dropped", "lost" or "silent"
    staleness: int = 0
    step: int = 0  # the step for which the reply is held, or that was the last when it came


class Flow:
    """The steps of one asynchronous run in this process, with a simulated clock.

    Parameters
    ----------
    server : Server
        With the rule `Buffered`, and a clock.
    answer : callable
        An engine's `answer`.

    Attributes
    ----------
    waves : int
        How many waves have been sent.
    used, stale : array of int, shape (N,)
        How many replies of each client were used, and were too old.
    most_staleness, total_staleness : int
        The largest age of a used reply, in steps, and the sum of all.
    note : callable
        Called with each `Event`.
    applying : callable
        Called before a step changes the server's state.

    Raises
    ------
    ConfigError
        Without a clock.
    """

    def __init__(self, server: Server, answer: Callable[[Request], Iterable[Reply]]) -> None:
        rule = server.strategy.participation
        assert isinstance(rule, Buffered)  # noqa: S101  (the caller's case)
        self._server, self._answer, self._rule = server, answer, rule
        self._most = rule.at_work(server.setup.num_clients)
        self.waves = self._barrier = self._vain = 0
        self._open: dict[int, Wave] = {}
        self._tasks: list[Task] = []
        self._replies: dict[tuple[int, int], Reply] = {}
        self._held: list[Held] = []
        self._stacked: set[str] = set()  # uploads that the engine gives as stacked columns
        self._restores: dict[int, Payload] = {}
        self._faults: dict[int, str] = {}
        self._diverged: set[int] = set()
        self.note: Callable[[Event], None] = lambda event: None
        self.applying: Callable[[], None] = lambda: None
        n = server.setup.num_clients
        self.used, self.stale = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.most_staleness = self.total_staleness = 0
        self._check_clock()

    def _check_clock(self) -> None:
        if self._server.clock is None:
            raise ConfigError(
                f"{self._rule!r} needs a clock for the clients' times: give clock=Clock(...), in a "
                f"file a table [clock]"
            )

    @property
    def seconds(self) -> float:
        """The time of the run."""
        assert self._server.clock is not None  # noqa: S101  (checked)
        return self._server.clock.seconds

    def step(self) -> list[int]:
        """Do the next step: ask idle clients and take replies until there are enough of them.

        Returns the clients whose replies were used.

        Raises
        ------
        RoundError, DivergedError
            If no reply can be used for long. The step is not done.
        """
        while True:
            while len(self._held) < self._rule.buffer:
                self._dispatch()
                self._take(*self._next())
            if not self._drop_carriers():
                return self._apply()

    # --- who is asked ----------------------------------------------------------------------------

    def _busy(self) -> int:
        """Return how many clients are at work."""
        return len(self._tasks)

    def _idle(self) -> list[int]:
        """Return the clients that may be asked."""
        away = {task.client for task in self._tasks} | {held.client for held in self._held}
        return [client for client in self._server.everyone if client not in away]

    def _dispatch(self) -> None:
        """Ask idle clients, if enough places are free or nobody is at work."""
        busy = self._busy()
        free = self._most - busy - len(self._held)
        if free < self._rule.dispatch and busy:
            return
        idle = self._idle()
        if not idle or free < 1:
            return
        clients = idle
        if free < len(idle):
            rng = stream(self._server.setup.seed, COHORT, self.waves + 1)
            clients = np.sort(rng.choice(idle, size=free, replace=False)).tolist()
        self._send(clients)

    def _send(self, clients: list[int]) -> None:
        self.waves += 1
        wave = Wave(self._server, self.waves, clients, self._restores)
        self.note(Event(self.seconds, wave.number, tuple(clients), "asked", step=wave.version))
        wave.ask()
        self._open[wave.number] = wave
        for client, arrives in self._computed(wave).items():
            heapq.heappush(self._tasks, Task(arrives, wave.number, client))

    def _computed(self, wave: Wave) -> dict[int, float]:
        """Compute a wave's replies, and return when each comes in.

        Its clients are told nothing of the time that passes meanwhile: they work on what they were
        sent.
        """
        clock = self._server.clock
        assert clock is not None  # noqa: S101  (checked)
        self._put(wave)
        came = [self._replies.get((wave.number, client)) for client in wave.clients]
        if clock.counts_gradients:
            work = [one.work[0] if one is not None and one.work else {} for one in came]
            clock.took(wave.clients, [each.get("gradients", 0) for each in work])
        down = [wave.sizes.down[client] for client in wave.clients]
        up = [0 if one is None else sum(map(column_bytes, one.payload.values())) for one in came]
        times = clock.times(wave.number, wave.clients, down, up)
        now = self.seconds
        return {c: now + t for c, t in zip(wave.clients, times.tolist(), strict=True)}

    def _put(self, wave: Wave) -> None:
        """Let a wave's clients answer, and put their replies where they wait for their time."""
        for reply in self._answer(wave.asked):
            columns = reply.payload.items()
            self._stacked.update(name for name, column in columns if isinstance(column, np.ndarray))
            for one in reply.single() if reply.payload else _apart(reply):
                self._replies[wave.number, one.clients[0]] = one

    # --- what comes back -------------------------------------------------------------------------

    def _next(self) -> tuple[Wave, int, Reply | None]:
        """Return the next arrival: its wave, its client, and the reply, if there is one."""
        task = heapq.heappop(self._tasks)
        assert self._server.clock is not None  # noqa: S101  (checked)
        self._server.clock.seconds = max(self._server.clock.seconds, task.arrives)
        reply = self._replies.pop((task.wave, task.client), None)
        return self._open[task.wave], task.client, reply

    def _take(self, wave: Wave, client: int, reply: Reply | None) -> None:
        """Hold a reply for the coming step, or let it go; its client is idle again."""
        server = self._server
        wave.open.discard(client)
        if not wave.open:
            del self._open[wave.number]
        staleness = server.round - wave.version
        outcome = self._outcome(wave, client, reply, staleness)
        self.note(
            Event(
                self.seconds,
                wave.number,
                (client,),
                outcome,
                staleness,
                server.round + (outcome == "used"),
            )
        )
        if outcome == "used":
            self._vain = 0
            self._diverged.discard(client)
            self._faults.pop(client, None)
            return
        self._vain += 1
        if outcome != "stale":
            self._check_hope()

    def _outcome(self, wave: Wave, client: int, reply: Reply | None, staleness: int) -> str:
        server, most = self._server, self._rule.max_staleness
        if reply is None or reply.silent:
            self._faults[client] = "no reply" if reply is None else reply.error
            server.audit.silent([client], self._faults[client])
            return "silent"
        if wave.number <= self._barrier or (most is not None and staleness > most):
            server.counts["stale"] += 1
            self.stale[client] += 1
            server.count_bytes(up=sum(map(column_bytes, reply.payload.values())))
            self._faults[client] = f"its reply is {staleness} steps old"
            return "stale"
        lost, used = server.counts["lost"], len(wave.used)
        wave.take([reply])
        if wave.sent_anew:  # all clients start again: what is under way no longer counts
            self._barrier = self.waves
            self._held.clear()
        if len(wave.used) > used:
            self._held.append(Held(wave, wave.used[-1]))
            return "used"
        if server.counts["lost"] > lost:
            return "lost"
        self._faults[client] = wave.faults.get(client, "no usable reply")
        (self._diverged.add if client in wave.diverged else self._diverged.discard)(client)
        return "dropped"

    def _check_hope(self) -> None:
        """Raise if replies have been of no use for long."""
        server, n = self._server, self._server.setup.num_clients
        estimated = server.setup.estimated and len(self._diverged) >= max(1, n / 2)
        if self._vain < _VAIN * n and not estimated:
            return
        reasons = "; ".join(server.in_words(dict(sorted(self._faults.items()))))
        if estimated:
            raise DivergedError(
                f"step {server.round + 1}: the numbers of {len(self._diverged)} of {n} clients are "
                f"no longer finite ({reasons}): the run diverges. Use smaller steps"
            )
        error = DivergedError if self._diverged else RoundError
        raise error(
            f"step {server.round + 1}: none of the last {self._vain} replies could be used "
            f"({reasons})"
        )

    def _drop_carriers(self) -> bool:
        """Drop uploads that would carry the model beyond what clients accept; return if any."""
        server = self._server
        if not all(held.reply.remote for held in self._held):
            return False
        names = self._held[0].wave.names
        found = server.bound.carriers(server.state, names, self._uploads)
        for held in [one for one in self._held if one.client in found]:
            held.wave.drop([held.client], DivergedError(server.bound.reason))
            self._held.remove(held)
        server.bound.dropped.update(found)
        return bool(found)

    # --- a step ----------------------------------------------------------------------------------

    def _uploads(self, without: Collection[int] = ()) -> Uploads:
        """Return the uploads of the replies that are held, in client order."""
        server = self._server
        held = sorted((h for h in self._held if h.client not in without), key=lambda h: h.client)
        replies = [one.reply for one in held]
        if server.received is not None:
            replies = server.received.one_by_one(
                [(one.reply, one.wave.broadcast) for one in held], self._restores
            )
        wave, names = held[0].wave, held[0].wave.names
        joined = [replace(self._joined(replies), round=server.round + 1)]
        uploads = server.private.uploads(joined, names, wave.broadcast, server.round + 1)
        steps = [server.round - one.wave.version for one in held]
        if any(steps):
            about = server.strategy.release.about
            weights = [self._rule.weight(staleness) for staleness in steps]
            sent = [one.wave.broadcast for one in held]
            uploads.late = Staleness(steps, weights, sent, about)
        return uploads

    def _joined(self, replies: Sequence[Reply]) -> Reply:
        """Return replies of one client each, ascending, as one reply, in the engine's form.

        So sums are added in the same order as in a round.
        """
        columns: Payload = {}
        for name in replies[0].payload:
            values = [reply.payload[name][0] for reply in replies]
            columns[name] = np.stack(values) if name in self._stacked else values
        clients = [reply.clients[0] for reply in replies]
        return replace(replies[0], clients=clients, payload=columns, work=(), left=None)

    def _apply(self) -> list[int]:
        """Do the step with the replies that are held, and acknowledge each with its wave."""
        server, uploads = self._server, self._uploads()
        waves = {held.client: held.wave for held in self._held}
        steps = [server.round - waves[client].version for client in uploads.clients]
        self.applying()
        server.round, server.cohort = server.round + 1, uploads.clients
        server.apply(uploads, [waves[client].number for client in uploads.clients])
        for client in uploads.clients:
            self._restores.pop(client, None)
        self._held.clear()
        self.used[uploads.clients] += 1
        self.total_staleness += sum(steps)
        self.most_staleness = max(self.most_staleness, *steps)
        server.columns = {
            "staleness": sum(steps) / len(steps),
            "most_staleness": max(steps),
            "stale": server.counts["stale"],
            "waves": self.waves,
        }
        return uploads.clients

    def doubts(self) -> Iterator[str]:
        """Yield doubts about the result."""
        strategy, names = self._server.strategy, self._server.setup.names
        replies, n = int(self.used.sum()), len(self.used)
        if not replies:
            return
        shares = self.used / replies
        low, high = int(shares.argmin()), int(shares.argmax())
        if strategy.async_bias and shares[high] > _UNEQUAL / n:
            fresh = "AREA, FedDR, FedDyn, Scaffold and FedNewton do not"
            yield (
                f"{strategy.async_bias}: {names[high]} gave {shares[high]:.1%} of the uploads, "
                f"{names[low]} {shares[low]:.1%}, where {1 / n:.1%} would be equal. The model "
                f"favours the former; {fresh}"
            )
            if self._rule.discount:
                yield (
                    f"discount={self._rule.discount:g} weakens old replies, which are those of slow "
                    f"clients: it favours fast ones further"
                )
        mean = self.total_staleness / replies
        if self.most_staleness > _OLD * max(mean, n / self._rule.buffer):
            yield (
                f"a reply was {self.most_staleness} steps old, {mean:.1f} are usual: steps that "
                f"are safe in rounds may be too long for it. Give max_staleness, or smaller steps"
            )
        if never := [names[j] for j in np.flatnonzero((self.used == 0) & (self.stale > 0))]:
            yield (
                f"max_staleness={self._rule.max_staleness} has dropped all replies of "
                f"{clients_by_name(never)}: these take no part. Give a larger one"
            )

    # --- checkpoints -----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs to go on with the work that is under way."""
        return {
            "waves": self.waves,
            "barrier": self._barrier,
            "tasks": [list(task) for task in sorted(self._tasks)],
            "open": [wave.snapshot() for wave in self._open.values()],
            "restores": [[client, payload] for client, payload in self._restores.items()],
            "columns": dict(self._server.columns),
            "used": self.used.tolist(),
            "stale": self.stale.tolist(),
            "staleness": [self.most_staleness, self.total_staleness],
        }

    def resume(self, found: Mapping[str, Any]) -> None:
        """Go on after a checkpoint: ask the waves that were under way again, uncounted."""
        self.waves, self._barrier = found["waves"], found["barrier"]
        self._restores.update({client: payload for client, payload in found["restores"]})
        self._server.columns = dict(found["columns"])
        self.used, self.stale = np.array(found["used"]), np.array(found["stale"])
        self.most_staleness, self.total_staleness = found["staleness"]
        self._tasks = [Task(*task) for task in found["tasks"]]
        for each in found["open"]:
            wave = Wave.resumed(self._server, each, self._restores)
            self._open[wave.number] = wave
            self._put(wave)


def _apart(reply: Reply) -> list[Reply]:
    """Return a reply without a payload for each of its clients."""
    return [replace(reply, clients=[client]) for client in reply.clients]
