"""DualFL: what the contract test holds it to."""

from __future__ import annotations

import math

import numpy as np
from contract import Case, Contract, about
from problems import HALF, q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import DualFL

ONE = {"strong_convexity": 1.0}
PLAIN = {**ONE, "momentum": 0.0}
GAP = {**ONE, "stopping": "gap", "local_solver": GradientDescent(steps=100_000)}
L1_06 = {**ONE, "regularizer": L1(0.6)}


def fista(n: int) -> float:
    """Return t_n for rho = 0, from t_0 = 1."""
    return 1.0 if n == 0 else (1 + math.sqrt(1 + 4 * fista(n - 1) ** 2)) / 2


def dualfl():
    # nu = 1.  n=0: zeta = 0: minimisers 2 and -1, mean .5 (x0 = 1 does not enter)
    # n=1: zeta = .5 - theta_j = -+1.5: 2x - 4 = -1.5 -> 1.25;  x + 1 = 1.5 -> .5;  mean .875
    # n=2: c_1 = -1.5 + .875 - 1.25 = -1.875, c_2 = 1.875, zeta = -+(1.875 + .375 beta):
    #      1.0625 - .1875 beta and .875 + .375 beta
    beta = (fista(1) - 1) / fista(2)
    return DualFL(momentum=0.0), two_clients(), [0.5, 0.875, 0.96875 + 0.09375 * beta]


def dualfl_momentum():
    # mu = 1, L = 2: rho = 1/2.  t_1 = (1/2 + sqrt(1/4 + 4))/2, a = 1 - t_1^2/2,
    # t_2 = (a + sqrt(a^2 + 4 t_1^2))/2, and beta_1 takes the place of the one above
    t = (0.5 + math.sqrt(4.25)) / 2
    a = 1 - t * t / 2
    t_2 = (a + math.sqrt(a * a + 4 * t * t)) / 2
    beta = (t - 1) / t_2 * (1 - t_2 / 2) / 0.5
    return DualFL(), two_clients(), [0.5, 0.875, 0.96875 + 0.09375 * beta]


def dualfl_regularizer():
    # with .5 |x|.  n=0: 2x - 4 + .5 = 0 -> 1.75;  x + 1 - .5 = 0 -> -.5;  mean .625
    # n=1: zeta = -+1.125: 2x - 3.5 = -1.125 -> 1.1875;  |x + 1 - 1.125| <= .5 at 0;  mean .59375
    problem = two_clients(regularizer=L1(0.5))
    return DualFL(regularizer=problem.regularizer), problem, [0.625, 0.59375]


def states(run):
    """Return the v_j as the next message will find them; -x0 before the first contact."""
    found = []
    for client, ack in zip(run.clients, run.acknowledged, strict=True):
        versions = client.versions
        state = versions.pending if versions.pending_round == ack else versions.acknowledged
        found.append(-run.problem.start if ack == 0 else state.v)
    return np.array(found)


def invariant(run):
    """theta = -mean v_j (so that sum zeta_j = sum c_j = 0), and the mirror is the clients'."""
    v, state = states(run), run.state
    mirror = state.mirror.to_tree()
    assert mirror.keys() == ({"v"} if run.server.setup.sampled else {"v", "c"})
    assert np.array_equal(v, mirror["v"])
    assert np.abs(state.theta + v.mean(axis=0)).max() <= 1e-12 * np.abs(v).max()
    if "c" in mirror:
        c = mirror["v"] + state.theta
        zeta = (1 + state.beta) * c - state.beta * mirror["c"]
        for vectors in (mirror["c"], c, zeta):
            assert np.abs(vectors.sum(axis=0)).max() <= 1e-11 * np.abs(v).max()


def sampled(rule, problem=q6, settings=ONE, high=2e-15):
    return Case(repr(rule), problem, {**settings, "participation": rule}, 1000, 0, high)


CONTRACT = Contract(
    cases=[
        Case("accelerated", q6, ONE, 150, 0, 4e-15),
        Case("after 50", q6, ONE, 50, **about(1.02e-6)),
        Case("after 100", q6, ONE, 100, **about(3.16e-12)),
        Case("without rho, after 50", q6, PLAIN, 50, **about(4.8e-4)),
        Case("without rho, after 150", q6, PLAIN, 150, **about(2.9e-6)),
        Case("gap rule, after 50", q6, GAP, 50, **about(1.44e-6)),
        Case("gap rule, after 100", q6, GAP, 100, **about(5.48e-11)),
        Case("gap rule, after 150", q6, GAP, 150, 0, 1e-14),
        Case("regularizer", q6_l1, L1_06, 1000, 0, 1e-10),
    ],
    sampled=[
        Case("half", q6, {**ONE, **HALF}, 1000, 0, 4e-15),
        sampled(Sample(count=1)),
        sampled(Bernoulli(0.5)),
        sampled(Bernoulli(0.2)),
        sampled(Sample(count=2), q6_l1, L1_06, 1e-10),
    ],
    first_rounds=[dualfl, dualfl_momentum, dualfl_regularizer],
    small=ONE,
    oracle="regularizer",
    lost="heals",
    invariant=invariant,
)
