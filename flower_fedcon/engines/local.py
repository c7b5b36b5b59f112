"""The engine in this process: each client is an object, its step a function call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.protocol import Reply, Request, RunInfo
from flower_fedcon.engines.base import InProcess
from flower_fedcon.errors import is_divergence
from flower_fedcon.objectives import ManyClients
from flower_fedcon.registry import client_class
from flower_fedcon.wire.payloads import Payload


class _Lazy(dict[int, Any]):
    """Clients by number, each made when it is first needed."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, client: int) -> Any:
        made = self[client] = self._make(client)
        return made


class LocalEngine(InProcess):
    """A client object for each objective, in this process."""

    _clients: dict[int, Any]

    def open(self, run: RunInfo) -> None:
        """Make the clients."""
        self.make_clients(self._problem.objectives, run)

    def make_clients(
        self, objectives: Sequence[Any], run: RunInfo, first: int = 0, every: int = 1
    ) -> None:
        """Make clients first, first + every, ... for these objectives."""
        kind = client_class(run.algorithm)

        def client(objective: Any) -> Any:
            made = kind(objective)
            made.configure(run)
            return made

        self._everyone = range(first, first + every * len(objectives), every)
        if isinstance(objectives, ManyClients):
            self._clients = _Lazy(lambda number: client(objectives[(number - first) // every]))
            self._clients[first]  # an error that all clients share is raised here
        else:
            self._clients = dict(zip(self._everyone, map(client, objectives), strict=True))

    def answer(self, request: Request) -> list[Reply]:
        """Return one reply, in columns, for all successful clients, and one for each other."""
        return served(request, self._clients.__getitem__, self._told)

    def save(self) -> list[Versions] | None:
        """Return the clients' states, in client order; None for `ManyClients` without states."""
        clients, none = self._clients, Versions()
        if isinstance(clients, _Lazy) and not clients[self._everyone[0]].remembers:
            return None
        return [clients[c].versions if c in clients else none for c in self._everyone]

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients their states."""
        for client, versions in zip(self._everyone, states, strict=True):
            if client in self._clients or versions.round or versions.pending_round:
                self._clients[client].recall(versions)


def served(
    request: Request, known: Callable[[int], Any], told: Callable[[int, Exception], str]
) -> list[Reply]:
    """Return one reply, in columns, for all successful clients, and one for each other.

    Parameters
    ----------
    request : Request
    known : callable
        Returns a client by its number.
    told : callable
        Returns the text of a client's error for a reply, or raises it.
    """
    server_round = request.round
    personal, restore = request.personal, request.restore
    common = {name: _read_only(value) for name, value in request.broadcast.items()}
    done: list[int] = []
    payloads: list[Payload] = []
    work: list[dict[str, float]] = []
    others: list[Reply] = []
    rounds = zip(request.clients, request.acknowledged.tolist(), request.kept.tolist(), strict=True)
    for index, acknowledged, kept in rounds:
        down = {**common, **personal[index]} if index in personal else common
        given = restore.get(index) if restore else None
        try:
            client = known(index)
            payload = client.serve(request, index, acknowledged, kept, down, given)
        except Exception as error:  # a reply with the error, as from a node
            why, diverged = told(index, error), is_divergence(error)
            others.append(Reply([index], server_round, error=why, diverged=diverged))
            continue
        if payload is None:
            others.append(Reply([index], server_round, lost=True))
            continue
        done.append(index)
        payloads.append(payload)
        work.append(client.work)
    return [*_in_columns(done, server_round, payloads, work if any(work) else ()), *others]


def _read_only(value: Any) -> Any:
    """Return a read-only broadcast value, since all clients share it."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _in_columns(
    clients: list[int],
    server_round: int,
    payloads: Sequence[Payload],
    work: Sequence[dict[str, float]],
) -> list[Reply]:
    """Return clients' answers as one reply, or as one for each if their names differ."""
    if not clients:
        return []
    names = payloads[0]
    # If all have as many names as the first and contain its names, they are the same.
    if {*map(len, payloads)} == {len(names)}:
        try:
            columns = {name: [payload[name] for payload in payloads] for name in names}
            return [Reply(clients, server_round, columns, work=work)]
        except KeyError:
            pass
    return [
        Reply([c], server_round, {k: [v] for k, v in p.items()}, work=work[i : i + 1])
        for i, (c, p) in enumerate(zip(clients, payloads, strict=True))
    ]
