"""FedFWPlus: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away_ball, vertex
from contract import Case, Contract, Loop, about
from harness import OpenRun, client_states
from problems import HALF, l1ls, toy, two_clients

from cases.fedfw import means_are_exact
from flower_fedcon.sets import Box
from flower_fedcon.strategies import FedFWPlus


def fedfwplus():
    # D = [-1, 2], lambda_0 = 1/4: lambda = .354, .433, .5.  t=1: as FedFW: x = (2, -1), mean .5.
    # t=2: gaps +-1.5, y = +-.375: g_1 = 0 + .650 + .375 -> -1;  g_2 = 0 - 1.025 -> 2: x = (0, 1)
    # t=3: gaps -+.5, y = +-.25: g_1 = -2 - .25 + .25 -> 2, g_2 = 1 + .25 - .25 -> -1: x = (1, 0)
    # t=4: eta = .4, lambda = .559, gaps +-.5, y = +-.375: g_1 = -1 + .28 + .375 -> 2
    #      g_2 = .5 - .28 - .375 < 0 -> 2 (FedFW: .22 -> -1): x = (1.4, .8), mean 1.1
    problem = two_clients(constraint=Box(-1.0, 2.0))
    return FedFWPlus(problem.constraint, penalty=0.25), problem, [0.5, 0.5, 0.5, 1.1]


def invariant(run: OpenRun) -> None:
    """As for FedFW, and y_bar is the mean of all y_i: 0 with everyone."""
    means_are_exact(run)
    mirror = run.state.mirror
    if mirror is None:
        assert np.abs(sum(state.y for state in client_states(run))).max() < 1e-13
    else:
        assert np.abs(run.state.y_bar - mirror.rows["y"].mean(axis=0)).max() < 1e-14


def by_card(problem, cohorts, penalty):
    clients, x_bar, n = problem.objectives, problem.start, problem.num_clients
    x, y = [x_bar] * n, np.zeros((n, len(x_bar)))
    for t, cohort in enumerate(cohorts, 1):
        age = len(cohort) / n * (t - 1) + 2
        eta, pull, before, y_bar = 2 / age, penalty * age**0.5, x_bar, y.mean(axis=0)
        for i in cohort:
            y[i] += penalty * (x[i] - before)
            g = clients[i].gradient(x[i]) / n + pull * (x[i] - before) + y[i] - y_bar
            s = vertex(g)
            x_bar = x_bar + eta / n * (s - x[i])
            x[i] = (1 - eta) * x[i] + eta * s
    return x_bar


CONTRACT = Contract(
    cases=[
        Case("toy", toy, {"penalty": 1.0}, 1000, **about(1 - 0.999816, 1e-2)),
        Case("lasso", l1ls, {"penalty": 0.01}, 5000, **about(1.17e-2), measure="residual"),
        Case("tight", l1ls, {"penalty": 0.1}, 5000, **about(5.1e-2), measure="residual"),
    ],
    sampled=[
        Case(
            "half, centred",
            l1ls,
            {"penalty": 0.01, **HALF},
            5000,
            **about(2.2e-2, 0.1),
            measure="residual",
            at_night=True,
        ),
    ],
    first_rounds=[fedfwplus],
    loops=[Loop("ball", away_ball, {"penalty": 0.5}, by_card)],
    small={"penalty": 0.5},
    oracle="constraint",
    invariant=invariant,
)
