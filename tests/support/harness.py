"""A run in the open: a server and its clients, and whatever lies between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context

from flower_fedcon.core.protocol import Reply, Request
from flower_fedcon.testing.open_run import (  # noqa: F401  (tests take them from here)
    OPEN,
    Alter,
    Asked,
    OpenRun,
    Wire,
    arrived,
    complete,
    sent,
    values,
)
from flower_fedcon.wire.payloads import Payload

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


def ran(fedcon: Command, *arguments: str) -> str:
    """Return what the command prints that ends well."""
    code, out, error = fedcon(*arguments)
    assert (code, error) == (0, ""), (out, error)
    return out


def request(
    client: int, server_round: int, ack: int, down: Payload, restore: Payload | None = None
) -> Request:
    """Return a request to one client."""
    given = {} if restore is None else {client: restore}
    rounds = np.array([ack]), np.array([0])
    return Request([client], server_round, rounds[0], down, rounds[1], restore=given)


def reply(client: int, server_round: int, payload: Any = None, **more: Any) -> Reply:
    """Return one client's reply, from its values by name."""
    columns = {name: [value] for name, value in (payload or {}).items()}
    return Reply([client], server_round, columns, **more)


def latest(run: OpenRun, j: int) -> Any:
    """Return client j's state after its last reply that was used; None before the first."""
    versions, ack = run.clients[j].versions, run.acknowledged[j]
    return versions.at(ack) if ack else None


def client_states(run: OpenRun) -> list[Any]:
    """Return what `latest` says of every client."""
    return [latest(run, j) for j in range(len(run.clients))]


def settled(run: OpenRun, name: str) -> np.ndarray:
    """Return a field of all clients' states, once the next broadcast has confirmed the round."""
    down = run.server.strategy.broadcast(run.state)
    states = [run.clients[j].on_acknowledged(latest(run, j), down) for j in range(len(run.clients))]
    return np.stack([getattr(state, name) for state in states])


def wire_exchange(run: OpenRun) -> tuple[Wire, list[Context]]:
    """Return an engine that takes a run's messages through records, and its contexts."""
    engine = Wire(run)
    return engine, engine.contexts


def over_a_wire(strategy: Any, problem: Any, rounds: int = 6) -> tuple[OpenRun, OpenRun]:
    """Return two runs of so many rounds: one through records, and one without."""
    run, direct = (OpenRun(strategy, problem) for _ in range(2))
    exchange, _ = wire_exchange(run)
    for _ in range(rounds):
        run.round(exchange)
        direct.play()
    return run, direct
