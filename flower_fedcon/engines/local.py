"""In process: each message is a function call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flower_fedcon.core.protocol import ClientInfo, Reply, Request, RunInfo
from flower_fedcon.errors import FedConError
from flower_fedcon.flower.stores import Versions
from flower_fedcon.registry import client_class
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from flower_fedcon.clients.base import FedConClient


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

    def __call__(self, requests: list[Request], places: Sequence[int] | None = None) -> list[Reply]:
        """Return the clients' replies; `places` says where a client is, if not at its number."""
        if places is None:
            places = [request.client for request in requests]
        pairs = zip(places, requests, strict=True)
        return [_reply(self._clients[place], request) for place, request in pairs]

    def quick(
        self,
        cohort: Sequence[int],
        server_round: int,
        acks: Sequence[int],
        kept: Sequence[int],
        broadcast: Payload,
    ) -> Iterator[tuple[int, Payload, dict[str, float]]]:
        """Yield (client, upload, work) of those whose last reply was used: no message for each.

        Those who have something special to be told, or who fail, are left out.
        """
        clients = self._clients
        for index in cohort:
            client = clients[index]
            try:
                payload = client.repeat(server_round, index, acks[index], kept[index], broadcast)
            except FedConError:
                continue
            if payload is not None:
                yield index, payload, client.work

    def save(self) -> list[Versions]:
        """Return the clients' states, for a checkpoint."""
        return [client.versions for client in self._clients]

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        for client, versions in zip(self._clients, states, strict=True):
            client.versions = versions


def _reply(client: FedConClient[Any], request: Request) -> Reply:
    """Return a client's reply; a user error is one, as it is where clients are far away."""
    try:
        return client.handle(request)
    except FedConError as error:
        return Reply(request.client, request.round, error=str(error))
