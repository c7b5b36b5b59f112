"""Least squares with several outputs, and l2: values, constants, solvers, privacy, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares, PrivateObjective, Profiled, Scaled
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.objectives.row_gradients import clipped_steps
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.problems import files
from flower_fedcon.problems.reference import solve
from flower_fedcon.regularizers import L1, NuclearNorm, Zero
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.factors import inverses, spectra
from flower_fedcon.solvers.problem import LocalProblem

M, D, K = 7, 3, 2
RNG = np.random.default_rng(4)
A, B, W = RNG.normal(size=(M, D)), RNG.normal(size=(M, K)), RNG.uniform(0.5, 2.0, M)
ONES = np.ones((3, 2))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("intercept", "weighted", "l2", "outputs"),
    [*itertools.product([False, True], [False, True], [0.0, 0.3], [None, 1, K])],
)
def test_what_numpy_finds(intercept, weighted, l2, outputs, sparse):
    b = B[:, 0] if outputs is None else B[:, :outputs]
    rows = sp.csr_array(A) if sparse else A
    f = LeastSquares(rows, b, 1.5, l2, sample_weight=W if weighted else None, intercept=intercept)
    full = np.c_[A, np.ones(M)] if intercept else A
    w = W / W.mean() if weighted else np.ones(M)
    x = RNG.normal(size=(full.shape[1], *b.shape[1:]))
    held = x.copy()
    held[D:] = 0.0
    assert f.shape == x.shape
    left = full @ x - b
    weighted_left = (w * left.T).T
    value = 1.5 / (2 * M) * (left * weighted_left).sum() + l2 / 2 * (held * held).sum()
    gradient = 1.5 / M * full.T @ weighted_left + l2 * held
    assert f.value(x) == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(f.gradient(x), gradient, rtol=1e-12, atol=1e-14)
    both = f.value_and_gradient(x)
    assert both[0] == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(both[1], gradient, rtol=1e-12, atol=1e-14)
    gram = 1.5 / M * full.T @ (w[:, None] * full) + l2 * np.diag(np.arange(len(x)) < D)
    hessian = np.kron(gram, np.eye(outputs or 1))
    np.testing.assert_allclose(f.hessian(x), hessian, rtol=1e-12, atol=1e-14)
    some = np.array([x.size - 1, 0])
    np.testing.assert_allclose(f.hessian(x, some), hessian[np.ix_(some, some)], atol=1e-14)
    product = f.second_derivatives(x)(x)
    np.testing.assert_allclose(product.ravel(), hessian @ x.ravel(), rtol=1e-12)
    np.testing.assert_allclose(f.entry_curvatures().ravel(), np.diag(hessian), rtol=1e-12)
    ends = np.linalg.eigvalsh(gram)[[-1, 0]]
    if l2 and intercept:  # which l2 leaves free
        assert f.smoothness >= ends[0] - 1e-12
        assert 0 < f.strong_convexity <= ends[1] + 1e-12
    else:
        np.testing.assert_allclose([f.smoothness, f.strong_convexity], ends, rtol=1e-12)
    each = [f.batch_gradient(x, np.array([i])) for i in range(M)]
    np.testing.assert_allclose(np.mean(each, axis=0), gradient, rtol=1e-12, atol=1e-14)
    sums = f.clipped_sum(x, 1e9, np.arange(M)) / M + l2 * held
    if not weighted:
        np.testing.assert_allclose(sums, gradient, rtol=1e-12, atol=1e-14)
        assert f.row_losses(x, np.arange(M)).mean() + f.ridge(x) == pytest.approx(value)
    folds = f.subset(np.arange(4)), f.subset(np.arange(4, M))
    shares = [one.total_weight / f.total_weight for one in folds]
    parts = sum(share * one.value(x) for share, one in zip(shares, folds, strict=True))
    assert parts == pytest.approx(value, rel=1e-12)


def test_one_output_is_what_it_was():
    """A column of b gives a model of one column, and the numbers of a vector."""
    x = RNG.normal(size=D)
    vector, column = LeastSquares(A, B[:, 0]), LeastSquares(A, B[:, :1])
    assert column.value(x[:, None]) == pytest.approx(vector.value(x), rel=1e-14)
    np.testing.assert_allclose(column.gradient(x[:, None])[:, 0], vector.gradient(x), rtol=1e-13)
    assert vector.value(x).hex() == LeastSquares(A, B[:, 0], l2=0.0).value(x).hex()


@pytest.mark.parametrize("rows", [7, 2])
@pytest.mark.parametrize("outputs", [None, K])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("l2", [(0.0, 0.0, 0.0), (0.3, 0.3, 0.3), (0.1, 0.0, 0.4)])
def test_closed_forms(l2, intercept, outputs, rows):
    """One factorisation for all outputs, of one client and of a cohort with their own l2."""
    own = () if outputs is None else (outputs,)
    clients = [
        LeastSquares(
            RNG.normal(size=(rows, D)), RNG.normal(size=(rows, *own)), l2=ridge, intercept=intercept
        )
        for ridge in l2
    ]
    shape, shift = clients[0].shape, 0.5
    v = RNG.normal(size=(3, *shape))
    expected = [
        np.linalg.solve(f.hessian(one) + shift * np.eye(one.size), one.ravel()).reshape(shape)
        for f, one in zip(clients, v, strict=True)
    ]
    for f, one, solution in zip(clients, v, expected, strict=True):
        np.testing.assert_allclose(inverses(f, shift).solve(one), solution, rtol=1e-10)
        halved = inverses(Scaled(f, 0.5), shift / 2).solve(one)
        np.testing.assert_allclose(halved, 2 * solution, rtol=1e-10)
    whole = stack(clients)
    for found in (inverses(whole, shift), spectra(whole).inverses(shift)):
        for some in (np.arange(3), np.array([2, 0])):
            solutions = found.only(some).solve(v[some])
            np.testing.assert_allclose(solutions, np.array(expected)[some], rtol=1e-10)
    # The prox of f: what FedDR, FedPD and ADMM ask for.
    for f, one in zip(clients, v, strict=True):
        prox = Exact().solve(LocalProblem(f, np.zeros(shape), shift=shift, center=one)).x
        np.testing.assert_allclose(f.gradient(prox), shift * (one - prox), atol=1e-12)


def clients_of(l2=0.0, outputs=K, **options):
    rng = np.random.default_rng(8)
    truth = rng.normal(size=(5, 1)) @ rng.normal(size=(1, outputs))
    tables = [rng.normal(size=(m, 5)) for m in (8, 6, 11)]
    return [
        LeastSquares(T, T @ truth + 0.3 * rng.normal(size=(len(T), outputs)), l2=l2, **options)
        for T in tables
    ]


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.2])
def test_the_normal_equations(l2, intercept):
    clients = clients_of(l2, intercept=intercept)
    x = np.zeros(clients[0].shape)
    hessian = np.mean([f.hessian(x) for f in clients], axis=0)
    slope = np.mean([f.gradient(x) for f in clients], axis=0)
    expected = np.linalg.solve(hessian, -slope.ravel()).reshape(x.shape)
    found = solve(clients, Zero(), x)
    np.testing.assert_allclose(found.x, expected, atol=1e-10)
    alone = solve(clients[:1], Zero(), x).x
    np.testing.assert_allclose(clients[0].gradient(alone), 0.0, atol=1e-10)
    weighted = LeastSquares(A, B, l2=l2, intercept=intercept, sample_weight=W)
    alone = solve([weighted], Zero(), np.zeros(weighted.shape)).x
    np.testing.assert_allclose(weighted.gradient(alone), 0.0, atol=1e-10)


def test_the_nuclear_norm_and_l1_against_proximal_steps():
    clients = clients_of(0.05, outputs=4)
    A_all = np.concatenate([f.A / np.sqrt(3 * f.num_examples) for f in clients])
    B_all = np.concatenate([f.b / np.sqrt(3 * f.num_examples) for f in clients])
    L = np.linalg.norm(A_all, 2) ** 2 + 0.05

    def singular(v, t):
        U, s, Vt = np.linalg.svd(v, full_matrices=False)
        return U * np.maximum(s - t, 0.0) @ Vt

    def soft(v, t):
        return np.sign(v) * np.maximum(np.abs(v) - t, 0.0)

    for psi, prox in ((NuclearNorm(0.3), singular), (L1(0.1), soft)):
        x = np.zeros((5, 4))
        for _ in range(3000):
            gradient = A_all.T @ (A_all @ x - B_all) + 0.05 * x
            x = prox(x - gradient / L, (0.3 if prox is singular else 0.1) / L)
        found = solve(clients, psi, np.zeros((5, 4)), tolerance=1e-12).x
        np.testing.assert_allclose(found, x, atol=1e-10)
        if prox is singular:
            assert 1 <= np.linalg.matrix_rank(found, 1e-8) < 4


def test_private_rows():
    """A row's gradient is its row times its residuals, clipped as a whole."""
    f = LeastSquares(A, B, l2=0.1)
    x, clip = RNG.normal(size=(D, K)), 0.8
    each = A[:, :, None] * (A @ x - B)[:, None, :]
    norms = np.linalg.norm(each.reshape(M, -1), axis=1)
    expected = (each * np.minimum(1.0, clip / norms)[:, None, None]).sum(axis=0)
    np.testing.assert_allclose(f.clipped_sum(x, clip, np.arange(M)), expected, rtol=1e-12)
    grid = Grid(clip, 1e-6 * clip, M)
    for rows in (A, sp.csr_array(A)):
        steps = clipped_steps(LeastSquares(rows, B), x, grid, np.arange(M))
        found = grid.release(steps).reshape(D, K)
        np.testing.assert_allclose(found, expected, atol=1e-4)
    private = PrivateObjective(f, ExampleDP(1e3, 1e-6, 1e-5))
    np.testing.assert_allclose(private.gradient(x), f.gradient(x), atol=0.1)


