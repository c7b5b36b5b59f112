"""In process: each message is a function call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flower_fedcon.protocol import ClientInfo, Exchange, Reply, Request, RunInfo
from flower_fedcon.registry import client_class


def describe(objectives: Sequence[Any], names: Sequence[str], algorithm: str) -> list[ClientInfo]:
    """Return the handshake's answers."""
    kind = client_class(algorithm)
    return [kind(o, name=n).describe() for o, n in zip(objectives, names, strict=True)]


def open_exchange(objectives: Sequence[Any], run: RunInfo) -> Exchange:
    """Return the exchange of a run: a client object for each objective."""
    kind = client_class(run.algorithm)
    handlers: list[Callable[[Request], Reply]] = []
    for objective in objectives:
        client = kind(objective)
        client.configure(run)
        handlers.append(client.handle)

    def exchange(requests: list[Request]) -> list[Reply]:
        return [handlers[request.client](request) for request in requests]

    return exchange
