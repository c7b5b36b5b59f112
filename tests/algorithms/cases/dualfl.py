"""DualFL: what the contract test holds it to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from by_card import away, away_l1, minimiser, prox
from contract import Case, Contract, Loop, about
from problems import HALF, q6, q6_l1, two_clients

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import DualFL
from flower_fedcon.strategies.families.dual_states import round_numbers

ONE = {"strong_convexity": 1.0}
PLAIN = {**ONE, "momentum": 0.0}
GAP = {**ONE, "stopping": "gap", "local_solver": GradientDescent(steps=100_000)}
L1_06 = {**ONE, "regularizer": L1(0.6)}
PAPER, BLOCK, FAST = ({"form": form} for form in ("paper", "block", "accelerated"))


class Replay(Sample):
    """Given cohorts, one after another."""

    def __init__(self, cohorts) -> None:
        first, *others = cohorts
        super().__init__(count=len(first))
        object.__setattr__(self, "cohorts", iter([first, *others]))

    def draw(self, num_clients, rng):
        return next(self.cohorts)


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
    return DualFL(regularizer=problem.regularizer, form="paper"), problem, [0.625, 0.59375]


def by_hand(cohorts, l1=0.0):
    """Return the models of the accelerated form on the two clients, with x_j for all, from 1.

    nu = 1, rho = 1/2; soft(v, l1) is the prox. The sequences are those of the papers: all x_j and
    z_j, y between them, and w.
    """
    Q, b, x, z, t = np.array([2.0, 1.0]), np.array([4.0, -1.0]), np.ones(2), np.ones(2), 1.0
    size, models = len(cohorts[0]), []
    p, K = size / 2, 2 / size
    q = K / (K + 1)
    for cohort in cohorts:
        sigma = (1 - p / t) / (1 - p * p * q)
        y = z + sigma * (x - z)
        theta, r = soft(y.mean(), l1), K * (1 - q) * t / (1 - q * t)
        w = z + p * q * t * (y - z)
        m = z - (1 - p) * q * t * sigma / (1 - q * t) * (x - z)
        theta_j = (b + r * theta - m) / (Q + r - 1)
        after = w.copy()
        after[cohort] = (m + r * (theta_j - theta))[cohort]
        x, z = y + (after - w) / t, after
        h = p * (1 - q * t * t)
        t = (h + math.sqrt(h * h + 4 * t * t)) / 2
        models.append(soft(x.mean(), l1))
    return models


def soft(v, level):
    return math.copysign(max(abs(v) - level, 0.0), v)


def accelerated():
    # t = 1: sigma = 0, theta = z = 1, r = 1: the minimisers 2 and -1, mean .5; the second .875
    models = by_hand([[0, 1]] * 4)
    assert models == pytest.approx([0.5, 0.875, 0.980747488269, 0.999399589728], abs=1e-12)
    return DualFL(form="accelerated"), two_clients(), models


def accelerated_sampled():
    # p = 1/2, K = 2, q = 2/3: r = 2, theta = 1.  2x - 4 + x - 1 = 0 at 5/3, x + 1 + x - 1 = 0 at 0;
    # delta = 4/3 or -2
    one = Sample(count=1)
    cohorts = [one.draw(2, stream(0, COHORT, r)) for r in range(1, 7)]
    return DualFL(participation=one), two_clients(), by_hand(cohorts)


def accelerated_regularizer():
    # the same from theta = prox(1) = 1/2, and prox at the end
    one, problem = Sample(count=1), two_clients(regularizer=L1(0.5))
    cohorts = [one.draw(2, stream(0, COHORT, r)) for r in range(1, 7)]
    strategy = DualFL(regularizer=problem.regularizer, participation=one)
    return strategy, problem, by_hand(cohorts, 0.5)


def states(run):
    """Return the z_j as the next message will find them; x0 before the first contact."""
    return np.array([z for z, _ in pairs(run)])


def pairs(run):
    """Return z_j and e_j of each client, as of its last reply that was used."""
    found = []
    for client, ack in zip(run.clients, run.acknowledged, strict=True):
        state = client.versions.at(ack)
        zero = np.zeros_like(run.problem.start)
        known = ack > run.state.start  # else it has not heard of the start, or of a reset
        found.append((state.z, state.e) if known else (run.state.origin, zero))
    return found


def invariant(run):
    """theta = mean z_j (so that sum zeta_j = sum c_j = 0); a mirror is the clients'."""
    z, state, form = states(run), run.state, run.server.strategy.constants.form
    mirror = state.mirror
    second = {"paper": {"c"}, "block": set(), "accelerated": {"e"}}
    if mirror is not None:
        assert mirror.rows.keys() == {"z"} | second[form]
        assert np.array_equal(z, mirror.rows["z"])
    if form == "accelerated":
        return accelerated_invariant(run)
    assert np.abs(state.theta - z.mean(axis=0)).max() <= 1e-12 * np.abs(z).max()
    if form == "paper" and mirror is not None:
        c = state.theta - mirror.rows["z"]
        zeta = (1 + state.beta) * c - state.beta * mirror.rows["c"]
        for vectors in (mirror.rows["c"], c, zeta):
            assert np.abs(vectors.sum(axis=0)).max() <= 1e-11 * np.abs(z).max()
    return None


