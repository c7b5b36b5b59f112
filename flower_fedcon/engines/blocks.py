"""Blocks of clients in Flower's simulation: one message to a worker serves many clients.

A SuperNode is not a client here: it brings the requests of some clients to a worker, and their
replies back. The server keeps the clients' states and sends them along. So any worker can serve any
client, and a reply that does not arrive has changed no state. Server and workers are one program,
started by one process; a message may therefore hold pickled objects.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from flower_fedcon import __version__
from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.client_side import ClientSide
from flower_fedcon.core.flow import Step
from flower_fedcon.core.protocol import ClientInfo, Reply, Request, RunInfo
from flower_fedcon.core.round import Round
from flower_fedcon.engines import ray_data
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.engines.local import served
from flower_fedcon.engines.patience import Patience
from flower_fedcon.engines.ray_data import HELD, Loader
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower import messages
from flower_fedcon.flower.incoming import Fault, readable
from flower_fedcon.flower.mail import Waiting
from flower_fedcon.flower.nodes import sorted_names
from flower_fedcon.flower.policy import Policy
from flower_fedcon.flower.stores import FileStore
from flower_fedcon.registry import client_class
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem
    from flower_fedcon.strategies.base import FedConStrategy

_log = logging.getLogger("flwr")
_POLL = 0.01, 0.05  # seconds between polls; cheap, since the SuperLink is in this process
_START = 600.0  # seconds
Clients = Callable[[int], ClientSide]


class BlockEngine(GridEngine):
    """Clients in workers, with a block of clients in each message.

    The blocks change from round to round: the clients that are asked are distributed over the
    SuperNodes.

    Parameters
    ----------
    strategy : FedConStrategy
    grid : flwr.serverapp.Grid
    patience : Patience
    problem : FederatedProblem
    nodes : int
        The number of SuperNodes, and so of blocks when all clients are asked.
    folder : path, optional
        The folder for the clients' states in checkpoints, with the files of `FileStore`.
    """

    def __init__(
        self,
        strategy: FedConStrategy[Any],
        grid: Grid,
        patience: Patience,
        problem: FederatedProblem,
        nodes: int,
        folder: Path | None = None,
    ) -> None:
        super().__init__(strategy, grid, patience, problem)
        self._blocks, self._own, self._folder = nodes, problem, folder
        self._all: dict[str, dict[int, Versions]] = {}  # by run, since a race plays several
        self._states: dict[int, Versions] = {}
        self._unsaved: set[int] = set()

    def describe(self) -> list[ClientInfo]:
        """Return the objectives' descriptions, once the SuperNodes are online.

        Raises
        ------
        FedConError
            If Flower does not start them.
        """
        deadline = time.monotonic() + _START
        while len(self._post.node_ids()) < self._blocks:  # they start meanwhile
            if time.monotonic() > deadline:
                raise FedConError(f"Flower has not created {self._blocks} SuperNodes: see its log")
            time.sleep(_POLL[1])
        pairs = zip(self._own.objectives, self._own.names, strict=True)
        return [ClientInfo.of(objective, name) for objective, name in pairs]

    def digests(self) -> dict[str, list[str]]:
        """Return digests of the clients' objectives."""
        return {"data": [digest(objective) for objective in self._own.objectives]}

    def open(self, run: RunInfo) -> None:
        """Pickle the common part of all messages."""
        if self._unsaved:
            self.save()
        self._run, self._states = run, self._all.setdefault(run.run_id, {})
        settings = ray_data.pickled(run, "a setting of the strategy", _dumps)
        self._common = secrets.token_hex(16), settings

    def answer(self, request: Request) -> list[Reply]:
        """Distribute the clients over the SuperNodes, and return their replies."""
        nodes, able, unread = sorted(self._post.node_ids()), [], []
        for place, client in enumerate(request.clients):
            try:
                self._state(client)
                able.append(place)
            except FedConError as error:  # with one file, and so one client, at a time
                unread.append(Reply([client], request.round, error=str(error)))
        count = min(len(nodes), len(able))
        if not count:
            return unread
        asked: dict[int, Request] = {}
        sent = []
        for first, node in enumerate(nodes[:count]):
            # Neighbours are in different blocks, since their steps may take equally long.
            share = request.only(able[first::count])
            states = [self._state(client) for client in share.clients]
            asked[node] = share
            content = _dumps((*self._common, share, states))
            sent.append(messages.block(content, __version__, node))
        there, timeout = self._post.node_ids, self._patience.timeout
        how = Waiting(timeout, there, request.wanted, grace=None, poll=_POLL)
        arrivals = self._post.exchange(sent, how)
        replies = [reply for a in arrivals for reply in self._replies(asked[a.node], a.content)]
        return replies + unread

    def _state(self, client: int) -> Versions | None:
        """Return a client's state, which may be in a file of a resumed run."""
        if client not in self._states and self._run.incarnation > 1 and self._folder is not None:
            kind = client_class(self._run.algorithm).state_type
            self._states[client] = self._store(client).load(self._run, kind)
        return self._states.get(client)

    def _replies(self, asked: Request, content: Message | Fault) -> list[Reply]:
        """Return the replies in a message; if it cannot be read, an error for each client."""
        if isinstance(content, Message) and not content.has_error():
            replies, states = _loads(messages.block_content(content))
            self._states |= states
            self._unsaved |= states.keys()
            return list(replies)
        silent = isinstance(content, Fault) and content.silent
        reason = (
            content.reason
            if isinstance(content, Fault)
            else f"the client failed: {readable(content.error.reason)}"
        )
        names = sorted_names(self._own.names[client] for client in asked.clients)
        _log.warning("round %d: nothing from clients %s: %s", asked.round, names, reason)
        return [Reply([c], asked.round, error=reason, silent=silent) for c in asked.clients]

    def observe(self, round_: Round | Step) -> None:
        """Do nothing: a client that has failed is asked again."""

    def _store(self, client: int) -> FileStore:
        assert self._folder is not None  # noqa: S101  (the callers' case)
        return FileStore(self._folder, str(client), Policy.open())

    def save(self) -> None:
        """Write each changed state durably to its client's file."""
        if self._folder is not None:
            for client in sorted(self._unsaved):
                self._store(client).save(self._run, self._states[client])
        self._unsaved.clear()


