"""An open run for tests: a server, its clients, and the wire between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.clock import Clock
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.protocol import Reply, Request, Setup
from flower_fedcon.core.round import Round
from flower_fedcon.core.server import Server
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.flower import codec, incoming, messages
from flower_fedcon.flower.incoming import Parts
from flower_fedcon.flower.policy import Policy
from flower_fedcon.layout import Layout
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.registry import client_class
from flower_fedcon.wire.payloads import Payload, flatten

OPEN = Policy.open()
SLOWEST = 1000.0
"""How much longer than the fastest client the slowest takes, with `Buffered`."""


@dataclass(frozen=True)
class Asked:
    """The request to one client."""

    client: int
    round: int
    phase: str
    down: Payload


Alter = Callable[[Asked, Reply], list[Reply]]
"""Replaces a reply on its way: by none, another one, or several."""


def values(one: Reply) -> dict[str, Any]:
    """Return the values of one client's reply, by name."""
    return {name: value for name, (value,) in one.payload.items()}


def sent(one: Reply) -> Reply:
    """Return a reply in its form on a wire: the arrays of its values."""
    arrays, scalars = flatten(values(one))
    payload = {name: [part] for name, part in (arrays | scalars).items()}
    return replace(one, payload=payload, remote=True)


class OpenRun(LocalEngine):
    """A run whose rounds a test carries out one by one.

    Parameters
    ----------
    strategy, problem
    rounds : int
        The number of rounds in the strategy's setup.
    seed : int
    alter : callable, optional
        Takes every client's request and reply, and returns what arrives over the wire.

    Attributes
    ----------
    steps : Flow or None
        With `Buffered`, what plays the steps: on clients whose speeds differ by `SLOWEST`.
    """

    def __init__(
        self,
        strategy: Any,
        problem: FederatedProblem,
        rounds: int = 100,
        *,
        seed: int = 0,
        alter: Alter | None = None,
    ) -> None:
        super().__init__(problem)
        rule = strategy.participation
        setup = Setup.of(self.describe(), rounds, problem.layout, rule, seed)
        self.problem = problem
        flows = isinstance(rule, Buffered)
        clock = Clock(compute=np.geomspace(1.0, SLOWEST, problem.num_clients)) if flows else None
        self.server = Server(strategy, setup, problem.start, clock=clock)
        self.open(self.server.info)
        self.clients: list[Any] = list(self._clients.values())
        self._clients = self.clients  # type: ignore[assignment]  # one may be replaced
        self.alter = alter
        self.steps: Any = self.flow(self.server) if flows else None

    def new_client(self, j: int) -> Any:
        """Return client j after a restart without its state."""
        client = client_class(self.server.info.algorithm)(self.problem.objectives[j])
        client.configure(self.server.info)
        return client

    def answer(self, request: Request) -> list[Reply]:
        """Return the replies that arrive."""
        answers = super().answer(request)
        if self.alter is None:
            return answers
        arriving: list[Reply] = []
        for one in sorted((s for a in answers for s in a.single()), key=lambda r: r.clients):
            client = one.clients[0]
            asked = Asked(client, request.round, request.phase, request.down(client))
            arriving += map(sent, self.alter(asked, one))
        return arriving

    def play(self, rounds: int = 1) -> OpenRun:
        """Carry out some rounds."""
        for _ in range(rounds):
            if self.steps is None:
                self.round(self)
            else:
                self.steps.step()
        return self

    def round(self, engine: Engine) -> None:
        """Carry out a round with clients of any engine."""
        complete(Round.begin(self.server), engine)

    @property
    def x(self) -> Any:
        """The current model."""
        return self.server.x

    @property
    def state(self) -> Any:
        """The strategy's state."""
        return self.server.state

    @property
    def acknowledged(self) -> list[int]:
        """For each client, the round of its last reply that was used."""
        rounds: list[int] = self.server.acknowledgements.rounds.tolist()
        return rounds


def complete(round_: Round, engine: Engine) -> None:
    """Complete a round that has begun."""
    while (request := round_.next_request()) is not None:
        round_.take(engine.answer(request))
    round_.finish()


def arrived(
    client: int, layout: Layout, arrays: list[np.ndarray], examples: Any, config: Any
) -> Reply:
    """Return the server's form of a NumPyClient's answer."""
    tensors = [array.data for array in messages.to_record(arrays).values()]
    reply = incoming.reply(client, layout.size, lambda: Parts(tensors, examples, None, config))
    return reply if isinstance(reply, Reply) else Reply([client], 0, error=reply.reason)


class Wire(LocalEngine):
    """An engine whose messages go through Flower's records, like those of nodes.

    Each message goes to a new client object: only the context keeps a client's state.
    """

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run.problem)
        self._encoder = codec.RequestEncoder(run.server.info)
        self._layout = run.server.info.layout
        kind = client_class(run.server.info.algorithm)
        assert issubclass(kind, FedConClient)  # noqa: S101  (the registry takes no other)
        self._kind = kind
        self.contexts = [
            Context(run_id=1, node_id=j, node_config={}, state=RecordDict(), run_config={})
            for j in range(run.problem.num_clients)
        ]

    def answer(self, request: Request) -> list[Reply]:
        """Return the clients' replies after the wire."""
        replies = []
        for place, j in enumerate(request.clients):
            arrays, config = self._encoder.encode(request, place)
            received = messages.from_record(messages.to_record(arrays.values()))
            client = self._kind(self._problem.objectives[j], context=self.contexts[j], policy=OPEN)
            parameters, examples, metrics = client.fit(received, config)
            replies.append(arrived(j, self._layout, parameters, examples, metrics))
        return replies
