"""The client side that all algorithms share; an algorithm file adds only its local step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from flwr.client import NumPyClient

from flower_fedcon.core import rng as streams
from flower_fedcon.core.protocol import CERTIFY, QUERY, ClientInfo, Reply, Request, RunInfo
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower import codec
from flower_fedcon.flower.stores import ContextStore, FileStore, Store, Versions
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.packed import PackedObjective
from flower_fedcon.solvers import LocalProblem
from flower_fedcon.validation import Array, count
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from pathlib import Path

    from flwr.app import Context

State = TypeVar("State")


class FedConClient(NumPyClient, Generic[State]):
    """A client: an objective, and one algorithm's local step.

    An algorithm defines `step`, and if it keeps state between rounds `state_type` (a NamedTuple
    of arrays and numbers) with `initialize`, and where the server can hand state back, `restore`.
    All arrays have the model's shape; `step` is written for any leading axes.

    The state is exactly-once: what `step` returns is pending until a later message says that
    the reply was used, and is dropped otherwise.

    Parameters
    ----------
    objective : object
        f_j, with `value` and `gradient`.
    context : flwr.app.Context, optional
        Where the state lives between messages, in a Flower app. Without it, it lives in this
        object.
    state_dir : path, optional
        A folder that keeps the state over restarts; by default the node configuration's
        "state-dir", if it has one.
    oracles : dict, optional
        Sets or regularizers of one's own, by the name of the strategy's argument.
    name : str, optional
        A stable name; by default the node configuration's "name" or "partition-id".
    """

    algorithm: ClassVar[str]
    state_type: ClassVar[type[Any] | None] = None

    settings: SimpleNamespace

    def __init__(
        self,
        objective: Any,
        *,
        context: Context | None = None,
        state_dir: str | Path | None = None,
        oracles: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        for method in ("value", "gradient"):
            if not callable(getattr(objective, method, None)):
                raise ConfigError(f"an objective needs a method {method}(x): got {objective!r}")
        self.objective = self._own_objective = objective
        self._context = context
        node = dict(context.node_config) if context is not None else {}
        self.name = name or _text(node.get("name", node.get("partition-id")))
        self._store: Store | None = None
        folder = state_dir or node.get("state-dir")
        if folder:
            if self.name is None:
                raise ConfigError("a client with a state-dir needs a name, or a partition-id")
            self._store = FileStore(str(folder), self.name)
        elif context is not None:
            self._store = ContextStore(context)
        self._oracles = oracles
        self._versions = Versions()
        self._run: RunInfo | None = None
        self._batch_size: int | None = None
        self._batch_rng: np.random.Generator | None = None
        self.work: dict[str, float] = {}
        self._incarnation = 1
        self.num_examples = getattr(objective, "num_examples", 1)

    # --- what an algorithm defines -------------------------------------------------------------

    @abstractmethod
    def step(self, state: State, down: Payload) -> tuple[Payload, State]:
        """Return the upload and the state to keep if the upload is used.

        Parameters
        ----------
        state : NamedTuple or None
            The client's state; None for a stateless algorithm.
        down : dict
            The broadcast.
        """

    def query(self, state: State, down: Payload) -> tuple[Payload, Payload]:
        """Return the answer to a query before the step, and what to hold for the step.

        What is held is added to the step's broadcast.
        """
        raise NotImplementedError

    def initialize(self, down: Payload) -> State:
        """Return the state of a client that meets its first broadcast."""
        raise NotImplementedError

    def restore(self, down: Payload, given: Payload) -> State:
        """Return the state of a client that the server lets re-enter with `given`."""
        raise NotImplementedError

    def on_acknowledged(self, state: State, down: Payload) -> State:
        """Return the state once the reply that produced it is known to be used.

        For algorithms that move their state with a quantity the server computes from the round.
        """
        return state

    # --- what an algorithm's step may call -----------------------------------------------------

    def gradient(self, v: Array) -> Array:
        """Return the gradient at `v`: full, or of the next minibatch of this local pass."""
        if self._batch_size is None:
            return self.objective.gradient(v)  # type: ignore[no-any-return]
        return self._minibatch_gradient(v)

    def minimize(
        self,
        start: Array,
        *,
        linear: Array | None = None,
        shift: float = 0.0,
        center: Array | None = None,
        regularizer: Any = None,
        stop: Callable[[Array, Array], bool] | None = None,
    ) -> Array:
        """Return argmin f_j(x) + <linear, x> + (shift/2) ||x - center||^2 (+ psi).

        By the strategy's `local_solver`, from `start`; `stop(x, gradient)` may end it earlier.
        """
        problem = LocalProblem(
            objective=self.objective,
            start=start,
            linear=linear,
            shift=shift,
            center=center,
            regularizer=regularizer,
        )
        solution = self.settings.local_solver.solve(problem, stop=stop)
        work = self.work
        work["iterations"] = work.get("iterations", 0) + solution.iterations
        work["evaluations"] = work.get("evaluations", 0) + solution.evaluations
        if not solution.converged:
            work["unconverged"] = work.get("unconverged", 0) + 1
        x: Array = solution.x
        return x

    def rng(self, purpose: int) -> np.random.Generator:
        """Return this client's random stream of this round."""
        assert self._run is not None  # noqa: S101  (set before any step)
        return streams.stream(self._run.seed, purpose, self._round, self._index)

    def _minibatch_gradient(self, v: Array) -> Array:
        objective, size = self.objective, self._batch_size
        if self._batch_rng is None:
            self._batch_rng = self.rng(streams.BATCH)
            self._order = np.empty(0, dtype=np.intp)
        if not hasattr(objective, "batch_gradient"):
            return objective.stochastic_gradient(v, self._batch_rng, size)  # type: ignore[no-any-return]
        m = int(objective.num_examples)
        assert size is not None  # noqa: S101  (the caller's case)
        if size >= m:
            return objective.gradient(v)  # type: ignore[no-any-return]
        if len(self._order) < size:  # a pass is over: what is left is less than a batch
            self._order = self._batch_rng.permutation(m)
        rows, self._order = self._order[:size], self._order[size:]
        return objective.batch_gradient(v, rows)  # type: ignore[no-any-return]

    # --- plumbing: one request, whatever carried it --------------------------------------------

    def describe(self) -> ClientInfo:
        """Return what the server asks before the first round."""
        objective = self._own_objective
        return ClientInfo(
            name=self.name or "",
            num_examples=int(getattr(objective, "num_examples", 1)),
            layout=Layout.for_objective(objective),
            smoothness=_optional(getattr(objective, "smoothness", None)),
            strong_convexity=_optional(getattr(objective, "strong_convexity", None)),
        )

    @property
    def versions(self) -> Versions:
        """The client's state and what is pending."""
        return self._versions

    @versions.setter
    def versions(self, versions: Versions) -> None:
        self._versions = versions

    def configure(self, run: RunInfo) -> None:
        """Take over a run's settings."""
        self._check_algorithm(run.algorithm)
        own = Layout.for_objective(self._own_objective)
        if own is not None and own.shapes != run.layout.shapes:
            raise ConfigError(
                f"the server's model has shape {run.layout.shapes}, this client's {own.shapes}"
            )
        self._run, self._incarnation = run, run.incarnation
        self.num_clients = run.num_clients
        self.settings = SimpleNamespace(**run.settings)
        self._batch_size = getattr(self.settings, "batch_size", None)
        if self._batch_size is not None:
            count("batch_size", self._batch_size)
            if not hasattr(self.objective, "stochastic_gradient"):
                raise ConfigError(
                    "batch_size needs an objective with stochastic_gradient(x, rng, batch_size)"
                )
        if run.layout.layered and not isinstance(self.objective, PackedObjective):
            self.objective = PackedObjective(self._own_objective, run.layout)

    def _check_algorithm(self, algorithm: str) -> None:
        if algorithm != self.algorithm:
            raise ConfigError(
                f"this client runs {self.algorithm!r}, the server {algorithm!r}: use "
                "flower_fedcon.client_app, which serves every algorithm, or match the two"
            )

    def handle(self, request: Request) -> Reply:
        """Do one round's work and return the reply."""
        client, server_round, down = request.client, request.round, request.broadcast
        ack, keep = request.ack, request.keep
        reply = Reply(client, server_round, {}, self.num_examples)
        versions = self._versions
        if request.phase == CERTIFY:
            reply.payload = self._certify(down["x"], versions.at(ack))
            return reply
        if (
            server_round < versions.pending_round and self._incarnation <= versions.incarnation
        ) or (self._incarnation < versions.incarnation):
            reply.error = f"round {server_round} was asked for after {versions.pending_round}"
            return reply
        if request.follow_up:
            if versions.held_round != server_round:
                reply.lost = True
                return reply
            down = {**versions.held, **down}
        committed: Any = None
        if self.state_type is not None:
            committed = self._committed(versions, request)
            if committed is None:
                reply.lost = True
                return reply
        if request.phase == QUERY:
            self._round, self._index, self._batch_rng, self.work = server_round, client, None, {}
            state = (
                self.on_acknowledged(committed, down)
                if ack and committed is not None
                else committed
            )
            reply.payload, held = self.query(state, down)
            if self.state_type is None:
                self._versions = versions._replace(held_round=server_round, held=held)
            else:
                kept = versions.at(keep) if keep else None
                self._versions = Versions(
                    ack, committed, 0, None, server_round, held, keep, kept, self._incarnation
                )
        else:
            reply.payload = self.advance(server_round, client, ack, committed, keep, down)
        reply.work = self.work
        return reply

    def repeat(
        self, server_round: int, client: int, ack: int, keep: int, down: Payload
    ) -> Payload | None:
        """Do one round's step if the last reply was used, as nearly always; else return None.

        The same as `handle` without a message, for engines whose clients live in their process.
        """
        versions = self._versions
        if not ack or (ack != versions.pending_round and self.state_type is not None):
            return None
        return self.advance(server_round, client, ack, versions.pending, keep, down)

    def advance(
        self, server_round: int, client: int, ack: int, committed: Any, keep: int, down: Payload
    ) -> Payload:
        """Do the step from a committed state, and hold what it leaves until the server's word."""
        self._round, self._index, self._batch_rng, self.work = server_round, client, None, {}
        if self.state_type is None:
            return self.step(committed, down)[0]
        payload, after = self.step(
            self.on_acknowledged(committed, down) if ack else committed, down
        )
        versions = self._versions
        held_round, held = versions.held_round, versions.held
        kept = versions.at(keep) if keep else None
        self._versions = Versions(  # by place: this runs once for each step of each client
            ack, committed, server_round, after, held_round, held, keep, kept, self._incarnation
        )
        return payload

    def _certify(self, x: Array, state: Any) -> Payload:
        """Return the gradient at x and, with an iterate of one's own, its distance from x."""
        payload: Payload = {"gradient": self.objective.gradient(x)}
        own = getattr(state, "x", None)
        if own is not None:
            payload["distance"] = float(np.linalg.norm((own - x).ravel()))
        return payload

    def _committed(self, versions: Versions, request: Request) -> Any:
        """Return the state after the server's word on the last reply; None if it is gone."""
        if request.restore is not None:
            return self.restore(request.broadcast, request.restore)
        if request.ack == 0:
            return self.initialize(request.broadcast)
        return versions.at(request.ack)

    # --- plumbing: Flower's NumPyClient --------------------------------------------------------

    def fit(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[list[Array], int, dict[str, Any]]:
        """Answer a message of the server: a description of this client, or a round's work.

        A user error (`FedConError`) becomes an error reply, which the server names and counts.
        """
        try:
            if config.get("action") == codec.DESCRIBE:
                self._check_algorithm(str(config.get("algorithm", self.algorithm)))
                return [], 1, codec.encode_info(self.describe(), self._context)
            run, request = codec.decode_request(parameters, config, self._oracles)
            self.configure(run)
            store = self._store
            remembers = self.state_type is not None or request.phase == QUERY or request.follow_up
            moves = remembers and request.phase != CERTIFY
            if store is not None and remembers:
                self._versions = store.load(run, self.state_type)
            reply = self.handle(request)
            if store is not None and moves and not reply.lost and not reply.error:
                store.save(run, self._versions)
        except FedConError as error:
            reply = Reply(client=-1, round=0, error=str(error))
        return codec.encode_reply(reply)

    def evaluate(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Return f_j(x), the number of examples, and the objective's own metrics at x."""
        objective = self._own_objective
        layered = Layout.from_json(str(config["layout"])).layered
        x: Any = parameters if layered else parameters[0]
        metrics = getattr(objective, "metrics", None)
        own = {k: float(v) for k, v in metrics(x).items()} if callable(metrics) else {}
        if hasattr(objective, "constraint_value"):
            own["constraint"] = float(objective.constraint_value(x))
        examples = int(getattr(objective, "num_examples", 1))
        return float(objective.value(x)), examples, {"client": int(config["client"]), **own}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
