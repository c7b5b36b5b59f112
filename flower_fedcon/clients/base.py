"""The common client side of all algorithms; an algorithm's file adds only its local step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from flower_fedcon.arrays import some, told
from flower_fedcon.clients.families.compression import CompressingClient
from flower_fedcon.core.acknowledgements import state_before, stepped
from flower_fedcon.core.batches import ORDER, Batches, EpochRows, rows_of_gradients
from flower_fedcon.core.compressing import SETTING
from flower_fedcon.core.exchange import OF_ROUNDS, Site, exchange_of
from flower_fedcon.core.protocol import QUERY, ClientInfo, Reply, Request, RunInfo
from flower_fedcon.core.rng import BATCH, NOISE, stream
from flower_fedcon.errors import AlgorithmError, ConfigError, RefusedError, RoundError
from flower_fedcon.flower.client import FlowerClient
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.client_axis import StepTaker
from flower_fedcon.objectives.foreign import as_seen, why_no_batches
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.objectives.noisy import NoisySteps, noise_of
from flower_fedcon.objectives.private_objective import for_steps, is_private
from flower_fedcon.objectives.set_aside import is_ours
from flower_fedcon.solvers import GradientDescent, LocalProblem, LocalSolver, Solution
from flower_fedcon.solvers.problem import Stop
from flower_fedcon.solvers.stochastic import SGD, check_noise
from flower_fedcon.validation import Array, check_field, count, spelt
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")
_RULES = (SETTING, ORDER)  # further settings that a server may send besides the fields
_RESERVED = ("name", "objective", "num_examples", "counted_rows", "num_clients", "versions",
             "work")  # fmt: skip


class FedConClient(FlowerClient, Generic[State]):
    """A client: an objective, and one algorithm's local step.

    An algorithm annotates the hyperparameters and oracles that its step uses, as fields of its
    class (`client_lr: float`); the strategy sends exactly those. It defines `step`. If it keeps
    state between rounds, it also defines `state_type` (a NamedTuple of arrays and numbers) and
    `initialize`, and `restore` if the server can hand state back. All arrays have the model's
    shape; `step` must work for any leading axes.

    The state is exactly-once: what `step` returns is pending until a later message says that the
    reply was used; otherwise it is dropped (see `flower_fedcon.core.acknowledgements`).

    Parameters
    ----------
    objective : object
        f_j, with `value` and `gradient`.
    context : flwr.app.Context, optional
        In a Flower app the context keeps the state between messages. Without a context this object
        keeps it.
    state_dir : path, optional
        A folder that keeps the state over restarts; by default the node configuration's
        "state-dir", if it has one.
    oracles : dict, optional
        Sets or regularizers of your own, by the name of the strategy's argument.
    name : str, optional
        A stable name; by default the node configuration's "name" or "partition-id".
    policy : Policy, optional
        The requests that a server may make; by default the node configuration's policy, and any
        request without a context.
    """

    algorithm: ClassVar[str]
    """The name in the registry: that of the two modules."""
    state_type: ClassVar[type[Any] | None] = None
    """The state, a NamedTuple; None for an algorithm whose clients keep none."""
    one_at_a_time: ClassVar[str] = ""
    """Why its step cannot serve all clients at once; "" if it can."""
    needs_values: ClassVar[str] = ""
    """What its step needs of an objective besides gradients; "" if nothing."""
    own_numbers: ClassVar[frozenset[str]] = frozenset()
    """Personal numbers that its step also takes as columns, with one for each client."""
    own_memory: ClassVar[bool] = False
    """Whether it uploads the difference from a memory that its server also holds."""
    fields: ClassVar[tuple[str, ...]] = ()
    """The values of the strategy that the server sends: the fields that the class annotates."""
    _types: ClassVar[Mapping[str, str]] = {}  # the types of the fields

    local_solver: LocalSolver  # fields of clients that minimise, or take steps
    client_lr: Any
    local_steps: int | None
    _run: RunInfo | None = None
    _batch_size: int | None = None
    _batches: Batches | None = None
    _epoch_rows: EpochRows | None = None
    _noises: np.random.Generator | None = None
    _incarnation = 1
    _compressing: CompressingClient | None = None  # takes the steps, if uploads are compressed
    _noiseless_objective: Any = None  # the objective of its steps, without noise that is simulated
    _rows: tuple[Any, Any] | None = None  # rows of a gradient: a full one, and a minibatch's

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hints = vars(cls).get("__annotations__", {})
        declared = [n for n, hint in hints.items() if n[0] != "_" and "ClassVar" not in str(hint)]
        for name in declared:
            if hasattr(FedConClient, name) or name in _RESERVED:
                raise AlgorithmError(
                    f"{cls.__name__}: the field name {name!r} has another meaning in every client: "
                    f"choose another name"
                )
        if "initialize" in vars(cls) and cls.state_type is None:
            raise AlgorithmError(
                f"{cls.__name__} defines initialize, but no state_type: write state_type = ..., "
                f"the NamedTuple of its state"
            )
        bases = [base for base in cls.__bases__ if issubclass(base, FedConClient)]
        cls.fields = (*dict.fromkeys([*(n for base in bases for n in base.fields), *declared]),)
        cls._types = {name: kind for base in bases for name, kind in base._types.items()}
        cls._types |= {name: spelt(hints[name]) for name in declared}

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
        """Return the answer to a query before the step, and values to hold for the step.

        The values held are added to the step's broadcast.
        """
        raise self._lacks("query", "its strategy has queries")

    def initialize(self, down: Payload) -> State:
        """Return the state of a client that receives its first broadcast."""
        raise self._lacks("initialize", "it keeps state")

    def restore(self, down: Payload, given: Payload) -> State:
        """Return the state of a client that the server lets re-enter with `given`."""
        raise self._lacks("restore", "it keeps state, and its strategy readmits clients")

    def _lacks(self, method: str, why: str) -> AlgorithmError:
        return AlgorithmError(f"{type(self).__name__}: define {method}, for {why}")

    def on_acknowledged(self, state: State, down: Payload) -> State:
        """Return the state once the reply that produced it is known to be used.

        For algorithms that move their state with a quantity the server computes from the round.
        """
        return state

    def is_followed(self, sent: Payload, after: State) -> bool:
        """Return whether the server can compute this state exactly from what the last step sent."""
        return False

    def received(self, before: State, after: State, down: Payload, read: Payload) -> State:
        """Return the state after a step whose upload is compressed; the server decodes `read`."""
        return after

    # --- what an algorithm's step may call -----------------------------------------------------

    def gradient(self, v: Array) -> Array:
        """Return the gradient at `v`: full, or of the next minibatch of this local pass."""
        self.tally_gradients(1)
        return self._gradient(v)

    def _gradient(self, v: Array) -> Array:
        """Return the gradient without counting it."""
        if self._batch_size is None:
            return self.objective.gradient(v)  # type: ignore[no-any-return]
        return self.batches.gradient(v)

    def _noise(self) -> np.random.Generator:
        """Return the round's generator of noise in gradients."""
        if self._noises is None:
            self._noises = self.rng(NOISE)
        return self._noises

    def full_gradient(self, v: Array) -> Array:
        """Return the gradient at `v` over all rows, for any batch size."""
        self.tally_gradients(1, full=True)
        objective = self.objective
        return getattr(objective, "full_gradient", objective.gradient)(v)  # type: ignore[no-any-return]

    def loss_at(self, x: Array) -> Any:
        """Return f_j at `x` over all rows, in the form of an upload: one number for each client."""
        objective = self.objective
        served = getattr(objective, "served_values", None)
        return float(objective.value(x)) if served is None else told(served(x))

    def tally(self, **spent: Any) -> None:
        """Count costs of this step besides the calls of `gradient`, `play` and `minimize`.

        They are given by the names in `flower_fedcon.core.gate.WORK`, such as `tally(proxes=1)`.
        """
        work = self.work
        for name, number in spent.items():
            work[name] = work.get(name, 0) + number

    def tally_gradients(self, number: Any, *, full: bool = False) -> None:
        """Count gradients of f_j, or of its constraint, and the rows that they used.

        They are `full`, or of minibatches if the run has a batch size.
        """
        rows = self.objective.gradient_rows if self._rows is None else self._rows
        work, seen = self.work, number * rows[0 if full else 1]
        if "gradients" in work:
            work["gradients"] = work["gradients"] + number  # a traced one is never changed in place
            work["examples_seen"] = work["examples_seen"] + seen
        else:  # the usual case: a local pass is the whole step
            work["gradients"], work["examples_seen"] = number, seen

    @property
    def batches(self) -> Batches:
        """The minibatches of this local pass."""
        if self._batches is None:  # batches of a private policy do not follow from a seed
            rng = np.random.default_rng() if self.policy.batches == "private" else self.rng(BATCH)
            epochs = self._epoch_rows
            rows = None if epochs is None else partial(epochs.of, self._index, self._round)
            self._batches = Batches(self.objective, self._batch_size, rng, rows)
        return self._batches

    def minimize(
        self,
        start: Array,
        *,
        linear: Array | None = None,
        shift: float = 0.0,
        center: Array | None = None,
        regularizer: Any = None,
        stop: Stop | None = None,
        objective: Any = None,
    ) -> Array:
        """Return argmin f_j(x) + <linear, x> + (shift/2) ||x - center||^2 (+ psi).

        The strategy's `local_solver` starts at `start`; `stop(x, gradient)` may end it earlier. The
        stacked engine calls `stop` for many clients at once, and `stop.only(places)` for some of
        them. `objective` replaces f_j.
        """
        terms = start, linear, shift, center
        declared = LocalPass(
            *terms,
            solver=self.local_solver,
            regularizer=regularizer,
            stop=stop,
            objective=objective,
        )
        return self.play(declared).end

    def play(self, declared: LocalPass) -> Done:
        """Carry out a local pass, by steps or a minimisation, and return its result.

        The objective takes the steps in one call if it can; otherwise they are taken one by one.
        """
        if isinstance(declared.solver, SGD):
            return self._epochs(declared)
        if declared.solver is not None:
            return Done(declared, self._minimised(declared))
        if declared.own_rate is not None:
            return self._adapted(declared)
        objective, count = self.objective, declared.steps
        axes = None if declared.clip is None else len(self.model_axes)
        plain = bool(type(self).gradient is FedConClient.gradient)
        if declared.gradient is None and plain:
            self.tally_gradients(count)
        if declared.point is not None and (proxes := declared.proxes):
            self.tally(proxes=proxes)
        if plain and isinstance(objective, StepTaker) and count and declared.in_numbers:
            rows = None if self._batch_size is None else self.batches.next_rows
            if declared.variate_rate is not None:
                both = objective.variate_steps(declared, rows)
                if both is not None:
                    return Done(declared, None, count, change=both[0], variates=both[1])
            end = objective.gradient_steps(declared, rows)
            if end is not None:
                return Done(declared, end, count)
        if plain:
            return Done(declared, declared.play(self._gradient, axes), count)
        before = self.work.get("gradients")
        end = declared.play(self.gradient, axes)
        if declared.gradient is None and self.work.get("gradients") == before:
            self.tally_gradients(count)  # in an override that counts nothing
        return Done(declared, end, count)

    def _adapted(self, declared: LocalPass) -> Done:
        """Return the end point of steps whose lengths follow from gradients."""
        again, count = None, declared.steps
        if self._run is not None and self._run.rows_each is not None:  # each on its own rows
            objective = self.objective
            again = objective.again if hasattr(objective, "again") else self.batches.again
            self.tally_gradients(max(0, count - 1))
        self.tally_gradients(count)
        if declared.point is not None and (proxes := declared.proxes):
            self.tally(proxes=proxes)
        return declared.adapt(self._gradient, again, len(self.model_axes))

    def _epochs(self, declared: LocalPass) -> Done:
        """Return the end point of stochastic steps that replace a minimisation."""
        rows = self.objective.rows_alike() if self._rows is None else self._rows[0]
        steps = declared.solver.steps(declared, rows, self._round)
        end = self.play(steps).end
        if steps.point is not None:
            end = steps.at(end, steps.steps)
            self.tally(proxes=1)
        return Done(declared, end)

    def _minimised(self, declared: LocalPass) -> Array:
        """Return the solver's solution, and count its work."""
        problem = LocalProblem(
            objective=self.objective if declared.objective is None else declared.objective,
            start=declared.start,
            linear=declared.linear,
            shift=declared.shift,
            center=declared.center,
            regularizer=declared.regularizer,
        )
        solution = declared.solver.solve(problem, stop=declared.stop)
        self.tally_solution(solution)
        return solution.x  # type: ignore[no-any-return]

    def tally_solution(self, solution: Solution) -> None:
        """Count the work of a local solver."""
        spent = {"iterations": solution.iterations, "evaluations": solution.evaluations}
        if some(unconverged := 1 - solution.converged):
            spent["unconverged"] = unconverged
        products, proxes = solution.products, solution.proxes
        if some(products > 0):
            spent["hessian_products"] = products
        if some(proxes > 0):
            spent["proxes"] = proxes
        self.tally(**spent)
        self.tally_gradients(solution.evaluations - products, full=True)

    @property
    def model_axes(self) -> tuple[int, ...]:
        """The axes of the model, counted from the last; an axis before them counts clients."""
        return tuple(range(-len(self._run.layout.shape), 0))  # type: ignore[union-attr]

    def rng(self, purpose: int) -> np.random.Generator:
        """Return this client's random stream of this round."""
        assert self._run is not None  # noqa: S101  (set before any step)
        return stream(self._run.seed, purpose, self._round, self._index)

    # --- one request, in any engine -------------------------------------------------------------

    def begin_round(self, server_round: int, client: int = 0) -> None:
        """Begin a round, with new batches and counts; `client` is this client's number."""
        self._round, self._index, self._batches, self.work = server_round, client, None, {}
        self._noises = None

    def describe(self) -> ClientInfo:
        """Return the description that the server asks for before round 1."""
        if self._data is not None and self._own_objective is self._data.data:
            return self._data.described()
        objective = self._own_objective
        return replace(ClientInfo.of(objective, self.name or ""), digest=digest(objective))

    def configure(self, run: RunInfo) -> None:
        """Adopt a run's settings."""
        self.check_algorithm(run.algorithm)
        layout = Layout.for_objective(self._own_objective)
        if layout is not None and layout.shapes != run.layout.shapes:
            raise ConfigError(
                f"the server's model has shape {run.layout.shapes}, this client's {layout.shapes}"
            )
        self._run, self._incarnation = run, run.incarnation
        self.num_clients = run.num_clients
        self._take(run.settings)
        mean = getattr(self, "constraints", "mean") == "mean"  # other methods are not weighted
        objective = for_steps(self._own_objective, run.factor, constraint=mean)
        self.objective = as_seen(objective, run.layout)
        if is_private(self._own_objective) and (more := self._why_not_private(run.settings)):
            raise RefusedError(
                f"refused: this client's examples are private (ExampleDP), and {more}: use a "
                f"method with local gradient steps"
                " (FedAvg, Scaffold, ...), or "
                "local_solver=GradientDescent(steps=..., lr=...)"
            )
        many = hasattr(type(self.objective), "gradient_rows")  # it also draws the batches
        self._batch_size = None if many else run.rows_each
        if self._batch_size is not None:
            size = count("batch_size", self._batch_size)
            if (reason := why_no_batches(self.objective, size)) is not None:
                raise ConfigError(reason)
            self._order_epochs(run)
        self._noiseless_objective = self.objective
        if std := run.factor * (0.0 if many else noise_of(self._own_objective)):
            check_noise(run.settings.get("local_solver"))
            self.objective = NoisySteps(self.objective, std, self._noise)
        # Looked up here once, not in each step.
        self._compressing, self.remembers = None, self.state_type is not None
        if SETTING in run.settings:
            self._compressing = CompressingClient(self, run)
            self.remembers = self._compressing.remembers
        self._follows = type(self).on_acknowledged is not FedConClient.on_acknowledged
        self._rows = None if many else rows_of_gradients(self.objective, self._batch_size)

    def _order_epochs(self, run: RunInfo) -> None:
        """Use epochs that continue over rounds for batches, if the run does."""
        self._epoch_rows = run.epoch_rows
        if self._epoch_rows is None:
            return
        if self.policy.batches == "private":
            raise ConfigError(f"this node draws its batches privately, and takes no {ORDER}")
        if not hasattr(self.objective, "batch_gradient"):
            raise ConfigError(
                f'{ORDER}="epoch" needs an objective with batch_gradient(x, rows), and this one '
                f"draws its batches itself: define it, or leave {ORDER} out"
            )

    def _why_not_private(self, settings: Mapping[str, Any]) -> str:
        """Return what a run needs of the objective besides gradients; "" if nothing is known."""
        solver = settings.get("local_solver")
        if self.needs_values or settings.get("polyak"):
            return f"{self.algorithm} asks for {self.needs_values or 'a value of its objective'}"
        if solver is None or isinstance(solver, GradientDescent | SGD) or not is_ours(type(solver)):
            return ""
        return f"local_solver={solver!r} asks for a value of its objective"

    def _take(self, settings: Mapping[str, Any]) -> None:
        """Take the fields that this class declares; refuse a different set of names."""
        other = [f"without {name!r}" for name in self.fields if name not in settings]
        other += [f"with {n!r}" for n in settings if n not in self.fields and n not in _RULES]
        if other:
            raise ConfigError(
                f"the server sends unexpected settings of {self.algorithm}, {', '.join(other)}: "
                f"run the same version of flower-fedcon on server and nodes"
            )
        for name in self.fields:
            check_field(name, settings[name], self._types.get(name, ""))
            setattr(self, name, settings[name])

    def _site(self, client: int, state: Any) -> Site:
        """Return this client as exchanges see it."""
        return Site(
            objective=self._own_objective,
            seen=self._noiseless_objective,
            state=state,
            run=self._run,
            client=client,
            rows=self.counted_rows,
            bounds=self.policy,
            data=self._data,
        )

    def steps_asked(self, run: RunInfo, down: Payload) -> int:
        """Return the number of local steps in a request: its `local_steps`, or 1."""
        return count("local_steps", run.settings.get("local_steps") or 1)

    def check_algorithm(self, algorithm: str) -> None:
        """Refuse a server that runs another algorithm."""
        if algorithm != self.algorithm:
            raise ConfigError(
                f"this client runs {self.algorithm!r}, the server {algorithm!r}: use "
                "flower_fedcon.client_app, which serves every algorithm, or match the two"
            )

    def handle(self, request: Request) -> Reply:
        """Return the reply to a request to this client alone."""
        (client,) = request.clients
        acknowledged, kept = int(request.acknowledged[0]), int(request.kept[0])
        down, given = request.down(client), request.restore.get(client)
        payload = self.serve(request, client, acknowledged, kept, down, given)
        reply = Reply([client], request.round, num_examples=self.num_examples)
        reply.lost = payload is None
        if payload is not None:
            reply.payload = {name: [value] for name, value in payload.items()}
            reply.work = [self.work]
        return reply

    def serve(
        self,
        request: Request,
        client: int,
        acknowledged: int,
        kept: int,
        down: Payload,
        given: Payload | None,
    ) -> Payload | None:
        """Return this client's answer to its share of a request; None if its state is lost.

        Parameters
        ----------
        request : Request
        client : int
            This client's position in the list of names.
        acknowledged, kept : int
            Rounds, as in `Request`.
        down, given : dict
            Everything that is sent to this client, and a state that the server hands back, if any.

        Raises
        ------
        FedConError
            If the request is outdated, or the step fails.
        """
        versions, server_round, phase = self.versions, request.round, request.phase
        at, acting = self._incarnation, self._compressing or self
        if phase not in OF_ROUNDS:
            current = versions.at(acknowledged) if acknowledged else None
            return exchange_of(phase, down).tell(self._site(client, current), down)
        late = at != versions.incarnation or server_round < versions.pending_round
        if late and versions.outdated(server_round, at):  # rare; the check saves a call
            raise RoundError(f"round {server_round} was asked for after {versions.pending_round}")
        if request.held and client in request.held:
            if versions.held_round != server_round:
                return None
            down = {**versions.held, **down}
        self.begin_round(server_round, client)
        if not self.remembers and phase != QUERY:
            return stepped(acting, None, down)[0]
        before: Any = None
        state: Any = None
        if self.remembers:
            before = versions.at(acknowledged)
            if given is not None or not acknowledged:  # rare; the check saves a call
                before = state_before(acting, acknowledged, down, given, versions.at)
            if before is None:
                return None
            follows = acknowledged and self._follows
            state = acting.on_acknowledged(before, down) if follows else before
        if phase == QUERY:
            payload, held = self.query(state, down)
            self.versions = versions.after_query(acknowledged, before, server_round, held, kept, at)
        else:
            payload, after = stepped(acting, state, down)
            self.versions = versions.after_step(acknowledged, before, server_round, after, kept, at)
        return payload
