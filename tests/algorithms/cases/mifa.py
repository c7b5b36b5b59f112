"""MIFA: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away, away_l1, descended, prox
from contract import Case, Contract, Loop, about
from harness import client_states
from problems import HALF, q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, Cyclic, Markov, Sample
from flower_fedcon.regularizers import L1
from flower_fedcon.server.schedules import at
from flower_fedcon.strategies import MIFA


def mifa():
    # eta = .1, K = 2, psi = .3 |w|; the clients take turns, the first begins.
    # 1: 1 -> 1.2 -> 1.36, G_1 = 3.6, G = 1.8;  w = soft(1 + .18, .3 * .2) = 1.12
    # 2: 1.12 -> .908 -> .7172, G_2 = -4.028, G = -.214;  w = soft(1.12 - .0214, .06) = 1.0386
    # 1: 1.0386 -> 1.23088 -> 1.384704, G_1 = 3.46104, G = -.28348;  w = soft(1.010252, .06)
    problem = two_clients(regularizer=L1(0.3))
    turns = Cyclic(groups=2)
    strategy = MIFA(problem.regularizer, client_lr=0.1, local_steps=2, participation=turns)
    return strategy, problem, [1.12, 1.0386, 0.950252]


def invariant(run):
    """G is the mean of all G_i, and the mirror is what the clients hold."""
    server = run.state
    for row, state in zip(server.mirror.rows["g"], client_states(run), strict=True):
        assert row.tobytes() == (np.zeros_like(row) if state is None else state.g).tobytes()
    far = np.abs(server.g - server.mirror.rows["g"].mean(axis=0)).max()
    assert far < 1e-14 * max(1.0, np.abs(server.mirror.rows["g"]).max())


ONE = {"client_lr": 1 / 20, "local_steps": 1}
SHORT = {"client_lr": 1 / 30, "local_steps": 1}
FIVE = {"client_lr": 1 / 40, "local_steps": 5}


def by_card(problem, cohorts, client_lr, local_steps):
    clients, w = problem.objectives, problem.start
    G = np.zeros((len(clients), len(w)))
    for t, cohort in enumerate(cohorts, 1):
        eta = at(client_lr, t)
        for i in cohort:
            G[i] = (descended(clients[i], w, eta, local_steps) - w) / eta
        w = prox(problem, w + eta * G.mean(axis=0), eta * local_steps)
    return w


CONTRACT = Contract(
    cases=[
        Case("smooth", q6, ONE, 800, 0, 5e-15),
        Case("composite", q6_l1, ONE, 800, 0, 5e-11),
        Case("without mirror", q6, {**ONE, "mirror": False}, 800, 0, 5e-15),
        # The fixed point of the mean of the six affine maps of five steps: solve(I - M, c).
        Case("five steps", q6, FIVE, 800, **about(0.290897, 1e-6)),
    ],
    sampled=[
        Case("two of six", q6_l1, {**SHORT, "participation": Sample(count=2)}, 800, 0, 5e-11),
        Case("coin", q6, {**SHORT, "participation": Bernoulli(0.5)}, 800, 0, 5e-15),
        Case("turns", q6, {**SHORT, "participation": Cyclic(groups=3)}, 800, 0, 5e-15),
        Case("come and go", q6, {**SHORT, "participation": Markov(0.8, 0.2)}, 800, 0, 5e-15),
        Case("five steps, half", q6, {**FIVE, **HALF}, 800, **about(0.290897, 1e-6)),
    ],
    first_rounds=[mifa],
    loops=[
        Loop("smooth", away, FIVE, by_card),
        Loop("composite", away_l1, SHORT, by_card),
    ],
    small={"client_lr": 0.1, "local_steps": 1},
    oracle="regularizer",
    lost="exact",
    invariant=invariant,
)
