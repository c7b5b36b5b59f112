"""Flower's own simulation, on Ray: the clients' steps run in worker processes."""

from __future__ import annotations

import math
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_fedcon.compiled.threads import VARIABLE, chosen
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.engines import ray_data
from flower_fedcon.engines.blocks import BlockEngine, block_app
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.engines.patience import Patience
from flower_fedcon.errors import ConfigError, FedConError, ParticipationError
from flower_fedcon.flower.apps import client_app
from flower_fedcon.flower.grid_run import GridRun
from flower_fedcon.flower.policy import Policy
from flower_fedcon.flower.virtual_nodes import BACKEND, require_ray, run_on_virtual_nodes
from flower_fedcon.registry import client_class
from flower_fedcon.runs.history import History
from flower_fedcon.runs.plan import Plan
from flower_fedcon.strategies.base import FedConStrategy

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem

_HOUR, _FOREVER = 3600.0, 1e12
_BLOCKS = 2  # messages for each worker: one that finishes early takes another


def simulate(
    strategy: FedConStrategy[Any],
    problem: FederatedProblem,
    plan: Plan,
    timeout: float | None = None,
    clients_per_message: int | None = None,
) -> History:
    """Run a strategy in Flower's simulation; see `flower_fedcon.simulate`."""
    if isinstance(strategy.participation, Buffered):
        raise ParticipationError(
            f'engine="ray" plays no {strategy.participation!r}: a simulated clock decides when a '
            f'client answers, and its worker need not be waited for. Give engine="local" or '
            f'"stacked", or run on deployed nodes'
        )
    require_ray()
    if problem.private_examples:
        raise ConfigError(
            'engine="ray": the workers would forget what private examples have spent: use '
            'engine="local"'
        )
    seconds = _HOUR if timeout is None else timeout
    # Clients share the processors, and the last client may have to wait for all others. A round
    # asks the same clients, and as often, as on the local engine.
    patience = Patience(
        num_clients=problem.num_clients,
        timeout=seconds * problem.num_clients + _HOUR,
        round_deadline=_FOREVER,
        max_retries=GridEngine.max_retries,
        quarantine_after=0,
    )
    terms = {"regularizer": strategy.regularizer, "constraint": strategy.constraint}
    oracles = ray_data.pickled(terms, "the strategy's set or regularizer")
    data = [
        ray_data.pickled(f, f"client {j}'s objective") for j, f in enumerate(problem.objectives)
    ]
    kept = None if plan.run_dir is None else Path(plan.run_dir).resolve() / "clients"
    policy = replace(Policy.open(), max_seconds=seconds)  # the data belongs to the server
    workers, machines = _workers()
    size = clients_per_message or math.ceil(problem.num_clients / (_BLOCKS * workers))
    nodes = math.ceil(problem.num_clients / size)
    with ray_data.shared(data, client_class(strategy.name), machines=machines) as load:
        if clients_per_message == 1:
            given = pickle.loads(oracles)  # noqa: S301  (made just above)
            folder = None if kept is None else str(kept)
            app = client_app(load, oracles=given, state_dir=folder, policy=policy)
        else:
            app = block_app(load, policy)

        def engine(grid: Grid) -> GridEngine:
            if clients_per_message == 1:
                return GridEngine(strategy, grid, patience, problem)
            return BlockEngine(strategy, grid, patience, problem, nodes, kept)

        histories: list[History] = []
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            histories.append(GridRun(strategy, engine(grid)).play(problem.x0, plan).history)

        run_on_virtual_nodes(server, app, nodes)
    if not histories:
        raise FedConError("Flower's simulation ended without a result: see its log above")
    return histories[0]


def _workers() -> tuple[int, int]:
    """Start Ray or join a running cluster; return the numbers of workers and machines.

    Raises
    ------
    ConfigError
        If there is no processor for a worker.
    """
    import ray

    if not ray.is_initialized():
        # As in Flower: workers can import whatever this process can.
        path = os.pathsep.join([*sys.path, *filter(None, [os.environ.get("PYTHONPATH")])])
        threads = str(chosen() or 1)  # threads of each worker, which has one processor
        environment = {"PYTHONPATH": path, VARIABLE: threads}
        ray.init(runtime_env={"env_vars": environment}, **BACKEND["init_args"])
    machines: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in machines if node["Alive"]]
    each = [int(resources.get("CPU", 0)) for resources in nodes]
    if not sum(each):
        ray.shutdown()
        raise ConfigError(
            "Ray's cluster has no processor for a worker: start its nodes with --num-cpus"
        )
    return sum(each), len(nodes)
