"""A client as Flower sees it: a `NumPyClient` whose configuration holds the server's request."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.client import NumPyClient

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.agreement import DataAtNode
from flower_fedcon.core.exchange import OF_ROUNDS, Exchange, Site, exchange_of, known
from flower_fedcon.core.protocol import (
    EVALUATE,
    QUERY,
    ClientInfo,
    Reply,
    Request,
    RunInfo,
    check_objective,
)
from flower_fedcon.errors import (
    ConfigError,
    FedConError,
    RefusedError,
    is_divergence,
    printable,
)
from flower_fedcon.flower import codec
from flower_fedcon.flower.near_misses import warn_of_near_misses
from flower_fedcon.flower.node_notes import NodeNotes
from flower_fedcon.flower.policy import Policy
from flower_fedcon.flower.refusals import check_callers
from flower_fedcon.flower.secagg_node import UNTOLD
from flower_fedcon.flower.stores import ContextStore, FileStore, Store
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.objectives.private_objective import PrivateObjective
from flower_fedcon.privacy.clipping import CLIP, clipped
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.shares import Seen
from flower_fedcon.validation import Array, positive
from flower_fedcon.wire.ledgers import FileLedger
from flower_fedcon.wire.own_code import own_places
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from flwr.app import Context

_log = logging.getLogger("flwr")
_KEYS = ("name", "partition-id", "num-partitions", "state-dir", "predictions-dir", "client-column")
"""Keys of a node's configuration that are read here, beside those of a policy."""
_ALONE = Seen()


@cache
def _look_at_keys(keys: tuple[str, ...]) -> None:
    """Warn once in a process of keys of a node's configuration that are nearly right."""
    warn_of_near_misses(dict.fromkeys(keys), _KEYS, "the node's configuration: this client")


