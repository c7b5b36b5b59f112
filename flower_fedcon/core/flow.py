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

import logging
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.core.buffered import Buffered, favoured
from flower_fedcon.core.dispatch import Dispatch
from flower_fedcon.core.gate import Admitted, column_bytes
from flower_fedcon.core.protocol import Reply, Request, entry
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.core.server import Server
from flower_fedcon.core.stopwatch import Untimed
from flower_fedcon.core.uploads import Staleness, Uploads
from flower_fedcon.errors import DivergedError, RoundError, clients_by_name
from flower_fedcon.wire.payloads import Payload, payload_bytes

_log = logging.getLogger("flwr")
_VAIN = 4  # replies in a row for each client, none of which can be used, after which a run ends
START = 10**9
"""On nodes the waves of a run's second start begin above this number, those of the third above
twice this number. So no number stands for two waves: a start goes back to a checkpoint, and a node
may still have, or get back, what it did in a wave after it."""


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
    asked : Request
    """

    word = "wave"
    asked: Request

    def __init__(
        self, server: Server, number: int, clients: list[int], restores: dict[int, Payload]
    ) -> None:
        self.sizes = _Sizes()
        super().__init__(server, number, clients, self.sizes, restores)
        self.version = server.round

    def ask(self) -> Request:
        """Return the request, and count it."""
        self.asked = self.request(self.clients, wanted=1, attempt=1, seconds_left=np.inf)
        return self.asked

    def part(self, clients: Sequence[int]) -> Request:
        """Return the request to some of its clients, ascending."""
        if len(clients) == len(self.clients):
            return self.asked
        return self.asked.only(np.searchsorted(self.clients, clients).tolist())

    def snapshot(self, clients: list[int]) -> dict[str, Any]:
        """Return what a checkpoint holds of a wave on which some clients are at work."""
        part = self.part(clients)
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
            personal=dict(found["personal"]),
            restore=dict(found["restore"]),
            names=wave.names,
        )
        return wave


class Held(NamedTuple):
    """A reply that is held for the coming step."""

    client: int
    wave: Wave
    reply: Reply  # of the client, or of several
    place: int  # of the client in it


class Event(NamedTuple):
    """What happens in an asynchronous run: clients are asked, or one's reply comes in."""

    seconds: float
    wave: int
    clients: tuple[int, ...]
    outcome: str  # "asked", "used", "stale", "dropped", "lost" or "silent"
    staleness: int = 0
    step: int = 0  # the step for which the reply is held, or that was the last when it came


class Step(NamedTuple):
    """A step that has been done, in the terms of a round.

    Attributes
    ----------
    number : int
        From 1.
    cohort : list of int
        The clients whose replies were used.
    """

    number: int
    cohort: list[int]

    def missing(self) -> dict[int, str]:
        """Return the clients that a step still waits for: none."""
        return {}


