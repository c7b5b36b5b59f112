"""Gradient steps in one go: those that the clients would take one by one."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from row_clients import clients

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon import compiled as door
from flower_fedcon.errors import RoundError
from flower_fedcon.objectives import SoftmaxRegression
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.objectives.local_pass import LocalPass, Prox
from flower_fedcon.objectives.stacked_objective import StackedObjective
from flower_fedcon.problems import digits
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import L1, ElasticNet
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FedDualAvg, FedProx

pytest.importorskip("numba", reason="the extra `fast` is not installed")
compiled = pytest.importorskip("flower_fedcon.compiled.calls")


@pytest.fixture(params=[0, sys.maxsize], ids=["threads", "one thread"])
def always(request, monkeypatch):
    """Use the kernels for arrays of any size, in the form for several threads or for one."""
    monkeypatch.setattr(door, "WORTHWHILE", 0)
    monkeypatch.setattr(compiled, "FEW", request.param)


@pytest.mark.parametrize("kind", ["least squares", "logistic"])
def test_steps_taken_in_one_go_are_those_one_by_one(always, kind):
    """With prox, drift and pull; from z and from the point; of all rows and of batches."""
    parts = clients(kind, 4, 9, (7,), np.float64)
    whole, rng = stack(parts), np.random.default_rng(5)
    psi, which = ElasticNet(0.3, 0.2), np.array([0, 2, 3])
    start, linear, center = (rng.standard_normal((3, 7)) for _ in range(3))
    batches = rng.integers(0, 9, (3, 5, 4))
    for rows in (None, batches):
        for from_point in (False, True):
            proxes = [0.0, 0.1, 0.2, 0.3, 0.4]
            onward = (0.0, 1.0) if from_point else (1.0, 0.0)
            terms, point = (start, linear, 0.7, center), Prox(psi, proxes.__getitem__)
            steps = LocalPass(*terms, steps=5, rate=0.05, point=point, onward=onward)
            assert whole.takes(steps)
            found = whole.gradient_steps(steps, which, rows)
            for i, j in enumerate(which):
                z = start[i]
                for k, t in enumerate(proxes):
                    w = psi.prox(z, t)
                    own = np.arange(9) if rows is None else rows[i, k]
                    g = parts[j].batch_gradient(w, own) + linear[i] + 0.7 * (w - center[i])
                    z = (w if from_point else z) - 0.05 * g
                np.testing.assert_allclose(found[i], z, rtol=0, atol=1e-12)
    unknown = LocalPass(np.full(7, np.nan), steps=2, rate=0.05)
    assert np.isnan(whole.gradient_steps(unknown, which, None)).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["least squares", "logistic"])
def test_plain_steps_by_the_rows_products_are_those_one_by_one(always, monkeypatch, kind, dtype):
    """Few rows with many entries; with drift and pull, each client's own or one for all."""
    parts = clients(kind, 4, 7, (30,), dtype)
    whole, rng = stack(parts), np.random.default_rng(6)
    module, used = door.loops(np.ones(1)), []
    real = module.take_steps_by_scores
    monkeypatch.setattr(module, "take_steps_by_scores", lambda *a: (used.append(1), real(*a))[1])
    start, linear, center = rng.standard_normal((3, 3, 30)).astype(dtype)
    tolerance = 1e-13 if dtype == np.float64 else 1e-5
    which = np.array([0, 2, 3])
    for given in (
        {},
        {"linear": linear},
        {"linear": linear[0], "shift": 0.7},
        {"shift": 0.7, "center": center},
        {"linear": linear, "shift": 0.7, "center": center[1]},
    ):
        found = whole.gradient_steps(LocalPass(start, steps=5, rate=0.01, **given), which, None)
        assert found.dtype == dtype
        drift = np.broadcast_to(given.get("linear", np.zeros_like(start)), start.shape)
        pull = given.get("shift", 0.0)
        middle = np.broadcast_to(given.get("center", np.zeros_like(start)), start.shape)
        for i, j in enumerate(which):
            z = start[i]
            for _ in range(5):
                z = z - 0.01 * (parts[j].gradient(z) + drift[i] + pull * (z - middle[i]))
            np.testing.assert_allclose(found[i], z, rtol=0, atol=tolerance)
    assert len(used) == 5
    one = LocalPass(start, steps=1, rate=0.01)  # which has the rows once
    five, point = one._replace(steps=5), Prox(L1(1.0), lambda k: 0.1)
    for other in (one, five._replace(point=point), five._replace(onward=(0.5, 0.25))):
        whole.gradient_steps(other, which, None)
    assert len(used) == 5
    unknown = LocalPass(np.full(30, np.nan, dtype), steps=2, rate=0.05)
    assert np.isnan(whole.gradient_steps(unknown, which, None)).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("kind", "d"), [("least squares", 5), ("logistic", 30), ("softmax", 5)])
