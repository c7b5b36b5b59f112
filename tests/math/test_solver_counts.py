"""How much work local solvers do, and when they stop."""

import math

import numpy as np
import pytest
from problems import q6_objectives
from solver_cases import Plain, logistic

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import (
    AOGM,
    LBFGS,
    Exact,
    GradientDescent,
    LocalProblem,
    gap_tolerance,
)

# --- counts ---------------------------------------------------------------------------------------


def test_aogm_counts():
    f = logistic()
    problem = LocalProblem(f, np.zeros(60))
    found = AOGM(rule="energy", first_step=1.0).solve(problem)
    assert (found.iterations, found.trials) == (pytest.approx(39, abs=1), pytest.approx(48, abs=1))
    assert found.gradient_norm == pytest.approx(5e-8, rel=0.25)
    assert found.gradient_norm == pytest.approx(np.linalg.norm(f.gradient(found.x)), rel=1e-9)
    without = AOGM(rule="energy", first_step=1.0, restart=None).solve(problem)
    nesterov = AOGM(rule="energy", first_step=1.0, over_step=False).solve(problem)
    assert without.iterations == pytest.approx(104, rel=0.25)
    assert nesterov.iterations == pytest.approx(41, rel=0.25)
    # From 1/L, the default, it takes fewer.
    assert AOGM(rule="energy").solve(problem).iterations == pytest.approx(34, abs=2)


def test_restarts_pay_in_the_long_run():
    problem = LocalProblem(logistic(), np.zeros(60))
    count = {r: AOGM(restart=r).solve(problem).iterations for r in ("gradient", "function", None)}
    assert count["gradient"] < 100
    assert count["gradient"] <= count["function"] < count[None]
    plain = GradientDescent(tolerance=1e-12).solve(problem)
    assert plain.converged
    assert plain.iterations > 4 * count["gradient"]


def test_evaluations_are_those_made():
    f = Plain(logistic())
    for solver in (Exact(), AOGM(rule="energy"), GradientDescent(steps=7), LBFGS()):
        f.gradients = 0
        assert solver.solve(LocalProblem(f, np.zeros(60))).evaluations == f.gradients, solver


def test_a_fixed_number_of_steps():
    f = q6_objectives()[0]
    x = np.zeros(8)
    for _ in range(5):
        x = x - 0.04 * f.gradient(x)
    counted = Plain(f)
    found = GradientDescent(steps=5, lr=0.04).solve(LocalProblem(counted, np.zeros(8)))
    assert found.x.tobytes() == x.tobytes()
    assert (counted.gradients, counted.values) == (5, 0)
    assert found.converged
    capped = GradientDescent(steps=5, tolerance=1e-9).solve(LocalProblem(f, np.zeros(8)))
    assert not capped.converged
    assert capped.iterations == 5
    assert not AOGM(max_iterations=3).solve(LocalProblem(f, np.zeros(8))).converged
    assert not LBFGS(max_iterations=3).solve(LocalProblem(f, np.zeros(8))).converged


def test_a_tolerance_out_of_reach_ends():
    # The gradients are wrong by 1e-6 at random: no step can bring them below.
    rng = np.random.default_rng(0)

    class Noisy(Plain):
        def gradient(self, x):
            return super().gradient(x) + 1e-6 * rng.normal(size=x.shape)

    found = Exact().solve(LocalProblem(Noisy(q6_objectives()[0]), np.zeros(8)))
    assert not found.converged
    assert found.iterations < 5000
    assert found.gradient_norm < 1e-4


