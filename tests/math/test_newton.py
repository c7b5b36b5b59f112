"""Second derivatives of logistic and softmax regression, and the minimisers found with them."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from solver_cases import Plain

from flower_fedcon.errors import FedConError
from flower_fedcon.objectives import LogisticRegression, Scaled, SoftmaxRegression
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.solvers import AOGM, Exact, LocalProblem
from flower_fedcon.solvers.newton import conjugate_gradients, newton

FORMS = ["plain", "weights", "sparse", "intercept", "scaled"]


def objective(kind, form="plain", l2=0.05, seed=0, size=1.0):
    rng = np.random.default_rng(seed)
    A = size * rng.standard_normal((30, 4))
    A[:, 0] *= 5.0
    options = {"l2": l2}
    if form == "weights":
        options["sample_weight"] = rng.integers(0, 3, 30)
    if form == "intercept":
        options["intercept"] = True
    rows = csr_matrix(A) if form == "sparse" else A
    if kind == "logistic":
        f = LogisticRegression(rows, np.where(rng.random(30) < 0.4, 1, -1), **options)
    else:
        f = SoftmaxRegression(rows, rng.integers(0, 3, 30), 3, **options)
    return Scaled(f, 0.3) if form == "scaled" else f


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_products_are_differences_of_gradients(kind, form):
    f, rng = objective(kind, form), np.random.default_rng(1)
    x, v = rng.standard_normal((2, *f.shape))
    step = 1e-5
    want = (f.gradient(x + step * v) - f.gradient(x - step * v)) / (2 * step)
    kept = v.copy()
    np.testing.assert_allclose(f.hessian_products(x)(v), want, rtol=1e-7, atol=1e-8)
    assert np.array_equal(v, kept)


@pytest.mark.parametrize("form", ["plain", "intercept", "scaled"])
@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_products_of_a_stack(kind, form, monkeypatch):
    parts = [objective(kind, form, l2=0.1 * j, seed=j) for j in range(4)]
    monkeypatch.setattr("flower_fedcon.objectives.stacked_objective._CACHED", 250)  # two at a time
    x, v = np.random.default_rng(1).standard_normal((2, 4, *parts[0].shape))
    step, everyone = 1e-5, slice(0, 4)
    ahead, back = (stack(parts).gradient(x + s * v, everyone) for s in (step, -step))
    want = (ahead - back) / (2 * step)
    found = stack(parts).hessian_products(x)(v)
    np.testing.assert_allclose(found, want, rtol=1e-7, atol=1e-8)
    values, gradients = stack(parts).value_and_gradient(x)
    for j, f in enumerate(parts):
        assert values[j] == pytest.approx(f.value(x[j]), rel=1e-13)
        np.testing.assert_allclose(gradients[j], f.gradient(x[j]), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_minimisers_are_those_of_an_independent_solver(kind, form):
    f, rng = objective(kind, form), np.random.default_rng(2)
    start, linear, center = rng.standard_normal((3, *f.shape))
    problem = LocalProblem(f, start, linear=0.1 * linear, shift=0.2, center=center)
    found = Exact().solve(problem)
    assert found.converged
    assert found.iterations <= 12
    want = minimize(
        lambda z: problem.value(z.reshape(f.shape)),
        start.reshape(-1),
        jac=lambda z: problem.gradient(z.reshape(f.shape)).reshape(-1),
        method="BFGS",
        options={"gtol": 1e-9},
    )
    np.testing.assert_allclose(found.x.reshape(-1), want.x, atol=1e-7)
    by_steps = AOGM(tolerance=1e-12, max_iterations=100_000).solve(problem)
    np.testing.assert_allclose(found.x, by_steps.x, atol=1e-10)
    assert found.evaluations < by_steps.evaluations


@pytest.mark.parametrize("far", [1.0, 30.0, 1e3])
def test_from_far_away(far):
    """Where all curvature is gone, whole steps would leap."""
    f = objective("logistic", l2=1e-3, size=3.0)
    found = Exact().solve(LocalProblem(f, np.full(4, far)))
    want = Exact().solve(LocalProblem(Plain(f), np.zeros(4)))
    assert found.converged
    np.testing.assert_allclose(found.x, want.x, atol=1e-8)


def test_free_intercepts_and_separable_rows():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((40, 3))
    f = LogisticRegression(A, np.where(A[:, 0] > 0, 1, -1), l2=1e-6, intercept=True)
    found = Exact().solve(LocalProblem(f, np.zeros(4)))
    assert found.converged
    assert np.linalg.norm(f.gradient(found.x)) <= 1e-11
    g = SoftmaxRegression(A, rng.integers(0, 3, 40), 3, l2=0.0, intercept=True)
    found = Exact().solve(LocalProblem(g, np.zeros((4, 3))))
    assert found.converged  # though what is added to all classes has no curvature
    assert np.linalg.norm(g.gradient(found.x)) <= 1e-11


def test_a_wrong_hessian_costs_time_and_nothing_else():
    class Wrong(LogisticRegression):
        def hessian_products(self, x):
            product = super().hessian_products(x)
            return lambda v: 0.01 * product(v) * np.arange(1, 5)

    rng = np.random.default_rng(0)
    A, y = rng.standard_normal((30, 4)), np.where(rng.random(30) < 0.5, 1, -1)
    found = Exact().solve(LocalProblem(Wrong(A, y, l2=0.1), np.zeros(4)))
    want = Exact().solve(LocalProblem(LogisticRegression(A, y, l2=0.1), np.zeros(4)))
    assert found.converged
    np.testing.assert_allclose(found.x, want.x, atol=1e-10)


def test_who_waits_is_left_alone():
    H = np.array([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]], [[3.0, 1.0], [1.0, 2.0]]])
    g = np.array([[2.0, 1.0], [0.0, 1.0], [1.0, 1.0]])

    def product(v):
        return np.einsum("nij,nj->ni", H, v)

    with np.errstate(divide="ignore", invalid="ignore"):  # as `newton` has it
        going = np.array([True, True, False])
        found = conjugate_gradients(product, g, np.full(3, 1e-12), going, axes=1)
    d = found.d
    np.testing.assert_allclose(d[0], [-1.0, -1.0], atol=1e-12)
    assert not d[1].any()  # no curvature there
    assert not d[2].any()
    assert found.products.tolist() == [2, 1, 0]


def test_a_tolerance_out_of_reach_is_told():
    f = objective("logistic")
    f.value_and_gradient = lambda x: (1.0, np.ones_like(x))
    found, left = newton(LocalProblem(f, np.zeros(4)), 1e-12)
    assert left
    assert not found.converged


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_a_gradient_whose_norm_overflows_is_no_minimiser(kind):
    f = objective(kind)
    with pytest.raises(FedConError, match="the local solver diverged in iteration 0"):
        Exact().solve(LocalProblem(f, np.full(f.shape, 1e160)))
