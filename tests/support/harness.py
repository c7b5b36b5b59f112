"""A run in the open: a coordinator and its clients, with any exchange between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict

from flower_fedcon.core.coordinator import Coordinator
from flower_fedcon.core.protocol import Exchange, Reply, Request
from flower_fedcon.engines import local
from flower_fedcon.flower import codec, messages
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.registry import client_class
from flower_fedcon.simulation import make_setup

Command = Callable[..., tuple[int, str, str]]
"""Runs `fedcon` with these arguments; its exit status, output and errors."""


def refusal(fedcon: Command, *arguments: str) -> str:
    """Return the one line with which the command refuses."""
    code, _, error = fedcon(*arguments)
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert error.endswith("\n")
    return error


Alter = Callable[[Request, Reply], list[Reply]]
"""What becomes of a reply on its way: none, another, or several."""


class OpenRun:
    """A run whose rounds a test plays one by one.

    Parameters
    ----------
    strategy, problem
    rounds : int
        How many the strategy is told of.
    seed : int
    alter : callable, optional
        Sees every request and its reply, and returns what arrives.
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
        infos = local.describe(problem.objectives, problem.names, strategy.name)
        setup = make_setup(infos, rounds, problem.layout, strategy.participation, seed)
        self.problem = problem
        self.coordinator = Coordinator(strategy, setup, problem.start)
        self.clients = [self.new_client(j) for j in range(problem.num_clients)]
        self.alter = alter

    def new_client(self, j: int) -> Any:
        """Return client j as it is after a restart without its state."""
        client = client_class(self.coordinator.info.algorithm)(self.problem.objectives[j])
        client.configure(self.coordinator.info)
        return client

    def exchange(self, requests: list[Request]) -> list[Reply]:
        replies: list[Reply] = []
        for request in requests:
            reply = self.clients[request.client].handle(request)
            replies += [reply] if self.alter is None else self.alter(request, reply)
        return replies

    def play(self, rounds: int = 1) -> OpenRun:
        for _ in range(rounds):
            self.coordinator.play(self.exchange)
        return self

    @property
    def x(self) -> Any:
        return self.coordinator.x

    @property
    def state(self) -> Any:
        return self.coordinator.state


def latest(run: OpenRun, j: int) -> Any:
    """Return client j's state after its last reply that was used; None before the first."""
    versions, ack = run.clients[j].versions, run.coordinator.acks[j]
    return versions.at(ack) if ack else None


def client_states(run: OpenRun) -> list[Any]:
    """Return what `latest` says of every client."""
    return [latest(run, j) for j in range(len(run.clients))]


def settled(run: OpenRun, name: str) -> np.ndarray:
    """Return a field of all clients' states, once the next broadcast has confirmed the round."""
    down = run.coordinator.strategy.broadcast(run.state)
    states = [run.clients[j].on_acknowledged(latest(run, j), down) for j in range(len(run.clients))]
    return np.stack([getattr(state, name) for state in states])


def wire_exchange(run: OpenRun) -> tuple[Exchange, list[Context]]:
    """Return an exchange that takes every message through Flower's records, as nodes do.

    Each message meets a new client object: what a client knows, its context holds.
    """
    contexts = [
        Context(run_id=1, node_id=j, node_config={}, state=RecordDict(), run_config={})
        for j in range(run.problem.num_clients)
    ]
    kind = client_class(run.coordinator.info.algorithm)

    def exchange(requests: list[Request]) -> list[Reply]:
        replies = []
        for request in requests:
            arrays, config = run.coordinator.encoder.encode(request)
            received = messages.from_record(messages.to_record(arrays.values()))
            objective = run.problem.objectives[request.client]
            client = kind(objective, context=contexts[request.client])
            parameters, examples, metrics = client.fit(received, config)
            back = messages.from_record(messages.to_record(parameters))
            replies.append(codec.decode_reply(back, examples, metrics))
        return replies

    return exchange, contexts
