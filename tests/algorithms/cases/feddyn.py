"""FedDyn: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away, minimiser
from contract import Case, Contract, Loop
from harness import client_states
from problems import HALF, q6, two_clients

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.strategies import FedDyn


def feddyn():
    # alpha = 3.  1: 2x - 4 - g + 3 (x - theta) = 0, x = (4 + g + 3 theta)/5
    #             2: x = (3 theta - 1 + g)/4
    # t=1: x = 1.4, g = -1.2;  x = .5, g = 1.5;  h = .15, theta = .95 - .15/3 = .9
    # t=2: x = 1.1, g = -1.8;  x = .8, g = 1.8;  h = 0, theta = .95
    return FedDyn(proximal=3.0), two_clients(), [0.9, 0.95]


def invariant(run):
    """H is the mean of all g_i, and the mirror is what the clients hold."""
    server = run.state
    for row, state in zip(server.mirror.rows["variate"], client_states(run), strict=True):
        assert row.tobytes() == (np.zeros_like(row) if state is None else state.variate).tobytes()
    assert np.abs(server.h - server.mirror.rows["variate"].mean(axis=0)).max() < 1e-13


TEN = {"proximal": 10.0}


def by_card(problem, cohorts, proximal):
    clients, theta = problem.objectives, problem.start
    h, g = 0 * theta, np.zeros((len(clients), len(theta)))
    for cohort in cohorts:
        ends = {i: minimiser(clients[i], -g[i], proximal, theta) for i in cohort}
        for i, end in ends.items():
            g[i] -= proximal * (end - theta)
            h = h - proximal / len(clients) * (end - theta)
        theta = sum(ends.values()) / len(cohort) - h / proximal
    return theta


CONTRACT = Contract(
    cases=[
        Case("full", q6, TEN, 300, 0, 1e-15),
        Case("default", q6, {}, 400, 0, 1e-15),
    ],
    sampled=[
        Case("half", q6, {**TEN, **HALF}, 500, 0, 1e-15),
        Case("one of six", q6, {**TEN, "participation": Sample(count=1)}, 1500, 0, 1e-15),
        Case("coin", q6, {**TEN, "participation": Bernoulli(0.5)}, 500, 0, 1e-15),
    ],
    first_rounds=[feddyn],
    loops=[Loop("smooth", away, TEN, by_card)],
    small={"proximal": 2.0},
    lost="exact",
    invariant=invariant,
)
