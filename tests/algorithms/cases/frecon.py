"""FRECON and COFIG: what the contract test holds them to."""

from __future__ import annotations

import numpy as np
from by_card import away, away_l1, gradient, prox
from contract import Case, Contract, Loop
from harness import client_states
from problems import q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, Cyclic, Markov, Sample, Weighted
from flower_fedcon.compressors import QSGD, Natural, RandK
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FRECON

TURNS = Cyclic(groups=2)


def frecon():
    # gamma = .1, lambda = .5, psi = .3 |x|; the clients take turns, the first begins.
    # 1: u = -2, q = 0;  g = .5(-2), h = -1;  x = soft(1 + .1, .03) = 1.07
    # 2: u = 2.07, q = .07;  g = .07 + .5(-1) + .5(-1 + 2.07) = .105, h = .035;  x = 1.0295
    # 1: u = -1.941 + 2, q = -1.941 + 1.86;  g = -.081 + .5(.105) + .5(.035 + .059) = .0185
    problem = two_clients(regularizer=L1(0.3))
    more = {"step_size": 0.1, "mixing": 0.5, "participation": TURNS}
    return FRECON(problem.regularizer, **more), problem, [1.07, 1.0295, 0.99765]


def cofig():
    # Of one entry QSGD(1) sends all, but counts as omega = 1: alpha = 1/2.
    # 1: u = -2, g = -2;  h_1 = -1, h = -.5.  2: u = 2.2, g = 1.7;  h_2 = 1.1, h = .05
    # 1: u = -1.94 + 1, g = -.89
    more = {"step_size": 0.1, "participation": TURNS, "uplink_compressor": QSGD(levels=1)}
    return FRECON(variant="cofig", **more), two_clients(), [1.2, 1.03, 1.119]


def by_card(problem, cohorts, step_size, mixing=None, variant="frecon"):
    clients, x = problem.objectives, problem.start
    before, g, h = x, 0 * x, np.zeros((len(clients), len(x)))
    for cohort in cohorts:
        u = np.array([gradient(clients[i], x) - h[i] for i in cohort])
        q = np.mean([gradient(clients[i], x) - gradient(clients[i], before) for i in cohort], 0)
        new = h.mean(axis=0) + u.mean(axis=0)
        g = new if variant == "cofig" else q + (1 - mixing) * g + mixing * new
        h[cohort] += u  # alpha = 1 without compression
        before, x = x, prox(problem, x - step_size * g, step_size)
    return x


def invariant(run):
    """h is the mean of all h_i, and the mirror is what the clients hold."""
    server = run.state
    rows = server.mirror.rows["h"]
    for row, state in zip(rows, client_states(run), strict=True):
        assert row.tobytes() == (np.zeros_like(row) if state is None else state.h).tobytes()
    assert np.abs(server.h - rows.mean(axis=0)).max() < 1e-14 * max(1.0, np.abs(rows).max())


COFIG = {"variant": "cofig"}
FOUR = {"uplink_compressor": RandK(count=4)}
PAIRS = {"participation": Sample(count=2)}

CONTRACT = Contract(
    cases=[
        Case("smooth", q6, {}, 400, 0, 5e-15),
        Case("random 4 of 8", q6, FOUR, 800, 0, 5e-15),
        Case("SAGA", q6, COFIG, 250, 0, 5e-15),
        Case("DIANA", q6, {**COFIG, **FOUR}, 500, 0, 5e-15),
        Case("DIANA, composite", q6_l1, {**COFIG, "uplink_compressor": Natural()}, 300, 0, 5e-11),
        Case("without mirror", q6, {"mirror": False}, 400, 0, 5e-15),
        Case("composite", q6_l1, {}, 400, 0, 5e-11),
    ],
    sampled=[
        Case("pairs", q6, PAIRS, 800, 0, 5e-15),
        Case("pairs, composite", q6_l1, {**PAIRS, **FOUR}, 1500, 0, 5e-11),
        Case("COFIG, pairs", q6, {**COFIG, **PAIRS, **FOUR}, 1200, 0, 5e-15),
        Case("coin", q6, {**FOUR, "participation": Bernoulli(0.5)}, 1200, 0, 5e-15),
        Case("turns", q6, {**FOUR, "participation": Cyclic(groups=3)}, 1500, 0, 5e-15),
        Case("come and go", q6, {**FOUR, "participation": Markov(0.8, 0.2)}, 1500, 0, 5e-15),
        Case("unequal", q6, {**FOUR, "participation": Weighted([0.2] * 3 + [0.8] * 3)}, 1500,
             0, 5e-15),
    ],
    first_rounds=[frecon, cofig],
    loops=[
        Loop("smooth", away, {"step_size": 0.02, "mixing": 0.2}, by_card),
        Loop("composite", away_l1, {"step_size": 0.02, "mixing": 0.2}, by_card),
        Loop("COFIG", away_l1, {**COFIG, "step_size": 0.02}, by_card),
    ],
    small={"step_size": 0.1},
    oracle="regularizer",
    lost="exact",
    invariant=invariant,
)  # fmt: skip
