"""FedFW: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import START, away_ball, vertex
from contract import Case, Contract, Loop, about
from harness import OpenRun, client_states
from problems import HALF, l1ls, toy, two_clients

from flower_fedcon import Bernoulli, FederatedProblem
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.sets import Box, L1Ball
from flower_fedcon.strategies import FedFW


def fedfw():
    # D = [-1, 2], eta_1 = 1, lambda_1 = sqrt 2, eta_2 = 2/3, lambda_2 = sqrt 3.
    # t=1: g = (-1, 1), atoms (2, -1): x = (2, -1), mean .5.
    # t=2: g_1 = 0 + 1.5 sqrt 3 > 0 -> -1, x_1 = 2/3 - 2/3 = 0
    #      g_2 = 0 - 1.5 sqrt 3 < 0 -> 2,  x_2 = -1/3 + 4/3 = 1;  mean .5
    # t=3: eta = 1/2, lambda = 2: g_1 = -2 + 2(-.5) = -3 -> 2, x_1 = 1;
    #      g_2 = 1 + 2(.5) = 2 -> -1, x_2 = 0; mean .5
    problem = two_clients(constraint=Box(-1.0, 2.0))
    return FedFW(problem.constraint, penalty=1.0), problem, [0.5, 0.5, 0.5]


def means_are_exact(run: OpenRun) -> None:
    """x_bar is the mean of all x_i, which the mirror has bit by bit; all are in the set."""
    held = [run.problem.start if s is None else s.x for s in client_states(run)]
    if run.server.setup.sampled:
        assert np.array(held).tobytes() == run.state.mirror.rows["x"].tobytes()
    assert np.abs(run.x - np.mean(held, axis=0)).max() < 1e-14
    assert all(run.problem.constraint.contains(x, 1e-12) for x in [run.x, *held])


def rows_away():
    """Three rows of least squares on each of six clients, over the l1 ball of radius 1."""
    rng = np.random.default_rng(5)
    clients = [LeastSquares(rng.normal(size=(3, 8)), rng.normal(size=3)) for _ in range(6)]
    return FederatedProblem(clients, constraint=L1Ball(1.0), x0=START)


def by_card(problem, cohorts, penalty, gradient="full", batch_size=None):
    """Batches, if there are any, are of all rows."""
    clients, x_bar, n = problem.objectives, problem.start, problem.num_clients
    x, d, offset = [x_bar] * n, {}, 2 if gradient == "full" else 9
    for t, cohort in enumerate(cohorts, 1):
        age, before = len(cohort) / n * (t - 1) + offset, x_bar
        eta, pull = offset / age, penalty * age**0.5
        rho = 1.0 if gradient == "full" else 4 / (age - 1) ** (2 / 3)
        for i in cohort:
            g = clients[i].gradient(x[i]) / n
            d[i] = (1 - rho) * d[i] + rho * g if i in d else g
            s = vertex(d[i] + pull * (x[i] - before))
            x_bar = x_bar + eta / n * (s - x[i])
            x[i] = (1 - eta) * x[i] + eta * s
    return x_bar


CONTRACT = Contract(
    cases=[
        Case("toy", toy, {"penalty": 1.0}, 1000, **about(1 - 0.940066, 1e-4)),
        Case("lasso", l1ls, {"penalty": 0.01}, 5000, **about(1.09e-1), measure="residual"),
        Case("tight", l1ls, {"penalty": 0.1}, 5000, **about(2.05e-2), measure="residual"),
    ],
    sampled=[
        Case(
            "half",
            l1ls,
            {"penalty": 0.01, **HALF},
            5000,
            **about(1.46e-1, 0.1),
            measure="residual",
            at_night=True,
        ),
        Case("coin", toy, {"penalty": 1.0, "participation": Bernoulli(0.5)}, 4000, 0, 0.2),
    ],
    first_rounds=[fedfw],
    loops=[
        Loop("full gradients", away_ball, {"penalty": 0.5}, by_card),
        Loop(
            "averaged gradients",
            rows_away,
            {"penalty": 0.1, "gradient": "stochastic", "batch_size": 3},
            by_card,
        ),
    ],
    small={"penalty": 0.5},
    oracle="constraint",
    invariant=means_are_exact,
)
