"""FiveGCS: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away, gradient, minimiser
from contract import Case, Contract, Loop
from harness import client_states
from problems import HALF, q6, two_clients

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.strategies import FiveGCS


def fivegcs():
    # gamma = 1, tau = 1.5, mu = 1, N = C = 2: xhat = (x - v)/2, F_1' = (y - 4)/2, F_2' = 1/2
    # 1: (y - 4)/2 + 1.5 (y - xhat) - u = 0, y = (2 + 1.5 xhat + u)/2, u := (y - 4)/2;  2: u := 1/2
    # t=1: xhat = .5: y = 1.375, u = -1.3125, .5;  dv = -.8125, x = 1.3125, v = -.8125
    # t=2: xhat = 1.0625: y = 1.140625, u = -1.4296875, .5;  dv = -.1171875, x = 1.1796875,
    #      v = -.9296875, xhat = 1.0546875
    return FiveGCS(primal_lr=1.0, dual_lr=1.5), two_clients(), [1.0625, 1.0546875]


def invariant(run):
    """V is the sum of all u_m, and the mirror is what the clients hold."""
    server = run.state
    for row, state in zip(server.mirror.rows["variate"], client_states(run), strict=True):
        assert row.tobytes() == (np.zeros_like(row) if state is None else state.variate).tobytes()
    assert np.abs(server.v - server.mirror.rows["variate"].sum(axis=0)).max() < 1e-13


def by_card(problem, cohorts, primal_lr, dual_lr):
    clients, x, mu = problem.objectives, problem.start, 1.0
    n, v, u = len(clients), 0 * x, np.zeros((len(clients), len(x)))
    for cohort in cohorts:
        xhat, total = (x - primal_lr * v) / (1 + primal_lr * mu), 0 * x
        for m in cohort:  # N times step 2
            linear = -(n * u[m] + mu * xhat)
            y = minimiser(clients[m], linear, n * dual_lr - mu, xhat)
            delta = (gradient(clients[m], y) - mu * y) / n - u[m]
            u[m] += delta
            total = total + delta
        x, v = xhat - primal_lr * n / len(cohort) * total, v + total
    return (x - primal_lr * v) / (1 + primal_lr * mu)


CONTRACT = Contract(
    cases=[
        Case("full", q6, {}, 400, 0, 1e-15),
        Case("given", q6, {"smoothness": 40.0, "strong_convexity": 0.5}, 800, 0, 1e-15),
    ],
    sampled=[
        Case("half", q6, HALF, 500, 0, 1e-15),
        Case("one of six", q6, {"participation": Sample(count=1)}, 1000, 0, 1e-15),
    ],
    first_rounds=[fivegcs],
    loops=[Loop("smooth", away, {"primal_lr": 0.05, "dual_lr": 1.5}, by_card)],
    small={"smoothness": 3.0, "strong_convexity": 1.0},
    lost="exact",
    refuses=[Bernoulli(0.5)],
    invariant=invariant,
)
