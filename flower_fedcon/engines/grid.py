"""On the nodes of a Flower grid: each client's share of a request is a message."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flwr.app import Message
from flwr.serverapp import Grid

from flower_fedcon.core import evaluation
from flower_fedcon.core.protocol import ClientInfo, Reply, Request, RunInfo
from flower_fedcon.engines.base import Engine
from flower_fedcon.errors import FedConError, printable
from flower_fedcon.flower import codec, messages, nodes
from flower_fedcon.flower.nodes import Nodes, Waiting, exchange
from flower_fedcon.regularizers import Indicator
from flower_fedcon.runs.history import Record
from flower_fedcon.validation import Array, count, nonnegative, positive

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem
    from flower_fedcon.strategies.base import FedConStrategy

_log = logging.getLogger("flwr")
_RETURN = 60.0  # seconds that a retry waits for a node to come back


class GridEngine(Engine):
    """Clients on nodes.

    Parameters
    ----------
    strategy : FedConStrategy
        Its set and regularizer complete the clients' evaluations of a model.
    grid : flwr.serverapp.Grid
    timeout : float
        Seconds to wait for the clients at the start, and for the replies of a round.
    num_clients : int, optional
        How many clients to wait for; by default the nodes' "num-partitions".
    grace : float, optional
        Seconds that a round waits for the other replies once it has enough.
    problem : FederatedProblem, optional
        Evaluates models on the server; without it the clients do.
    """

    def __init__(
        self,
        strategy: FedConStrategy[Any],
        grid: Grid,
        timeout: float = 3600,
        num_clients: int | None = None,
        grace: float | None = None,
        problem: FederatedProblem | None = None,
    ) -> None:
        self._strategy, self._grid, self._problem = strategy, grid, problem
        self._timeout = positive("timeout", timeout)
        self._expected = None if num_clients is None else count("num_clients", num_clients)
        self._grace = None if grace is None else nonnegative("grace", grace)
        self._nodes = Nodes(grid, strategy.name, self._timeout)

    def describe(self) -> list[ClientInfo]:
        """Wait for the clients, and return what they say about themselves."""
        infos = self._nodes.wait(self._expected, self._timeout)
        self._digests = [info.digest for info in infos]
        self._names = [info.name for info in infos]
        self._index = {name: j for j, name in enumerate(self._names)}
        return infos

    def digests(self) -> dict[str, list[str]]:
        """Return what the clients have told of their data."""
        return {"data": self._digests}

    def open(self, run: RunInfo) -> None:
        """Encode what all messages have in common."""
        self._run = run
        self._encoder = codec.RequestEncoder(run)

    # --- rounds --------------------------------------------------------------------------------

    def answer(self, request: Request) -> list[Reply]:
        """Send a request to the nodes that are online and return what comes back in time."""
        retry = request.attempt > 1
        wanted = {self._names[client] for client in request.clients}
        online = self._nodes.online()
        deadline = time.monotonic() + min(_RETURN, self._timeout)
        while not wanted & online.keys() or (retry and not wanted <= online.keys()):
            if time.monotonic() > deadline:
                break
            time.sleep(nodes.POLL[1])
            online = self._nodes.online()
        waiting = Waiting(
            there=lambda: set(self._nodes.online().values()),
            enough=request.wanted,
            grace=self._grace,
        )
        sent = self._messages(request, online)
        return self.read(exchange(self._grid, sent, self._timeout, waiting), request.round)

    def messages(self, request: Request) -> list[Message]:
        """Return a request's messages to the nodes that are online."""
        return self._messages(request, self._nodes.online())

    def _messages(self, request: Request, online: dict[str, int]) -> list[Message]:
        sent = []
        for place, client in enumerate(request.clients):
            node = online.get(self._names[client])
            if node is not None:
                arrays, config = self._encoder.encode(request, place)
                sent.append(messages.instruction(messages.TRAIN, arrays.values(), config, node))
        return sent

    def read(self, received: Iterable[Message], server_round: int) -> list[Reply]:
        """Return the replies in the messages of a round."""
        replies = []
        for message in received:
            client = self._client(message)
            try:
                arrays, _, examples, config = messages.read_reply(message, messages.TRAIN)
                reply = codec.decode_reply(client, arrays, examples, config)
            except (FedConError, KeyError, TypeError, ValueError) as error:
                reply = Reply([client], server_round, error=str(error), remote=True)
            replies.append(reply)
        return replies

    def _client(self, message: Message) -> int:
        """Return which client sent a message, whatever the message says; -1 if unknown."""
        return self._index.get(self._nodes.name(message.metadata.src_node_id), -1)

    # --- evaluation ----------------------------------------------------------------------------

    def evaluate(self, x: Array) -> Record:
        """Return the problem's record of a model, or the mean of the clients' evaluations."""
        if self._problem is not None:
            return self._problem.evaluate(x)
        return self.mean(exchange(self._grid, self.evaluation(x), self._timeout), x)

    def evaluation(self, x: Array) -> list[Message]:
        """Return the messages that ask the clients to evaluate a model."""
        layout, online = self._run.layout, self._nodes.online()
        known = [(j, online[name]) for j, name in enumerate(self._names) if name in online]
        common: codec.Config = {"layout": layout.to_json(), "algorithm": self._run.algorithm}
        model = layout.unpack(x)
        arrays = model if isinstance(model, list) else [model]
        return [
            messages.instruction(messages.EVALUATE, arrays, {**common, "client": j}, node)
            for j, node in known
        ]

    def mean(self, received: Iterable[Message], x: Array) -> Record:
        """Return the mean of the clients' objectives (with psi) and of their metrics."""
        answers: dict[int, Record] = {}
        diverged = 0
        for message in received:
            client = self._client(message)
            try:
                _, loss, _, config = messages.read_reply(message, messages.EVALUATE)
                metrics = {k: v for k, v in config.items() if k != "client"}
                answers[client] = evaluation.admit(loss, metrics)
            except FedConError as error:
                name = self._names[client] if client >= 0 else "an unknown node"
                _log.warning("no evaluation from client %s: %s", name, printable(str(error)))
                diverged += isinstance(error, evaluation.DivergedError)
        answers.pop(-1, None)
        missing = len(self._names) - len(answers)
        if diverged == len(self._names):  # no client alone is to blame
            return {"objective": math.nan}
        if missing:  # the mean over some clients is another function: better no value
            _log.warning("%d clients did not evaluate: no objective in this record", missing)
            return {}
        record = evaluation.mean([answers[client] for client in sorted(answers)])
        psi, constraint = self._strategy.regularizer, self._strategy.constraint
        if psi is not None and not isinstance(psi, Indicator):
            record["objective"] += psi.value(x)
        record["violation"] = 0.0 if constraint is None else constraint.violation(x)
        return record
