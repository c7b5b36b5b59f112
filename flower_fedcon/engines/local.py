"""In process: each message is a function call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flower_fedcon.client_state import Versions
from flower_fedcon.protocol import ClientInfo, Reply, Request, RunInfo
from flower_fedcon.registry import client_class


def describe(objectives: Sequence[Any], names: Sequence[str], algorithm: str) -> list[ClientInfo]:
    """Return the handshake's answers."""
    kind = client_class(algorithm)
    return [kind(o, name=n).describe() for o, n in zip(objectives, names, strict=True)]


class LocalExchange:
    """The exchange of a run in process: a client object for each objective."""

    def __init__(self, objectives: Sequence[Any], run: RunInfo) -> None:
        kind = client_class(run.algorithm)
        self._clients = [kind(objective) for objective in objectives]
        for client in self._clients:
            client.configure(run)
        self._handlers = [client.handle for client in self._clients]

    def __call__(self, requests: list[Request]) -> list[Reply]:
        """Return the clients' replies."""
        handlers = self._handlers
        return [handlers[request.client](request) for request in requests]

    def save(self) -> list[Versions]:
        """Return the clients' states, for a checkpoint."""
        return [client.versions for client in self._clients]

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        for client, versions in zip(self._clients, states, strict=True):
            client.versions = versions
