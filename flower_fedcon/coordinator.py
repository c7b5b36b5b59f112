"""The server's side of one run: cohorts, requests, the gate, acknowledgements, counts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon import streams
from flower_fedcon.checks import Array
from flower_fedcon.codec import RequestEncoder
from flower_fedcon.errors import FedConError, RoundError, StateLostError
from flower_fedcon.protocol import Exchange, Reply, Request, RunInfo, Setup
from flower_fedcon.wire import Payload, array_bytes, payload_bytes

if TYPE_CHECKING:
    from flower_fedcon.strategies.base import FedConStrategy

_log = logging.getLogger("flwr")


class Arrivals:
    """The uploads of a round that are used, in client order.

    Attributes
    ----------
    clients : list of int
        Who sent them, ascending.
    num_clients : int
        N, all clients.
    """

    def __init__(self, uploads: dict[int, Payload], num_clients: int) -> None:
        self.clients = sorted(uploads)
        self.num_clients = num_clients
        self._uploads = uploads

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, name: str) -> list[Any]:
        return [self._uploads[client][name] for client in self.clients]

    def items(self, name: str) -> Iterator[tuple[int, Any]]:
        """Yield (client, value)."""
        return zip(self.clients, self[name], strict=True)

    def sum(self, name: str) -> Array:
        """Return the sum over the cohort, in client order; compact forms give a dense sum."""
        first, *others = self[name]
        total: Array = first.copy() if isinstance(first, np.ndarray) else first.dense().copy()
        for value in others:
            if isinstance(value, np.ndarray):
                total += value
            else:
                value.add_to(total)
        return total

    def mean(self, name: str) -> Array:
        """Return the mean over the cohort (mean_S)."""
        return self.sum(name) / len(self.clients)


class Coordinator:
    """One run of a strategy, apart from what carries its messages.

    A round is `begin`, then `requests` and `absorb` until `complete`, then `finish`; `play` does
    it all. Nothing of a round is applied before it is complete.

    Parameters
    ----------
    strategy : FedConStrategy
        Bound to `setup` here; the caller's object is left alone.
    setup : Setup
    x0 : array
        The start, of the layout's shape.
    seed : int
    max_retries : int
        How many more times the clients without a usable reply are asked.
    """

    def __init__(
        self,
        strategy: FedConStrategy[Any],
        setup: Setup,
        x0: Array,
        *,
        seed: int = 0,
        max_retries: int = 3,
    ) -> None:
        self.setup = setup
        self.strategy = strategy.bind(setup)
        self.seed = streams.check_seed(seed)
        self.state = self.strategy.initialize(x0)
        self.info = RunInfo(
            self.strategy.name, self.seed, setup.layout, setup.num_clients, self.strategy.settings()
        )
        self.encoder = RequestEncoder(self.info)
        self._setting_bytes = sum(
            array_bytes(a.shape, a.dtype) for a in self.encoder.setting_arrays.values()
        )
        self.round = 0
        self.max_retries = max_retries
        self.acks = [0] * setup.num_clients
        self.uplink_bytes = self.downlink_bytes = 0
        self.counts: Counter[str] = Counter()
        self.cohort: list[int] = []
        self.replies = 0

    @property
    def x(self) -> Array:
        """The current global model."""
        return self.strategy.model(self.state)

    def play(self, exchange: Exchange) -> None:
        """Do the next round."""
        self.begin()
        while not self.complete():
            self.absorb(exchange(self.requests()))
        self.finish()

    def begin(self) -> None:
        """Draw the cohort of the next round."""
        self.round += 1
        participation, n = self.strategy.participation, self.setup.num_clients
        rng = streams.stream(self.seed, streams.COHORT, self.round) if self.setup.sampled else None
        self.cohort = participation.draw(n, rng) if rng is not None else list(range(n))
        self._attempt, self._ask_again = 0, False
        self._faults: dict[int, str] = {}
        self._restores: dict[int, Payload] = {}
        self._restart()

    def _restart(self) -> None:
        """Take the state's broadcast, with no upload yet."""
        self._uploads: dict[int, Payload] = {}
        self._broadcast = self.strategy.broadcast(self.state)
        self._broadcast_bytes = payload_bytes(self._broadcast) + self._setting_bytes

    def requests(self) -> list[Request]:
        """Return what to ask the members of the cohort whose reply is still missing."""
        self._attempt += not self._ask_again  # a re-entry is an answer, not a failed attempt
        self._ask_again = False
        requests = []
        for client in self.cohort:
            if client in self._uploads:
                continue
            ack, given = self.acks[client], self._restores.get(client)
            if given is None and ack == 0:
                given = self.strategy.welcome(self.state, client)
            self.downlink_bytes += self._broadcast_bytes
            if given:
                self.downlink_bytes += payload_bytes(given)
            requests.append(Request(client, self.round, ack, self._broadcast, given))
        if self._attempt > 1:
            self.counts["retries"] += 1
        return requests

    def absorb(self, replies: Iterable[Reply]) -> None:
        """Take the usable replies; drop, count and log the others."""
        for reply in replies:
            client = reply.client
            try:
                if client not in self.cohort or client in self._uploads:
                    raise RoundError("nothing was asked of this client")
                if reply.round != self.round:
                    raise RoundError(f"it is for round {reply.round}")
                if reply.error:
                    raise RoundError(reply.error)
                if reply.lost:
                    if self._reenter(client):
                        return  # the other replies answer a broadcast that no longer holds
                    continue
                if not 0 < reply.num_examples < float("inf"):
                    raise RoundError(f"its weight is {reply.num_examples}")
                self._uploads[client] = self.strategy.accept(reply.payload)
                self.uplink_bytes += payload_bytes(self._uploads[client])
            except FedConError as error:
                self.counts["dropped"] += 1
                self._faults[client] = str(error)
                name = self.client_name(client)
                _log.warning("round %d: dropped the reply of %s: %s", self.round, name, error)

    def _reenter(self, client: int) -> bool:
        """Let a client whose state is gone come back; return whether the round starts over."""
        name = self.client_name(client)
        if client in self._restores:
            raise StateLostError("it says again that its state is gone")
        state, self._restores[client] = self.strategy.reenter(self.state, client)
        self.counts["lost"] += 1
        self._ask_again = True
        _log.warning("round %d: %s has lost its state and re-enters", self.round, name)
        if state is self.state:
            return False
        self.state = state
        self._restart()
        return True

    def complete(self) -> bool:
        """Return whether the round has enough usable replies.

        Raises
        ------
        RoundError
            If it has not, and every attempt is spent. The state is the last round's.
        """
        wanted = self.strategy.quorum(len(self.cohort))
        missing = len(self.cohort) - len(self._uploads)
        if missing == 0:
            return True
        if self._ask_again or self._attempt == 0:
            return False
        if len(self._uploads) >= wanted:
            return True
        if self._attempt > self.max_retries:
            missed = [c for c in self.cohort if c not in self._uploads]
            raise RoundError(
                f"round {self.round}: {len(self._uploads)} usable replies of {len(self.cohort)}, "
                f"{wanted} needed, after {self._attempt} attempts ({self._reasons(missed)})"
            )
        return False

    def _reasons(self, clients: list[int]) -> str:
        """Return why these clients have no usable reply, each reason once."""
        by_reason: dict[str, list[str]] = {}
        for client in clients:
            reason = self._faults.get(client, "no reply")
            by_reason.setdefault(reason, []).append(self.setup.clients[client].name)
        return "; ".join(
            f"client{'s' if len(names) > 1 else ''} {', '.join(names)}: {reason}"
            for reason, names in by_reason.items()
        )

    def finish(self) -> None:
        """Apply the round and acknowledge the replies that were used."""
        arrivals = Arrivals(self._uploads, self.setup.num_clients)
        self.state = self.strategy.aggregate(self.state, arrivals)
        for client in arrivals.clients:
            self.acks[client] = self.round
        self.replies = len(arrivals)

    def client_name(self, client: int) -> str:
        """Return a client's name, for messages."""
        known = 0 <= client < self.setup.num_clients
        return f"client {self.setup.clients[client].name}" if known else f"unknown client {client}"
