"""Local solvers: against closed forms and the reference, their counts, and what they refuse."""

import gc
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import q6_objectives

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import (
    LeastSquares,
    LogisticRegression,
    Quadratic,
    Scaled,
    SoftmaxRegression,
)
from flower_fedcon.problems import digits, reference
from flower_fedcon.regularizers import L1, ElasticNet, Indicator, Zero
from flower_fedcon.sets import L1Ball, L2Ball
from flower_fedcon.solvers import (
    AOGM,
    LBFGS,
    Exact,
    GradientDescent,
    LocalProblem,
    as_solver,
    exact,
    gap_tolerance,
)
from flower_fedcon.wire import settings as specs

SMOOTH = [
    Exact(),
    AOGM(),
    AOGM(restart="function"),
    AOGM(restart=None),
    AOGM(backtracking=False),
    AOGM(over_step=False),
    GradientDescent(tolerance=1e-11),
    GradientDescent(tolerance=1e-11, steps=5000, lr=0.03),
    LBFGS(),
]
PROXIMAL = [s for s in SMOOTH if not isinstance(s, LBFGS)]


class Plain:
    """An objective with nothing but what is required, and no constants."""

    def __init__(self, objective):
        self.objective = objective
        self.values = self.gradients = 0

    def value(self, x):
        self.values += 1
        return self.objective.value(x)

    def gradient(self, x):
        self.gradients += 1
        return self.objective.gradient(x)


