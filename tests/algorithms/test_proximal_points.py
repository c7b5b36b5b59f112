"""FedProx, FedExProx, S-DANE and FedProxAL: what the contract test does not say."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from harness import OpenRun
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import (
    HALF,
    Walled,
    one_minimiser,
    plain,
    q6,
    q6_shared,
    random_quadratics,
    two_limited,
    two_walls,
)

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.objectives import LogisticRegression, Quadratic
from flower_fedcon.problems.fitting import contenders
from flower_fedcon.regularizers import L1, Separable
from flower_fedcon.sets import HalfSpace
from flower_fedcon.strategies import SDANE, FedExProx, FedProx, FedProxAL

# --- FedProx and FedExProx ------------------------------------------------------------------------


def test_fedprox_ends_where_its_fixed_point_is():
    problem = q6()
    for mu in (1.0, 10.0):
        solved = [np.linalg.inv(f.Q + mu * np.eye(8)) for f in problem.objectives]
        system = np.eye(8) - mu * np.mean(solved, axis=0)
        shares = [s @ f.b for s, f in zip(solved, problem.objectives, strict=True)]
        fixed = np.linalg.solve(system, np.mean(shares, axis=0))
        x = simulate(FedProx(proximal=mu), problem, 500, evaluate_every=0).x
        assert x == pytest.approx(fixed, abs=1e-13)


@pytest.mark.parametrize("rule", ["diversity", "polyak"])
def test_without_a_shared_minimiser_fedexprox_caps_alpha_and_warns_once(rule, caplog):
    strategy = FedExProx(step_size=0.1, extrapolation=rule, max_extrapolation=50.0)
    with caplog.at_level(logging.WARNING):
        history = simulate(strategy, q6(), 60)
    assert history["extrapolation"].max() == 50
    assert "above max_extrapolation=50" in caplog.text
    assert caplog.text.count("share a minimiser") == 1


def test_the_infimum_given_to_fedexprox_is_the_one_that_clients_find():
    settings = {"step_size": 1.0, "extrapolation": "polyak"}
    found = simulate(FedExProx(**settings), one_minimiser(), 3).x
    given = simulate(FedExProx(**settings, infimum=0.0), one_minimiser(), 3).x
    assert found.tobytes() == given.tobytes() == np.array([0.125]).tobytes()
    # a bound that is too low makes longer steps
    lower = simulate(FedExProx(**settings, infimum=-1.0), one_minimiser(), 1).x
    assert lower == pytest.approx(1 - (7 / 24 + 1) / (49 / 144) * 7 / 12)


@pytest.mark.parametrize(
    ("participation", "alpha"),
    [
        # envelopes 1/2 and 3/4 (gamma = 1, L = 1 and 3), mean 5/8
        (None, 8 / 5),
        (Sample(count=2), 8 / 5),
        (Sample(count=1), 4 / 3),
        (Bernoulli(0.5), 4 / 3),
    ],
)
def test_the_constant_alpha_of_fedexprox_follows_the_size_of_cohorts(participation, alpha):
    clients = [Quadratic([[q]], [q]) for q in (1.0, 3.0)]
    strategy = FedExProx(step_size=1.0, participation=participation)
    history = simulate(strategy, FederatedProblem(clients), 1)
    assert history["extrapolation"] == pytest.approx([alpha], rel=1e-15)


def test_fedexprox_s_values_that_drown_in_rounding_give_way_to_diversity():
    """Else the error stalls near 1e-8, the square root of the rounding of M_i - inf f_i."""
    history = simulate(
        FedExProx(step_size=0.1, extrapolation="polyak"), q6_shared(), 200, evaluate_every=0
    )
    assert np.linalg.norm(history.x - q6().optimum.x) < 1e-15


def test_fedexprox_by_diversity_needs_no_smoothness():
    problem = FederatedProblem([plain(lambda x: float(x @ x), lambda x: 2 * x)], x0=np.ones(2))
    found = simulate(FedExProx(step_size=1.0, extrapolation="diversity"), problem, 40).x
    assert found == pytest.approx(np.zeros(2), abs=1e-12)


# --- S-DANE ---------------------------------------------------------------------------------------


def dissimilarity(problem):
    """Return delta of quadratics: the largest eigenvalue of the mean (Q_i - Q)^2, its root."""
    matrices = np.stack([f.Q for f in problem.objectives])
    apart = matrices - matrices.mean(0)
    return math.sqrt(np.linalg.eigvalsh((apart @ apart).mean(0)).max())


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["plain", "accelerated"]), st.booleans())
def test_the_theorem_of_sdane_holds(seed, form, relative):
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


def test_alpha_of_sdane_is_a_over_b_of_the_program():
    mu, lam, rounds = 0.7, 3.0, 8
    run = OpenRun(SDANE(form="accelerated", proximal=lam, strong_convexity=mu), q6())
    A, B = 0.0, 1.0
    for _ in range(rounds):
        a = B / (2 * lam) + math.sqrt(B**2 / (4 * lam**2) + A * B / lam)
        A, B = A + a, B + mu * a
        run.play(2)
        assert run.state.alpha == pytest.approx(A / B, rel=1e-13)


def test_exact_and_plain_sdane_is_dane():
    """v = x, also of a cohort: x is the mean of DANE's solutions about itself."""
    run = OpenRun(SDANE(form="plain", proximal=4.0, **HALF), q6())
    for _ in range(4):
        run.play(2)
        np.testing.assert_allclose(run.state.v, run.state.x, atol=1e-13)


