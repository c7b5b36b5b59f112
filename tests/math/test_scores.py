"""Steps on scores: those that clients with few rows and many entries would take one by one."""

from __future__ import annotations

import numpy as np
import pytest
from nightly import nightly
from row_clients import clients

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon import compiled as door
from flower_fedcon.objectives import HuberRegression, LeastSquares, PoissonRegression
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.objectives.local_pass import LocalPass, Prox
from flower_fedcon.regularizers import L1
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import CompositeFL, FedAvg, FedProx, Scaffnew, Scaffold


def parts(kind, dtype=np.float64, shape=(30,)):
    if kind in ("least squares", "logistic"):
        return clients(kind, 4, 7, shape, dtype)
    rng = np.random.default_rng(0)
    A = rng.standard_normal((4, 7, *shape)).astype(dtype) / 4
    if kind == "huber":
        return [HuberRegression(a, np.arange(7.0).astype(dtype), delta=0.5, l2=0.1) for a in A]
    return [PoissonRegression(a, np.arange(7.0).astype(dtype), l2=0.1) for a in A]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "huber", "poisson"])
def test_steps_on_scores_are_those_one_by_one(kind, dtype):
    """With drift and pull, each client's own or one for all; of everyone and of some."""
    own = parts(kind, dtype)
    rng, which = np.random.default_rng(6), np.array([0, 2, 3])
    start, linear, center = rng.standard_normal((3, 3, 30)).astype(dtype) / 2
    with door.numpy_only():
        whole = stack(own)
        for first in (start, start[0]):
            for given in (
                {},
                {"linear": linear},
                {"linear": linear, "less": center},
                {"linear": linear[0], "shift": 0.7},
                {"shift": 0.7, "center": center},
                {"linear": linear, "shift": 0.7, "center": center[1]},
            ):
                steps = LocalPass(first, steps=5, rate=0.05, **given)
                assert whole.takes(steps)
                found = whole.gradient_steps(steps, which, None)
                assert found.dtype == dtype
                for i, j in enumerate(which):
                    z = np.broadcast_to(first, start.shape)[i]
                    for _ in range(5):
                        g = own[j].gradient(z)
                        for name, sign in (("linear", 1), ("less", -1)):
                            if name in given:
                                g = g + sign * np.broadcast_to(given[name], start.shape)[i]
                        middle = np.broadcast_to(given.get("center", 0 * start), start.shape)[i]
                        z = z - 0.05 * (g + given.get("shift", 0.0) * (z - middle))
                    exact = 1e-13 if dtype == np.float64 else 2e-5
                    np.testing.assert_allclose(found[i], z, rtol=0, atol=exact)


def test_who_does_not_step_on_scores():
    """One step, many rows, batches, another point or another way on; l2 without the intercept."""
    few, many = parts("huber"), parts("huber", shape=(27,))
    own = [HuberRegression(f.A, f.targets, l2=0.1, intercept=True) for f in few]
    x = np.zeros(30)
    whole, plain = stack(few), LocalPass(x, steps=3, rate=0.1)
    assert whole.takes(plain)
    assert not whole.takes(plain, full=False)
    assert not stack(many).takes(LocalPass(np.zeros(27), steps=3, rate=0.1))
    assert not stack(own).takes(LocalPass(np.zeros(31), steps=3, rate=0.1))
    for steps in (
        LocalPass(x, steps=1, rate=0.1),
        LocalPass(x, steps=3, rate=0.1, point=Prox(L1(0.1), lambda k: 1.0)),
        LocalPass(x, steps=3, rate=0.1, onward=(0.5, 0.25)),
        LocalPass(x, steps=3, rate=0.1, first=x + 1),
    ):
        assert not whole.takes(steps)


def test_products_are_found_once_and_handed_to_parts():
    own = parts("huber")
    whole = stack(own)
    products = whole.products
    assert whole.products is products
    part = whole.only(slice(1, 3)).only(np.array([1]))
    np.testing.assert_array_equal(part.products, products[2:3])
    np.testing.assert_allclose(products[1], own[1].A @ own[1].A.T, rtol=1e-12)


METHODS = {
    "FedAvg": (FedAvg(client_lr=0.05, local_steps=4), {}),
    "schedule": (FedAvg(client_lr=InverseSqrt(0.05), local_steps=4), {}),
    "sampled": (FedAvg(client_lr=0.05, local_steps=4, participation=Sample(count=2)), {}),
    "Scaffold": (Scaffold(client_lr=0.05, local_steps=4), {}),
    "Scaffold, sampled": (
        Scaffold(client_lr=0.05, local_steps=4, participation=Sample(count=2)),
        {},
    ),
    "Scaffnew": (Scaffnew(client_lr=0.05, communication_probability=0.3), {}),
    "with psi": (
        CompositeFL(L1(0.05), client_lr=0.05, local_steps=4),
        {"regularizer": L1(0.05)},
    ),
    "solver": (FedProx(proximal=0.5, local_solver=GradientDescent(steps=4, lr=0.05)), {}),
}


ALONE = [
    (nightly if engine == "jax" and (i + k) % 4 else pytest.param)(engine, kind, name)
    for engine in ("stacked", "jax")
    for k, kind in enumerate(["least squares", "logistic", "huber", "poisson"])
    for i, name in enumerate(METHODS)
]


@pytest.mark.parametrize(("engine", "kind", "name"), ALONE)
def test_runs_without_numba_find_the_local_iterates(engine, kind, name):
    """Each method compiled for one kind of clients, each kind in two; the others are nightly."""
    if engine == "jax":
        pytest.importorskip("jax", reason="the extra `jax` is not installed")
    strategy, given = METHODS[name]
    problem = FederatedProblem(parts(kind), **given)
    expected = simulate(strategy, problem, 20, seed=3)
    with door.numpy_only():
        found = simulate(strategy, problem, 20, seed=3, engine=engine, evaluate_every=5)
    scale = max(1.0, float(np.abs(expected.x).max()))
    assert np.abs(found.x - expected.x).max() <= 1e-12 * scale


def test_a_compiled_round_is_given_the_products(monkeypatch):
    """They are data of it: its trace does not multiply rows with one another."""
    pytest.importorskip("jax", reason="the extra `jax` is not installed")
    from flower_fedcon.engines.jax import tracer

    tracers, real = [], tracer.RoundTracer.__init__
    monkeypatch.setattr(
        tracer.RoundTracer, "__init__", lambda self, *a: (tracers.append(self), real(self, *a))[1]
    )
    A = np.random.default_rng(0).standard_normal((3, 5, 40))
    problem = FederatedProblem([LeastSquares(a, np.ones(5)) for a in A])
    simulate(FedAvg(client_lr=0.01, local_steps=3), problem, 9, engine="jax", evaluate_every=0)
    assert tracers[0].data["_products"].shape == (3, 5, 5)
    simulate(FedAvg(client_lr=0.01, local_steps=1), problem, 9, engine="jax", evaluate_every=0)
    assert "_products" not in tracers[1].data