@pytest.mark.parametrize("batches", [False, True])
def test_control_variates_move_with_the_steps(always, kind, d, dtype, batches):
    """Bit for bit as they would after them; by either loop over rows, and softmax regression's."""
    rng, which = np.random.default_rng(7), np.array([0, 2, 3])
    if kind == "softmax":
        rows = rng.standard_normal((4, 9, d)).astype(dtype)
        whole, shape = stack([SoftmaxRegression(A, np.arange(9) % 3, 3) for A in rows]), (d, 3)
    else:
        whole, shape = stack(clients(kind, 4, 7, (d,), dtype)), (d,)
    own = rng.standard_normal((3, *shape)).astype(dtype)
    chosen = rng.integers(0, 7, (3, 4, 5)) if batches else None
    for start in (own[0] / 2, own / 2):
        steps = LocalPass(start, own[1], less=own, steps=4, rate=0.01, variate_rate=-1 / 0.07)
        assert whole.takes(steps)
        delta = whole.gradient_steps(steps, which, chosen) - start
        moved, variates = whole.variate_steps(steps, which, chosen)
        np.testing.assert_array_equal(moved, delta)
        np.testing.assert_array_equal(variates, own + (delta * dtype(-1 / 0.07) - own[1]))
        assert moved.dtype == variates.dtype == dtype


def test_small_data_are_compiled_for_many_steps_alone(monkeypatch):
    monkeypatch.setattr(door, "WORTHWHILE", 300)
    whole = stack(clients("least squares", 2, 5, (8,), np.float64))  # 80 entries
    x, which = np.ones((2, 8)), slice(0, 2)
    assert whole._compiled is None
    assert [whole.takes(LocalPass(x, steps=n, rate=0.1)) for n in (3, 4, 3)] == [False, True, False]
    found = whole.gradient_steps(LocalPass(x, steps=4, rate=0.1), which, None)
    for _ in range(4):
        x = x - 0.1 * whole.gradient(x, which)
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)
    with door.numpy_only():
        assert not whole.takes(LocalPass(x, steps=4, rate=0.1))


@pytest.mark.parametrize(
    "name", ["fedavg", "scaffold", "fedmid", "feddualavg", "compositefl", "fastfedda", "scaffnew"]
)
def test_who_takes_all_steps_in_one_go(always, monkeypatch, name):
    taken = []
    way = "variate_steps" if name == "scaffold" else "gradient_steps"
    real = getattr(StackedObjective, way)
    monkeypatch.setattr(StackedObjective, way, lambda *given: (taken.append(1), real(*given))[1])
    own = {
        "fastfedda": {"strong_convexity": 0.1, "local_steps": 3},
        "scaffnew": {"client_lr": 0.01, "communication_probability": 0.5},
    }.get(name, {"client_lr": 0.01, "local_steps": 3})
    psi = {} if name in ("fedavg", "scaffold", "scaffnew") else {"regularizer": L1(0.1)}
    problem = FederatedProblem(clients("least squares", 4, 9, (7,), np.float64), **psi)
    strategy = algorithms()[name](*psi.values(), **own)
    runs = [simulate(strategy, problem, 6, engine=engine).x for engine in ("local", "stacked")]
    assert len(taken) == 6
    np.testing.assert_allclose(*runs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [7, 40])  # one by one, and by the rows' products
