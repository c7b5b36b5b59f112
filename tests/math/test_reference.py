"""The reference solver, against scikit-learn, SciPy, closed forms and optimality conditions."""

from contextlib import nullcontext

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import ElasticNet as SkElasticNet
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression as SkLogistic

from flower_fedcon import compiled as loops
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import (
    LeastSquares,
    LogisticRegression,
    Quadratic,
    Scaled,
    SoftmaxRegression,
)
from flower_fedcon.problems.reference import solve
from flower_fedcon.regularizers import L1, ElasticNet, Indicator, L2Squared, Zero
from flower_fedcon.sets import Box, L1Ball, L2Ball, LInfBall, Simplex

rng = np.random.default_rng(0)
A = rng.normal(size=(60, 8))
b = A @ np.array([2.0, -1.0, 0.5, 0, 0, 0, 0, 0]) + 0.3 * rng.normal(size=60)
y = np.where(b > 0, 1, -1)
ZERO = np.zeros(8)
SPLITS = {"equal": [20, 40], "unequal": [10, 15]}


class Bare:
    """Only a value and a gradient."""

    def __init__(self, objective):
        self.value, self.gradient = objective.value, objective.gradient


def clients(kind, split, **options):
    target = {LeastSquares: b, LogisticRegression: y}.get(kind, (y > 0).astype(int))
    parts = zip(np.split(A, SPLITS[split]), np.split(target, SPLITS[split]), strict=True)
    return [kind(rows, t, **options) for rows, t in parts]


def mean_gradient(objectives, x):
    return sum(f.gradient(x) for f in objectives) / len(objectives)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", [LeastSquares, LogisticRegression, SoftmaxRegression])
@pytest.mark.parametrize(
    "psi",
    [
        Zero(),
        L2Squared(0.1),
        L1(0.05),
        ElasticNet(0.05, 0.1),
        Indicator(L1Ball(0.7)),
        Indicator(L2Ball(0.5)),
        Indicator(LInfBall(0.1)),
        Indicator(Box(-0.2, 0.3)),
        Indicator(Simplex(2.0)),
    ],
    ids=repr,
)
def test_every_path_finds_the_same_minimiser(kind, psi, split):
    options = {"num_classes": 2, "l2": 0.01} if kind is SoftmaxRegression else {}
    objectives = clients(kind, split, **options)
    x0 = np.zeros(objectives[0].shape)
    found = solve(objectives, psi, x0)
    start = np.linalg.norm(mean_gradient(objectives, x0))
    assert found.residual <= 1e-10 * max(1, start)
    gradient = mean_gradient(objectives, found.x)
    assert psi.subdifferential_distance(found.x, gradient) <= 1e-8
    value = sum(f.value(found.x) for f in objectives) / 3 + psi(found.x)
    assert found.value == pytest.approx(value, rel=1e-12)
    bare = solve([Bare(f) for f in objectives], psi, x0)
    assert bare.value == pytest.approx(found.value, rel=1e-10)
    np.testing.assert_allclose(bare.x, found.x, atol=1e-7)