def accelerated_invariant(run):
    """z = mean (z_j + A_j e_j), e = mean B_j e_j, and a round's numbers lie where they must."""
    state, known = run.state, run.server.strategy.constants
    z, e = (np.array(vectors) for vectors in zip(*pairs(run), strict=True))
    assert state.mirror is None or np.array_equal(e, state.mirror.rows["e"])
    shape = (-1,) + (1,) * state.z.ndim
    drift, left = state.drift.reshape(shape), state.left.reshape(shape)
    size = 1e-12 * np.abs(z).max()
    assert np.abs(state.z - (z + drift * e).mean(axis=0)).max() <= size
    assert np.abs(state.e - (left * e).mean(axis=0)).max() <= size
    now = round_numbers(state.t, known.p, known.q, known.ratio)
    assert 0 <= now.b < 1
    assert 0 <= now.a < 1
    assert now.r >= known.ratio * (1 - 1e-12)
    assert state.t >= 1
    assert state.t**2 * known.q <= 1 + 1e-12


def sampled(rule, problem=q6, settings=ONE, rounds=600, high=1e-15):
    return Case(repr(rule), problem, {**settings, "participation": rule}, rounds, 0, high)


def block_by_card(problem, cohorts, strong_convexity, form):
    clients, theta, nu = problem.objectives, problem.start, strong_convexity
    n, z = len(clients), [problem.start] * len(clients)
    for cohort in cohorts:
        r, after = n / len(cohort), theta
        for j in cohort:
            zeta = r * theta - z[j]
            theta_j = minimiser(clients[j], -nu * zeta, (r - 1) * nu)
            z[j] = r * theta_j - zeta
            after = after - r / n * (theta - theta_j)
        theta = after
    return theta


def by_card(problem, cohorts, strong_convexity, momentum):
    """The accelerated form."""
    clients, n, nu, rho = problem.objectives, problem.num_clients, strong_convexity, momentum
    z = problem.start
    e, t, A, B = 0 * z, 1.0, np.zeros(n), np.ones(n)
    own_z, own_e = [z] * n, [e] * n
    for cohort in cohorts:
        p, K = len(cohort) / n, n / len(cohort)
        q = K * rho / (K * rho + 1 - rho)
        sigma = (1 - p / t) / (1 - p * p * q)
        r, k = K * (1 - q) * t / (1 - q * t), 1 - 1 / t
        chi = (1 - p) * q * t * sigma / (1 - q * t)
        a, b = p * q * t * sigma, (1 - p * q * t) * sigma
        theta, D = prox(problem, z + sigma * e, 1 / nu), 0 * z
        for j in cohort:
            z_j, e_j = own_z[j] + A[j] * own_e[j], B[j] * own_e[j]
            m = z_j - chi * e_j
            theta_j = minimiser(clients[j], -nu * (r * theta - m), (r - 1) * nu)
            delta = m + r * (theta_j - theta) - z_j - a * e_j
            own_z[j], own_e[j] = z_j + a * e_j + delta, b * e_j - k * delta
            D = D + delta / n
        z, e = z + a * e + D, b * e - k * D
        A, B = A + a * B, b * B
        A[cohort], B[cohort] = 0.0, 1.0
        h = p * (1 - q * t * t)
        t = (h + math.sqrt(h * h + 4 * t * t)) / 2
    return prox(problem, z + e, 1 / nu)


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
        Case(
            "regularizer in the clients", q6_l1, {**L1_06, **PAPER}, 1000, 0, 1e-10, at_night=True
        ),
        Case("regularizer at the server", q6_l1, L1_06, 100, 0, 2e-11),
        Case("accelerated form", q6, {**ONE, **FAST}, 200, 0, 4e-15),
        Case("accelerated form, after 50", q6, {**ONE, **FAST}, 50, **about(1.3424e-7, 1e-3)),
        Case("the same without rho", q6, {**PLAIN, **FAST}, 50, **about(2.9885e-9, 1e-3)),
    ],
    sampled=[
        Case("half", q6, {**ONE, **HALF}, 600, 0, 4e-15),
        sampled(Sample(count=1), high=4e-15),
        sampled(Bernoulli(0.5), high=4e-15),
        sampled(Bernoulli(0.2), high=4e-15),
        sampled(Sample(count=2), q6_l1, L1_06, 300, 2e-11),
        Case("block form", q6, {**ONE, **HALF, **BLOCK}, 1000, 0, 4e-15),
        replace(sampled(Bernoulli(0.4), q6_l1, {**L1_06, **BLOCK}, 1000, 1e-10), at_night=True),
    ],
    first_rounds=[
        dualfl,
        dualfl_momentum,
        dualfl_regularizer,
        accelerated,
        accelerated_sampled,
        accelerated_regularizer,
    ],
    loops=[
        Loop("accelerated", away, {**ONE, "momentum": 0.05}, by_card),
        Loop("without rho", away, PLAIN, by_card),
        Loop("composite", away_l1, {**ONE, "momentum": 0.05}, by_card),
        Loop("block", away, {**ONE, **BLOCK}, block_by_card),
    ],
    small=ONE,
    oracle="regularizer",
    lost="heals",
    invariant=invariant,
)
