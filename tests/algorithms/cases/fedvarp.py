"""FedVARP: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away, descended
from contract import Case, Contract, Loop, about
from problems import HALF, q6, two_clients

from flower_fedcon import Bernoulli, Cyclic, Markov, Sample
from flower_fedcon.server.schedules import at
from flower_fedcon.strategies import FedVARP


def fedvarp():
    # eta_c = .1, eta_s = .5, K = 2; the clients take turns, the first begins.
    # 1: 1 -> 1.2 -> 1.36, y_1 = .36;  w = 1 + .5 * .36 = 1.18, ybar = .18
    # 2: 1.18 -> .962 -> .7658, y_2 = -.4142;  w = 1.18 + .5 (.18 - .4142) = 1.0629, ybar = -.0271
    # 1: 1.0629 -> 1.25032 -> 1.400256, Delta = .337356;  w = 1.0629 + .5 (-.0271 - .022644)
    strategy = FedVARP(client_lr=0.1, server_lr=0.5, local_steps=2, participation=Cyclic(groups=2))
    return strategy, two_clients(), [1.18, 1.0629, 1.038028]


def invariant(run):
    """Ybar is the mean of all y_i."""
    rows = run.state.memory.rows["y"]
    assert np.abs(run.state.ybar - rows.mean(axis=0)).max() < 1e-14 * max(1.0, np.abs(rows).max())


ONE = {"client_lr": 1 / 20, "local_steps": 1}
SHORT = {"client_lr": 1 / 30, "local_steps": 1}
FIVE = {"client_lr": 1 / 40, "local_steps": 5}


def by_card(problem, cohorts, client_lr, local_steps, server_lr=1.0):
    clients, w = problem.objectives, problem.start
    y = np.zeros((len(clients), len(w)))
    for t, cohort in enumerate(cohorts, 1):
        eta = at(client_lr, t)
        delta = {i: descended(clients[i], w, eta, local_steps) - w for i in cohort}
        v = y.mean(axis=0) + sum(delta[i] - y[i] for i in cohort) / len(cohort)
        for i in cohort:
            y[i] = delta[i]
        w = w + server_lr * v
    return w


CONTRACT = Contract(
    cases=[
        Case("one step", q6, ONE, 800, 0, 5e-15),
        # The fixed point of the mean of the six affine maps of five steps: solve(I - M, c).
        Case("five steps", q6, FIVE, 800, **about(0.290897, 1e-6)),
    ],
    sampled=[
        Case("two of six", q6, {**SHORT, "participation": Sample(count=2)}, 800, 0, 5e-15),
        Case("coin", q6, {**SHORT, "participation": Bernoulli(0.5)}, 800, 0, 5e-15),
        Case("turns", q6, {**SHORT, "participation": Cyclic(groups=3)}, 800, 0, 5e-15),
        Case("come and go", q6, {**SHORT, "participation": Markov(0.8, 0.2)}, 800, 0, 5e-15),
        Case("five steps, half", q6, {**FIVE, **HALF}, 800, **about(0.290897, 1e-6)),
    ],
    first_rounds=[fedvarp],
    loops=[Loop("smooth", away, {**FIVE, "server_lr": 0.7}, by_card)],
    small={"client_lr": 0.1, "local_steps": 2},
    invariant=invariant,
)
