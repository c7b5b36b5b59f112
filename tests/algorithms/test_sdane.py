"""S-DANE: what the contract test does not say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from harness import OpenRun
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import HALF, q6, random_quadratics

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.problems.fitting import contenders
from flower_fedcon.strategies import SDANE


def dissimilarity(problem):
    """Return delta of quadratics: the largest eigenvalue of the mean (Q_i - Q)^2, its root."""
    matrices = np.stack([f.Q for f in problem.objectives])
    apart = matrices - matrices.mean(0)
    return math.sqrt(np.linalg.eigvalsh((apart @ apart).mean(0)).max())


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["plain", "accelerated"]), st.booleans())
def test_the_theorem_holds(seed, form, relative):
    """At the smallest lambda that it allows, and after every pair of rounds."""
    problem = FederatedProblem(random_quadratics(seed))
    delta, x = dissimilarity(problem), problem.optimum.x
    lam, how = delta / math.sqrt(2), {}
    if relative:
        lam, how = 2 * delta, {"stopping": "relative", "local_solver": "aogm"}
    mu = min(f.strong_convexity for f in problem.objectives)
    run = OpenRun(SDANE(form=form, proximal=lam, strong_convexity=mu, **how), problem)
    start = float(np.sum((problem.start - x) ** 2))
    for k in range(1, 9):
        run.play(2)
        if form == "plain":
            found, bound = np.sum((run.state.v - x) ** 2), start / (1 + mu / lam) ** k
        else:
            found = problem.objective(run.state.x) - problem.optimum.value
            bound = lam * start / 2 * min((1 + math.sqrt(mu / lam)) ** (1 - k), 4 / k**2)
        assert found <= bound * (1 + 1e-9) + 1e-13


def test_alpha_is_a_over_b_of_the_program():
    mu, lam, rounds = 0.7, 3.0, 8
    run = OpenRun(SDANE(form="accelerated", proximal=lam, strong_convexity=mu), q6())
    A, B = 0.0, 1.0
    for _ in range(rounds):
        a = B / (2 * lam) + math.sqrt(B**2 / (4 * lam**2) + A * B / lam)
        A, B = A + a, B + mu * a
        run.play(2)
        assert run.state.alpha == pytest.approx(A / B, rel=1e-13)


def test_exact_and_plain_it_is_dane():
    """v = x, also of a cohort: x is the mean of DANE's solutions about itself."""
    run = OpenRun(SDANE(form="plain", proximal=4.0, **HALF), q6())
    for _ in range(4):
        run.play(2)
        np.testing.assert_allclose(run.state.v, run.state.x, atol=1e-13)


def test_a_pair_of_rounds_has_one_cohort():
    run = OpenRun(SDANE(participation=Sample(count=2)), q6())
    cohorts = [run.server.strategy.cohort(number) for number in range(1, 41)]
    assert cohorts[::2] == cohorts[1::2]
    assert len({tuple(cohort) for cohort in cohorts}) > 5


def test_a_loose_local_solve_costs_fewer_gradients():
    rng = np.random.default_rng(0)
    tables = [(rng.standard_normal((20, 5)), np.sign(rng.standard_normal(20))) for _ in range(4)]
    problem = FederatedProblem([LogisticRegression(A, y, l2=0.1) for A, y in tables])
    spent = {}
    for stopping in ("solver", "relative"):
        strategy = SDANE(proximal=1.0, stopping=stopping, local_solver="aogm")
        history = simulate(strategy, problem, 60, evaluate_every=0)
        assert history["objective"][-1] - problem.optimum.value < 1e-9
        spent[stopping] = history["gradients"][-1]
    assert spent["relative"] < spent["solver"] / 2


def test_everyone_reaches_the_optimum_and_cohorts_a_floor_so_that_races_know():
    problem = q6()
    for rule, listed in ((Full(), True), (Sample(count=3), False)):
        setup = Setup.of(LocalEngine(problem).describe(), 9, problem.layout, rule, 0)
        found, others = contenders(problem, rule, setup)
        assert ("S-DANE" in [method.title for method in found]) is listed
        assert ("SDANE" in others) is not listed
