"""CompositeFL: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away_l1, gradient, prox
from contract import Case, Contract, Loop
from harness import OpenRun, settled
from problems import q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import CompositeFL

FIVE = {"client_lr": 1 / 400, "local_steps": 5}
THREE, TWO = ({"participation": Sample(count=c)} for c in (3, 2))


def compositefl():
    # T = 2 * .1 * 2: P = 1 - .5 * .4 = .8
    # 1: zh = .8 - .1(-2.4) = 1.04, z = .99, zh = 1.04 - .1(-2.02) = 1.242: delta = .442
    # 2: zh = .8 - .1(1.8) = .62,   z = .57, zh = .62 - .1(1.57) = .463:   delta = -.337
    # x_bar = .8 + 2 * .0525 = .905, P = .705;  c_1 = (.442 - .0525)/.2 = 1.9475 = -c_2
    # 1: zh = .705 - .1(-2.59 + 1.9475) = .76925, z = .71925,
    #    zh = .76925 - .1(-2.5615 + 1.9475) = .83065: delta = .12565
    # 2: zh = .705 - .1(1.705 - 1.9475) = .72925, z = .67925,
    #    zh = .72925 - .1(1.67925 - 1.9475) = .756075: delta = .051075
    # x_bar = .705 + .12565 + .051075 = .881725, less .2
    problem = two_clients(regularizer=L1(0.5))
    strategy = CompositeFL(problem.regularizer, client_lr=0.1, local_steps=2, server_lr=2.0)
    return strategy, problem, [0.705, 0.681725]


def c_sums_to_zero(run: OpenRun) -> None:
    """And with everyone present the mirror has the clients' c_i bit by bit."""
    mirror = run.state.mirror.rows["c"]
    assert np.allclose(mirror.sum(0), 0, rtol=0, atol=1e-12)
    if not run.server.setup.sampled:
        assert settled(run, "c").tobytes() == mirror.tobytes()


def by_card(problem, cohorts, client_lr, local_steps, server_lr):
    clients, x_bar, eta = problem.objectives, problem.start, client_lr
    step, c = server_lr * eta * local_steps, np.zeros((len(clients), len(x_bar)))
    for cohort in cohorts:
        p, delta = prox(problem, x_bar, step), {}
        for i in cohort:
            z = zh = p
            for k in range(local_steps):
                zh = zh - eta * (gradient(clients[i], z) + c[i])
                z = prox(problem, zh, (k + 1) * eta)
            delta[i] = zh - p
        x_bar = p + server_lr * sum(delta.values()) / len(cohort)
        delta_bar = (x_bar - p) / server_lr
        for i in cohort:
            c[i] += (delta[i] - delta_bar) / (eta * local_steps)
    return prox(problem, x_bar, step)


CONTRACT = Contract(
    cases=[
        Case("composite", q6_l1, FIVE, 500, 0, 1e-10),
        Case("smooth", q6, FIVE, 500, 0, 2e-14),
        Case("server_lr 2", q6_l1, {**FIVE, "server_lr": 2.0}, 300, 0, 1e-10),
        Case("without mirror", q6_l1, {**FIVE, "mirror": False}, 500, 0, 1e-10),
        Case("on the way", q6_l1, FIVE, 229, 0.9e-10, 1e-10),
    ],
    sampled=[
        Case("three", q6_l1, {**FIVE, **THREE}, 500, 0, 1e-10),
        Case("two", q6_l1, {**FIVE, **TWO}, 500, 0, 1e-10),
    ],
    first_rounds=[compositefl],
    loops=[Loop("composite", away_l1, {**FIVE, "server_lr": 1.5}, by_card)],
    small={"client_lr": 0.1, "local_steps": 2},
    oracle="regularizer",
    lost="exact",
    refuses=[Bernoulli(0.5), Sample(count=1)],
    invariant=c_sums_to_zero,
)
