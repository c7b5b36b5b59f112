"""Asynchronous runs on nodes: each idle node is asked at once, and replies come when they come."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from flower_fedcon.core.flow import START, Flow, Step, Wave
from flower_fedcon.core.protocol import Reply, Request
from flower_fedcon.core.server import Server
from flower_fedcon.errors import RoundError
from flower_fedcon.flower import mail
from flower_fedcon.flower.incoming import Fault
from flower_fedcon.flower.mail import Arrival

_log = logging.getLogger("flwr")
PAUSE = 1.0, 60.0  # seconds before a client whose reply was of no use is asked again
_LOOK = 1.0  # seconds between questions about who is online
_STUCK = 2.0  # seconds after which others are no longer kept waiting for a reply that stops midway


class Post(Protocol):
    """What the steps of a run need of an engine of nodes."""

    def online(self) -> dict[str, int]:
        """Return the node of each client that is online."""

    def dispatch(
        self, request: Request, online: Mapping[str, int]
    ) -> tuple[dict[str, tuple[int, int]], dict[int, str]]:
        """Send a request and do not wait; return clients and nodes by message, and who got none."""

    def collect(self, waiting: dict[str, int]) -> list[Arrival]:
        """Return the replies that have come to these messages, each with its node."""

    def heard(self, client: int, content: Any, server_round: int) -> Reply:
        """Return what a client has answered, or why nothing came, as a reply."""

    def told(self, client: int, reason: str, server_round: int) -> Reply:
        """Return a silent reply with its reason."""


class _Job(NamedTuple):
    """A client at work on a node."""

    wave: Wave
    client: int
    node: int
    until: float  # when it no longer counts as at work


class _Pull:
    """A question for replies, asked in a thread of its own.

    Flower waits minutes for the rest of a reply whose node has died in the middle of its upload.
    """

    def __init__(self, engine: Post, waiting: dict[str, int]) -> None:
        self._engine, self._waiting = engine, waiting
        self._found: list[tuple[str, Any]] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        keys = {node: key for key, node in self._waiting.items()}  # a node is at one message
        try:
            found = self._engine.collect(self._waiting)
            self._found = [(keys[arrival.node], arrival.content) for arrival in found]
        except BaseException as error:  # Flower's are not all of class Exception
            self._error = error

    def ended(self, seconds: float = 0.0) -> bool:
        """Return whether the answer is there after so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def found(self) -> list[tuple[str, Any]]:
        """Return what has come in, by the message that it answers."""
        if self._error is not None:
            raise self._error
        return self._found


