"""Flower's side of a strategy: `start`, and the calls of Flower's own loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.flow_check import check_flow, check_no_race
from flower_fedcon.core.method import State
from flower_fedcon.engines.patience import Patience
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower.from_fedavg import instead_of
from flower_fedcon.flower.refusals import check_callers, check_stop
from flower_fedcon.flower.summary import SummarisedMethod
from flower_fedcon.runs.plan import Plan
from flower_fedcon.validation import takes_fields, with_fields

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result

    from flower_fedcon.flower.grid_run import GridRun, RunResult
    from flower_fedcon.privacy import SecAggPlus
    from flower_fedcon.validation import Array

_log = logging.getLogger("flwr")
PLAN = Plan(num_rounds=3, evaluate_every=10)
"""The default plan of a run on nodes, which would otherwise have to evaluate every model."""


_HOOKS = {
    "configure_train": (
        "who takes part is participation=..., what they are told broadcast(state). For a rate that "
        'depends on the round the train function reads message.content["config"]["server-round"], '
        "which stands beside what train_config holds"
    ),
    "aggregate_train": "the server's step is aggregate(state, uploads)",
    "configure_evaluate": "what evaluate functions find is evaluate_config=... of start()",
    "aggregate_evaluate": "the history has each client's metrics, and start(callbacks=...) sees it",
}
"""The calls of Flower's own loop, and what to define instead."""


