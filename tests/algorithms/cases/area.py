"""AREA: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away, away_l1, descended, prox
from contract import Case, Contract, Loop, about
from harness import client_states
from problems import q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import AREA


def area():
    # eta = .1, K = 2, psi = .3 |x|.  client 1: 1 -> 1.2 -> 1.36;  client 2: 1 -> .8 -> .62
    # z = (1.36 + .62)/2 = .99, x = soft(.99, .3 * .2) = .93
    # 1: .93 -> 1.144 -> 1.3152;  2: .93 -> .737 -> .5633;  z = .93925, x = soft(.93925, .06)
    problem = two_clients(regularizer=L1(0.3))
    return AREA(problem.regularizer, client_lr=0.1, local_steps=2), problem, [0.93, 0.87925]


def invariant(run):
    """Z is the mean of all y_i, and the mirror is what the clients hold."""
    server = run.state
    for row, state in zip(server.mirror.rows["y"], client_states(run), strict=True):
        assert row.tobytes() == (server.start if state is None else state.y).tobytes()
    assert np.abs(server.z - server.mirror.rows["y"].mean(axis=0)).max() < 1e-13


ONE = {"client_lr": 1 / 20, "local_steps": 1}


def by_card(problem, cohorts, client_lr, local_steps):
    clients, x = problem.objectives, problem.start
    z, y = x, [x] * len(clients)
    for cohort in cohorts:
        for i in cohort:
            v = descended(clients[i], x, client_lr, local_steps)
            z, y[i] = z + (v - y[i]) / len(clients), v
        x = prox(problem, z, client_lr * local_steps)
    return x


CONTRACT = Contract(
    cases=[
        Case("smooth", q6, ONE, 800, 0, 5e-15),
        Case("composite", q6_l1, ONE, 800, 0, 5e-11),
        Case("without mirror", q6, {**ONE, "mirror": False}, 800, 0, 5e-15),
        # The fixed point of the mean of the six affine maps of five steps: solve(I - M, c).
        Case("five steps", q6, {**ONE, "local_steps": 5}, 800, **about(0.584315, 1e-6)),
    ],
    sampled=[
        Case("two of six", q6_l1, {**ONE, "participation": Sample(count=2)}, 2500, 0, 5e-11),
        Case("coin", q6, {**ONE, "participation": Bernoulli(0.5)}, 2000, 0, 5e-15),
    ],
    first_rounds=[area],
    loops=[
        Loop("smooth", away, {"client_lr": 1 / 40, "local_steps": 2}, by_card),
        Loop("composite", away_l1, {"client_lr": 1 / 20, "local_steps": 1}, by_card),
    ],
    small={"client_lr": 0.1, "local_steps": 1},
    oracle="regularizer",
    lost="exact",
    invariant=invariant,
)
