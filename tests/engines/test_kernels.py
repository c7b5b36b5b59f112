"""The compiled kernels: what NumPy finds, on any number of cores, and never needed."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from row_clients import clients

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon import compiled as door
from flower_fedcon.compiled.threads import cores
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedFW

numba = pytest.importorskip("numba", reason="the extra `fast` is not installed")
compiled = pytest.importorskip("flower_fedcon.compiled.calls")


@pytest.mark.parametrize("which", [slice(0, 5), slice(1, 3), np.array([3, 0, 4])])
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "scaled", "matrix"])
def test_gradients_are_those_of_each_client(always, kind, dtype, rows, which):
    shape = (2, 3) if kind == "matrix" else (7,)
    objectives = clients(kind, 5, rows, shape, dtype)
    stacked, chosen = stack(objectives), np.arange(5)[which]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((len(chosen), *shape)).astype(dtype)
    center, start = x[0] + 1, rng.standard_normal(x.shape).astype(dtype)
    batch = rng.integers(0, rows, (len(chosen), 2 * rows + 1))[:, ::2]  # not contiguous
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == np.float64 else {"rtol": 3e-5}
    if dtype == np.float32:
        tolerance["atol"] = 3e-5
    each = np.stack([objectives[c].gradient(x[i]) for i, c in enumerate(chosen)])
    shared = np.stack([objectives[c].gradient(center) for c in chosen])
    batches = np.stack([objectives[c].batch_gradient(x[i], batch[i]) for i, c in enumerate(chosen)])
    added = start.copy()
    stacked.add_gradient(x, added, 0.5, which)
    found = {
        "each": (stacked.gradient(x, which), each),
        "one point": (stacked.gradient(center, which), shared),
        "batch": (stacked.batch_gradient(x, which, batch), batches),
        "added": (added, start + 0.5 * each),
        "pulled": (
            stacked.pulled_gradient(x, 0.5, center, 3.0, which),
            0.5 * each + 3 * (x - center),
        ),
    }
    for gradient, expected in found.values():
        assert gradient.dtype == dtype
        np.testing.assert_allclose(gradient, expected, **tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "scaled", "matrix"])
def test_values_are_those_of_each_client(always, monkeypatch, kind, dtype):
    shape = (2, 3) if kind == "matrix" else (7,)
    objectives, used = clients(kind, 5, 9, shape, dtype), []
    kernels = door.loops(np.ones(1))
    plain = kernels.find_losses
    monkeypatch.setattr(kernels, "find_losses", lambda *a: (used.append(1), plain(*a)))
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal(shape), 300 * rng.standard_normal(shape), np.zeros(shape)):
        found = stack(objectives).values(x.astype(dtype))
        expected = [f.value(x.astype(dtype)) for f in objectives]
        np.testing.assert_allclose(found, expected, rtol=1e-12 if dtype == np.float64 else 1e-5)
    assert used == [1, 1, 1]
    assert np.isnan(stack(objectives).values(np.full(shape, np.nan, dtype))).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_hessian_products_are_those_of_each_client(always, dtype, l2, rows):
    rng = np.random.default_rng(0)
    parts = [
        LogisticRegression(
            rng.standard_normal((rows, 7)).astype(dtype),
            np.where(rng.standard_normal(rows) > 0, 1, -1),
            l2=l2 * j,
            intercept=j > 0,
        )
        for j in range(3)
    ]
    exact = {"rtol": 1e-12, "atol": 1e-12} if dtype == np.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for objectives in (parts[1:], parts[:1] * 2):
        x, v = rng.standard_normal((2, 2, *objectives[0].shape)).astype(dtype)
        found = stack(objectives).hessian_products(x)(np.asfortranarray(v))
        assert found.dtype == dtype
        for i, objective in enumerate(objectives):
            np.testing.assert_allclose(found[i], objective.hessian(x[i]) @ v[i], **exact)


def test_the_kernels_are_what_is_used(always, monkeypatch):
    used, kernels = [], door.loops(np.ones(1))
    plain = kernels.add_gradients
    monkeypatch.setattr(kernels, "add_gradients", lambda *a: (used.append(1), plain(*a)))

    def play(dtype=np.float64):
        x = np.ones((3, 2), dtype)
        stack(clients("least squares", 3, 4, (2,), np.float64)).gradient(x, slice(0, 3))
        return len(used)

    assert play() == 1
    with door.numpy_only():
        assert play() == 1
    assert play(np.float32) == 1  # of another type than the data: by NumPy


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found(always, value):
    g = np.ones((4, 5))
    g[2, 3], g[2, 4] = value, 7.0
    with pytest.raises(ConfigError, match=r"L1Ball.* finite"):
        L1Ball(1.0).lmo(g, batch=1)
    objectives = clients("least squares", 4, 5, (5,), np.float64)
    found = stack(objectives).gradient(g, slice(0, 4))
    assert not np.isfinite(found[2]).any()
    assert np.isfinite(found[[0, 1, 3]]).all()


@pytest.mark.parametrize("kind", [">f8", "longdouble", "float16", "int64"])
def test_other_types_are_numpys(always, kind):
    g = np.array([[1, -3, 2], [4, 0, 4]]).astype(kind)
    assert door.loops(g) is None
    found = L1Ball(1.0).lmo(g, batch=1)
    assert found.code.tolist() == [2, -1]


def fedfw(n: int = 40, d: int = 60) -> tuple[FedFW, FederatedProblem]:
    constraint = L1Ball(1.0)
    problem = FederatedProblem(
        clients("least squares", n, 20, (d,), np.float64), constraint=constraint
    )
    return FedFW(constraint, penalty=1.0), problem


def test_the_number_of_cores_changes_no_bit(monkeypatch):
    monkeypatch.setattr(door, "WORTHWHILE", 0)
    strategy, problem = fedfw()
    found = {simulate(strategy, problem, 30, engine="stacked").x.tobytes()}  # small: one thread
    monkeypatch.setattr(compiled, "FEW", 0)
    for threads in range(1, cores() + 1):
        run = simulate(strategy, problem, 30, engine="stacked", threads=threads)
        found.add(run.x.tobytes())
    assert len(found) == 1


def test_a_forked_child_works_on_one_core(always):
    """A parallel region of OpenMP, entered by parent and child, would end the child."""
    strategy, problem = fedfw()
    expected = simulate(strategy, problem, 10, engine="stacked").x.tobytes()
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = simulate(strategy, problem, 10, engine="stacked").x.tobytes() == expected
        finally:
            os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


HIDDEN = """
import sys
import numpy as np
from flower_fedcon import compiled as door
from flower_fedcon.sets import L1Ball
assert door.loops(np.ones(2**20)) is None
assert door.describe() == "none: NumPy alone"
assert abs(L1Ball(1.0).lmo(np.eye(300), batch=1).code).sum() == sum(range(1, 301))
"""
SMALL = """
import sys
import numpy as np
from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedFW
clients = [LeastSquares(np.eye(4), np.ones(4)) for _ in range(5)]
problem = FederatedProblem(clients, constraint=L1Ball(1.0))
simulate(FedFW(problem.constraint, penalty=1.0), problem, 3, engine="stacked")
assert "numba" not in sys.modules
"""


@pytest.mark.parametrize(
    ("code", "more"),
    [
        (f"import sys; sys.modules['numba'] = None{HIDDEN}", {}),
        (HIDDEN, {"NUMBA_DISABLE_JIT": "1"}),
        (SMALL, {}),
    ],
    ids=["without numba", "switched off", "small arrays do not load it"],
)
def test_numba_is_never_needed(code, more):
    env = {**os.environ, **more}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120
    )
    assert (done.stderr, done.returncode) == ("", 0)