class FlowerClient(NumPyClient):
    """The interface that Flower calls; `FedConClient` defines its abstract methods."""

    algorithm: ClassVar[str]
    state_type: ClassVar[type[Any] | None]
    remembers: bool
    """Whether the client keeps anything between rounds; known with the run's settings."""
    only_reads: ClassVar[bool] = False
    """Whether its step leaves state and broadcast as they are, so that they need no copy."""
    _ledger: FileLedger | None = None

    @abstractmethod
    def describe(self) -> ClientInfo:
        """Return the description that the server asks for before round 1."""

    @abstractmethod
    def configure(self, run: RunInfo) -> None:
        """Adopt a run's settings."""

    @abstractmethod
    def handle(self, request: Request) -> Reply:
        """Do one round's work and return the reply."""

    @abstractmethod
    def steps_asked(self, run: RunInfo, down: Payload) -> int:
        """Return how many local steps a request asks for."""

    @abstractmethod
    def check_algorithm(self, algorithm: str) -> None:
        """Refuse a server that runs another algorithm."""

    def __init__(
        self,
        objective: Any,
        *,
        context: Context | None = None,
        state_dir: str | Path | None = None,
        oracles: Mapping[str, Any] | None = None,
        name: str | None = None,
        policy: Policy | None = None,
        privacy: ExampleDP | None = None,
    ) -> None:
        at_node = getattr(type(objective), "at_node", None)
        if at_node is None:
            check_objective(objective)
        self.objective = self._own_objective = self._loaded_objective = objective
        self._context = context
        node = dict(context.node_config) if context is not None else {}
        _look_at_keys(tuple(node))
        # Without a context there is no node: this is the caller's process.
        self.policy = Policy.of(node, policy if context is not None else policy or Policy.open())
        self.name = name or _text(node.get("name", node.get("partition-id")))
        self._store: Store | None = None
        folder = state_dir or node.get("state-dir")
        if folder:
            if self.name is None:
                raise ConfigError(
                    'a client with a state-dir needs a name: write name="..." or '
                    "partition-id=... into the node's configuration"
                )
            self._store = FileStore(str(folder), self.name, self.policy)
        elif context is not None:
            self._store = ContextStore(context)
        if context is not None and isinstance(objective, PrivateObjective):
            raise ConfigError(
                "a node keeps the ledger of its private examples itself: return the objective "
                "without privacy, and give client_app privacy=ExampleDP(...)"
            )
        own_folder = node.get("predictions-dir")
        folder_of_own = None if own_folder is None else Path(str(own_folder))
        self._data: DataAtNode | None = None
        if at_node is not None:
            self._data = at_node(objective, self.policy, self._store, self.name, folder_of_own)
        self._notes = NodeNotes(self._store, self._loaded_objective, self.policy, self.name)
        if (private := ExampleDP.of(node, privacy)) is not None:
            self._make_private(private)
        self._oracles = oracles
        self.versions = Versions()
        self.work: dict[str, float] = {}
        self.num_examples = getattr(objective, "num_examples", 1)
        self.counted_rows = int(getattr(objective, "effective_rows", self.num_examples))
        """For the policy: rows of almost no weight do not hide others."""

    def _make_private(self, privacy: ExampleDP) -> None:
        """Release only noisy gradients of the objective, and count them."""
        if not isinstance(self._store, FileStore):
            raise ConfigError(
                "ExampleDP needs a state-dir in the node's configuration: without one a node that "
                "restarts forgets how much privacy it has spent"
            )
        objective = self._own_objective
        folders = self._store.ledgers(self._notes.rows, *self._notes.former_rows())
        ledger = self._ledger = FileLedger(privacy, *folders)
        if self._data is not None:
            self._data.make_private(privacy, ledger, self._notes)
            self.objective = self._data.data
        else:
            self.objective = PrivateObjective(objective, privacy, ledger)
        self._own_objective = self.objective

    def recall(self, versions: Versions) -> None:
        """Adopt the stored states of this client."""
        self.versions = versions

    def fit(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[list[Array], int, dict[str, Any]]:
        """Answer a message from the server: a description of this client, or a round's work.

        An error in the request, the data or the program becomes an error reply, which the server
        logs and counts.
        """
        check_callers()
        return self.answer(parameters, config)

    def answer(
        self, parameters: list[Array], config: dict[str, Any], seen: Seen = _ALONE
    ) -> tuple[list[Array], int, dict[str, Any]]:
        """Answer as `fit` does; `seen` says how much of it the server sees."""
        try:
            if config.get("action") == codec.DESCRIBE:
                self.check_algorithm(str(config.get("algorithm", self.algorithm)))
                self.policy.check_part(self.algorithm, self.counted_rows)
                info = replace(self.describe(), max_model=self.policy.max_model)
                said = codec.encode_info(info, self._context)
                if self._store is not None:
                    said["pass"] = self._store.known_pass(str(config.get("run-id", "")))
                return [], 1, said
            with ExitStack() as held:
                with ExitStack() as until_saved, self.policy.within_max_seconds():
                    self.policy.check_arrays(parameters)
                    run, request = codec.decode_request(parameters, config, self._oracles)
                    if self._ledger is not None:
                        self._notes.check_rows(run.run_id)
                        until_saved.push(self._notes.keep_told)  # once they are counted, on disk
                        until_saved.enter_context(self._ledger.opened())
                    asked = request.down(request.clients[0])
                    in_round = request.phase in OF_ROUNDS
                    exchange = None if in_round else self._exchange(request.phase, asked)
                    if exchange is not None and exchange.before_start:
                        return codec.encode_reply(self._tell(exchange, run, request))
                    self._prepare(run.attached)
                    self.configure(run)
                    steps = self.steps_asked(run, asked) if exchange is None else 0
                    self.policy.check(
                        run, request, self.counted_rows, steps, seen.summed, seen.noise
                    )
                    self._notes.count_request(1 if exchange is None else exchange.counts(asked))
                    if self._store is not None:
                        self._store.keep_pass(run, str(config.get("pass", "")))
                    remembers = self.remembers or request.phase == QUERY or request.held
                    store = self._store if remembers else None
                    if store is not None:
                        held.enter_context(store.locked(run))
                        own = not self.only_reads
                        self.recall(store.load(run, self.state_type, own=own))
                    reply = released(self._handled(run, request, seen), run, request)
                    if seen.summed > 1:
                        reply.payload = {k: [_dense(v)] for k, (v,) in reply.payload.items()}
                        self._notes.count_sum(reply.payload, seen)
                # The answer is counted, on disk, before its outcome can lead to the next request.
                if store is not None and in_round and not reply.lost:
                    store.save(run, self.versions)
        except Exception as error:
            diverged = is_divergence(error)
            reply = Reply([-1], 0, error=self._answer(error), diverged=diverged)
        return codec.encode_reply(reply)

    def _handled(self, run: RunInfo, request: Request, seen: Seen) -> Reply:
        """Return the reply to a request; in a secure sum, failed steps are not revealed.

        If a step fails with this node's rows but not without rows, the rows are the cause. With
        noise, the answer is then that of a node without rows. A step that fails without rows, too,
        is reported as usual.

        Raises
        ------
        RefusedError
            In a sum without noise, with the same words for every failure.
        """
        before = self.versions
        try:
            return self.handle(request)
        except Exception as error:
            if seen.summed == 1:
                raise
            packed = Layout((run.layout.shape,), run.layout.dtype, layered=False)
            stand_in = type(self)(_nothing(packed))
            stand_in.configure(replace(run, layout=packed))
            try:
                stand_in.recall(before)
                reply = stand_in.handle(request)
            except Exception:  # its state may be the cause
                stand_in.recall(Versions())
                first = replace(request, acknowledged=np.zeros(1, np.int64))
                try:
                    reply = stand_in.handle(first)
                except Exception:
                    raise error from None
            self._answer(error)
            if seen.shares is None:
                raise RefusedError(UNTOLD) from error
            self.versions = stand_in.versions
            return reply

    def _exchange(self, phase: str, down: Payload) -> Exchange:
        """Return the exchange that a request is for; one that names none counts as a request.

        Raises
        ------
        ConfigError
        """
        try:
            return exchange_of(phase, down)
        except ConfigError:
            if any(exchange.phase == phase for exchange in known().values()):
                self.policy.check_phase(phase)  # what is refused does not count
                self._notes.count_request()
            raise

    def _tell(self, exchange: Exchange, run: RunInfo, request: Request) -> Reply:
        """Return the answer to an exchange before round 1."""
        self.policy.check_part(run.algorithm, self.counted_rows)
        self.policy.check_phase(exchange.phase)
        (client,) = request.clients
        down = request.down(client)
        site = Site(
            self._own_objective,
            run=run,
            client=client,
            rows=self.counted_rows,
            bounds=self.policy,
            data=self._data,
            request=request,
        )
        exchange.check(site, down)  # a question that is not about its rows does not count
        self._notes.count_request(exchange.counts(down))
        answer = exchange.tell(site, down)
        return Reply([client], request.round, {name: [value] for name, value in answer.items()})

    def _prepare(self, attached: Mapping[str, Array]) -> None:
        """Make the objective of data that are none before an agreement."""
        if self._data is not None and self._own_objective is self._data.data:
            self.objective = self._own_objective = self._data.objective(attached)

    def evaluate(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Return f_j(x), the number of examples, and the objective's own metrics at x.

        An error becomes the value NaN, with the reason among the metrics.
        """
        try:
            self.policy.check_part(self.algorithm, self.counted_rows)
            self.policy.check_phase(EVALUATE)
            self.policy.check_arrays(parameters)
            with self.policy.within_max_seconds():
                return self._evaluate(parameters, config)
        except Exception as error:
            return math.nan, 1, {"error": self._answer(error)}

    def _evaluate(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        names = str(config.get("prepared", ""))
        if names:
            own_arrays = len(names.split(","))
            parameters, prepared = parameters[:-own_arrays], parameters[-own_arrays:]
            self._prepare(codec.attached_in(codec.named(prepared, names)))
        self.policy.check_model(parameters)
        objective = self._own_objective
        self._notes.count_request()
        layered = Layout.from_json(str(config["layout"])).layered
        x: Any = parameters if layered else parameters[0]
        site = Site(objective, rows=self.counted_rows, bounds=self.policy, data=self._data)
        with ExitStack() as opened:
            if self._ledger is not None:
                if not isinstance(objective, PrivateObjective):
                    raise ConfigError("this node's table is private, and is not prepared yet")
                if self._context is not None:  # an evaluation does not name its run
                    self._notes.check_rows(f"Flower {self._context.run_id}")
                opened.enter_context(self._ledger.opened())
            answer = known()[EVALUATE].tell(site, {"x": x})
        if self._ledger is None and self._data is not None:
            self._data.evaluated(objective, x)
        examples = int(getattr(objective, "num_examples", 1))
        return answer.pop("objective"), examples, {"client": int(config["client"]), **answer}

    def _answer(self, error: Exception) -> str:
        """Return the part of an error that the server sees; this node's log has all of it."""
        if isinstance(error, FedConError):
            _log.warning("this node answers with an error: %s", printable(str(error)))
            return error.told
        _log.warning("this node answers with an error", exc_info=error)
        place = own_places(error)
        where = f" ({place})" if place else ""
        if self._data is not None or self._ledger is not None:  # it may contain a cell
            return f"the client failed: {type(error).__name__}{where}, see the node's own log"
        return f"the client failed: {error!r}{where}"


def released(reply: Reply, run: RunInfo, request: Request) -> Reply:
    """Return the values that leave a client: clipped, and without its costs, if required."""
    down = request.down(request.clients[0])
    if CLIP not in down or not reply.payload:
        return reply
    # A compact value is not an array but an atom, whose norm its set bounds.
    arrays = {name: v[0][None] for name, v in reply.payload.items() if isinstance(v[0], np.ndarray)}
    centers = {name: down[center] for name, center in run.about.items() if name in arrays}
    cut = clipped(arrays, centers, positive(CLIP, down[CLIP])) if arrays else {}
    payload = reply.payload | {name: [column[0]] for name, column in cut.items()}
    return replace(reply, payload=payload, work=())


def _nothing(layout: Layout) -> LeastSquares:
    """Return the objective of no rows on the packed vector: 0 everywhere."""
    return LeastSquares(np.zeros((1, *layout.shape), layout.array_dtype), np.zeros(1))


def _dense(value: Any) -> Any:
    """Return a compact value as an array: only arrays can be summed."""
    return value if isinstance(value, np.ndarray | float | int) else value.dense()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
