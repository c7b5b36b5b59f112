"""What FastFedDA, CFedDA and MCFedDA keep true, and the variants that they are not."""

from __future__ import annotations

from functools import cache

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from harness import OpenRun
from problems import q6_l1

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.regularizers import (
    L1,
    L2Squared,
)
from flower_fedcon.regularizers.constrained import constrained_prox
from flower_fedcon.strategies import CFedDA, FastFedDA, MCFedDA

MU, GAMMA = 1.0, 100.0
STEPS = {"strong_convexity": MU, "damping": GAMMA, "local_steps": 5}


@cache
def q6_l1_optimum():
    """The minimiser to rounding: proximal gradient from the reference's."""
    problem = q6_l1()
    x = problem.optimum.x
    for _ in range(2000):
        x = problem.regularizer.prox(x - problem.gradient(x) / 20, 1 / 20)
    return x


def error(x):
    return float(np.linalg.norm(x - q6_l1_optimum()))


# --- the formulas of the paper, with G, W and w_0 apart -------------------------------------------


def fast_in_full(rounds, k_steps, *, strong=MU / 2, twice=False):
    """FastFedDA as printed; `twice` counts the server's step beside the client's last one."""
    problem = q6_l1()
    w = w_0 = problem.start
    G, W = np.zeros(8), w_0

    def prox_step(g, u, t):
        b = strong + GAMMA / t
        a = (g - strong * u - GAMMA * w_0) / t
        return problem.regularizer.prox(-a / b, 1 / b)

    for r in range(1, rounds + 1):
        uploads = []
        for f in problem.objectives:
            v, g, u = w, G, W
            for k in range(1, k_steps + 1):
                t = (r - 1) * k_steps + k
                g = g + f.gradient(v)
                if k < k_steps or twice:
                    v = prox_step(g, u, t)
                    u = u + v
            uploads.append((g, u))
        G, W = np.mean(uploads, axis=0)
        w = prox_step(G, W, r * k_steps)
        W = W + w
    return w


def constrained_in_full(rounds, k_steps, radius):
    problem = q6_l1()
    psi = problem.regularizer
    w = w_0 = problem.start
    G, W = np.zeros(8), w_0

    def prox_step(g, r):
        A = r * k_steps
        b = MU / 2 + GAMMA / A
        a = g / A - MU / 2 * W / r - GAMMA * w_0 / A
        return constrained_prox(psi, -a / b, 1 / b, w_0, radius)

    for r in range(1, rounds + 1):
        uploads = []
        for f in problem.objectives:
            v, g = w, G
            for _ in range(k_steps):
                g = g + f.gradient(v)
                v = prox_step(g, r)
            uploads.append(g)
        G = np.mean(uploads, axis=0)
        w = prox_step(G, r)
        W = W + w
    return w, W / (rounds + 1)


@pytest.mark.parametrize("k_steps", [1, 5])
def test_fast_form_is_the_paper_s(k_steps):
    strategy = FastFedDA(L1(0.6), **{**STEPS, "local_steps": k_steps})
    found = simulate(strategy, q6_l1(), 150, evaluate_every=0).x
    assert found == pytest.approx(fast_in_full(150, k_steps), abs=1e-13)


def weighted_in_full(rounds, k_steps, q, a, gamma):
    """The weights of Remark 2.1, with G, U and their sum apart; return w and the average."""
    problem, t = q6_l1(), 0
    w = w_0 = problem.start
    G, U, total = np.zeros(8), np.zeros(8), 0.0

    def prox_step(g, u, total):
        b = MU / 2 + gamma / total
        return problem.regularizer.prox((MU / 2 * u - g + gamma * w_0) / total / b, 1 / b)

    for _ in range(rounds):
        uploads, start = [], (t, total)
        for f in problem.objectives:
            (t, total), v, g, u = start, w, G, U
            for k in range(1, k_steps + 1):
                t += 1
                alpha = (t + a) ** q
                total += alpha
                g, u = g + alpha * f.gradient(v), u + alpha * v
                if k < k_steps:
                    v = prox_step(g, u, total)
            uploads.append((g, u))
        G, U = np.mean(uploads, axis=0)
        w = prox_step(G, U, total)
    return w, U / total


