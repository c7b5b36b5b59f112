"""Clients on the nodes of a Flower grid: each one's part of a request is a message."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flwr.app import Message
from flwr.serverapp import Grid

from flower_fedcon import __version__
from flower_fedcon.core import evaluation
from flower_fedcon.core.attachment import Attachment
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.exchange import OF_ROUNDS, exchange_of
from flower_fedcon.core.flow import Flow, Step
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import ClientInfo, Reply, Request, RunInfo
from flower_fedcon.core.quarantine import Quarantine
from flower_fedcon.core.round import Round
from flower_fedcon.core.server import Server
from flower_fedcon.engines.node_flow import NodeFlow
from flower_fedcon.engines.patience import Patience
from flower_fedcon.flower import codec, incoming, mail, messages
from flower_fedcon.flower.app_side import AppSide
from flower_fedcon.flower.incoming import Fault, Parts
from flower_fedcon.flower.mail import Arrival, Post, Waiting
from flower_fedcon.flower.nodes import Nodes, alike, in_words
from flower_fedcon.flower.refusals import check_shares
from flower_fedcon.problems.mismatch import value_for
from flower_fedcon.regularizers import Indicator
from flower_fedcon.runs.history import Record
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem

_log = logging.getLogger("flwr")
PAUSE = 1.0, 60.0  # seconds before a round is asked for again: at first, and at most
_OFFLINE = "its node is not online"
_RETURN = 60.0  # seconds for which a retry then waits for a node to come back


class GridEngine(Engine):
    """Clients on nodes.

    Parameters
    ----------
    strategy : Method
        Its set and regularizer are added to the clients' evaluations of a model.
    grid : flwr.serverapp.Grid
    patience : Patience, optional
    problem : FederatedProblem, optional
        Evaluates models on the server; without it the clients do.
    """

    wall_clock = True

    def __init__(
        self,
        strategy: Method[Any],
        grid: Grid,
        patience: Patience | None = None,
        problem: FederatedProblem | None = None,
    ) -> None:
        self._strategy, self._problem = strategy, problem
        self._patience = chosen = Patience() if patience is None else patience
        self.max_retries, self.round_deadline = chosen.max_retries, chosen.round_deadline
        self._post = Post(grid, chosen.round_deadline)
        self._nodes = Nodes(self._post, strategy.name, authenticated=chosen.authenticated)
        self._quarantine = Quarantine(chosen.quarantine_after, chosen.quarantine_rounds)
        self._app: AppSide | None = None
        self._sent: list[Message] = []
        self._flowing: Server | None = None  # of a run that does not wait for its nodes
        self._at: dict[int, int] = {}  # the node on which each client trained last
        self._known: dict[str, ClientInfo] = {}
        self._enough = 1  # of those that are known
        self._metrics, self._told = evaluation.MetricNames(), set[int]()
        self.remote = problem is None

    def go_on(self, known: Sequence[ClientInfo], enough: int) -> None:
        """Wait at the start only for so many of the clients of a run that goes on."""
        self._known, self._enough = {info.name: info for info in known}, enough

    def describe(self) -> list[ClientInfo]:
        """Wait for the clients, and return what they say about themselves."""
        patience = self._patience
        timeout = patience.start_timeout or patience.timeout
        least, known = patience.min_clients_to_start, self._known
        if known:
            infos = self._nodes.wait(None, least or self._enough, timeout, known)
        else:
            infos = alike(self._nodes.wait(patience.num_clients, least, timeout), least)
        others = {i.name: i.version for i in infos if i.version not in ("", __version__)}
        if others:
            _log.warning(
                "this server runs flower-fedcon %s, others %s. Numbers may differ in their last "
                "digits, and a node answers unknown requests with an error: install one version "
                "everywhere",
                __version__,
                in_words({name: f"version {version}" for name, version in others.items()}),
            )
        self._digests = [info.digest for info in infos]
        self._names = [info.name for info in infos]
        if self._problem is None:
            return infos
        names = self._problem.names  # nodes of this process are named by their partition
        return [replace(info, name=names[int(info.name)]) for info in infos]

    def digests(self) -> dict[str, list[str]]:
        """Return the digests of clients' data, from their descriptions."""
        return {"data": self._digests}

    def open(self, run: RunInfo) -> None:
        """Encode the common part of all messages."""
        self._run = run
        self._encoder = codec.RequestEncoder(run)
        self._nodes.close(self._names, run)

    def check(
        self, strategy: Method[Any], *, certificates: bool, inference: str | None = None
    ) -> None:
        """Raise unless a run of this bound strategy is possible.

        Raises
        ------
        ConfigError
        """
        if self._problem is None:
            check_shares(strategy)

    def serve(self, app: AppSide) -> None:
        """From now on use the form of an app's messages, for clients with their own train loops."""
        self._app = app

    def counts(self) -> dict[str, float]:
        """Return how many nodes were refused the name that they claimed."""
        local = self._problem is not None  # this process has made them all
        return {} if local else {"refused": self._nodes.refused}

    @property
    def preparation(self) -> Attachment | None:
        """What the clients have agreed on, for a problem in this process."""
        return None if self._problem is None else self._problem.preparation

    # --- rounds --------------------------------------------------------------------------------

    def answer(self, request: Request) -> list[Reply]:
        """Send a request to the nodes that are online, and return the replies in time.

        A client that does not answer gives a `silent` reply with the reason.
        """
        left_out = self._left_out(request)
        online = self._await(request, [c for c in request.clients if c not in left_out])
        silent = dict(left_out)
        answers = self._exchange(request, online, silent)
        answers += [(client, Fault(reason, silent=True)) for client, reason in silent.items()]
        absent = {
            client: content.reason
            for client, content in answers
            if isinstance(content, Fault) and content.silent and client not in left_out
        }
        if absent:
            named = in_words({self._names[client]: why for client, why in absent.items()})
            _log.warning("round %d: nothing from %s", request.round, named)
        return [_as_reply(client, content, request.round) for client, content in answers]

    # --- rounds that do not wait -----------------------------------------------------------------

    def flow(self, server: Server) -> Flow:
        """Return what plays the steps of a run that does not wait for its nodes."""
        self._flowing = server
        patience = self._patience
        return NodeFlow(self, server, timeout=patience.timeout, deadline=patience.round_deadline)

    def online(self) -> dict[str, int]:
        """Return the node of each client that is online."""
        return self._nodes.online()

    def dispatch(
        self, request: Request, online: Mapping[str, int]
    ) -> tuple[dict[str, tuple[int, int]], dict[int, str]]:
        """Send a request and do not wait; return clients and nodes by message, and who got none."""
        silent: dict[int, str] = {}
        sent = self._messages(request, online, silent)
        waiting, unsent = self._post.send(sent)
        silent |= {
            self._asked[arrival.node]: arrival.content.reason
            for arrival in unsent
            if isinstance(arrival.content, Fault)
        }
        return {key: (self._asked[node], node) for key, node in waiting.items()}, silent

    def collect(self, waiting: dict[str, int]) -> list[Arrival]:
        """Return the replies that have come to these messages, each with its node."""
        return self._post.collect(waiting)

    def heard(self, client: int, content: Message | Fault, server_round: int) -> Reply:
        """Return what a client has answered, or why nothing came, as a reply."""
        return _as_reply(client, self._read(client, content), server_round)

    def told(self, client: int, reason: str, server_round: int) -> Reply:
        """Return a silent reply with its reason."""
        return _as_reply(client, Fault(reason, silent=True), server_round)

    def _waiting(self, request: Request) -> Waiting:
        return Waiting(
            timeout=self._patience.timeout,
            there=lambda: set(self._nodes.online().values()),
            enough=request.wanted,
            grace=self._patience.grace,
        )

    def _exchange(
        self, request: Request, online: Mapping[str, int], silent: dict[int, str]
    ) -> list[tuple[int, Reply | Fault]]:
        """Return the results of a request to the nodes online, by client."""
        sent = self._messages(request, online, silent)
        arrivals = self._post.exchange(sent, self._waiting(request))
        return [(self._asked[arrival.node], self._reply(arrival)) for arrival in arrivals]

    def _left_out(self, request: Request) -> dict[int, str]:
        """Return the clients in quarantine, if the request does not need them."""
        number, online = request.round, self._nodes.online()
        for client, node in self._at.items():
            if online.get(self._names[client], node) != node:  # the run has started again
                self._quarantine.forgive(client)
        until = {client: self._quarantine.until(client, number) for client in request.clients}
        out = {
            client: f"it is left out until round {end}, after repeated failures"
            for client, end in until.items()
            if end
        }
        enough = len(request.clients) - len(out) >= request.wanted
        return out if enough and request.phase in OF_ROUNDS else {}

    def _await(self, request: Request, clients: Sequence[int]) -> dict[str, int]:
        """Return which clients are online; wait for at least one, before a retry for all."""
        retry = request.attempt > 1
        wanted = {self._names[client] for client in clients}
        now = time.monotonic()
        pause = mail.pause(request.attempt - 1, *PAUSE) if retry else 0.0
        begin = now + min(pause, request.seconds_left)
        end = min(begin + min(_RETURN, self._patience.timeout), now + request.seconds_left)
        online = self._nodes.online()
        while now < begin or not wanted & online.keys() or (retry and not wanted <= online.keys()):
            now = time.monotonic()
            if now > end:
                break
            time.sleep(mail.POLL[1])
            online = self._nodes.online()
        return online

    def messages(self, request: Request) -> list[Message]:
        """Return a request's messages to the nodes that are online."""
        self._sent = self._messages(request, self._nodes.online(), {})
        return self._sent

    def _messages(
        self, request: Request, online: Mapping[str, int], silent: dict[int, str]
    ) -> list[Message]:
        """Return the messages, and note in `silent` which clients are offline."""
        asks, tensor = self._asks(request, online, silent), messages.Tensors()
        return [
            messages.instruction(messages.TRAIN, *ask, node, tensor) for node, ask in asks.items()
        ]

    def _asks(
        self, request: Request, online: Mapping[str, int], silent: dict[int, str]
    ) -> dict[int, tuple[list[Array], codec.Config]]:
        """Return the arrays and configuration for each node."""
        self._asked: dict[int, int] = {}  # the client on each node, among those that are asked
        self._most = self._strategy.most_entries(self._run.layout)
        if request.phase not in OF_ROUNDS:
            exchange = exchange_of(request.phase, request.broadcast)
            self._most = max(self._most, exchange.most(self._run.layout))
        flowing, asks = self._flowing, {}
        coming = request.round if flowing is None else flowing.round + 1  # not that of a wave
        for place, client in enumerate(request.clients):
            if client in silent:
                continue
            node = online.get(self._names[client])
            if node is None:
                silent[client] = _OFFLINE
                continue
            self._at[client], self._asked[node] = node, client
            arrays, config = self._encoder.encode(request, place)
            config["pass"] = self._nodes.password(self._names[client])
            parts = list(arrays.values())
            if self._app is not None:
                parts, config = self._app.instruct(client, parts, config, coming)
            asks[node] = parts, config
        return asks

    def read(self, received: Iterable[Message], server_round: int) -> list[Reply]:
        """Return the replies to the messages of `messages`."""
        return [
            _as_reply(self._asked[arrival.node], self._reply(arrival), server_round)
            for arrival in self._arrivals(received)
        ]

    def _reply(self, arrival: Arrival) -> Reply | Fault:
        return self._read(self._asked[arrival.node], arrival.content)

    def _read(self, client: int, content: Message | Fault) -> Reply | Fault:
        if isinstance(content, Fault):
            return content

        def parts() -> Parts:
            received = messages.reply_parts(content, messages.TRAIN)
            return received if self._app is None else self._app.hear(client, received)

        return incoming.reply(client, self._most, parts)

    def _arrivals(self, received: Iterable[Message]) -> list[Arrival]:
        """Return replies by the client that was asked, even if they name a different one."""
        nodes = {sent.metadata.message_id: sent.metadata.dst_node_id for sent in self._sent}
        pairs = [(nodes.get(message.metadata.reply_to_message_id), message) for message in received]
        return [Arrival(node, message) for node, message in pairs if node is not None]

    def observe(self, round_: Round | Step) -> None:
        """Put clients that fail repeatedly into quarantine; being offline is not a failure."""
        missing, number, online = round_.missing(), round_.number, self._nodes.online()
        used = [client for client in round_.cohort if client not in missing]
        if self._app is not None:
            self._app.take_means(used)
        failed = [
            client
            for client in missing
            if self._names[client] in online and not self._quarantine.until(client, number)
        ]
        for client, until in self._quarantine.observe(number, used, failed).items():
            _log.warning(
                "client %s has failed repeatedly (now: %s): it is left out until round %d, unless "
                "a round needs it",
                self._names[client],
                missing[client],
                until,
            )

    # --- evaluation ----------------------------------------------------------------------------

    def evaluate(self, x: Array) -> Record:
        """Return the problem's record of a model, or the mean of the clients' evaluations."""
        if self._problem is not None:
            return self._problem.evaluate(x)
        if (server := self._flowing) is not None and server.round < server.setup.num_rounds:
            # It would wait for nodes that are at work; what loops have measured is known.
            return {} if self._app is None else self._app.read(())
        patience, strategy = self._patience, self._strategy
        how = Waiting(
            timeout=patience.evaluate_timeout or patience.timeout,
            there=lambda: set(self._nodes.online().values()),
            enough=len(self._names) if strategy.needs_everyone else strategy.min_replies or 1,
            grace=patience.grace,
        )
        return self._mean(self._post.exchange(self._questions(x), how), x)

    def value_at(self, x: Array, strategy: Method[Any]) -> float:
        """Return F at a model in a simulation, which has the problem."""
        return math.nan if self._problem is None else value_for(strategy, self._problem, x)

    def evaluation(self, x: Array) -> list[Message]:
        """Return the messages that ask the clients to evaluate a model."""
        self._sent = self._questions(x)
        return self._sent

    def _questions(self, x: Array) -> list[Message]:
        layout, online = self._run.layout, self._nodes.online()
        self._asked = {online[name]: j for j, name in enumerate(self._names) if name in online}
        common: codec.Config = {"layout": layout.to_json(), "algorithm": self._run.algorithm}
        model = layout.unpack(x)
        arrays = model if isinstance(model, list) else [model]
        if self._app is None and (prepared := codec.attached_arrays(self._run.attached)):
            common["prepared"] = ",".join(prepared)
            arrays = [*arrays, *prepared.values()]
        tensor = messages.Tensors()
        return [
            messages.instruction(messages.EVALUATE, arrays, {**common, "client": j}, node, tensor)
            if self._app is None
            else self._app.question(j, arrays, node, tensor)
            for node, j in self._asked.items()
        ]

    def mean(self, received: Iterable[Message], x: Array) -> Record:
        """Return the mean of the clients' answers to the messages of `evaluation`."""
        return self._mean(self._arrivals(received), x)

    def _mean(self, arrivals: Iterable[Arrival], x: Array) -> Record:
        """Return the mean of the clients' objectives (with psi) and of their metrics.

        If a client is missing, the mean would be of a different function: then only each client's
        own metrics are returned.
        """
        constraint = self._strategy.constraint
        violation = 0.0 if constraint is None else constraint.violation(x)
        if self._app is not None:
            contents = [(self._asked[a.node], a.content) for a in arrivals]
            away = set(range(len(self._names))) - set(self._asked.values())
            contents += [(client, Fault(_OFFLINE, silent=True)) for client in sorted(away)]
            return {**self._app.read(contents), "violation": violation}
        answers: dict[int, dict[str, Any]] = {}
        missing = dict.fromkeys(self._names, _OFFLINE)
        diverged = 0
        for arrival in arrivals:
            client = self._asked[arrival.node]
            answer = self._evaluation(arrival.content)
            if isinstance(answer, Fault):
                missing[self._names[client]] = answer.reason
                diverged += answer.diverged
            else:
                factor = 1.0 if self._run.factors is None else self._run.factors[client]
                answer = self._with_place(client, answer)
                answers[client] = {**answer, "objective": factor * answer["objective"]}
                del missing[self._names[client]]
        if diverged == len(self._names):  # no single client is at fault
            return {"objective": math.nan}
        ordered = [answers.get(j) for j in range(len(self._names))]
        record = evaluation.pooled(ordered, self._names, each=self._strategy.constraints == "each")
        if missing:
            _log.warning("no objective in this record, without %s", in_words(missing))
            record["unheard"] = len(missing)
        psi = self._strategy.regularizer
        if "objective" in record and psi is not None and not isinstance(psi, Indicator):
            record["objective"] += psi.value(x)
        return {**record, "violation": violation}

    def _with_place(self, client: int, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an evaluation with those metrics that have a place in the history."""
        place = {
            n: v for n, v in answer.items() if n == "objective" or self._metrics.takes(client, n)
        }
        if len(place) < len(answer) and client not in self._told:
            self._told.add(client)
            _log.warning(
                "client %s: metrics after its first %d, by name, are left out",
                self._names[client],
                evaluation.MOST_METRICS,
            )
        return place

    def _evaluation(self, content: Message | Fault) -> dict[str, Any] | Fault:
        if isinstance(content, Fault):
            return content
        return incoming.evaluation(lambda: messages.reply_parts(content, messages.EVALUATE))


def _as_reply(client: int, found: Reply | Fault, server_round: int) -> Reply:
    """Return a fault as a reply, which the round counts."""
    if isinstance(found, Reply):
        return found
    reply = Reply([client], server_round, error=found.reason, remote=True, silent=found.silent)
    reply.diverged = found.diverged
    return reply
