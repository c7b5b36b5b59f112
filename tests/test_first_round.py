"""The first rounds of each algorithm, worked out by hand from the paper's formulas."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.clients.fedfwplus import FedFWPlusClient, FedFWPlusClientState
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import Quadratic
from flower_fedcon.protocol import RunInfo
from flower_fedcon.registry import CLASSES
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import Box
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW, FedFWPlus, FedMiD


def two_clients(**extra):
    """f_1 = x^2 - 4x and f_2 = x^2/2 + x, from x0 = 1: gradients 2x - 4 and x + 1."""
    clients = [Quadratic([[2.0]], [4.0]), Quadratic([[1.0]], [-1.0])]
    return FederatedProblem(clients, x0=np.array([1.0]), **extra)


def models(strategy, problem, rounds):
    """Return the model after each round."""
    return [simulate(strategy, problem, r).x.item() for r in range(1, rounds + 1)]


def fedavg():
    # client 1: 1 -> 1 - .1(-2) = 1.2 -> 1.2 - .1(-1.6) = 1.36;  client 2: 1 -> .8 -> .62
    # w = 1 + 2 * ((.36 - .38)/2) = .98
    return FedAvg(client_lr=0.1, local_steps=2, server_lr=2.0), two_clients(), [0.98]


def fedavg_subgradient():
    # with .5 sign(v):  1: 1 -> 1.15 -> 1.15 - .1(-1.7 + .5) = 1.27;  2: 1 -> .75 -> .525
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedAvg(client_lr=0.1, local_steps=2, regularizer=L1(0.5))
    return strategy, problem, [1 + (0.27 - 0.475) / 2]


def fedmid():
    # 1: soft(1.2, .05) = 1.15 -> soft(1.15 + .17, .05) = 1.27;  2: soft(.8, .05) = .75
    #    -> soft(.75 - .175, .05) = .525;  server: soft(1 + 2(.27 - .475)/2, .5 * 2 * .1 * 2) = .595
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedMiD(problem.regularizer, client_lr=0.1, local_steps=2, server_lr=2.0)
    return strategy, problem, [0.595]


def fedmid_server_prox_only():
    # clients as in FedAvg: w = 1 - .01 = .99, then soft(.99, .5 * .1 * 2)
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedMiD(problem.regularizer, client_lr=0.1, local_steps=2, server_prox_only=True)
    return strategy, problem, [0.89]


def feddualavg():
    # k=0: w = z = 1.  1: z = 1.2, w = soft(1.2, .05) = 1.15, z = 1.2 + .17 = 1.37
    #                  2: z = .8,  w = .75,               z = .8 - .175 = .625
    # z = (1.37 + .625)/2 = .9975, e = .2, output soft(.9975, .1) = .8975.
    # Round 2, from e = .2.  1: w = .8975, z = .9975 + .2205 = 1.218, w = soft(1.218, .15) = 1.068,
    #   z = 1.4044.  2: w = .8975, z = .9975 - .18975 = .80775, w = .65775, z = .641975
    # z = 1.0231875, output minus .5 * .4
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedDualAvg(problem.regularizer, client_lr=0.1, local_steps=2)
    return strategy, problem, [0.8975, 0.8231875]


def feddualavg_server_prox_only():
    # w = prox(1, 0) = 1, plain steps: deltas .36 and -.38; z = .99, output soft(.99, .1)
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedDualAvg(problem.regularizer, client_lr=0.1, local_steps=2, server_prox_only=True)
    return strategy, problem, [0.89]


def fedfw():
    # D = [-1, 2], eta_1 = 1, lambda_1 = sqrt 2, eta_2 = 2/3, lambda_2 = sqrt 3.
    # t=1: g = (-1, 1), atoms (2, -1): x = (2, -1), mean .5.
    # t=2: g_1 = 0 + 1.5 sqrt 3 > 0 -> -1, x_1 = 2/3 - 2/3 = 0
    #      g_2 = 0 - 1.5 sqrt 3 < 0 -> 2,  x_2 = -1/3 + 4/3 = 1;  mean .5
    # t=3: eta = 1/2, lambda = 2: g_1 = -2 + 2(-.5) = -3 -> 2, x_1 = 1;
    #      g_2 = 1 + 2(.5) = 2 -> -1, x_2 = 0; mean .5
    problem = two_clients(constraint=Box(-1.0, 2.0))
    return FedFW(problem.constraint, penalty=1.0), problem, [0.5, 0.5, 0.5]


def fedfw_nonconvex():
    # T = 8: eta = 1/4, lambda = 2 lambda_0.  t=1: atoms (2, -1): x = (1.25, .5), mean .875
    # g_1 = (2.5 - 4)/2 + 2(.375) = 0 -> tie: the upper bound, as for every entry g <= 0
    # g_2 = 1.5/2 + 2(-.375) = 0 -> 2:  x = (1.4375, .875), mean 1.15625
    problem = two_clients(constraint=Box(-1.0, 2.0))
    return FedFW(problem.constraint, penalty=1.0, schedule="nonconvex"), problem, [0.875, 1.15625]


def fedfwplus():
    # D = [-1, 2], lambda_0 = 1/4: lambda = .354, .433, .5.  t=1: as FedFW: x = (2, -1), mean .5.
    # t=2: gaps +-1.5, y = +-.375: g_1 = 0 + .650 + .375 -> -1;  g_2 = 0 - 1.025 -> 2: x = (0, 1)
    # t=3: gaps -+.5, y = +-.25: g_1 = -2 - .25 + .25 -> 2, g_2 = 1 + .25 - .25 -> -1: x = (1, 0)
    # t=4: eta = .4, lambda = .559, gaps +-.5, y = +-.375: g_1 = -1 + .28 + .375 -> 2
    #      g_2 = .5 - .28 - .375 < 0 -> 2 (FedFW: .22 -> -1): x = (1.4, .8), mean 1.1
    problem = two_clients(constraint=Box(-1.0, 2.0))
    return FedFWPlus(problem.constraint, penalty=0.25), problem, [0.5, 0.5, 0.5, 1.1]


CASES = [
    fedavg,
    fedavg_subgradient,
    fedmid,
    fedmid_server_prox_only,
    feddualavg,
    feddualavg_server_prox_only,
    fedfw,
    fedfwplus,
]


@pytest.mark.parametrize("case", CASES)
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
    settings = {"constraint": Box(-1.0, 2.0), "gradient": "full", "penalty": 1.0}
    client.configure(RunInfo("fedfwplus", 0, Layout.of(np.zeros(1)), 2, settings))
    state = FedFWPlusClientState(x=np.array([1.5]), y=np.zeros(1), d=None, resets=0)
    down = {"x_bar": np.array([1.2]), "step_size": 0.5, "penalty": 1.0, "resets": 0}
    up, after = client.step(state, down)
    assert up["atom"].dense().item() == -1.0
    assert after.x.item() == pytest.approx(0.25)
    assert after.y.item() == pytest.approx(0.3)
    # a restart that this client has not followed puts it at x_bar, with y = 0: g = -.8 -> 2
    up, after = client.step(after, {**down, "resets": 1})
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
    assert {case()[0].name for case in CASES} == set(CLASSES)
