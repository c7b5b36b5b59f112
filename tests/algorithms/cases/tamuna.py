"""TAMUNA: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away, descended
from contract import Case, Contract, Loop
from harness import OpenRun
from problems import HALF, q6, two_clients

from flower_fedcon import Bernoulli, FederatedProblem, Sample
from flower_fedcon.core.rng import COIN, COMPRESS, stream
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import TAMUNA


def as_scaffnew():
    # seed 0 draws K = 2, 1.  1: 1 -> 1.2 -> 1.36;  2: 1 -> .8 -> .62;  x_bar = .99
    # eta = p: h_1 = 5(.99 - 1.36) = -1.85 = -h_2
    # 1: .99 - .1(-2.02 + 1.85) = 1.007;  2: .99 - .1(1.99 - 1.85) = .976
    strategy = TAMUNA(client_lr=0.1, communication_probability=0.5)
    return strategy, two_clients(), [0.99, 0.9915]


def sparse():
    # f_3 = 3x^2/2 beside the two; s = 2 of c = 3.  Seed 0 draws K = 1, 3, and both times the
    # columns 2, 1, 0: the one entry is in columns 0 and 1, client 1 sends nothing.
    # 2: 1 -> .8;  3: 1 -> .7;  x_bar = .75, and as eta = .5 * 3/4: h_2 = 3.75(-.05) = -h_3
    # 2: x := .9x - .11875, 3 times: .2249375;  3: x := .7x + .01875: .2983125
    clients = [*two_clients().objectives, Quadratic([[3.0]], [0.0])]
    strategy = TAMUNA(client_lr=0.1, communication_probability=0.5, copies=2)
    return strategy, FederatedProblem(clients, x0=np.array([1.0])), [0.75, 0.261625]


def h_sums_to_zero(run: OpenRun) -> None:
    assert np.abs(run.state.mirror.rows["h"].sum(axis=0)).max() < 1e-12


PAIRS = {"participation": Sample(count=2)}


def by_card(problem, cohorts, client_lr, communication_probability, copies):
    clients, x_bar, n, s = problem.objectives, problem.start, problem.num_clients, copies
    h, rows = np.zeros((n, len(x_bar))), np.arange(len(x_bar))
    eta = communication_probability * n * (s - 1) / (s * (n - 1))
    for r, cohort in enumerate(cohorts, 1):
        steps, c = stream(0, COIN, r, n).geometric(communication_probability), len(cohort)
        q = np.zeros((len(x_bar), c), dtype=bool)
        for column in range(s):
            q[rows, (rows * s + column) % c] = True
        order = stream(0, COMPRESS, r, n).permutation(c)
        ends = [descended(clients[i], x_bar, client_lr, steps, -h[i]) for i in cohort]
        sent = q[:, order].T
        x_bar = np.where(sent, ends, 0.0).sum(axis=0) / s
        h[cohort] += eta / client_lr * np.where(sent, x_bar - ends, 0.0)
    return x_bar


CONTRACT = Contract(
    cases=[
        Case("two of six send", q6, {"copies": 2}, 500, 0, 1e-15),
        Case("default", q6, {}, 120, 0, 1e-15),
    ],
    sampled=[
        Case("half, sparse", q6, {"copies": 2, **HALF}, 900, 0, 1e-15),
        Case("half", q6, HALF, 400, 0, 1e-15),
        Case("two of six", q6, PAIRS, 900, 0, 1e-15),
    ],
    first_rounds=[as_scaffnew, sparse],
    loops=[
        Loop(
            f"{copies} of {count}",
            away,
            {"client_lr": 1 / 20, "communication_probability": 0.3, "copies": copies},
            by_card,
            Sample(count=count),
        )
        for copies, count in ((2, 2), (2, 3))
    ],
    small={"client_lr": 0.1, "communication_probability": 0.5, "copies": 2},
    refuses=[Bernoulli(0.5), Sample(count=1)],
    invariant=h_sums_to_zero,
)