def _dumps(value: Any) -> bytes:
    """Pickle a value; types of the main program, which workers cannot import, with their code."""
    from ray import cloudpickle

    pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return pickled


def _loads(content: bytes) -> Any:
    from ray import cloudpickle

    return cloudpickle.loads(content)


# --- in a worker ---------------------------------------------------------------------------------


def block_app(load: Loader, policy: Policy) -> ClientApp:
    """Return the app that answers the messages of a `BlockEngine`.

    Parameters
    ----------
    load : Loader
    policy : Policy
        Its `max_seconds` bounds the time of each client.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _train(message, load, policy)

    return app


def _train(message: Message, load: Loader, policy: Policy) -> Message:
    """Return the replies of a message's clients, and the states after their steps."""
    version = messages.block_version(message)
    if version != __version__:
        raise ConfigError(
            f"the server runs flower-fedcon {version}, this worker {__version__}: install the "
            "same on every machine of the cluster"
        )
    run_id, run, request, states = _loads(messages.block_content(message))
    clients = _clients(run_id, run, load)
    answer = _answer(request, states, clients, policy)
    return messages.block_reply(message, _dumps(answer))


_here: dict[str, Clients] = {}  # the clients of the last run, by its run_id


def _clients(run_id: str, pickled: bytes, load: Loader) -> Clients:
    """Return a function that returns a run's clients, which this worker keeps."""
    if run_id not in _here:
        run: RunInfo = _loads(pickled)
        kind = client_class(run.algorithm)

        def client(index: int) -> ClientSide:
            made = kind(load.objective(index))
            made.configure(run)
            return made

        _here.clear()
        _here[run_id] = lru_cache(maxsize=HELD)(client)
    return _here[run_id]


class _Timed:
    """A client whose states come with the request, with a time limit for its answer."""

    def __init__(self, client: ClientSide, states: Versions, policy: Policy) -> None:
        self._client, self._before, self._policy = client, states, policy
        self.after: Versions | None = None  # its state after an answer
        client.recall(states)

    def serve(self, *asked: Any) -> Payload | None:
        """Answer like the client, within the time limit."""
        with self._policy.within_max_seconds():
            payload = self._client.serve(*asked)
        if self._client.versions is not self._before:
            self.after = self._client.versions
        return payload

    @property
    def work(self) -> dict[str, float]:
        """The costs of the step."""
        return self._client.work


def _answer(
    request: Request, states: list[Versions | None], known: Clients, policy: Policy
) -> tuple[list[Reply], dict[int, Versions]]:
    """Return the replies of a request's clients, and the states after their steps."""
    before = dict(zip(request.clients, states, strict=True))
    asked: dict[int, _Timed] = {}

    def timed(index: int) -> _Timed:
        client = known(index)  # loading its data may take long
        return asked.setdefault(index, _Timed(client, before[index] or Versions(), policy))

    replies = served(request, timed, _told)
    return replies, {i: one.after for i, one in asked.items() if one.after is not None}


def _told(client: int, error: Exception) -> str:
    """Return the text of an error for the server."""
    if isinstance(error, FedConError):
        return readable(error.told)
    return readable(f"the client failed: {error!r}")
