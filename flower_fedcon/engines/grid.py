"""On a Flower grid: nodes found, requests sent, replies read."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flower_fedcon.core.coordinator import Coordinator
from flower_fedcon.core.protocol import ClientInfo, Reply, Request
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower import codec, messages
from flower_fedcon.problems.federated import FederatedProblem, common_layout, start_point
from flower_fedcon.regularizers import Indicator
from flower_fedcon.runs.history import History, Record
from flower_fedcon.runs.run import Plan, Run
from flower_fedcon.simulation import make_setup
from flower_fedcon.validation import Array, count, nonnegative, positive

if TYPE_CHECKING:
    from flower_fedcon.strategies.base import FedConStrategy

_log = logging.getLogger("flwr")
_POLL = 0.05, 0.5  # seconds between looks for replies: at first, and at most
_WATCH = 5.0  # seconds between looks at which nodes are still there
_RETURN = 60.0  # seconds that a retry waits for a node to come back


@dataclass(repr=False)
class RunResult(Result):
    """Flower's `Result`, with this package's history."""

    history: History = field(default_factory=lambda: History(np.empty(0)))


class Nodes:
    """Which node is which client: names are stable, Flower's node ids are not."""

    def __init__(self, grid: Grid, algorithm: str, timeout: float) -> None:
        self._grid = grid
        self._algorithm = algorithm
        self._timeout = timeout
        self._names: dict[int, str] = {}
        self.infos: dict[str, ClientInfo] = {}
        self._told: set[int] = set()
        self.partitions = 0
        """The number of partitions that the nodes know of."""

    def online(self) -> dict[str, int]:
        """Return the node id of each client that is there, after meeting the new ones."""
        ids = set(self._grid.get_node_ids())
        new = sorted(ids - self._names.keys())
        config = {"action": codec.DESCRIBE, "algorithm": self._algorithm, "round": 0, "client": 0}
        asked = [messages.instruction(messages.TRAIN, [], config, node) for node in new]
        for message in exchange(self._grid, asked, min(60.0, self._timeout)):
            node = message.metadata.src_node_id
            try:
                _, _, _, answer = messages.read_reply(message, messages.TRAIN)
                if "error" in answer:
                    raise ConfigError(str(answer["error"]))
                info, partitions = codec.decode_info(answer, node)
            except (FedConError, KeyError, ValueError) as error:
                raise ConfigError(f"node {node} cannot take part: {error}") from None
            self._names[node] = info.name
            self.infos.setdefault(info.name, info)
            self.partitions = max(self.partitions, partitions or 0)
        found: dict[str, int] = {}
        for node, name in self._names.items():  # in the order of meeting: the latest one counts
            if node not in ids:
                continue
            if name in found and node not in self._told:
                self._told.add(node)
                _log.warning("client %s is on a new node: the earlier one is left alone", name)
            found[name] = node
        return found

    def name(self, node_id: int) -> str:
        """Return the client's name, "" if the node is unknown."""
        return self._names.get(node_id, "")

    def wait(self, expected: int | None, timeout: float) -> list[ClientInfo]:
        """Return all clients, sorted by name, once every expected one has answered."""
        deadline = time.monotonic() + timeout
        told = False
        while True:
            online = self.online()
            wanted = expected or self.partitions or 1
            if len(online) >= wanted:
                return [self.infos[name] for name in sorted(online, key=natural)]
            if time.monotonic() > deadline:
                raise FedConError(
                    f"{len(online)} of {wanted} clients are there after {timeout:g} s "
                    f"({', '.join(sorted(online, key=natural)) or 'none'}): start the missing "
                    "SuperNodes, or say num_clients"
                )
            if not told:
                _log.info("waiting for %d clients, %d are there", wanted, len(online))
                told = True
            time.sleep(_POLL[1])