def test_counted_steps_of_a_local_solver_are_taken_in_one_go(always, monkeypatch, d):
    """All but the last, whose gradient is that of the report; the work counts all."""
    taken = []
    real = StackedObjective.gradient_steps
    monkeypatch.setattr(
        StackedObjective, "gradient_steps", lambda *given: taken.append(1) or real(*given)
    )
    problem = FederatedProblem(clients("least squares", 4, 9, (d,), np.float64))
    strategy = FedProx(proximal=0.5, local_solver=GradientDescent(steps=6, lr=0.01))
    local, stacked = (simulate(strategy, problem, 5, engine=e) for e in ("local", "stacked"))
    assert len(taken) == 5
    np.testing.assert_allclose(stacked.x, local.x, rtol=0, atol=1e-12)
    for name in ("local_iterations", "local_evaluations"):
        assert stacked[name].tolist() == local[name].tolist()
    assert stacked["local_evaluations"][-1] == 5 * 4 * 6
    for solver in (GradientDescent(steps=6), GradientDescent(steps=6, lr=0.01, tolerance=1e-3)):
        simulate(FedProx(proximal=0.5, local_solver=solver), problem, 2, engine="stacked")
    assert len(taken) == 5  # a step of its own for each client; a stopping rule
    wild = FedProx(proximal=0.5, local_solver=GradientDescent(steps=900, lr=1e3))
    for engine in ("local", "stacked"):
        with pytest.raises(RoundError, match="diverged in iteration"):
            simulate(wild, problem, 2, engine=engine)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_steps_of_softmax_regression_are_those_one_by_one(always, dtype):
    rng = np.random.default_rng(7)
    parts = [
        SoftmaxRegression(
            rng.standard_normal((9, 6)).astype(dtype), rng.integers(0, 5, 9), 5, l2=0.1 * j
        )
        for j in range(4)
    ]
    whole, which, psi = stack(parts), np.array([0, 2, 3]), ElasticNet(0.3, 0.2)
    start, linear, center = rng.standard_normal((3, 3, 6, 5)).astype(dtype)
    first, proxes = rng.standard_normal((6, 5)).astype(dtype), [0.0, 0.1, 0.2, 0.3]
    terms, point = (start, linear, 0.7, center), Prox(psi, proxes.__getitem__)
    move = {"rate": 0.05, "onward": (1.0, 0.25), "first": first}
    for rows in (None, rng.integers(0, 9, (3, 4, 3))):
        steps = LocalPass(*terms, steps=4, point=point, **move)
        assert whole.takes(steps)
        found = whole.gradient_steps(steps, which, rows)
        assert found.dtype == dtype
        for i, j in enumerate(which):
            z = start[i]
            for k, t in enumerate(proxes):
                w = psi.prox(z, t) if k else first
                own = np.arange(9) if rows is None else rows[i, k]
                g = parts[j].batch_gradient(w, own) + linear[i] + 0.7 * (w - center[i])
                z = z + 0.25 * w - 0.05 * g
            np.testing.assert_allclose(found[i], z, atol=1e-13 if dtype == np.float64 else 2e-5)
    lost = LocalPass(np.full((6, 5), np.nan, dtype), steps=2, rate=0.05)
    assert np.isnan(whole.gradient_steps(lost, which, None)).all()
    free = [SoftmaxRegression(f.A, f.y, 5, l2=0.1, intercept=True) for f in parts]
    assert not stack(free).takes(LocalPass(np.zeros((7, 5), dtype), steps=2, rate=0.05))


def test_minibatch_steps_of_softmax_regression_go_as_in_the_local_engine(always):
    problem = digits(l1=1e-3)
    strategy = FedDualAvg(problem.regularizer, client_lr=0.1, local_steps=5, batch_size=10)
    local, stacked = (simulate(strategy, problem, 8, engine=e).x for e in ("local", "stacked"))
    np.testing.assert_allclose(stacked, local, rtol=0, atol=1e-12)
