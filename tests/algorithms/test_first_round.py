"""The first rounds of each algorithm, worked out by hand from the paper's formulas."""

from __future__ import annotations

import numpy as np
import pytest
from contract import CONTRACTS
from problems import two_clients

from flower_fedcon import Sample, simulate
from flower_fedcon.clients.fedfwplus import FedFWPlusClient, FedFWPlusClientState
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import Quadratic
from flower_fedcon.sets import Box
from flower_fedcon.strategies import FedFW


def models(strategy, problem, rounds):
    """Return the model after each round."""
    return [simulate(strategy, problem, r).x.item() for r in range(1, rounds + 1)]


def fedfw_nonconvex():
    # T = 8: eta = 1/4, lambda = 2 lambda_0.  t=1: atoms (2, -1): x = (1.25, .5), mean .875
    # g_1 = (2.5 - 4)/2 + 2(.375) = 0 -> tie: the upper bound, as for every entry g <= 0
    # g_2 = 1.5/2 + 2(-.375) = 0 -> 2:  x = (1.4375, .875), mean 1.15625
    problem = two_clients(constraint=Box(-1.0, 2.0))
    return FedFW(problem.constraint, penalty=1.0, schedule="nonconvex"), problem, [0.875, 1.15625]


ROUNDS = [
    pytest.param(rounds, id=f"{name}-{rounds.__name__}")
    for name, contract in CONTRACTS.items()
    for rounds in contract.first_rounds
]


@pytest.mark.parametrize("case", ROUNDS)
def test_first_rounds(case):
    strategy, problem, expected = case()
    assert models(strategy, problem, len(expected)) == pytest.approx(expected, rel=1e-13)


def test_nonconvex_schedule():
    strategy, problem, expected = fedfw_nonconvex()
    assert simulate(strategy, problem, 8, callbacks=[]).x.shape == (1,)
    seen = []
    history = simulate(strategy, problem, 8, callbacks=[lambda r: seen.append(r["objective"])])
    mean = [problem.objective(np.array([x])) for x in expected]
    assert seen[:2] == pytest.approx(mean, rel=1e-12)
    assert len(history) == 8


def test_plus_moves_its_multiplier_before_use():
    # f_1 at x = 1.5, x_bar = 1.2: g = -1/2 + 1 * .3 + y with y = 0 + 1 * .3: g = .1 -> -1.
    # With the old y it would be -.2 -> 2.
    client = FedFWPlusClient(Quadratic([[2.0]], [4.0]))
    settings = {"constraint": Box(-1.0, 2.0), "stochastic": False, "penalty": 1.0}
    settings["batch_size"] = None
    client.configure(RunInfo("fedfwplus", 0, Layout.of(np.zeros(1)), 2, settings))
    state = FedFWPlusClientState(x=np.array([1.5]), y=np.zeros(1), d=None, resets=0)
    down = {"x_bar": np.array([1.2]), "step_size": 0.5, "penalty": 1.0, "resets": 0}
    up, after = client.step(state, down)
    assert up["atom"].dense().item() == -1.0
    assert after.x.item() == pytest.approx(0.25)
    assert after.y.item() == pytest.approx(0.3)
    # a restart that this client has not followed puts it at x_bar, with y = 0: g = -.8 -> 2
    down["resets"] = 1
    up, after = client.step(client.on_acknowledged(after, down), down)
    assert up["atom"].dense().item() == 2.0
    assert after.x.item() == pytest.approx((1.2 + 2) / 2)
    assert after.y.item() == 0.0
    # y_bar is taken off
    up, _ = client.step(state, {**down, "y_bar": np.array([0.2])})
    assert up["atom"].dense().item() == 2.0


def test_sampled_fedfw_keeps_the_exact_mean():
    # One of two clients a round, p = 1/2: eta = 2/(2 + (t-1)/2) = 1, .8;  x0 = 1, D = [-1, 2].
    # t=1: the sampled one jumps to its atom (2 or -1), the other stays at 1.
    problem = two_clients(constraint=Box(-1.0, 2.0))
    strategy = FedFW(problem.constraint, penalty=1.0, participation=Sample(count=1))
    seen = {simulate(strategy, problem, 1, seed=s).x.item() for s in range(20)}
    assert seen == {1.5, 0.0}


def test_every_algorithm_has_a_hand_computed_round():
    assert all(contract.first_rounds for contract in CONTRACTS.values())
    for name, contract in CONTRACTS.items():
        assert all(rounds()[0].name == name for rounds in contract.first_rounds)
