"""Losses of tables: weights of rows, free intercepts, sparse rows, Hessians; Cox and its ties."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from losses import COUNTS, EVENTS, LOSSES, RNG, SURVIVAL, TIMES, A, B, M, W
from scipy.optimize import root

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    CoxRegression,
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    Scaled,
)
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.problems.reference import solve
from flower_fedcon.regularizers import L1, Each, ElasticNet, GroupLasso, Separable, WithIntercept
from flower_fedcon.sets import L2Ball
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.problem import LocalProblem
from flower_fedcon.strategies import CompositeFL, FedNewton

MAKE = LOSSES | SURVIVAL
ALL = np.arange(M)


def differences(function, x, h=1e-6):
    """Return the central differences of a function, one axis for the entries of x."""
    units = np.eye(x.size).reshape(x.size, *x.shape) * h
    return np.array([(function(x + e) - function(x - e)) / (2 * h) for e in units])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", MAKE)
def test_derivatives_and_constants(kind, weighted, sparse):
    for intercept in (False,) if kind in SURVIVAL else (False, True):
        own = {"intercept": True} if intercept else {}
        rows = sp.coo_matrix(A) if sparse else A
        f = MAKE[kind](rows, ALL, sample_weight=W if weighted else None, **own)
        x = np.random.default_rng(1).normal(size=f.shape)
        gradient, hessian = f.gradient(x), f.hessian(x)
        value, same = f.value_and_gradient(x)
        assert value == pytest.approx(f.value(x), rel=1e-13)
        np.testing.assert_allclose(same, gradient, rtol=1e-13)
        slopes = differences(f.value, x).reshape(x.shape)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-7)
        if kind != "huber":  # whose second derivative jumps
            rows_of = differences(lambda x, f=f: f.gradient(x).ravel(), x)
            np.testing.assert_allclose(hessian, rows_of, rtol=1e-5, atol=1e-7)
        some = np.array([2, 0])
        np.testing.assert_allclose(f.hessian(x, some), hessian[np.ix_(some, some)], rtol=1e-12)
        np.testing.assert_allclose(Scaled(f, 2.0).hessian(x), 2 * hessian)
        curvatures = np.linalg.eigvalsh(hessian)
        assert f.strong_convexity <= curvatures[0] + 1e-12
        if kind in ("poisson", "gamma", "negative_binomial", "absolute", "hinge"):
            assert f.smoothness is None
        else:
            assert curvatures[-1] <= f.smoothness * (1 + 1e-12)


@pytest.mark.parametrize("kind", [k for k in MAKE if k != "efron"])
def test_a_weight_is_as_many_copies(kind):
    """For Breslow's ties too; Efron's way looks at each tied event."""
    copies = np.repeat(ALL, W.astype(int))
    weighted, copied = MAKE[kind](A, ALL, sample_weight=W), MAKE[kind](A[copies], copies)
    assert weighted.total_weight == copied.total_weight == len(copies)
    x = RNG.normal(size=weighted.shape)
    assert weighted.value(x) == pytest.approx(copied.value(x), rel=1e-12)
    np.testing.assert_allclose(weighted.gradient(x), copied.gradient(x), rtol=1e-12, atol=1e-15)
    if kind not in SURVIVAL:
        each = [weighted.batch_gradient(x, np.array([i])) for i in ALL]
        np.testing.assert_allclose(weighted.gradient(x), np.mean(each, axis=0), rtol=1e-12)


@pytest.mark.parametrize("kind", [k for k in MAKE if k not in SURVIVAL])
def test_an_intercept_is_a_column_of_ones_that_l2_leaves_free(kind):
    f = MAKE[kind](A, ALL, intercept=True)
    np.testing.assert_array_equal(f.A, A)
    x = RNG.normal(size=f.shape)
    plain = MAKE[kind](np.c_[A, np.ones(M)], ALL)
    ridge = np.zeros_like(x) if kind == "squares" else 0.3 * np.concatenate([0 * x[:-1], x[-1:]])
    np.testing.assert_allclose(f.gradient(x) + ridge, plain.gradient(x), rtol=1e-12)
    other = MAKE[kind](A[::-1].copy(), ALL, intercept=True)
    both = stack([f, other])
    np.testing.assert_allclose(both.values(x), [f.value(x), other.value(x)], 1e-13)
    np.testing.assert_allclose(both.gradient(x, slice(0, 2))[1], other.gradient(x), rtol=1e-12)
    np.testing.assert_allclose(
        both.batch_gradient(np.stack([x, x]), slice(0, 2), np.array([[1, 2], [0, 3]]))[0],
        f.batch_gradient(x, np.array([1, 2])),
        rtol=1e-12,
    )


def test_sparse_rows_are_never_made_dense(monkeypatch):
    """A million columns, and as many as that times 40 rows would not fit into the memory."""
    d, m = 10**6, 40
    rng = np.random.default_rng(0)
    rows = sp.random_array((m, d), density=3e-5, rng=rng, format="csr")
    y = np.where(rng.random(m) < 0.5, -1.0, 1.0)
    for kind in (type(rows), sp.csc_array):
        monkeypatch.setattr(kind, "toarray", lambda self: pytest.fail("made dense") if d in
                            self.shape else sp.coo_array(self).toarray())  # fmt: skip
    clients = [LogisticRegression(rows[i::4], y[i::4], intercept=True) for i in range(4)]
    psi = WithIntercept(L1(1e-3))
    problem = FederatedProblem(clients, regularizer=psi)
    L = max(f.smoothness for f in clients)
    strategy = CompositeFL(psi, client_lr=0.5 / L, local_steps=2)
    found = simulate(strategy, problem, 1, engine="stacked")
    assert found.x.shape == (d + 1,)
    assert found["objective"][-1] < problem.objective(np.zeros(d + 1))
    wide = LeastSquares(sp.eye_array(3000, format="csr"), np.ones(3000))
    assert wide.smoothness == pytest.approx(1 / 3000)  # by norms, without a Gram matrix


@pytest.mark.parametrize("sparse", [False, True])
def test_data_whose_squares_overflow_are_refused_by_name(sparse):
    A = np.full((3, 2), 1e200)
    f = LeastSquares(sp.csr_matrix(A) if sparse else A, np.ones(3))
    with (
        np.errstate(all="ignore"),
        pytest.raises(ConfigError, match=r"squares of the data's entries overflow: rescale"),
    ):
        assert f.smoothness


def test_solvers_and_references_respect_weights_and_sparse_rows():
    own = {"intercept": True, "sample_weight": W}
    dense, sparse = (LeastSquares(rows, B, 2.0, **own) for rows in (A, sp.csr_array(A)))
    root = np.sqrt(W)
    expected = np.linalg.lstsq(root[:, None] * np.c_[A, np.ones(M)], root * B, rcond=None)[0]
    for f in (dense, sparse):
        np.testing.assert_allclose(solve([f], L1(0.0), np.zeros(5)).x, expected, atol=1e-8)
        np.testing.assert_allclose(
            Exact().solve(LocalProblem(f, np.zeros(5))).x, expected, atol=1e-8
        )
    both = solve([dense, LogisticRegression(A, np.sign(B), **own)], L1(0.01), np.zeros(5))
    assert both.residual <= 1e-9
    pair = [dense, LeastSquares(A[:5], B[:5], intercept=True)]
    slow = solve([Scaled(sparse, 1.0), Scaled(pair[1], 1.0)], L1(0.0), np.zeros(5))
    np.testing.assert_allclose(solve(pair, L1(0.0), np.zeros(5)).x, slow.x, atol=1e-7)


def test_a_free_intercept():
    x, g = np.array([1.0, 0.0, 5.0]), np.array([-0.3, 0.1, 0.25])
    psi = WithIntercept(L1(0.3))
    assert psi.value(x) == pytest.approx(0.3)
    assert psi.subdifferential_distance(x, g) == pytest.approx(0.25)
    np.testing.assert_array_equal(psi.subgradient(x), [0.3, 0, 0])
    np.testing.assert_array_equal(psi.prox(np.stack([x, -x]), 2.0, batch=1)[1], [-0.4, 0, -5])
    assert psi.scaled(2.0) == WithIntercept(L1(0.6))
    assert WithIntercept(L2Ball(0.5)).prox(x, 1.0).tolist() == [0.5, 0, 5]
    for one, l1, l2 in (
        (WithIntercept(ElasticNet(1.0, 2.0)), [1, 1, 0], [2, 2, 0]),
        (Separable([(L1(np.array([1.0, 2.0])), (2,)), (None, (1,))]), [1, 2, 0], [0, 0, 0]),
    ):
        found = one.entrywise((3,))
        np.testing.assert_array_equal(found, [l1, l2])
    assert WithIntercept(GroupLasso(1.0, groups=2)).entrywise((3,)) is None
    with pytest.raises(ConfigError, match="coefficients and an intercept"):
        psi.prox(np.ones(1), 1.0)


def test_models_side_by_side():
    X, G = np.array([[1.0, 0.0], [3.0, -2.0]]), np.array([[-0.3, 0.1], [0.3, 0.4]])
    psi = Each(WithIntercept(L1(0.3)))
    assert psi.value(X) == pytest.approx(1.2)
    np.testing.assert_allclose(psi.prox(X, 10.0), [[0, 0], [0, -2]])
    np.testing.assert_allclose(psi.prox(np.stack([X, -X]), 1.0, batch=1)[1], [[-0.7, 0], [-2.7, 2]])
    np.testing.assert_allclose(psi.subgradient(X), [[0.3, 0], [0.3, 0]])
    assert psi.subdifferential_distance(X, G) == pytest.approx(np.linalg.norm([0, 0.1, 0.6, 0.4]))
    np.testing.assert_array_equal(psi.scaled(2.0).entrywise((2, 2))[0], [[0.6, 0], [0.6, 0]])
    assert Each(GroupLasso(1.0, groups=2)).entrywise((2, 2)) is None
    with pytest.raises(ConfigError, match="needs an axis of models"):
        psi.check_shape((2,))


def test_groups_with_weights_of_their_own():
    labels = np.array([0, 0, 1])
    psi = GroupLasso(np.array([5.0, 1.0]), groups=labels)
    v = np.array([6.0, 8.0, -3.0])
    x = psi.prox(v, 1.0)
    np.testing.assert_allclose(x, [3, 4, -2])
    assert psi.value(v) == pytest.approx(53)
    assert psi.subdifferential_distance(x, x - v) == pytest.approx(0, abs=1e-14)
    np.testing.assert_allclose(psi.subgradient(v), [3, 4, -1])
    np.testing.assert_array_equal(psi.scaled(2.0).weight, [10, 2])
    for weight, groups in ((np.ones(3), labels), (np.ones(2), 2)):
        with pytest.raises(ConfigError, match="a weight for each group"):
            GroupLasso(weight, groups=groups)


@pytest.mark.parametrize("weighted", [False, True])
def test_stratified_cox_against_lifelines(weighted):
    lifelines = pytest.importorskip("lifelines")
    import pandas as pd

    rng = np.random.default_rng(3)
    n, d = 240, 3
    rows, site = rng.normal(size=(n, d)), rng.integers(0, 4, n)
    time = np.ceil(rng.exponential(np.exp(-rows @ [0.5, -0.7, 0.0])) * (4 + 3 * site))  # ties
    event = (rng.random(n) < 0.7).astype(int)
    weight = rng.uniform(0.1, 5.0, n) if weighted else np.ones(n)
    table = pd.DataFrame(rows, columns=list("abc"))
    table = table.assign(time=time, event=event, site=site, weight=weight)
    fitter = lifelines.CoxPHFitter()
    with warnings.catch_warnings():  # of the standard errors
        warnings.simplefilter("ignore")
        fitter.fit(table, "time", "event", strata=["site"], weights_col="weight", robust=False,
                   fit_options={"precision": 1e-14})  # fmt: skip
    clients = [
        CoxRegression(rows[s], time[s], event[s], ties="efron", sample_weight=weight[s])
        for s in (site == k for k in range(4))
    ]
    problem = FederatedProblem(clients, weights=[f.total_weight for f in clients])
    np.testing.assert_allclose(problem.optimum.x, fitter.params_.to_numpy(), atol=1e-8)
    estimators = pytest.importorskip("flower_fedcon.estimators", reason="it compares them")
    ours = estimators.FederatedCoxRegression(0.0, ties="efron")
    ours.fit(rows, np.stack([time, event], axis=1), groups=site, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, fitter.params_.to_numpy(), atol=1e-8)


def test_weighted_breslow_and_huber_against_roots_of_their_gradients():
    """Found by SciPy, of sums that are written out."""
    rng = np.random.default_rng(3)
    rows, site, weight = rng.normal(size=(120, 3)), np.arange(120) % 3, rng.uniform(0.1, 5.0, 120)
    time, event = np.ceil(rng.exponential(4.0 + site)), rng.random(120) < 0.7
    targets = rows @ [1.0, -2.0, 0.0] + rng.standard_t(2, 120)

    def breslow(x):
        risks, total = weight * np.exp(rows @ x), np.zeros(3)
        for i in np.flatnonzero(event):
            at_risk = (site == site[i]) & (time >= time[i])
            mean = risks[at_risk] @ rows[at_risk] / risks[at_risk].sum()
            total += weight[i] * (mean - rows[i])
        return total

    estimators = pytest.importorskip("flower_fedcon.estimators", reason="it compares them")
    ours = estimators.FederatedCoxRegression(0.0)
    ours.fit(rows, np.stack([time, event], axis=1), groups=site, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, root(breslow, np.zeros(3), tol=1e-14).x, atol=1e-8)

    free = np.c_[rows, np.ones(120)]

    def huber(x):
        return free.T @ (weight * np.clip(free @ x - targets, -0.8, 0.8))

    clients = [
        HuberRegression(rows[s], targets[s], 0.8, sample_weight=weight[s], intercept=True)
        for s in (site == k for k in range(3))
    ]
    problem = FederatedProblem(clients, weights=[f.total_weight for f in clients])
    exact = root(huber, np.linalg.lstsq(free, targets, rcond=None)[0], tol=1e-14).x
    np.testing.assert_allclose(problem.optimum.x, exact, atol=1e-8)
    history = simulate(FedNewton(None), problem, 30)
    np.testing.assert_allclose(history.x, exact, atol=1e-8)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: LeastSquares(A, B, sample_weight=-W), ">= 0 and not all 0, got a smallest of -"),
        (lambda: LeastSquares(A, B, sample_weight=0 * W), "not all 0"),
        (lambda: LeastSquares(A, B, sample_weight=W[:3]), "sample_weight must have shape"),
        (lambda: LeastSquares(A.reshape(M, 2, 2), B, intercept=True), "must have 2 axes"),
        (lambda: LeastSquares(sp.csr_array(A * np.inf), B), "not finite"),
        (lambda: PoissonRegression(A, B), "PoissonRegression.y. must be >= 0, got -"),
        (lambda: HuberRegression(A, B, delta=0), "finite and > 0"),
        (lambda: CoxRegression(A, TIMES, EVENTS * 2), "must be 0 or 1, got 2"),
        (lambda: CoxRegression(A, TIMES, EVENTS, ties="exact"), "'breslow', 'efron'"),
        (
            lambda: CoxRegression(A, TIMES, EVENTS).batch_gradient(np.zeros(4), ALL),
            "no minibatches",
        ),
    ],
)
def test_what_is_refused(build, match):
    with np.errstate(invalid="ignore"), pytest.raises(ConfigError, match=match):
        build()


def test_large_scores_stay_finite():
    f = PoissonRegression(A, COUNTS)
    value, gradient = f.value_and_gradient(np.full(4, 1e4))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    far = np.linspace(0, 50, 4)
    cox = CoxRegression(100 * A, TIMES, EVENTS)
    assert np.isfinite(cox.value(far))
    assert np.isfinite(cox.hessian(far)).all()