# --- stopping tests -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver",
    [Exact(), AOGM(), GradientDescent(tolerance=1e-12), GradientDescent(steps=9999), LBFGS()],
)
def test_stop(solver):
    nu, tolerance = 1e-2, 1e-5
    problem = LocalProblem(logistic(), np.zeros(60), linear=np.full(60, 1e-3))
    full = solver.solve(problem)
    seen = []

    def gap(x, gradient):
        seen.append((x.copy(), gradient.copy()))
        return float(np.vdot(gradient, gradient)) / (2 * nu) <= tolerance

    found = solver.solve(problem, stop=gap)
    assert found.converged
    assert found.iterations < full.iterations
    assert gap(found.x, problem.gradient(found.x))
    x, gradient = seen[len(seen) // 2]
    np.testing.assert_allclose(gradient, problem.gradient(x), rtol=1e-9, atol=1e-15)


def test_stop_with_a_regularizer_sees_a_subgradient():
    f, psi = q6_objectives()[0], L1(0.3)
    problem = LocalProblem(f, np.ones(8), regularizer=psi)
    passed = []

    def stop(x, subgradient):
        small = float(np.linalg.norm(subgradient)) <= 1e-3
        if small:
            passed.append((x, subgradient))
        return small

    found = AOGM().solve(problem, stop=stop)
    x, subgradient = passed[-1]
    assert x is found.x
    length = np.linalg.norm(subgradient)
    assert psi.subdifferential_distance(x, f.gradient(x)) <= length * (1 + 1e-9) <= 1e-3
    q = (subgradient - f.gradient(x)) / 0.3  # of ||.||_1
    assert np.abs(q).max() <= 1 + 1e-12
    np.testing.assert_allclose(q[x != 0], np.sign(x[x != 0]))
    assert found.iterations < AOGM().solve(problem).iterations


def test_gap_tolerance():
    common = {"num_clients": 5, "strong_convexity": 0.2}
    for n in range(4):
        ratio = (1 - math.sqrt(0.04)) / 1.1
        assert gap_tolerance(n, momentum=0.04, **common) == pytest.approx(ratio**n / 5)
        want = 1 / (5 * 0.2 * (n + 1) ** 4.3)
        assert gap_tolerance(n, momentum=0.0, gamma=0.3, **common) == pytest.approx(want)
    assert gap_tolerance(10**6, momentum=0.5, **common) == 0.0
    for wrong in ({"momentum": 1.1}, {"momentum": -0.1}, {"momentum": 0.1, "gamma": 0.0}):
        with pytest.raises(ConfigError, match=r"momentum|gamma"):
            gap_tolerance(1, **common, **wrong)


def test_the_gap_rule_inside_dualfl():
    # Measured: 1.4e-6, 5.5e-11, 5e-15 after 50, 100, 150 rounds, and 3,576 inner steps.
    objectives, nu, rho = q6_objectives(), 1.0, 1 / 20
    optimum = np.linalg.solve(sum(f.Q for f in objectives), sum(f.b for f in objectives))
    solver = GradientDescent(tolerance=1e-14)
    model, t, beta, steps, errors = np.zeros(8), 1.0, 0.0, 0, []
    zeta, before, local, sent = np.zeros((4, 6, 8))
    for n in range(150):
        if n:
            now = zeta + model - sent
            zeta, before = (1 + beta) * now - beta * before, now
        tolerance = gap_tolerance(n, num_clients=6, strong_convexity=nu, momentum=rho)
        for j, f in enumerate(objectives):
            problem = LocalProblem(f, local[j], linear=-nu * zeta[j])
            found = solver.solve(problem, stop=lambda _, g, tol=tolerance: g @ g / (2 * nu) <= tol)
            steps += found.iterations
            local[j], sent[j] = found.x, found.x - problem.gradient(found.x) / nu
        model = sent.mean(axis=0)
        following = (1 - rho * t**2 + math.sqrt((1 - rho * t**2) ** 2 + 4 * t**2)) / 2
        beta, t = (t - 1) / following * (1 - rho * following) / (1 - rho), following
        errors.append(float(np.linalg.norm(model - optimum)))
    assert errors[49] == pytest.approx(1.4e-6, rel=0.1)
    assert errors[99] == pytest.approx(5.5e-11, rel=0.1)
    assert errors[149] < 1e-14
    assert steps == pytest.approx(3576, rel=0.02)