def test_a_pair_of_rounds_of_sdane_has_one_cohort():
    run = OpenRun(SDANE(participation=Sample(count=2)), q6())
    cohorts = [run.server.strategy.cohort(number) for number in range(1, 41)]
    assert cohorts[::2] == cohorts[1::2]
    assert len({tuple(cohort) for cohort in cohorts}) > 5


def test_a_loose_local_solve_costs_sdane_fewer_gradients():
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


def test_races_know_that_sdane_needs_everyone():
    problem = q6()
    for rule, listed in ((Full(), True), (Sample(count=3), False)):
        setup = Setup.of(LocalEngine(problem).describe(), 9, problem.layout, rule, 0)
        found, others = contenders(problem, rule, setup)
        assert ("S-DANE" in [method.title for method in found]) is listed
        assert ("SDANE" in others) is not listed


# --- FedProxAL ------------------------------------------------------------------------------------


def test_second_round_of_fedproxal():
    # w = 1/7.  1: u - 2 + u - .5 + (u - 1)/3 + .5 + u - 1/7 = 0: u = 26/35, z = 129/70
    # 2: (u + 1)/2 + 9u - 7.5 + (u - 1)/3 - 2.5 + u - 1/7 = 0: u = 419/455, z = 773/455 - 5/2
    problem = FederatedProblem(two_limited().objectives, x0=np.ones(1), constraints="each")
    found = simulate(FedProxAL(penalty=1.0, coupling=1.0), problem, 2).x
    assert found == pytest.approx([1877 / 3185], rel=1e-10)


def test_multipliers_of_fedproxal_are_those_of_the_optimum():
    run = OpenRun(FedProxAL(penalty=10.0, coupling=1.0), two_walls()).play(400)
    assert run.x == pytest.approx([0.5, 1.0], abs=2e-4)
    assert run.state.multipliers == pytest.approx([0.75, 0.5], abs=1e-2)
    report = run.server.strategy.report(run.state)
    assert report["stage"] > 3
    assert abs(report["worst_constraint"]) < 1e-3


def test_fedproxal_binds_no_client_without_a_constraint_and_psi_is_the_servers():
    """x^2/2 - 3x and x^2/2 - x, with |x|/2: 1.5; the second client demands x <= 1."""
    clients = [Quadratic([[1.0]], [3.0]), Walled(Quadratic([[1.0]], [1.0]), [1.0], 1.0)]
    psi = L1(0.5)
    for objectives, x, kind in ((clients[:1] * 2, 2.5, "mean"), (clients, 1.0, "each")):
        problem = FederatedProblem(objectives, regularizer=psi, constraints=kind)
        found = simulate(FedProxAL(psi, coupling=0.5), problem, 300).x
        assert found == pytest.approx([x], abs=1e-3)


class Lifted:
    """f_j of [w, z], with c_j(w) - z_j."""

    def __init__(self, objective, j):
        self.objective, self.j, self.shape = objective, j, [(1,), (2,)]

    def value(self, x):
        return self.objective.value(x[0])

    def gradient(self, x):
        return [self.objective.gradient(x[0]), np.zeros(2)]

    def constraint_value(self, x):
        return self.objective.constraint_value(x[0]) - x[1][self.j]

    def constraint_gradient(self, x):
        return [self.objective.constraint_gradient(x[0]), -np.eye(2)[self.j]]


def test_a_shared_constraint_of_fedproxal_is_each_client_s_with_numbers_that_sum_to_0():
    """F = (3/4) x^2 - (3/2) x, 1 if it were free, with x - .5 + 3x - 2.5 <= 0: 3/4."""
    psi = Separable([(None, (1,)), (HalfSpace(np.ones(2), 0.0), (2,))])
    clients = [Lifted(f, j) for j, f in enumerate(two_limited().objectives)]
    start = [np.zeros(1), np.zeros(2)]
    problem = FederatedProblem(clients, regularizer=psi, constraints="each", x0=start)
    x, z = simulate(FedProxAL(psi, coupling=1.0), problem, 150).x
    assert x == pytest.approx([0.75], abs=1e-3)
    assert z == pytest.approx([0.25, -0.25], abs=1e-3)
