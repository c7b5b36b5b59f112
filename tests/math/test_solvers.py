"""Local solvers: their problem, closed forms, solutions against the reference, and refusals."""

import gc
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import q6_objectives
from solver_cases import PROXIMAL, SMOOTH, Plain, softmax

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import (
    LeastSquares,
    LogisticRegression,
    Quadratic,
    Scaled,
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
    factors,
)
from flower_fedcon.wire import settings as specs

# --- the problem ----------------------------------------------------------------------------------


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
    factors._kept.clear()
    f = Quadratic(np.diag([1.0, 2.0]), np.ones(2))
    for shift in (1.0, 2.0, 1.0, *range(3, 20)):
        Exact().solve(LocalProblem(Scaled(f, 0.5), np.zeros(2), shift=shift))
        assert len(factors._kept[f]) <= 4
    assert factors.inverses(Scaled(f, 0.5), 19) is factors.inverses(Scaled(f, 0.5), 19.0)
    del f
    gc.collect()
    assert len(factors._kept) == 0


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
    with pytest.raises(ConfigError, match="a local solver must be a name"):
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