class NodeFlow(Flow):
    """Steps on nodes, by the time of the wall.

    A node is asked when it is idle. Its work ends by a reply, when the node has gone, or after
    `timeout` seconds; the message is then forgotten, so that a reply that comes later is never
    read. A client whose reply was of no use is asked again after a pause.

    Parameters
    ----------
    engine : Post
    server : Server
    timeout : float
        Seconds that a client may take.
    deadline : float
        Seconds without a usable reply after which the run ends.
    """

    def __init__(self, engine: Post, server: Server, *, timeout: float, deadline: float) -> None:
        super().__init__(server)
        self._engine, self._timeout, self._deadline = engine, timeout, deadline
        self._jobs: dict[str, _Job] = {}  # by the id of the message
        self._pulls: list[_Pull] = []  # that are stuck
        self._come: deque[tuple[Wave, int, Reply | None]] = deque()
        self._failures: dict[int, int] = {}  # in a row
        self._free: dict[int, float] = {}  # when a client may be asked again
        self._online: Mapping[str, int] = {}
        self._looked = -_LOOK
        self._began = self._useful = time.monotonic()
        self._before = 0.0  # seconds of earlier starts
        self._told = set[str]()  # each is said once
        self._delay = mail.POLL[0]

    @property
    def seconds(self) -> float:
        """The seconds since the run's first step, without the time between its starts."""
        return self._before + time.monotonic() - self._began

    def step(self) -> Step:
        """Do the next step; the log says once if it has waited for everyone who is here."""
        step = super().step()
        self._tell_if_few()
        return step

    def _tell_if_few(self) -> None:
        """Log once that no more clients are here than a step takes, or fewer."""
        here, taken = len({*self._server.setup.names} & self._online.keys()), self._rule.buffer
        if here > taken:
            return
        who = f"{here} client{' is' if here == 1 else 's are'} here, and buffer={taken}"
        everyone = {1: "it", 2: "both"}.get(here, f"all {here}")
        waits = f"each step waits for {everyone}"
        if here < taken:
            waits = f"a step waits until {taken - here} more {'is' if taken - here == 1 else 'are'}"
        if (text := f"{who}: {waits}") not in self._told:
            self._told.add(text)
            _log.info("%s", text)

    def _look(self) -> Mapping[str, int]:
        """Return the clients that are online, with their nodes; asked at most once a second."""
        if time.monotonic() >= self._looked + _LOOK:
            self._online, self._looked = self._engine.online(), time.monotonic()
        return self._online

    def _there(self) -> Sequence[int]:
        now, online = time.monotonic(), self._look()
        names = self._server.setup.names
        return [
            client
            for client in self._server.everyone
            if names[client] in online and self._free.get(client, 0.0) <= now
        ]

    def _launch(self, wave: Wave) -> None:
        """Send a wave's messages."""
        jobs, silent = self._engine.dispatch(wave.asked, self._look())
        until = time.monotonic() + self._timeout
        for key, (client, node) in jobs.items():
            self._jobs[key] = _Job(wave, client, node, until)
        for client, reason in silent.items():
            self._come.append((wave, client, self._engine.told(client, reason, wave.number)))

    def _next(self) -> tuple[Wave, int, Reply | None] | None:
        """Return the next arrival; wait a moment if there is none."""
        if not self._come:
            self._collect()
        if self._come:
            self._delay = mail.POLL[0]
            return self._come.popleft()
        if time.monotonic() >= self._useful + self._deadline:
            faults = {c: self._faults.get(c, "no reply") for c in {*self._work, *self._faults}}
            reasons = "; ".join(self._server.in_words(dict(sorted(faults.items()))))
            raise RoundError(
                f"step {self._server.round + 1}: no usable reply in {self._deadline:.0f} s "
                f"({reasons or 'no client is online'})"
            )
        if self._held and not self._jobs:
            self._tell_if_few()
        time.sleep(self._delay)
        self._delay = min(2 * self._delay, mail.POLL[1])
        return None

    def _collect(self) -> None:
        """Take the replies that have come; end the work of nodes that have gone, or are late."""
        waiting = {key: job.node for key, job in self._jobs.items()}
        if waiting:
            self._pulls.append(_Pull(self._engine, waiting))
            self._pulls[-1].ended(_STUCK)
        ended = [pull for pull in self._pulls if pull.ended()]
        self._pulls = [pull for pull in self._pulls if pull not in ended]
        for key, content in [one for pull in ended for one in pull.found()]:
            if (job := self._jobs.pop(key, None)) is not None:  # otherwise it is forgotten
                reply = self._engine.heard(job.client, content, job.wave.number)
                self._come.append((job.wave, job.client, reply))
        now, there = time.monotonic(), set(self._look().values())
        for key, job in list(self._jobs.items()):
            reason = "its node has gone" if job.node not in there else ""
            if not reason and now >= job.until:
                reason = f"no reply in {self._timeout:.3g} s"
            if reason:
                del self._jobs[key]
                fault = Fault(reason, silent=True)
                reply = self._engine.heard(job.client, fault, job.wave.number)
                self._come.append((job.wave, job.client, reply))

    def _take(self, wave: Wave, client: int, reply: Reply | None) -> None:
        held, lost = len(self._held), self._server.counts["lost"]
        super()._take(wave, client, reply)
        self._resting.clear()  # pauses take its place
        if len(self._held) > held:
            self._failures.pop(client, None)
            self._useful = time.monotonic()
            return
        if self._server.counts["lost"] > lost:  # it is handed its state at once
            return
        failures = self._failures[client] = self._failures.get(client, 0) + 1
        self._free[client] = time.monotonic() + mail.pause(failures, *PAUSE)
        if reply is not None and reply.silent:
            name = self._server.client_name(client)
            _log.warning("wave %d: nothing from %s: %s", wave.number, name, reply.error)

    def _check_hope(self) -> None:
        """Raise if the run diverges: on nodes, `deadline` ends a run without usable replies."""
        if self._server.setup.estimated or len(self._diverged) == self._server.setup.num_clients:
            super()._check_hope()

    def follow(self, before: Flow) -> None:
        """Continue the numbers and the time of the flow of a server that was given up."""
        self._before = before.seconds
        super().follow(before)

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs: nodes are then asked anew."""
        open_ = [list(each) for each in self._under_way()]
        return super().snapshot() | {"seconds": self.seconds, "open": open_}

    def resume(self, found: Mapping[str, Any]) -> None:
        """Go on after a checkpoint."""
        super().resume(found)
        self._before, self._began = found["seconds"], time.monotonic()
        for each in found.get("open", ()):  # not in checkpoints of earlier versions
            self._give_up(*each)
        self._skip_to(START * (self._server.info.incarnation - 1))