class FlowerStrategy(SummarisedMethod[State]):
    """The interface that Flower calls; `FedConStrategy` defines its abstract methods."""

    _grid_run: GridRun | None = None

    @takes_fields(PLAN, Patience())
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | Array | Sequence[Array] | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        should_stop: Callable[[int, Result], bool] | None = None,
        *,
        plan: Plan | None = None,
        patience: Patience | None = None,
        buffers: Sequence[str] | None = None,
        weighting: str = "uniform",
        schema: Any = None,
        site_effects: str = "common",
        secure_aggregation: SecAggPlus | None = None,
        **settings: Any,
    ) -> RunResult:
        """Run the algorithm on the nodes of a grid.

        The server waits until every expected client has answered, so that all take part from round
        1. With `min_clients_to_start` it waits for a time and then needs at least that number of
        answers. Nodes that fail, are silent or send anything else are named in the log and left
        out; they never end a run.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        initial_arrays : ArrayRecord, array or list of arrays, optional
            x0. By default zeros of the clients' shape, projected onto the constraint set. A
            record's names are those of `evaluate_fn`'s arrays and the result's.
        num_rounds : int, optional
            By default the plan's, or 3.
        timeout : float, optional
            Seconds to wait for the replies to a message; by default that of `patience`, or 3600.
        train_config, evaluate_config : ConfigRecord, optional
            For the app's own train and evaluate functions (`flower_fedcon.train_step`), as in
            Flower, with "server-round" added. Hyperparameters are this strategy's arguments.
        evaluate_fn : callable, optional
            Central evaluation, as in Flower: (round, arrays) -> MetricRecord or None.
        should_stop : callable, optional
            As in Flower 1.43: (round, result) -> bool, asked after each recorded round; if it is
            true, the run ends. With it each round is recorded, unless `evaluate_every` says less.
        plan : Plan, optional
            How the run proceeds, and what it writes: `Plan(num_rounds=3, evaluate_every=10)`. With
            a `run_dir` the audit log is on. A ServerApp that was killed continues from its
            checkpoint (`resume=True`), with clients that kept their state.
        patience : Patience, optional
            How many clients to wait for, how long, and what happens to those that fail.
        buffers : sequence of str, optional
            Names, or patterns such as "norm.*", of the model's arrays that are averaged and not
            optimised. The statistics of PyTorch's batch normalisation and arrays of whole numbers
            always are.
        weighting : {"uniform", "examples"} (default: "uniform")
            Whether F is the plain mean of the f_j, or weighted by their numbers of examples. With
            "examples" an objective is scaled, as by `FederatedProblem(weights=...)`, and a table
            whose schema names a `weight` counts by the sum of its rows' weights. For clients with
            their own train loops the uploads are weighted, as in Flower.
        schema : Schema, path or dict, optional
            The schema of the clients' tables, if they have tables; it must be the same as theirs.
        site_effects : {"common", "own", "random"} (default: "common")
            For tables: one intercept for all clients; each client's own, which stays there; or
            normal ones (with weighting="examples"); see `flower_fedcon.problems.tables`.
        secure_aggregation : SecAggPlus, optional
            Lets the server see only the sum of a round's uploads; for nodes whose app is
            `client_app`, and methods that need only the sum.
        seed, evaluate_every, run_dir, resume, checkpoint_every, allow_changes, certificates, audit
            As in `Plan`, like `callbacks`, `evaluate`, `config`, `unsafe`, `inference` and
            `heterogeneity`. They override `plan`.
        num_clients, min_clients_to_start, start_timeout, evaluate_timeout, grace, round_deadline
            As in `Patience`, like `max_retries`, `quarantine_after`, `quarantine_rounds` and
            `authenticated`. They override `patience`.

        Returns
        -------
        RunResult
            Flower's `Result`, with `history`.

        Raises
        ------
        FedConError
            If the clients do not fit together, or a round cannot be completed.
        """
        from flower_fedcon.engines.grid import GridEngine
        from flower_fedcon.flower.grid_run import GridRun

        self._check_hooks()
        flowers = {"num_rounds": num_rounds, "timeout": timeout}
        for name in settings:
            if text := instead_of(name):
                raise ConfigError(f"start has no argument {name!r}: {text}")
        settings |= {name: value for name, value in flowers.items() if value is not None}
        if should_stop is not None:
            check_stop(self, should_stop)
            if plan is None:
                settings.setdefault("evaluate_every", 1)
        given = plan or PLAN, patience or Patience()
        plan, patience = with_fields("start", settings, *given)
        if should_stop is not None and not plan.evaluate_every:
            raise ConfigError(
                "should_stop is asked after recorded rounds, and evaluate_every=0 records only the "
                "last: give evaluate_every=1"
            )
        if isinstance(rule := self.participation, Buffered):  # before nodes are asked
            check_flow(self)
            check_no_race(self)
            if patience.num_clients is not None:
                rule.at_work(patience.num_clients)
        engine = GridEngine(self, grid, patience)
        if secure_aggregation is not None:
            from flower_fedcon.engines.secure_grid import SecureGridEngine

            engine = SecureGridEngine(secure_aggregation, self, grid, patience)
        self._grid_run = GridRun(
            self,
            engine,
            train_config,
            evaluate_config,
            buffers,
            weighting,
            schema,
            site_effects,
        )
        return self._grid_run.play(initial_arrays, plan, evaluate_fn, should_stop)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round of the run that `start` has set up."""
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

    def initialize_parameters(self, client_manager: object) -> NoReturn:
        """Refuse Flower's older server, which calls this before round 1.

        Raises
        ------
        ConfigError
            With what to give it.
        """
        name = type(self).__name__
        raise ConfigError(
            f"{name} was given to Flower's older server (ServerAppComponents): write "
            f"strategy=as_legacy_strategy({name}(...)), from flower_fedcon, or call "
            f"{name}(...).start(grid, ...) in the function under @app.main()"
        )

    def _check_hooks(self) -> None:
        """Refuse a subclass that overrides methods of Flower's loop, which would not be called.

        Raises
        ------
        ConfigError
            With its name, and what to define instead.
        """
        for hook, instead in _HOOKS.items():
            if getattr(type(self), hook) is not getattr(FlowerStrategy, hook):
                raise ConfigError(
                    f"{type(self).__name__} defines {hook}, which start() does not call: {instead}"
                )

    def _current(self) -> GridRun:
        if self._grid_run is None:
            check_callers()
            raise FedConError("no run has been started: call strategy.start(grid, ...)")
        return self._grid_run
