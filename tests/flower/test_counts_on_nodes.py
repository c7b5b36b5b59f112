"""Nodes tell what their steps have cost; private runs count none of it."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.core.gate import COUNTS
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.solvers import SGD
from flower_fedcon.strategies import FedAvg, FedProx


def _problem():
    rng = np.random.default_rng(0)
    return FederatedProblem(
        [LeastSquares(rng.normal(size=(m, 3)), rng.normal(size=m)) for m in (4, 6, 4)]
    )


@on_grid
@pytest.mark.parametrize("solver", ["exact", SGD(epochs=2, batch_size=2, lr=0.1)])
def test_nodes_count_as_this_process_does(solver):
    made, problem = FedProx(proximal=1.0, local_solver=solver), _problem()
    here = simulate(made, problem, 3, evaluate_every=3).rows[-1]
    grid = FakeGrid(problem.objectives)
    there = made.start(grid, num_rounds=3, evaluate_every=3).history.rows[-1]
    assert here["gradients"] > 0
    assert {n: there.get(n) for n in COUNTS} == {n: here.get(n) for n in COUNTS}


def test_private_runs_count_nothing():
    private = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-3)
    made = FedAvg(client_lr=0.1, local_steps=2, privacy=private)
    assert not {*COUNTS} & simulate(made, _problem(), 1).rows[-1].keys()