@pytest.mark.parametrize(("q", "a"), [(0.0, 0.0), (1.0, 3.0), (2.0, None)])
def test_fast_form_with_weights(q, a):
    """The default is a = 2 q L/mu = 40 q and gamma = 5 L (1 + a)^q."""
    shift = 40 * q if a is None else a
    options = {"strong_convexity": MU, "local_steps": 5, "weight_power": q, "weight_shift": a}
    found = [simulate(FastFedDA(L1(0.6), **options, output=output), q6_l1(), 40, evaluate_every=0)
             for output in ("last", "average")]  # fmt: skip
    for history, expected in zip(
        found, weighted_in_full(40, 5, q, shift, 100 * (1 + shift) ** q), strict=True
    ):
        assert history.x == pytest.approx(expected, rel=1e-10, abs=1e-13)
    sent = [history["uplink_bytes"][-1] for history in found]
    assert sent[1] == 2 * sent[0]


def test_weights_forget_the_start():
    """After 300 rounds of one step: 1.2e-5 with alpha = 1, rounding with q = 2."""
    plain, weighted = (
        FastFedDA(L1(0.6), strong_convexity=MU, local_steps=1, weight_power=q) for q in (0, 2)
    )
    assert error(simulate(plain, q6_l1(), 300, evaluate_every=0).x) == pytest.approx(1.17e-5, 0.02)
    assert error(simulate(weighted, q6_l1(), 300, evaluate_every=0).x) < 1e-14


@pytest.mark.parametrize("radius", [0.1, 100.0])
def test_constrained_form_is_the_paper_s(radius):
    history = simulate(CFedDA(L1(0.6), **STEPS, radius=radius), q6_l1(), 50, evaluate_every=0)
    w, average = constrained_in_full(50, 5, radius)
    assert history.x == pytest.approx(w, abs=1e-13)
    assert history.outputs["average"] == pytest.approx(average, abs=1e-13)
    assert np.abs(average - w).max() > 1e-4


def test_exact_at_one_step():
    for kind in (FastFedDA, CFedDA):
        strategy = kind(L1(0.6), **{**STEPS, "local_steps": 1})
        assert error(simulate(strategy, q6_l1(), 2000, evaluate_every=0).x) < 3e-14


@pytest.mark.parametrize("kind", [FastFedDA, CFedDA])
def test_several_steps_come_near_like_1_over_t(kind):
    """At 20,000 rounds they are at 2.0e-4 and 2.3e-4."""
    strategy = kind(L1(0.6), strong_convexity=MU, local_steps=5)
    early, late = (error(simulate(strategy, q6_l1(), r, evaluate_every=0).x) for r in (1000, 3000))
    assert 2 < early / late < 3.5


# --- stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "lengths"), [(80, [10, 10, 60]), (5, [1, 1, 3])])
def test_default_stages(rounds, lengths):
    problem = q6_l1()
    run = OpenRun(MCFedDA(L1(0.6), strong_convexity=MU, local_steps=2), problem, rounds)
    seen = []
    for _ in range(rounds):
        seen.append(run.server.strategy.broadcast(run.state)["multiple"])
        run.play()
    assert [seen.count(multiple) for multiple in (4.0, 2.0, 1.0)] == lengths
    assert seen == sorted(seen, reverse=True)


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "multiple"), [(FastFedDA, 5), (CFedDA, 15), (MCFedDA, 15)])
def test_damping_comes_from_the_handshake(kind, multiple):
    problem = q6_l1()
    strategy = kind(L1(0.6), strong_convexity=MU, local_steps=3)
    smoothness = max(f.smoothness for f in problem.objectives)
    given = kind(L1(0.6), strong_convexity=MU, local_steps=3, damping=multiple * smoothness)
    found, expected = (simulate(s, problem, 20).x for s in (strategy, given))
    assert found.tobytes() == expected.tobytes()
    assert strategy.damping is None  # the caller's object stays as it is


def test_radius_of_a_squared_norm():
    objectives = [Quadratic(np.eye(2), np.array([3.0, 4.0]))]
    problem = FederatedProblem(objectives, regularizer=L2Squared(0.1))
    strategy = CFedDA(L2Squared(0.1), strong_convexity=1.0, local_steps=1, radius=2.0)
    found = simulate(strategy, problem, 300).x
    assert found == pytest.approx([1.2, 1.6], abs=1e-9)
