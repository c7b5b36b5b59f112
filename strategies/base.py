"""The server side that all algorithms share; an algorithm file adds only its mathematics."""

from __future__ import annotations

import copy
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from flwr.serverapp.strategy import Strategy

from flower_fedcon.card import Sheet
from flower_fedcon.core.participation import Full, Participation
from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError, FedConError, ParticipationError, StateLostError
from flower_fedcon.validation import Array, count
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from pathlib import Path

    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid

    from flower_fedcon.core.uploads import Uploads
    from flower_fedcon.engines.grid import GridRun, RunResult
    from flower_fedcon.runs.history import Callback

State = TypeVar("State")
_log = logging.getLogger("flwr")


class FedConStrategy(Strategy, Generic[State]):
    """A strategy: hyperparameters, and the server's part of one algorithm.

    An algorithm declares `name`, `downlink`, `uplink`, `client_settings` and its `sheet`, and
    defines `initialize`, `aggregate` and `model` on an immutable state (a NamedTuple). The
    strategy object itself holds hyperparameters only: the state of a run lives in the run.

    Parameters
    ----------
    participation : Participation (default: Full())
        Who takes part in a round: `Full()`, `Sample(count=...)`, `Sample(fraction=...)` or
        `Bernoulli(p)`.
    batch_size : int, optional (default: None)
        Rows in each of a client's gradients, drawn without replacement; None for all rows.
    min_replies : int, optional (default: None)
        How many usable replies a round needs; with fewer, it changes nothing and the missing
        clients are asked again. By default everyone, where the algorithm needs everyone, and
        else one.
    """

    name: ClassVar[str]
    sheet: ClassVar[Sheet]
    downlink: ClassVar[tuple[str, ...]]
    """Fields of the state that are broadcast; `broadcast` may send more."""
    uplink: ClassVar[tuple[str, ...]]
    """What a client uploads, by name."""
    queries: ClassVar[tuple[str, ...]] = ()
    """What clients are asked before the step, by name; empty for one exchange a round."""
    client_settings: ClassVar[tuple[str, ...]] = ()
    """Attributes that the local step needs."""

    uses_num_rounds: bool = False
    """Whether the iterates depend on how many rounds the run is to have."""

    setup: Setup
    regularizer: Any = None
    constraint: Any = None

    def __init__(
        self,
        *,
        participation: Participation | None = None,
        batch_size: int | None = None,
        min_replies: int | None = None,
    ) -> None:
        self.participation = Full() if participation is None else participation
        if not isinstance(self.participation, Participation):
            raise ConfigError(
                f"participation must be Full(), Sample(...) or Bernoulli(p), got {participation!r}"
            )
        self.batch_size = None if batch_size is None else count("batch_size", batch_size)
        if batch_size is not None and "batch_size" not in self.client_settings:
            raise ConfigError(
                f"{self.sheet.title} takes no batch_size, got {batch_size}: its clients use all "
                "rows. For less local work give local_solver=GradientDescent(steps=...)"
            )
        self.min_replies = None if min_replies is None else count("min_replies", min_replies)

    # --- what an algorithm defines -------------------------------------------------------------

    @abstractmethod
    def initialize(self, x0: Array) -> State:
        """Return the server's state before round 1; `setup` is known here."""

    @abstractmethod
    def aggregate(self, state: State, uploads: Uploads) -> State:
        """Return the state after a round with these uploads."""

    @abstractmethod
    def model(self, state: State) -> Array:
        """Return the global model of a state."""

    def broadcast(self, state: State) -> Payload:
        """Return what every client of the cohort gets."""
        return {name: getattr(state, name) for name in self.downlink}

    def personal(self, state: State, client: int, ack: int) -> Payload:
        """Return what this client alone gets beside the broadcast.

        `ack` is the round of its last reply that was used, 0 for none.
        """
        return {}

    def has_personal(self) -> bool:
        """Return whether this algorithm says anything to one client alone."""
        return type(self).personal is not FedConStrategy.personal

    def expects(self, state: State) -> tuple[str, ...]:
        """Return what clients upload in the coming round, by name."""
        return self.uplink

    def after_query(self, state: State, answers: Uploads) -> tuple[State, Payload]:
        """Return the state and what to broadcast for the step, after a query's answers."""
        return state, {}

    def report(self, state: State) -> dict[str, float]:
        """Return numbers for the history, beside the objective."""
        return {}

    def outputs(self, state: State) -> dict[str, Array]:
        """Return further models that the method offers (an average, say), by name."""
        return {}

    def first_contact(self, state: State, client: int) -> Payload | None:
        """Return the state that a client needs at its first contact, if it cannot know it."""
        return None

    def readmit(self, state: State, client: int) -> tuple[State, Payload]:
        """Return the server's state, and what lets a client without state come back.

        Raises
        ------
        StateLostError
            If the algorithm has no way back.
        """
        raise StateLostError(f"{self.sheet.title} cannot re-admit a client without its state")

    def needs_whole_cohort(self) -> bool:
        """Return whether a round is void unless every member of the cohort replies."""
        return False

    def decode(self, name: str, parts: Mapping[str, Array]) -> Any:
        """Return the uploaded value `name` from its arrays on the wire."""
        if set(parts) != {""}:
            raise ConfigError(f"{name!r} is made of {sorted(parts)}, expected one array")
        return parts[""]

    # --- refusals that several algorithms share ------------------------------------------------

    def refuse_participation(self, reason: str, instead: str) -> None:
        """Refuse this run's cohort rule."""
        raise ParticipationError(
            f"{self.sheet.title} {reason}, got {self.participation!r}: use {instead}"
        )

    def require_everyone(self, reason: str) -> None:
        """Refuse a cohort rule that leaves somebody out."""
        if self.setup.sampled:
            self.refuse_participation(
                f"needs every client in every round ({reason})",
                "Full(), or an algorithm that allows sampling (`fedcon list`)",
            )

    # --- plumbing: a run -----------------------------------------------------------------------

    def bind(self, setup: Setup) -> Self:
        """Return a copy for one run."""
        bound = copy.copy(self)
        bound.setup = setup
        if self.min_replies is not None and self.min_replies > setup.num_clients:
            raise ConfigError(
                f"min_replies is {self.min_replies}, but there are {setup.num_clients} clients"
            )
        return bound

    def settings(self) -> dict[str, Any]:
        """Return what the clients' steps need to know."""
        return {name: getattr(self, name) for name in self.client_settings}

    def quorum(self, cohort_size: int) -> int:
        """Return the number of usable replies that a round of this cohort needs."""
        if self.needs_whole_cohort():
            return cohort_size
        return min(self.min_replies or 1, cohort_size)

    def accept(
        self, payload: Payload, names: tuple[str, ...], lead: tuple[int, ...] = ()
    ) -> Payload:
        """Return a reply's values if they are what this algorithm expects.

        Parameters
        ----------
        payload : dict
            Values by name.
        names : tuple of str
            What is expected.
        lead : tuple of int
            Leading axes, where the values of several clients are stacked.

        Raises
        ------
        ConfigError
            If a name, shape or dtype differs, or a number is not finite.
        """
        if tuple(payload) != names and payload.keys() != set(names):
            raise ConfigError(f"it holds {sorted(payload)}, expected {sorted(names)}")
        layout = self.setup.layout
        shape, dtype = lead + layout.shape, layout.array_dtype
        for name, value in payload.items():
            if getattr(value, "shape", None) != shape or value.dtype != dtype:
                if not hasattr(value, "shape"):
                    raise ConfigError(f"{name!r} is {value!r}, expected an array")
                raise ConfigError(
                    f"{name!r} has shape {value.shape} and dtype {value.dtype}, "
                    f"expected {shape} and {layout.dtype}"
                )
            if isinstance(value, np.ndarray) and not np.isfinite(value).all():
                raise ConfigError(
                    f"{name!r} holds values that are not finite: check the data, or a smaller step"
                )
        return payload

    def accept_answer(self, payload: Payload) -> Payload:
        """Return the numbers that answer a query, if they are what was asked for, and finite."""
        if payload.keys() != set(self.queries):
            raise ConfigError(f"it holds {sorted(payload)}, expected {sorted(self.queries)}")
        for name, value in payload.items():
            if not isinstance(value, float | int) or not math.isfinite(value):
                raise ConfigError(f"{name!r} is {value!r}, expected a finite number")
        return payload

    def decode_upload(self, payload: Payload, names: tuple[str, ...]) -> Payload:
        """Return the declared values from the arrays of a message ("atom.code", ...)."""
        parts: dict[str, dict[str, Array]] = {}
        for key, array in payload.items():
            name, _, part = key.partition(".")
            parts.setdefault(name, {})[part] = array
        if parts.keys() != set(names):
            raise ConfigError(f"it holds {sorted(payload)}, expected {sorted(names)}")
        return {name: self.decode(name, parts[name]) for name in names}

    # --- plumbing: Flower's Strategy -----------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | Array | Sequence[Array] | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        seed: int = 0,
        num_clients: int | None = None,
        grace: float | None = None,
        evaluate_every: int = 1,
        run_dir: str | Path | None = None,
        resume: bool = False,
        checkpoint_every: int | None = None,
        allow_changes: Sequence[str] = (),
        certificates: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> RunResult:
        """Run the algorithm on the nodes of a grid.

        Waits until every expected client has answered, so that round 1 sees them all.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        initial_arrays : ArrayRecord, array or list of arrays, optional
            x0. By default zeros of the clients' shape, moved into the constraint set.
        num_rounds : int (default: 3)
        timeout : float (default: 3600)
            Seconds to wait for the clients at the start, and for the replies of a round.
        train_config, evaluate_config : ConfigRecord, optional
            Not used: hyperparameters are this strategy's arguments. Refused if not empty.
        evaluate_fn : callable, optional
            Central evaluation, as in Flower: (round, arrays) -> MetricRecord or None.
        seed : int (default: 0)
            The seed of every draw: cohorts, batches, compressors.
        num_clients : int, optional
            How many clients to wait for; by default as many as the nodes' "num-partitions" says.
        grace : float, optional
            Seconds that a round waits for the other replies once it has `min_replies`; by
            default it waits for all, until the timeout.
        evaluate_every : int (default: 1)
            Evaluate on the clients each so many rounds, and after the last; 0 for never.
        run_dir : path, optional
            Folder for configuration, history, model and checkpoint.
        resume, checkpoint_every, allow_changes, certificates
            As for `simulate`; a ServerApp that was killed goes on where its checkpoint is, with
            clients that kept their state.
        callbacks : sequence of callables
            Each sees a recorded round and may stop the run by returning True.

        Returns
        -------
        RunResult
            Flower's `Result`, with `history`.

        Raises
        ------
        FedConError
            If the clients do not fit together, or a round cannot be completed.
        """
        from flower_fedcon.engines.grid import GridRun
        from flower_fedcon.runs.run import Plan

        for record in (train_config, evaluate_config):
            if record:
                raise ConfigError(
                    f"train_config and evaluate_config are not used, got {dict(record)}: "
                    "hyperparameters are the strategy's own arguments"
                )
        self._grid_run = GridRun(self, grid, timeout, num_clients, grace)
        plan = Plan(
            num_rounds=num_rounds,
            seed=seed,
            evaluate_every=evaluate_every,
            run_dir=run_dir,
            resume=resume,
            checkpoint_every=checkpoint_every,
            allow_changes=allow_changes,
            certificates=certificates,
            callbacks=callbacks,
        )
        return self._grid_run.run(initial_arrays, plan, evaluate_fn=evaluate_fn)

    _grid_run: GridRun | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round; `start` has called this run into being."""
        return self._current().train_messages(server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Apply a round's replies and return the model; None if there are too few."""
        return self._current().apply(replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a federated evaluation of the current model."""
        return self._current().evaluate_messages()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean of the clients' objectives and metrics."""
        from flwr.app import MetricRecord

        metrics = self._current().evaluation(replies)
        return MetricRecord({**metrics}) if metrics else None

    def _current(self) -> GridRun:
        if self._grid_run is None:
            raise FedConError("no run is under way: call strategy.start(grid, ...)")
        return self._grid_run

    def summary(self) -> None:
        """Log the configuration as a tree, as Flower's strategies do."""
        _log.info("\t├──> %s: %s", self.sheet.title, self.sheet.problem)
        for name, value in self.arguments().items():
            _log.info("\t│\t├── %s: %r", name, value)
        _log.info("\t└──> a round: %s down, %s up", self.sheet.down, self.sheet.up)

    def arguments(self) -> dict[str, Any]:
        """Return the hyperparameters, by argument name."""
        hidden = ("setup", "_grid_run", "uses_num_rounds")
        return {k: v for k, v in vars(self).items() if k not in hidden}
