"""FedDR: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away, away_l1, minimiser, prox
from contract import Case, Contract, Loop
from harness import client_states
from problems import q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedDR


def feddr():
    # eta = 1/3, alpha = 1.5.  1: 2x - 4 + 3 (x - y) = 0, x = (4 + 3y)/5;  2: x = (3y - 1)/4
    # t=1: y = 1: x = 1.4, xhat = 1.8;  x = .5, xhat = 0;  xtilde = .9, xbar = soft(.9, .3/3) = .8
    # t=2: y = 1 + 1.5 (.8 - 1.4) = .1:  x = .86, xhat = 1.62;
    #      y = 1 + 1.5 (.8 - .5) = 1.45: x = .8375, xhat = .225;  xtilde = .9225
    problem = two_clients(regularizer=L1(0.3))
    strategy = FedDR(problem.regularizer, step_size=1 / 3, relaxation=1.5)
    return strategy, problem, [0.8, 0.8225]


def invariant(run):
    """Xtilde is the mean of all xhat_i, and the mirror is what the clients hold."""
    server = run.state
    for row, state in zip(server.mirror.rows["xhat"], client_states(run), strict=True):
        assert row.tobytes() == (server.x0 if state is None else state.xhat).tobytes()
    assert np.abs(server.xtilde - server.mirror.rows["xhat"].mean(axis=0)).max() < 1e-13


SIZE = {"step_size": 0.1}


def by_card(problem, cohorts, step_size, relaxation):
    clients, xbar = problem.objectives, problem.start
    xtilde, y, x, xhat = xbar, {}, {}, [xbar] * len(clients)
    for cohort in cohorts:
        for i in cohort:
            y[i] = y[i] + relaxation * (xbar - x[i]) if i in y else xbar
            x[i] = minimiser(clients[i], 0 * xbar, 1 / step_size, y[i])
            delta = 2 * x[i] - y[i] - xhat[i]
            xtilde, xhat[i] = xtilde + delta / len(clients), xhat[i] + delta
        xbar = prox(problem, xtilde, step_size)
    return xbar


# With L1 the independent solver is 1.4e-11 off; test_feddr.py looks at the subdifferential.
CONTRACT = Contract(
    cases=[
        Case("smooth", q6, SIZE, 300, 0, 2e-15),
        Case("composite", q6_l1, SIZE, 300, 0, 5e-11),
        Case("relaxed", q6, {**SIZE, "relaxation": 1.95}, 1000, 0, 1e-15),
        Case("Peaceman-Rachford", q6, {**SIZE, "relaxation": 2.0}, 1000, 0, 1e-15),
    ],
    sampled=[
        Case("two of six", q6_l1, {**SIZE, "participation": Sample(count=2)}, 800, 0, 5e-11),
        Case("coin", q6, {**SIZE, "participation": Bernoulli(0.5)}, 800, 0, 2e-15),
    ],
    first_rounds=[feddr],
    loops=[
        Loop("smooth", away, {**SIZE, "relaxation": 1.0}, by_card),
        Loop("composite", away_l1, {**SIZE, "relaxation": 1.5}, by_card),
    ],
    small={"step_size": 0.5},
    oracle="regularizer",
    lost="heals",
    invariant=invariant,
)