def logistic(m=500, d=60):
    """The problem whose counts are known."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m, d)) * np.logspace(0, -1.5, d)
    y = np.sign(X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(m))
    return LogisticRegression(X, y, l2=1e-2)


def softmax(dtype=np.float64, l2=0.05):
    rng = np.random.default_rng(3)
    A = rng.normal(size=(30, 6)).astype(dtype)
    return SoftmaxRegression(A, rng.integers(0, 3, 30), 3, l2=l2)


# --- the problem ----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.booleans(), st.booleans(), st.sampled_from([0.0, 0.7]), st.integers(0, 10**6), st.booleans()
)
def test_the_problem_is_what_it_says(linear, center, shift, seed, plain):
    rng = np.random.default_rng(seed)
    f = softmax()
    x, z, c = rng.normal(size=(3, 6, 3))
    h = LocalProblem(
        Plain(f) if plain else f,
        x,
        linear=z if linear else None,
        shift=shift,
        center=c if center else None,
    )
    away = x - c if center else x
    value = f.value(x) + linear * np.vdot(z, x) + shift / 2 * np.vdot(away, away)
    gradient = f.gradient(x) + linear * z + shift * away
    assert h.value(x) == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(h.gradient(x), gradient, rtol=1e-12)
    both = h.evaluate(x)
    assert both[0] == h.value(x) or both[0] == pytest.approx(h.value(x), rel=1e-14)
    np.testing.assert_allclose(both[1], gradient, rtol=1e-12)
    assert both[2] >= abs(both[0])
    if not plain:
        assert h.smoothness == f.smoothness + shift
        assert h.strong_convexity == f.strong_convexity + shift
    else:
        assert h.smoothness is h.strong_convexity is None


@pytest.mark.parametrize(
    ("words", "settings_"),
    [
        ("shift", {"shift": -1.0}),
        ("shift", {"shift": math.nan}),
        ("linear", {"linear": np.zeros(3)}),
        ("center", {"center": np.zeros((2, 1))}),
    ],
)
def test_problems_that_do_not_fit(words, settings_):
    with pytest.raises(ConfigError, match=words):
        LocalProblem(Quadratic(np.eye(2), np.zeros(2)), np.zeros(2), **settings_)


# --- closed forms ---------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["quadratic", "tall", "wide", "trace"]),
    st.sampled_from([1.0, 0.3, 2.5]),
    st.sampled_from([1e-3, 1.0, 40.0]),
    st.integers(0, 10**6),
)
def test_closed_forms(kind, factor, shift, seed):
    rng = np.random.default_rng(seed)
    m, d = (4, 9) if kind == "wide" else (12, 6)
    A, b = rng.normal(size=(m, d)), rng.normal(size=m)
    if kind == "quadratic":
        f, hessian, right = Quadratic(A.T @ A, A.T @ b), A.T @ A, A.T @ b
    else:
        shape = (m, 2, 3) if kind == "trace" else (m, d)
        f = LeastSquares(A.reshape(shape), b, scale=1.7)
        hessian, right = 1.7 / m * A.T @ A, 1.7 / m * A.T @ b
    if factor != 1:
        f = Scaled(Scaled(f, factor / 2), 2.0)
    z, c, start = rng.normal(size=(3, d))
    want = np.linalg.solve(
        factor * hessian + shift * np.eye(d), factor * right - z + shift * c
    ).reshape(f.shape)
    z, c, start = (a.reshape(f.shape) for a in (z, c, start))
    found = Exact().solve(LocalProblem(f, start, linear=z, shift=shift, center=c))
    # Both lose the digits of the condition number.
    condition = np.linalg.cond(factor * hessian + shift * np.eye(d))
    np.testing.assert_allclose(found.x, want, atol=1e-14 * condition * np.abs(want).max())
    assert found.converged
    assert found.iterations <= 4


def test_factors_are_kept_and_let_go():
    exact._factors.clear()
    f = Quadratic(np.diag([1.0, 2.0]), np.ones(2))
    for shift in (1.0, 2.0, 1.0, *range(3, 20)):
        Exact().solve(LocalProblem(Scaled(f, 0.5), np.zeros(2), shift=shift))
        assert len(exact._factors[f]) <= 4
    inverse = exact._inverse_hessian(LocalProblem(Scaled(f, 0.5), np.zeros(2), shift=19))
    again = exact._inverse_hessian(LocalProblem(Scaled(f, 0.5), np.ones(2), shift=19))
    assert inverse is again
    del f
    gc.collect()
    assert len(exact._factors) == 0


def test_exact_where_the_closed_form_is_not_one():
    # Singular, but with a minimiser: the iterations find one.
    singular = Quadratic(np.diag([1.0, 0.0]), np.array([2.0, 0.0]))
    found = Exact().solve(LocalProblem(singular, np.array([0.0, 5.0])))
    np.testing.assert_allclose(found.x, [2.0, 5.0], atol=1e-12)
    rng = np.random.default_rng(0)
    wide = LeastSquares(rng.normal(size=(3, 6)), rng.normal(size=3))
    found = Exact().solve(LocalProblem(wide, np.zeros(6)))
    assert found.converged
    np.testing.assert_allclose(found.x, np.linalg.pinv(wide.rows) @ wide.b, atol=1e-10)
    # A subclass may have another value: it is not taken for its base.

    class Shifted(Quadratic):
        def gradient(self, x):
            return super().gradient(x) + 1

        def value(self, x):
            return super().value(x) + float(x.sum())

    found = Exact().solve(LocalProblem(Shifted(np.eye(2), np.zeros(2)), np.zeros(2)))
    np.testing.assert_allclose(found.x, -1, atol=1e-11)


@pytest.mark.parametrize("solver", [Exact(), AOGM(), GradientDescent(tolerance=1e-9, lr=1.0)])
def test_unbounded_problems_are_told(solver):
    f = Quadratic(np.diag([1.0, -3.0]), np.zeros(2))
    with pytest.raises(FedConError, match="diverged"):
        solver.solve(LocalProblem(f, np.ones(2)))


# --- iterative solvers ----------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SMOOTH, ids=repr)
@pytest.mark.parametrize("plain", [False, True])
def test_smooth_problems_are_solved(solver, plain):
    f = softmax()
    rng = np.random.default_rng(5)
    z, c = rng.normal(size=(2, 6, 3))
    kept = [a.copy() for a in (z, c)]
    start = np.zeros((6, 3))
    want = Exact().solve(LocalProblem(f, start, linear=z, shift=1.5, center=c)).x
    problem = LocalProblem(Plain(f) if plain else f, start, linear=z, shift=1.5, center=c)
    if plain and solver == AOGM(backtracking=False):
        with pytest.raises(ConfigError, match="states its smoothness"):
            solver.solve(problem)
        return
    found = solver.solve(problem)
    assert found.converged
    np.testing.assert_allclose(found.x, want, atol=1e-9)
    np.testing.assert_allclose(problem.gradient(found.x), 0, atol=1e-8)
    again = solver.solve(problem)
    assert again.x.tobytes() == found.x.tobytes()
    assert again[1:] == found[1:]
    assert not start.any()
    assert all(np.array_equal(a, b) for a, b in zip((z, c), kept, strict=True))


@pytest.mark.parametrize("solver", PROXIMAL, ids=repr)
@pytest.mark.parametrize(
    "psi",
    [L1(0.3), ElasticNet(0.2, 0.5), Indicator(L2Ball(0.5)), Indicator(L1Ball(0.8))],
    ids=repr,
)
def test_composite_problems_are_solved(solver, psi):
    f = q6_objectives()[0]
    problem = LocalProblem(f, np.ones(8), regularizer=psi)
    want = reference.solve([f], psi, np.zeros(8), tolerance=1e-12)
    found = solver.solve(problem)
    assert found.converged
    np.testing.assert_allclose(found.x, want.x, atol=1e-10)
    if isinstance(psi, L1):
        assert np.array_equal(found.x == 0, want.x == 0)


def test_a_zero_regularizer_is_none():
    f = q6_objectives()[0]
    found = Exact().solve(LocalProblem(f, np.zeros(8), regularizer=Zero()))
    assert found.iterations == 1
    assert LBFGS().solve(LocalProblem(f, np.zeros(8), regularizer=Zero())).converged
    with pytest.raises(ConfigError, match="LBFGS cannot solve a problem with L1"):
        LBFGS().solve(LocalProblem(f, np.zeros(8), regularizer=L1(1.0)))


@pytest.mark.parametrize("solver", SMOOTH, ids=repr)
def test_float32_stays(solver):
    problem = LocalProblem(softmax(np.float32), np.zeros((6, 3), np.float32), shift=1.0)
    found = solver.solve(problem)
    assert found.x.dtype == np.float32
    want = Exact().solve(LocalProblem(softmax(), np.zeros((6, 3)), shift=1.0)).x
    np.testing.assert_allclose(found.x, want, atol=2e-5)
    A, b = np.random.default_rng(0).normal(size=(2, 5, 5)).astype(np.float32)
    least = LeastSquares(A, b[0])
    found = Exact().solve(LocalProblem(least, np.zeros(5, np.float32), shift=1.0))
    assert found.x.dtype == np.float32
    assert found.converged


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_tight_whatever_the_scale_of_the_values(scale):
    # Large terms that cancel: values are then no guide, and steps must not shrink away.
    f = LogisticRegression(np.random.default_rng(0).normal(size=(40, 5)), np.ones(40), l2=1.0)
    c = scale * np.ones(5)
    found = Exact().solve(LocalProblem(f, np.zeros(5), linear=-1e3 * c, shift=1e3, center=-c))
    assert found.converged
    assert found.iterations < 200
    assert np.abs(found.x).max() < 1


def test_a_solution_is_a_copy():
    f = Quadratic(np.eye(2), np.ones(2))
    for solver in SMOOTH:
        start = np.ones(2)
        found = solver.solve(LocalProblem(f, start))
        assert found.x is not start
        np.testing.assert_allclose(found.x, 1)


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


# --- names, parameters, travel --------------------------------------------------------------------


def test_solvers_by_name():
    assert as_solver("exact") == Exact()
    assert as_solver("aogm") == AOGM()
    assert as_solver("lbfgs") == LBFGS()
    assert isinstance(as_solver("gradient"), GradientDescent)
    own = GradientDescent(steps=3)
    assert as_solver(own) is own
    with pytest.raises(ConfigError, match="unknown local solver 'exakt': did you mean 'exact'"):
        as_solver("exakt")
    with pytest.raises(ConfigError, match=r"pass an instance, such as AOGM\(\)"):
        as_solver(AOGM)
    with pytest.raises(ConfigError, match="a local solver is a name"):
        as_solver(3)


@pytest.mark.parametrize(
    ("kind", "settings_", "words"),
    [
        (AOGM, {"tolerance": 0.0}, "tolerance"),
        (AOGM, {"max_iterations": 0}, "max_iterations"),
        (AOGM, {"restart": "never"}, "restart"),
        (AOGM, {"rule": "gap"}, "rule"),
        (AOGM, {"first_step": -1.0}, "first_step"),
        (AOGM, {"first_step": 1.0, "backtracking": False}, "first_step"),
        (GradientDescent, {}, "steps, tolerance"),
        (GradientDescent, {"steps": 0}, "steps"),
        (GradientDescent, {"tolerance": math.inf}, "tolerance"),
        (GradientDescent, {"steps": 3, "lr": 0.0}, "lr"),
        (LBFGS, {"tolerance": -1.0}, "tolerance"),
        (LBFGS, {"max_iterations": 1.5}, "max_iterations"),
    ],
)
def test_parameters_that_cannot_be(kind, settings_, words):
    with pytest.raises(ConfigError, match=words):
        kind(**settings_)


@pytest.mark.parametrize("solver", SMOOTH, ids=repr)
def test_solvers_travel(solver):
    text, arrays = specs.encode({"local_solver": solver})
    assert not arrays
    assert specs.decode(text, arrays)["local_solver"] == solver


def test_nothing_else_of_the_module_can_be_named():
    for name in ("LocalProblem", "Solution", "Rules", "Sparse", "Quantized"):
        assert name not in specs.registered()


# --- speed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("psi", [None, L1(1e-3)], ids=repr)
def test_label_skewed_digits(psi):
    # A client with two labels, which its data alone would separate.
    f = digits(l2=1e-3).objectives[0]
    start = time.perf_counter()
    found = Exact().solve(LocalProblem(f, np.zeros((65, 10)), regularizer=psi))
    assert time.perf_counter() - start < 3
    assert found.converged
    assert found.iterations < 500
    want = reference.solve([f], psi or Zero(), np.zeros((65, 10)), tolerance=1e-10)
    np.testing.assert_allclose(found.x, want.x, atol=1e-6)


def test_quadratics_are_cheap():
    f = q6_objectives()[0]
    Exact().solve(LocalProblem(f, np.zeros(8), shift=1.0))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(200):
            Exact().solve(LocalProblem(f, np.zeros(8), shift=1.0))
        best = min(best, time.perf_counter() - start)
    assert best / 200 < 3e-4  # some 20 microseconds on an idle machine
