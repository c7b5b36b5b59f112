"""A client as Flower sees it: a `NumPyClient` whose configuration holds the server's request."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.client import NumPyClient

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.evaluation import spread_out
from flower_fedcon.core.preparing import CONSTANTS, STAGES
from flower_fedcon.core.protocol import (
    CERTIFY,
    PREPARE,
    QUERY,
    STATISTICS,
    TRAIN,
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
from flower_fedcon.flower.node_notes import NodeNotes
from flower_fedcon.flower.policy import EVALUATE, Policy
from flower_fedcon.flower.refusals import check_callers
from flower_fedcon.flower.secagg_node import UNTOLD
from flower_fedcon.flower.stores import ContextStore, FileStore, Store
from flower_fedcon.flower.surveys import Surveys
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.objectives.private_objective import PrivateObjective
from flower_fedcon.objectives.profiled import Profiled
from flower_fedcon.privacy.clipping import CLIP, clipped
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.shares import Seen
from flower_fedcon.tables.design import SQUARES
from flower_fedcon.tables.fitted import write_effects, write_held_out
from flower_fedcon.tables.held_out import HeldOut
from flower_fedcon.tables.noisy_sums import PrivateTable
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.read import log_notes
from flower_fedcon.tables.statistics.answers import models_in
from flower_fedcon.tables.statistics.group_sums import effects_of
from flower_fedcon.tables.table import CURVES, Table
from flower_fedcon.validation import Array, choice, positive
from flower_fedcon.wire.ledgers import FileLedger
from flower_fedcon.wire.own_code import own_places
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from flwr.app import Context

_log = logging.getLogger("flwr")
_ALONE = Seen()


class FlowerClient(NumPyClient):
    """The interface that Flower calls; `FedConClient` defines its abstract methods."""

    algorithm: ClassVar[str]
    state_type: ClassVar[type[Any] | None]
    remembers: bool
    """Whether the client keeps anything between rounds; known with the run's settings."""
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
        self._has_table = isinstance(objective, Table)
        if not self._has_table:
            check_objective(objective)
        self.objective = self._own_objective = self._loaded = objective
        self._context = context
        node = dict(context.node_config) if context is not None else {}
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
        self._notes = NodeNotes(self._store, self._loaded, self.policy, self.name)
        if (private := ExampleDP.of(node, privacy)) is not None:
            self._make_private(private)
        self._oracles = oracles
        own_folder = node.get("predictions-dir")
        self._predictions = None if own_folder is None else Path(str(own_folder))
        self._prepared: tuple[Table, Preparation] | None = None
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
        notes = self._notes
        if isinstance(objective, Table):
            self.objective = PrivateTable.of(
                objective, privacy, ledger, note=notes.told, keep=notes.tell
            )
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
                with ExitStack() as until_saved, self.policy.in_time():
                    self.policy.check_arrays(parameters)
                    run, request = codec.decode_request(parameters, config, self._oracles)
                    if self._ledger is not None:
                        self._notes.check_rows(run.run_id)
                        until_saved.push(self._notes.keep_told)  # once they are counted, on disk
                        until_saved.enter_context(self._ledger.opened())
                    if request.phase == PREPARE:
                        return codec.encode_reply(self._tell(run, request))
                    choice("action", request.phase, (TRAIN, QUERY, CERTIFY, STATISTICS))
                    self._prepare(run.preparation)
                    self.configure(run)
                    steps = 0
                    if request.phase not in (CERTIFY, STATISTICS):  # these do not count
                        steps = self.steps_asked(run, request.down(request.clients[0]))
                    self.policy.check(
                        run, request, self.counted_rows, steps, seen.summed, seen.noise
                    )
                    asked = request.down(request.clients[0])
                    self._notes.count_request(
                        models_in(asked) if request.phase == STATISTICS else 1
                    )
                    if self._store is not None:
                        self._store.keep_pass(run, str(config.get("pass", "")))
                    phase = request.phase
                    remembers = self.remembers or phase == QUERY or request.held
                    store = self._store if remembers else None
                    if store is not None:
                        held.enter_context(store.locked(run))
                        self.recall(store.load(run, self.state_type))
                    reply = released(self._handled(run, request, seen), run, request)
                    if seen.summed > 1:
                        reply.payload = {k: [_dense(v)] for k, (v,) in reply.payload.items()}
                        self._notes.count_sum(reply.payload, seen)
                # The answer is counted, on disk, before its outcome can lead to the next request.
                if store is not None and phase in (TRAIN, QUERY) and not reply.lost:
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

    def _tell(self, run: RunInfo, request: Request) -> Reply:
        """Return the sums of a table for the server's preparation before round 1."""
        table, least = self._own_objective, self.policy.min_rows
        self.policy.check_part(run.algorithm, self.counted_rows)
        self.policy.check_phase(PREPARE)
        if not isinstance(table, Table):
            raise ConfigError(
                "this client has an objective instead of a table: leave schema out of server_app"
            )
        (client,) = request.clients
        down = request.down(client)
        self._notes.count_request()
        stage = STAGES[request.round - 1]
        if stage == CURVES:
            self.policy.check_phase(CURVES)
        if stage == CONSTANTS:
            preparation = Preparation.from_payload(down)
            if self._store is not None:
                Surveys(self._store, table).conclude(preparation)
            self._prepare(preparation)
            info = self.describe()
            known = (info.smoothness, info.strong_convexity)
            answer = {"constants": np.array([math.nan if v is None else v for v in known])}
        else:
            if request.round == 1:
                log_notes([table])
            answer = table.answer(stage, down, least, self.policy.min_cell)
            if request.round == 2 and self._store is not None:
                Surveys(self._store, table).asked(down)
            if stage == SQUARES and self._store is not None:
                Surveys(self._store, table).asked_of_terms(down)
        return Reply([client], request.round, {name: [value] for name, value in answer.items()})

    def _prepare(self, preparation: Preparation | None) -> None:
        """Make the objective of a table."""
        if not isinstance(self._own_objective, Table):
            return
        if preparation is None:
            raise ConfigError(
                "this node has a table, and the server prepares none: give the server its schema, "
                "server_app(..., schema=...)"
            )
        if self._store is not None:
            Surveys(self._store, self._own_objective).check(preparation)
        self._prepared = self._own_objective, preparation
        objective: Any = self._own_objective.objective(preparation, self.policy.min_rows)
        if isinstance(held := getattr(objective, "metrics", None), HeldOut):
            objective.metrics = replace(held, cell=self.policy.min_cell)
        self.objective = self._own_objective = objective

    def check_times(self, down: Payload) -> None:
        """Raise if a table's hazards are requested at other times than its schema's.

        Answers on two grids would reveal the events between them, even if there are few.

        Raises
        ------
        RefusedError
        """
        own = self._loaded
        if isinstance(own, Table) and not np.array_equal(down["times"], own.schema.curve_times):
            raise RefusedError(
                "refused: this node sends baseline hazards only at the schema's curve_times, not "
                "at other times"
            )

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
            with self.policy.in_time():
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
            self._prepare(codec.preparation_in(codec.named(prepared, names)))
        self.policy.check_model(parameters)
        objective = self._own_objective
        self._notes.count_request()
        layered = Layout.from_json(str(config["layout"])).layered
        x: Any = parameters if layered else parameters[0]
        if self._ledger is not None:
            if not isinstance(objective, PrivateObjective):
                raise ConfigError("this node's table is private, and is not prepared yet")
            if self._context is not None:  # an evaluation does not name its run
                self._notes.check_rows(f"Flower {self._context.run_id}")
            with self._ledger.opened():
                told = objective.noisy_value(x)
            return told, objective.num_examples, {"client": int(config["client"])}
        metrics = getattr(objective, "metrics", None)
        own = spread_out(metrics(x)) if callable(metrics) else {}
        if hasattr(objective, "constraint_value"):
            own["constraint"] = float(objective.constraint_value(x))
        if self._predictions is not None and self._prepared is not None:
            self._write_held_out(self._predictions, x)
        examples = int(getattr(objective, "num_examples", 1))
        return float(objective.value(x)), examples, {"client": int(config["client"]), **own}

    def _write_held_out(self, folder: Path, x: Array) -> None:
        assert self._prepared is not None  # noqa: S101  (the caller's case)
        if isinstance(own := self._own_objective, Profiled):
            if not own.informative:
                _log.warning(
                    "no predictions are written, since this node's own intercept is infinite"
                )
                return
            x = own.full(x)
        write_held_out(folder, self.name or "", *self._prepared, x)

    def keep_effects(self, down: Payload) -> None:
        """Write the predicted intercepts of this node's groups, if it has a folder for them."""
        if self._predictions is not None and self._prepared is not None:
            own = effects_of(self._own_objective, down)
            write_effects(self._predictions, self.name or "", self._prepared[0], own)

    def _answer(self, error: Exception) -> str:
        """Return the part of an error that the server sees; this node's log has all of it."""
        if isinstance(error, FedConError):
            _log.warning("this node answers with an error: %s", printable(str(error)))
            return error.told
        _log.warning("this node answers with an error", exc_info=error)
        place = own_places(error)
        where = f" ({place})" if place else ""
        if self._has_table or self._ledger is not None:  # a library's message may contain a cell
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