class Flow(ABC):
    """The steps of one asynchronous run.

    Parameters
    ----------
    server : Server
        With the rule `Buffered`.

    Attributes
    ----------
    waves : int
        The number of the last wave that has been sent.
    used, stale : array of int, shape (N,)
        How many replies of each client were used, and were too old.
    note : callable, optional
        Called with each `Event`.
    applying : callable
        Called before a step changes the server's state.
    """

    def __init__(self, server: Server) -> None:
        rule = server.strategy.participation
        assert isinstance(rule, Buffered)  # noqa: S101  (the caller's case)
        self._server, self._rule = server, rule
        n = server.setup.num_clients
        self._most = rule.at_work(n)
        self.waves = self._barrier = self._vain = 0
        self._skipped = 0  # numbers up to `waves` that no wave has
        self._work: dict[int, Wave] = {}  # by client that is at work
        self._idle = set(server.everyone)  # neither at work, nor with a reply that is held
        self._held: list[Held] = []
        self._uncounted: list[Held] = []  # those of `_held` that nobody has been told of
        self._stacked: set[str] = set()  # uploads that the engine gives as stacked columns
        self._restores: dict[int, Payload] = {}
        self._faults: dict[int, str] = {}
        self._resting: set[int] = set()  # clients that have failed since another's reply came
        self._diverged: set[int] = set()
        self.note: Callable[[Event], None] | None = None
        self.applying: Callable[[], None] = lambda: None
        self.used, self.stale = np.zeros(n, np.int64), np.zeros(n, np.int64)

    @property
    def server(self) -> Server:
        """The server whose steps these are."""
        return self._server

    def follow(self, before: Flow) -> None:
        """Continue the numbers of the flow of a server that was given up, with its work."""
        self.waves, self._skipped, self.note = before.waves, before._skipped, before.note
        self.used, self.stale = before.used, before.stale
        for each in before._under_way():
            self._give_up(*each)

    def _under_way(self) -> list[tuple[int, int, int]]:
        """Return the wave, the client and the wave's version for each client at work, in order."""
        return sorted((wave.number, client, wave.version) for client, wave in self._work.items())

    def _give_up(self, wave: int, client: int, version: int) -> None:
        """Tell that a reply to an earlier start is no longer waited for."""
        if self.note is not None:
            now = self._server.round
            self.note(Event(self.seconds, wave, (client,), "silent", now - version, now))

    def _skip_to(self, wave: int) -> None:
        """Let the coming waves have numbers above this one."""
        if wave > self.waves:
            self._skipped += wave - self.waves
            self.waves = wave

    # --- what a kind of flow defines -------------------------------------------------------------

    @property
    @abstractmethod
    def seconds(self) -> float:
        """The time of the run."""

    def _there(self) -> Sequence[int]:
        """Return the clients that could be asked if they are idle, ascending."""
        return sorted(self._idle)

    @abstractmethod
    def _launch(self, wave: Wave) -> None:
        """Let the clients of a wave work."""

    @abstractmethod
    def _next(self) -> tuple[Wave, int, Reply | None] | None:
        """Return the next arrival: its wave, its client, and the reply, if there is one.

        A reply of several clients has passed the gate. None if nothing has come, and clients may
        have become idle.
        """

    def step(self) -> Step:
        """Do the next step: ask idle clients and take replies until there are enough of them.

        Raises
        ------
        RoundError, DivergedError
            If no reply can be used for long. The step is not done.
        """
        while True:
            while len(self._held) < self._rule.buffer:
                self._proceed()
            if not self._drop_carriers():
                return self._apply()

    def _proceed(self) -> None:
        """Ask idle clients, and take the next reply."""
        self._dispatch()
        arrival = self._next()
        if arrival is not None:
            self._take(*arrival)

    # --- who is asked ----------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Ask idle clients, if enough places are free or nobody is at work."""
        free = self._most - len(self._work) - len(self._held)
        if free < 1 or (free < self._rule.dispatch and self._work):
            return
        clients = [client for client in self._there() if client in self._idle]
        if self._work:  # a client that fails at once must not be asked again and again meanwhile
            clients = [client for client in clients if client not in self._resting]
        if free < len(clients):
            rng = stream(self._server.setup.seed, COHORT, self.waves + 1)
            clients = np.sort(rng.choice(clients, size=free, replace=False)).tolist()
        if clients:
            self._send(clients)

    def _send(self, clients: list[int]) -> None:
        """Send the next wave."""
        self._count()
        self.waves += 1
        wave = Wave(self._server, self.waves, clients, self._restores)
        if self.note is not None:
            self.note(Event(self.seconds, wave.number, tuple(clients), "asked", step=wave.version))
        wave.ask()
        self._set_to_work(wave)
        self._launch(wave)

    def _set_to_work(self, wave: Wave) -> None:
        self._work.update(dict.fromkeys(wave.clients, wave))
        self._idle.difference_update(wave.clients)

    def _let_go(self, clients: Collection[int]) -> None:
        """Hold the replies of some clients no longer."""
        self._idle.update(clients)
        self._held = [held for held in self._held if held.client not in clients]

    # --- what comes back -------------------------------------------------------------------------

    def _take(self, wave: Wave, client: int, reply: Reply | None) -> None:
        """Hold a reply for the coming step, or let it go; its client is idle again."""
        server = self._server
        del self._work[client]
        staleness = server.round - wave.version
        outcome = self._outcome(wave, client, reply, staleness)
        if self.note is not None:
            step = server.round + (outcome == "used")
            self.note(Event(self.seconds, wave.number, (client,), outcome, staleness, step))
        if outcome in ("dropped", "silent"):
            self._resting.add(client)
        else:
            self._resting.clear()
        if outcome == "used":
            self._vain = 0
            self._diverged.discard(client)
            self._faults.pop(client, None)
            return
        self._idle.add(client)
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
            own = reply.one(reply.clients.index(client)) if reply.payload else reply
            server.count_bytes(up=sum(map(column_bytes, own.payload.values())))
            self._faults[client] = f"its reply is {staleness} steps old"
            server.audit.dropped(client, self._faults[client])
            return "stale"
        if len(reply.clients) > 1:
            held = Held(client, wave, reply, bisect_left(reply.clients, client))
            self._held.append(held)
            self._uncounted.append(held)
            return "used"
        self._count()
        lost, used = server.counts["lost"], len(wave.used)
        wave.take([reply])
        if wave.sent_anew:  # all clients start again: what is under way no longer counts
            self._barrier = self.waves
            self._let_go([held.client for held in self._held])
        if len(wave.used) > used:
            self._held.append(Held(client, wave, wave.used[-1], 0))
            return "used"
        if server.counts["lost"] > lost:
            return "lost"
        self._faults[client] = wave.faults.get(client, "no usable reply")
        (self._diverged.add if client in wave.diverged else self._diverged.discard)(client)
        return "dropped"

    def _count(self) -> None:
        """Tell listeners of the replies that have passed the gate with others, as they came."""
        if self._uncounted:
            admitted = Admitted(self._joined(self._uncounted, ()))
            admitted.work = [h.reply.work[h.place] for h in self._uncounted if h.reply.work]
            for listener in self._server.listeners:
                listener(admitted)
            self._uncounted = []

    @property
    def _starts_again(self) -> bool:
        """Whether estimated steps are too long for so many clients that the run starts again."""
        setup = self._server.setup
        return setup.estimated and len(self._diverged) >= max(1, setup.num_clients / 2)

    def _check_hope(self) -> None:
        """Raise if replies have been of no use for long."""
        server, n = self._server, self._server.setup.num_clients
        if self._vain < _VAIN * n and not self._starts_again:
            return
        reasons = "; ".join(server.in_words(dict(sorted(self._faults.items()))))
        if self._starts_again:
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
        carriers = server.bound.carriers(server.state, names, self._uploads)
        for held in [one for one in self._held if one.client in carriers]:
            held.wave.drop([held.client], DivergedError(server.bound.reason))
        self._let_go(carriers)
        server.bound.dropped.update(carriers)
        return bool(carriers)

    # --- a step ----------------------------------------------------------------------------------

    def _uploads(self, without: Collection[int] = ()) -> Uploads:
        """Return the uploads of the replies that are held, in client order."""
        server = self._server
        held = sorted((h for h in self._held if h.client not in without), key=itemgetter(0))
        replies = [self._joined(held, self._stacked)] if self._stacked else [h.reply for h in held]
        if server.received is not None:
            replies = server.received.one_by_one(
                [(one.reply, one.wave.broadcast) for one in held], self._restores
            )
        wave, names = held[0].wave, held[0].wave.names
        replies = [replace(reply, round=server.round + 1) for reply in replies]
        uploads = server.private.uploads(replies, names, wave.broadcast, server.round + 1)
        steps = [server.round - one.wave.version for one in held]
        if any(steps):
            about = server.strategy.release.about
            weights = [self._rule.weight(staleness) for staleness in steps]
            sent = [one.wave.broadcast for one in held]
            uploads.late = Staleness(steps, weights, sent, about)
        return uploads

    def _joined(self, held: Sequence[Held], stacked: Collection[str]) -> Reply:
        """Return replies as one of all these clients, with some columns as stacked arrays.

        Their sums are added in the same order as in a round of the engine that stacks them.
        """
        columns: Payload = {}
        for name in held[0].reply.payload:
            values = [entry(one.reply.payload[name], one.place) for one in held]
            columns[name] = np.stack(values) if name in stacked else values
        return Reply([one.client for one in held], self._server.round + 1, columns)

    def _apply(self) -> Step:
        """Do the step with the replies that are held, and acknowledge each with its wave."""
        self._count()
        server, uploads = self._server, self._uploads()
        waves = {held.client: held.wave for held in self._held}
        steps = uploads.staleness
        self.applying()
        server.round, server.cohort = server.round + 1, uploads.clients
        server.apply(uploads, [waves[client].number for client in uploads.clients])
        for client in uploads.clients:
            self._restores.pop(client, None)
        self._let_go({*uploads.clients})
        self.used[uploads.clients] += 1
        server.columns = {
            "staleness": sum(steps) / len(steps),
            "most_staleness": max(steps),
            "stale": server.counts["stale"],
            "waves": self.waves - self._skipped,
        }
        return Step(server.round, uploads.clients)

    @property
    def favours(self) -> str:
        """A sentence on the clients that the run favours so far; "" if it favours none."""
        return favoured(self._server.strategy.async_bias, self._server.setup.names, self.used)

    def doubts(self) -> Iterator[str]:
        """Yield doubts about the result."""
        names = self._server.setup.names
        if text := self.favours:
            yield text
            if self._rule.discount:
                yield (
                    f"discount={self._rule.discount:g} weakens old replies, which are those of "
                    f"slow clients: it favours fast ones further"
                )
        if never := [names[j] for j in ((self.used == 0) & (self.stale > 0)).nonzero()[0].tolist()]:
            yield (
                f"max_staleness={self._rule.max_staleness} has dropped all replies of "
                f"{clients_by_name(never)}: these take no part. Give a larger one"
            )

    # --- checkpoints -----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs to go on."""
        return {
            "waves": self.waves,
            "skipped": self._skipped,
            "barrier": self._barrier,
            "restores": [[client, payload] for client, payload in self._restores.items()],
            "columns": dict(self._server.columns),
            "used": self.used.tolist(),
            "stale": self.stale.tolist(),
        }

    def resume(self, found: Mapping[str, Any]) -> None:
        """Go on after a checkpoint."""
        self.waves, self._barrier = found["waves"], found["barrier"]
        self._skipped = found.get("skipped", 0)  # not in checkpoints of earlier versions
        self._restores.update(dict(found["restores"]))
        self._server.columns = dict(found["columns"])
        self.used, self.stale = np.array(found["used"]), np.array(found["stale"])
