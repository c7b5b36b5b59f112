"""Scaffnew: what the contract test holds it to."""

from __future__ import annotations

from contract import Case, Contract
from harness import OpenRun, settled
from problems import HALF, q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, FederatedProblem
from flower_fedcon.objectives import LeastSquares
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


def gradskip():
    # 2 stops in its first step, 1 never.  1: 1 -> 1.2 -> 1.36;  2: h = 2, stays, v = 1 - .2 * 2
    # x_bar = .98, h_1 = 5(.98 - 1.36) = -1.9, h_2 = 2 + 5(.98 - 1) = 1.9
    # 1: .98 - .1(-2.04 + 1.9) = .994, v = .994 + .2 * 1.9 = 1.374;  2: h = 1.98, v = .98 - .396
    strategy = Scaffnew(client_lr=0.1, communication_probability=0.5, stop_probability=[0.0, 1.0])
    return strategy, two_clients(), [0.98, 0.979]


def lsvrg():
    # rows' gradients: 1: x - 2 and 4x - 4;  2: x + 2 and 9x;  y is the last step's point
    # round 1, both from the second row:  1: -3, then .3 - 0 - 3: 0 -> .3 -> .57;  y = .3, -2.25
    #                                     2: 1, then -.1 - 0 + 1: 0 -> -.1 -> -.19;  y = -.1, .5
    # x_bar = .19, h_1 = 5(.19 - .57) = -1.9 = -h_2
    # 1, first row:  -.11 - 2.25 = -2.36:  .19 - .1(-2.36 + 1.9) = .236, v = .236 + .38 = .616
    # 2, second row: 9 * .29 + .5 = 3.11:  .19 - .1(3.11 - 1.9) = .069,  v = .069 - .38 = -.311
    rows = [[[1.0], [2.0]], [2.0, 2.0]], [[[1.0], [3.0]], [-2.0, 0.0]]
    strategy = Scaffnew(
        client_lr=0.1, communication_probability=0.5, batch_size=1, refresh_probability=1.0
    )
    return strategy, FederatedProblem([LeastSquares(A, b) for A, b in rows]), [0.19, 0.1525]


def h_is_a_subgradient(run: OpenRun) -> None:
    """The mean of the h_i is minus a subgradient of psi at x_bar: 0 without psi."""
    mean = settled(run, "h").mean(0)
    psi = run.server.strategy.regularizer
    assert psi.subdifferential_distance(run.x, mean) < 1e-13


CONTRACT = Contract(
    cases=[
        Case("default", q6, {}, 120, 0, 1e-15),
        Case("composite", q6_l1, {}, 120, 0, 1e-10),
        Case("skipped", q6, {"stop_probability": "rule"}, 120, 0, 1e-15),
        Case("skipped, composite", q6_l1, {"stop_probability": 0.1}, 400, 0, 1e-10),
        Case("p = 1", q6, {"client_lr": 1 / 20, "communication_probability": 1.0}, 600, 0, 1e-13),
    ],
    sampled=[],
    first_rounds=[scaffnew, randprox, gradskip, lsvrg],
    small={"client_lr": 0.1, "communication_probability": 0.5},
    lost="heals",
    refuses=[HALF["participation"], Bernoulli(0.5)],
    invariant=h_is_a_subgradient,
)