class GridRun:
    """One run of a strategy over a grid.

    Parameters
    ----------
    strategy : FedConStrategy
    grid : flwr.serverapp.Grid
    timeout : float
        Seconds to wait for the clients at the start, and for the replies of a round.
    num_clients : int, optional
        How many clients to wait for.
    grace : float, optional
        Seconds that a round waits for the rest once it has enough replies.
    """

    coordinator: Coordinator

    def __init__(
        self,
        strategy: FedConStrategy[Any],
        grid: Grid,
        timeout: float = 3600,
        num_clients: int | None = None,
        grace: float | None = None,
    ) -> None:
        self.grace = None if grace is None else nonnegative("grace", grace)
        self.strategy = strategy
        self.grid = grid
        self.timeout = positive("timeout", timeout)
        self.expected = None if num_clients is None else count("num_clients", num_clients)
        self.nodes = Nodes(grid, strategy.name, self.timeout)
        self._asked = 0

    def run(
        self,
        initial: ArrayRecord | Any | None,
        plan: Plan,
        *,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        problem: FederatedProblem | None = None,
    ) -> RunResult:
        """Meet the clients, play the rounds, and return model and history.

        With `problem` the server evaluates; else the clients do.
        """
        began = time.monotonic()
        infos = self.nodes.wait(self.expected, self.timeout)
        x0 = messages.from_record(initial) if isinstance(initial, ArrayRecord) else initial
        result = RunResult()

        def report(record: Record) -> None:
            text = ", ".join(f"{k} {v:.6g}" for k, v in record.items() if k != "round")
            _log.info("[ROUND %d/%d] %s", record["round"], plan.num_rounds, text)
            result.train_metrics_clientapp[int(record["round"])] = MetricRecord({**record})

        plan = replace(plan, callbacks=[report, *plan.callbacks])
        run = self._open(infos, x0, plan)
        _log.info("Starting %s:", self.strategy.sheet.title)
        self.strategy.summary()

        def evaluate(x: Array) -> Record:
            if problem is not None:
                record = problem.evaluate(x)
            else:
                asked = self.evaluate_messages()
                record = self.evaluation(exchange(self.grid, asked, self.timeout))
            if evaluate_fn is not None:
                metrics = evaluate_fn(self.coordinator.round, self.arrays())
                if metrics is not None:
                    result.evaluate_metrics_serverapp[self.coordinator.round] = metrics
                    record |= {k: v for k, v in metrics.items() if isinstance(v, int | float)}
            return record

        result.history = run.play(self.exchange, evaluate)
        result.arrays = self.arrays()
        _log.info("Strategy execution finished in %.2fs", time.monotonic() - began)
        return result

    def _open(self, infos: list[ClientInfo], x0: Any, plan: Plan) -> Run:
        names = [info.name for info in infos]
        known = [info.layout for info in infos]
        if isinstance(x0, list) and len(x0) == 1 and not any(k and k.layered for k in known):
            x0 = x0[0]
        layout = common_layout(known, names, x0)
        start = start_point(layout, x0, self.strategy.constraint)
        rule = self.strategy.participation
        setup = make_setup(infos, plan.num_rounds, layout, rule, plan.seed)
        run = Run(plan, self.strategy, setup, start)
        self.coordinator = run.coordinator
        self._index = {name: j for j, name in enumerate(names)}
        self._names = names
        return run

    def arrays(self) -> ArrayRecord:
        """Return the current model as Flower's record."""
        x = self.coordinator.setup.layout.unpack(self.coordinator.x)
        return messages.to_record(x if isinstance(x, list) else [x])

    # --- training ------------------------------------------------------------------------------

    def exchange(self, requests: list[Request]) -> list[Reply]:
        """Send requests to the nodes that are there and return what comes back in time."""
        retry = self._asked == self.coordinator.round
        self._asked = self.coordinator.round
        wanted = {self._names[request.client] for request in requests}
        online = self.nodes.online()
        deadline = time.monotonic() + min(_RETURN, self.timeout)
        while not wanted & online.keys() or (retry and not wanted <= online.keys()):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL[1])
            online = self.nodes.online()
        sent = [self._train_message(r, online) for r in requests if self._names[r.client] in online]
        waiting = _Waiting(
            there=lambda: set(self.nodes.online().values()),
            enough=self.coordinator.lacking,
            grace=self.grace,
        )
        return self._replies(exchange(self.grid, sent, self.timeout, waiting))

    def _train_message(self, request: Request, online: dict[str, int]) -> Message:
        arrays, config = self.coordinator.encoder.encode(request)
        node = online[self._names[request.client]]
        return messages.instruction(messages.TRAIN, arrays.values(), config, node)

    def _client(self, message: Message) -> int:
        """Return which client a message is from, whatever the message says; -1 if unknown."""
        return self._index.get(self.nodes.name(message.metadata.src_node_id), -1)

    def _replies(self, received: Iterable[Message]) -> list[Reply]:
        replies = []
        for message in received:
            client = self._client(message)
            try:
                arrays, _, examples, config = messages.read_reply(message, messages.TRAIN)
                reply = codec.decode_reply(arrays, examples, config)
                reply.client = client
            except (FedConError, KeyError, TypeError, ValueError) as error:
                reply = Reply(client, self.coordinator.round, error=str(error))
            replies.append(reply)
        return replies

    # --- evaluation ----------------------------------------------------------------------------

    def evaluate_messages(self) -> list[Message]:
        """Return the messages of a federated evaluation of the current model."""
        layout = self.coordinator.setup.layout
        online = self.nodes.online()
        known = [(j, online[name]) for j, name in enumerate(self._names) if name in online]
        common: codec.Config = {"layout": layout.to_json(), "algorithm": self.strategy.name}
        x = self.coordinator.x
        model = layout.unpack(x)
        arrays = model if isinstance(model, list) else [model]
        return [
            messages.instruction(messages.EVALUATE, arrays, {**common, "client": j}, node)
            for j, node in known
        ]

    def evaluation(self, received: Iterable[Message]) -> Record:
        """Return the mean of the clients' objectives (with psi) and of their metrics."""
        answers: dict[int, Record] = {}
        for message in received:
            client = self._client(message)
            try:
                _, loss, _, config = messages.read_reply(message, messages.EVALUATE)
                metrics = {k: float(v) for k, v in config.items() if k != "client"}
                answers[client] = {"objective": loss, **metrics}
            except (FedConError, TypeError, ValueError) as error:
                _log.warning("no evaluation by %s: %s", self.coordinator.client_name(client), error)
        missing = len(self._names) - len(answers)
        if missing:  # a mean over some clients is another function: better no value
            _log.warning("%d clients did not evaluate: no objective in this record", missing)
            return {}
        ordered = [answers[client] for client in sorted(answers)]
        shared = [k for k in ordered[0] if all(k in answer for answer in ordered)]
        record = {k: math.fsum(answer[k] for answer in ordered) / len(ordered) for k in shared}
        x, strategy = self.coordinator.x, self.strategy
        if strategy.regularizer is not None and not isinstance(strategy.regularizer, Indicator):
            record["objective"] += strategy.regularizer.value(x)
        free = strategy.constraint is None
        record["violation"] = 0.0 if free else strategy.constraint.violation(x)
        return record

    # --- Flower's own loop, one call at a time -------------------------------------------------

    def train_messages(self, server_round: int) -> list[Message]:
        """Begin a round and return its messages."""
        if self.coordinator.round + 1 != server_round:
            raise FedConError(
                f"round {server_round} was asked for after round {self.coordinator.round}"
            )
        self.coordinator.begin()
        online = self.nodes.online()
        requests = self.coordinator.requests()
        return [self._train_message(r, online) for r in requests if self._names[r.client] in online]

    def apply(self, received: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Take the replies of a round, ask again where that is needed, and apply it."""
        self.coordinator.absorb(self._replies(received))
        self.coordinator.go_on(self.exchange)
        return self.arrays(), MetricRecord({"replies": self.coordinator.replies})


@dataclass(frozen=True)
class _Waiting:
    """How long a round waits: for whom, and for how long once it has enough.

    Attributes
    ----------
    there : callable
        Returns the nodes that are left.
    enough : int
        The replies that the round needs.
    grace : float, optional
        Seconds to wait for the others after that; None for as long as the round may take.
    """

    there: Callable[[], set[int]]
    enough: int
    grace: float | None


def exchange(
    grid: Grid,
    outgoing: Sequence[Message],
    timeout: float,
    how: _Waiting | None = None,
) -> list[Message]:
    """Send messages and return the replies that come in time.

    Unlike `Grid.send_and_receive` this looks often, and does not wait for a node that has gone.
    """
    if not outgoing:
        return []
    waiting = dict(
        zip(grid.push_messages(outgoing), (m.metadata.dst_node_id for m in outgoing), strict=True)
    )
    received: list[Message] = []
    now = time.monotonic()
    deadline, look, pause = now + timeout, now + _WATCH, _POLL[0]
    while True:
        for message in grid.pull_messages(list(waiting)):
            waiting.pop(message.metadata.reply_to_message_id, None)
            received.append(message)
            pause = _POLL[0]
        now = time.monotonic()
        if how is not None and how.grace is not None and len(received) >= how.enough:
            deadline, how = min(deadline, now + how.grace), replace(how, grace=None)
        if not waiting or now >= deadline:
            return received
        if now > look:
            left = set(grid.get_node_ids()) if how is None else how.there()
            waiting = {key: node for key, node in waiting.items() if node in left}
            look = time.monotonic() + _WATCH
            continue
        time.sleep(pause)
        pause = min(2 * pause, _POLL[1])


def natural(name: str) -> tuple[bool, int, str]:
    """Sort partition ids as numbers, and before other names."""
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name)