def test_a_file_of_several_outputs(tmp_path):
    np.savez(tmp_path / "0.npz", A=A, b=B)
    problem = files(data=[str(tmp_path / "0.npz")], l2=0.2)
    assert problem.x0.shape == (D, K)
    x = RNG.normal(size=(D, K))
    assert problem.objective(x) == pytest.approx(LeastSquares(A, B, l2=0.2).value(x))
    shared = files(data=[str(tmp_path / "0.npz")], partition={"by": "iid", "clients": 2})
    assert [f.num_examples for f in shared.objectives] == [4, 3]
    with pytest.raises(ConfigError, match="partition by 'shards' needs one class a row"):
        files(
            data=[str(tmp_path / "0.npz")],
            partition={"by": "shards", "clients": 2, "shards": 1},
        )


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: LeastSquares(ONES, np.ones((2, 2))), r"\(3,\) or \(3, outputs\), got \(2, 2\)"),
        (lambda: LeastSquares(ONES, np.ones((1, 3))), r"\(3,\) or \(3, outputs\), got \(1, 3\)"),
        (lambda: LeastSquares(ONES, np.ones((3, 0))), r"\(3, outputs\), got \(3, 0\)"),
        (lambda: LeastSquares(ONES, np.ones((3, 2, 2))), r"b must have shape \(3,\)"),
        (lambda: LeastSquares(ONES, ONES * np.nan), r"LeastSquares\(b\) has a value that is not f"),
        (lambda: LeastSquares(ONES, ONES, l2=-1), r"LeastSquares\(l2\) must be finite and >= 0"),
        (lambda: LeastSquares(np.ones((3, 2, 2)), ONES), r"need A of shape \(examples, features\)"),
        (lambda: LeastSquares(ONES, ONES).value(np.ones(2)), r"takes x of shape \(2, 2\)"),
        (lambda: Profiled(LeastSquares(ONES, ONES)), "with one output a row"),
    ],
)
def test_what_is_refused(build, match):
    with pytest.raises(ConfigError, match=match):
        build()
