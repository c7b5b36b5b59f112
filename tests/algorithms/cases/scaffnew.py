"""Scaffnew: what the contract test holds it to."""

from __future__ import annotations

from contract import Case, Contract
from harness import OpenRun, settled
from problems import HALF, q6, q6_l1, two_clients

from flower_fedcon import Bernoulli
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import Scaffnew


def scaffnew():
    # seed 0 draws K = 2, 1.  1: 1 -> 1.2 -> 1.36;  2: 1 -> .8 -> .62;  x_bar = .99
    # h_1 = 5(.99 - 1.36) = -1.85 = -h_2
    # 1: .99 - .1(-2.02 + 1.85) = 1.007, v = 1.007 + .2 * 1.85 = 1.377
    # 2: .99 - .1(1.99 - 1.85) = .976,   v = .976 - .37 = .606
    strategy = Scaffnew(client_lr=0.1, communication_probability=0.5)
    return strategy, two_clients(), [0.99, 0.9915]


def randprox():
    # p = 1, one step.  1: 1.2;  2: .8;  v = x_hat as h = 0: mean 1, less .1 * .5: .95
    # h_1 = 10(.95 - 1.2) = -2.5, h_2 = 10(.95 - .8) = 1.5
    # 1: .95 - .1(-2.1 + 2.5) = .91,  v = .91 + .25 = 1.16
    # 2: .95 - .1(1.95 - 1.5) = .905, v = .905 - .15 = .755;  mean .9575 - .05
    problem = two_clients(regularizer=L1(0.5))
    strategy = Scaffnew(
        client_lr=0.1, communication_probability=1.0, regularizer=problem.regularizer
    )
    return strategy, problem, [0.95, 0.9075]


def h_is_a_subgradient(run: OpenRun) -> None:
    """The mean of the h_i is minus a subgradient of psi at x_bar: 0 without psi."""
    mean = settled(run, "h").mean(0)
    psi = run.server.strategy.regularizer
    assert psi.subdifferential_distance(run.x, mean) < 1e-13


CONTRACT = Contract(
    cases=[
        Case("default", q6, {}, 120, 0, 1e-15),
        Case("composite", q6_l1, {}, 120, 0, 1e-10),
        Case("p = 1", q6, {"client_lr": 1 / 20, "communication_probability": 1.0}, 600, 0, 1e-13),
    ],
    sampled=[],
    first_rounds=[scaffnew, randprox],
    small={"client_lr": 0.1, "communication_probability": 0.5},
    lost="heals",
    refuses=[HALF["participation"], Bernoulli(0.5)],
    invariant=h_is_a_subgradient,
)