def test_lasso_and_elastic_net_against_scikit_learn():
    parts = clients(LeastSquares, "equal")
    lasso = Lasso(alpha=0.05, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(A, b)
    np.testing.assert_allclose(solve(parts, L1(0.05), ZERO).x, lasso.coef_, atol=1e-8)
    net = SkElasticNet(alpha=0.1, l1_ratio=0.4, fit_intercept=False, tol=1e-14).fit(A, b)
    np.testing.assert_allclose(solve(parts, ElasticNet(0.04, 0.06), ZERO).x, net.coef_, atol=1e-8)


@pytest.mark.parametrize("share", ["psi", "objective"])
def test_logistic_regression_against_scikit_learn(share):
    weight = 1 / (60 * 2.0)  # C = 2
    model = SkLogistic(C=2.0, fit_intercept=False, tol=1e-12, solver="newton-cg").fit(A, y)
    if share == "psi":
        found = solve(clients(LogisticRegression, "equal"), L2Squared(weight), ZERO)
    else:
        found = solve(clients(LogisticRegression, "equal", l2=weight), Zero(), ZERO)
    np.testing.assert_allclose(found.x, model.coef_[0], atol=1e-6)
    assert found.method.startswith("l-bfgs")


def test_an_l1_ball_against_slsqp():
    found = solve(clients(LeastSquares, "equal"), Indicator(L1Ball(1.5)), ZERO)

    def cost(z):  # x = z+ - z-
        r = A @ (z[:8] - z[8:]) - b
        return r @ r / 120

    ball = {"type": "ineq", "fun": lambda z: 1.5 - z.sum()}
    slsqp = minimize(
        cost, np.zeros(16), bounds=[(0, None)] * 16, constraints=[ball], options={"ftol": 1e-14}
    )
    assert found.value == pytest.approx(slsqp.fun, abs=1e-8)
    np.testing.assert_allclose(found.x, slsqp.x[:8] - slsqp.x[8:], atol=1e-4)
    # The Frank-Wolfe gap bounds the distance to the optimal value.
    gradient = A.T @ (A @ found.x - b) / 60
    assert gradient @ found.x + 1.5 * np.abs(gradient).max() <= 1e-9


def test_quadratics_in_closed_form():
    Q, c = A.T @ A, rng.normal(size=8)
    found = solve([Quadratic(Q, c), Quadratic(2 * Q, ZERO)], Zero(), ZERO)
    np.testing.assert_allclose(found.x, np.linalg.solve(1.5 * Q, c / 2), rtol=1e-10)
    assert found.method == "direct"
    ridge = solve([Quadratic(Q, c), LeastSquares(A, b)], L2Squared(3.0), ZERO)
    exact = np.linalg.solve(Q / 2 + Q / 120 + 3 * np.eye(8), c / 2 + A.T @ b / 120)
    np.testing.assert_allclose(ridge.x, exact, rtol=1e-10)
    under = solve([LeastSquares(A[:3], b[:3])], Zero(), ZERO)
    assert under.value == pytest.approx(0, abs=1e-20)


def test_weights_and_scales_are_kept():
    parts = clients(LeastSquares, "unequal", scale=2.0)
    factors = [0.5, 1.0, 4.0]
    scaled = [Scaled(Scaled(f, 2.0), w / 2) for f, w in zip(parts, factors, strict=True)]
    x = solve(scaled, Zero(), ZERO).x
    total = sum(w * f.gradient(x) for f, w in zip(parts, factors, strict=True))
    assert np.linalg.norm(total) <= 1e-12
    # Clients weighted by their sizes: the objective on all rows.
    whole = solve([LogisticRegression(A, y, l2=0.1)], L1(0.02), ZERO)
    parts = clients(LogisticRegression, "unequal", l2=0.1)
    weighted = [Scaled(f, 3 * f.num_examples / 60) for f in parts]
    again = solve(weighted, L1(0.02), ZERO)
    np.testing.assert_allclose(again.x, whole.x, atol=1e-9)
    assert again.value == pytest.approx(whole.value, rel=1e-12)


def test_arrays_of_any_shape_and_float32():
    X = rng.normal(size=(40, 3, 2))
    t = rng.normal(size=40)
    found = solve([LeastSquares(X, t)], L1(0.1), np.zeros((3, 2)))
    flat = solve([LeastSquares(X.reshape(40, 6), t)], L1(0.1), np.zeros(6))
    np.testing.assert_allclose(found.x.ravel(), flat.x, atol=1e-9)
    data = A.astype(np.float32), b.astype(np.float32)
    single = solve([LeastSquares(*data)], L1(0.05), ZERO.astype(np.float32))
    assert single.x.dtype == np.float64
    double = solve([LeastSquares(A, b)], L1(0.05), ZERO)
    np.testing.assert_allclose(single.x, double.x, atol=1e-5)


def test_momentum_restarts_on_an_ill_conditioned_problem():
    # Condition number 1e4: about 1,900 steps with restarts, more than 3,000 without.
    f = Quadratic(np.diag(np.logspace(-4, 0, 8)), np.ones(8))
    found = solve([f], L1(0.05), ZERO, max_iterations=3000)
    np.testing.assert_allclose(found.x, 0.95 / np.logspace(-4, 0, 8), rtol=1e-5)


def test_a_start_at_the_minimiser_is_accepted():
    parts = clients(LogisticRegression, "unequal")
    found = solve(parts, L1(0.05), ZERO)
    again = solve(parts, L1(0.05), found.x)
    np.testing.assert_allclose(again.x, found.x, atol=1e-8)


def test_data_that_are_all_zero():
    found = solve([LeastSquares(np.zeros((3, 8)), b[:3])], L1(1.0), np.ones(8))
    np.testing.assert_array_equal(found.x, ZERO)


@pytest.mark.parametrize(
    ("run", "match"),
    [
        (lambda: solve([], Zero(), ZERO), "at least one objective"),
        (lambda: solve([LeastSquares(A, b)], Zero(), np.zeros(3)), "takes x of shape"),
        (lambda: solve([LeastSquares(A, b)], Zero(), ZERO, tolerance=0), "tolerance"),
        (lambda: solve([LeastSquares(A, b)], Zero(), ZERO * np.nan), "not finite"),
    ],
)
def test_what_is_refused(run, match):
    with pytest.raises(ConfigError, match=match):
        run()


def test_failures_say_what_was_reached():
    with pytest.raises(FedConError, match=r"stopped at a residual of .* pass a larger tolerance"):
        solve([Bare(LeastSquares(A, b))], L1(0.05), ZERO, max_iterations=2)
    with pytest.raises(FedConError, match="eigenvalue -1 < 0"):
        solve([Quadratic(np.diag([1.0, -1.0]), np.zeros(2))], Zero(), np.zeros(2))
    with pytest.raises(FedConError, match="linear along a direction"):
        solve([Quadratic(np.diag([1.0, 0.0]), np.ones(2))], Zero(), np.zeros(2))
    # The same quadratic has a minimiser on a set.
    found = solve([Quadratic(np.diag([1.0, 0.0]), np.ones(2))], Indicator(Box(-3, 3)), np.zeros(2))
    np.testing.assert_allclose(found.x, [1, 3])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("ratio", [0.5, 0.05, 1e-3])
@pytest.mark.parametrize("kind", ["wide", "tall", "correlated", "twins", "zeros"])
def test_coordinate_descent_meets_the_optimality_conditions(monkeypatch, kind, ratio, compiled):
    m, d = (120, 30) if kind == "tall" else (40, 90)
    own = np.random.default_rng(3)
    X = own.standard_normal((m, d))
    if kind == "correlated":
        X = np.cumsum(X, axis=1)
    if kind == "twins":
        X[:, d // 2 :] = X[:, : d - d // 2]
    if kind == "zeros":
        X[:, ::3] = 0
    t = X[:, :5].sum(axis=1) + 0.1 * own.standard_normal(m)
    weight = ratio * float(np.abs(X.T @ t).max()) / m
    monkeypatch.setattr(loops, "_interpreted", 10**9 if compiled else -(10**9))
    with nullcontext() if compiled else loops.numpy_only():
        found = solve([LeastSquares(X, t)], L1(weight), np.zeros(d))
    assert found.method == "coordinate descent"
    gradient = X.T @ (X @ found.x - t) / m
    assert found.residual <= 1e-10 * max(1.0, float(np.linalg.norm(X.T @ t)) / m)
    assert L1(weight).subdifferential_distance(found.x, gradient) <= 2 * found.residual + 1e-12
    # The duality gap bounds how far the value is from the least.
    residual = (t - X @ found.x) / m
    dual = residual * min(1.0, weight / max(float(np.abs(X.T @ residual).max()), 1e-300))
    bound = float(dual @ t) - 0.5 * m * float(dual @ dual)
    assert found.value - bound <= 1e-9 * max(1.0, found.value)


def test_coordinate_descent_with_weights_of_each_entry():
    each = np.linspace(0.0, 0.2, 8)
    parts = clients(LeastSquares, "unequal")
    found = solve(parts, L1(each), ZERO)
    assert found.method == "coordinate descent"
    assert found.x[0] != 0
    assert L1(each).subdifferential_distance(found.x, mean_gradient(parts, found.x)) <= 1e-9
