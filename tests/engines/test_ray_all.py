"""Every registered algorithm finds the local iterates in Flower's simulation (one for all)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from contract import CONTRACTS, build
from flwr.serverapp import ServerApp
from problems import q6, q6_limited, q6_objectives
from test_resume import untimed

from flower_fedcon import FederatedProblem, Policy, Sample, client_app, simulate
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.engines.patience import Patience
from flower_fedcon.flower.grid_run import GridRun
from flower_fedcon.flower.virtual_nodes import run_on_virtual_nodes
from flower_fedcon.objectives import Quadratic
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import L1
from flower_fedcon.runs.plan import Plan
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import Scaffold

ROUNDS = 6
ORACLES = {"constraint": L1Ball(0.5), "regularizer": L1(0.6)}


def problem_of(name: str) -> FederatedProblem:
    oracle = CONTRACTS[name].oracle
    objectives = q6_limited().objectives  # with the functional constraint that FedSGM needs
    return FederatedProblem(objectives, **({oracle: ORACLES[oracle]} if oracle else {}))


def strategy_of(name: str):
    contract = CONTRACTS[name]
    settings = dict(contract.cases[0].settings)
    if contract.sampled:
        settings["participation"] = Sample(count=3)
    return build(name, problem_of(name), **settings)


def load_objective(context):
    return q6_limited().objectives[int(context.node_config["partition-id"])]


@pytest.fixture(scope="module")
def found():
    """The histories of all algorithms, from one simulation."""

    histories = {}
    server = ServerApp()

    @server.main()
    def main(grid, context):
        for name in algorithms():
            problem = problem_of(name)
            strategy = strategy_of(name)
            engine = GridEngine(strategy, grid, Patience(num_clients=6), problem)
            run = GridRun(strategy, engine).play(problem.x0, Plan(ROUNDS, seed=4))
            histories[name] = run.history

    run_on_virtual_nodes(server, client_app(load_objective, policy=Policy.open()), 6)
    return histories


@pytest.mark.ray
@pytest.mark.parametrize("name", algorithms())
def test_same_iterates(name, found):
    problem = problem_of(name)
    local = simulate(strategy_of(name), problem, ROUNDS, seed=4, on_mismatch="warn")
    assert found[name].x.tobytes() == local.x.tobytes()
    assert untimed(found[name]) == untimed(local)


class Dies(Quadratic):
    """Takes its worker with it, the first time that it is asked for a gradient."""

    flag = ""

    def gradient(self, x):
        if self.flag and not Path(self.flag).exists():
            Path(self.flag).touch()
            os._exit(1)
        return super().gradient(x)


@pytest.mark.nightly
@pytest.mark.ray
def test_a_worker_that_dies_is_started_again(tmp_path):
    objectives = list(q6_objectives())
    objectives[2] = Dies(objectives[2].Q, objectives[2].b)
    objectives[2].flag = str(tmp_path / "flag")
    strategy = Scaffold(client_lr=1 / 40, local_steps=2)
    options = {"engine": "ray", "clients_per_message": 3, "evaluate_every": 0}
    there = simulate(strategy, FederatedProblem(objectives), 3, **options)
    assert Path(objectives[2].flag).exists()
    here = simulate(strategy, q6(), 3, evaluate_every=0)
    assert there.x.tobytes() == here.x.tobytes()
    assert untimed(there) == untimed(here)
