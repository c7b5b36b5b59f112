"""Every registered algorithm, and options that change a round, in one run of a server app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from agreement import untimed
from contract import CONTRACTS, build
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from problems import q6_limited

from flower_fedcon import Cyclic, Estimated, FederatedProblem, History, Sample, simulate
from flower_fedcon.compressors import Natural
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.engines.patience import Patience
from flower_fedcon.flower.grid_run import GridRun
from flower_fedcon.regularizers import L1
from flower_fedcon.runs.plan import Plan
from flower_fedcon.sets import L1Ball

SEED = 4
ORACLES = {"constraint": L1Ball(0.5), "regularizer": L1(0.6)}
_WINDOWS = {"window": 2, "amplification": 1.5, "participation": Cyclic(groups=2)}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {  # beside the first case of each algorithm
    "amplified fedavg": ("fedavg", _WINDOWS),
    "amplified scaffold": ("scaffold", _WINDOWS),
    "cofig": ("frecon", {"variant": "cofig", "uplink_compressor": Natural()}),
    "drfa, two steps": ("drfa", {"local_steps": 2}),
    "fedau": ("fedavg", {"participation": Estimated(Cyclic(groups=2))}),
    "gradskip": ("scaffnew", {"stop_probability": 0.3}),
}
PLAYED = [*CONTRACTS, *OPTIONS]


def problem_of(label: str, clients: int) -> FederatedProblem:
    """Return what a run solves: quadratics with the constraint that FedSGM needs."""
    oracle = CONTRACTS[OPTIONS.get(label, (label,))[0]].oracle
    own = {oracle: ORACLES[oracle]} if oracle else {}
    return FederatedProblem(q6_limited().objectives[:clients], **own)


def strategy_of(label: str, clients: int) -> Any:
    """Return a run's strategy; half of the clients take part, where that is allowed."""
    name, more = OPTIONS.get(label, (label, {}))
    contract = CONTRACTS[name]
    settings = {**contract.cases[0].settings, **more}
    if contract.sampled:
        settings.setdefault("participation", Sample(count=clients // 2))
    return build(name, problem_of(label, clients), **settings)


def here(label: str, clients: int, rounds: int, **options: Any) -> History:
    """Play one run in this process."""
    problem, strategy = problem_of(label, clients), strategy_of(label, clients)
    return simulate(strategy, problem, rounds, seed=SEED, on_mismatch="warn", **options)


def play(grid: Grid, label: str, clients: int, rounds: int, **options: Any) -> History:
    """Play one run on nodes whose app is that of `every_node`."""
    problem, strategy = problem_of(label, clients), strategy_of(label, clients)
    engine = GridEngine(strategy, grid, Patience(num_clients=clients), problem)
    return GridRun(strategy, engine).play(problem.x0, Plan(rounds, seed=SEED, **options)).history


server = ServerApp()


@server.main()
def _all(grid: Grid, context: Context) -> None:
    told = context.run_config
    for label in PLAYED:
        clients, rounds = (int(told[key]) for key in ("clients", "num-server-rounds"))
        history = play(grid, label, clients, rounds, evaluate_every=0)
        folder = Path(str(told["run-dir"])) / label
        folder.mkdir(parents=True)
        np.save(folder / "x.npy", history.x)
        (folder / "rows.json").write_text(json.dumps(untimed(history)))
