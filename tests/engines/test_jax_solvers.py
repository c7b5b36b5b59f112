"""Local solvers that the compiled engine takes: steps whose number and length are known."""

from __future__ import annotations

import numpy as np
import pytest
from test_stacked import objectives

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import AOGM, GradientDescent
from flower_fedcon.strategies import FedDR, FedDyn, FedExProx, FedPD, FedProx, FiveGCS

pytest.importorskip("jax")
from test_jax import done, same

from flower_fedcon.engines.traceable import why_not_traceable

__all__ = ["done"]  # a fixture
STEPS = GradientDescent(steps=5, lr=0.05)
PSI = L1(0.05)
METHODS = [
    FedProx(proximal=1.0, local_solver=STEPS),
    FedDyn(proximal=1.0, local_solver=STEPS),
    FedDR(PSI, step_size=1.0, local_solver=STEPS),
    FedExProx(step_size=1.0, local_solver=STEPS),
    FiveGCS(strong_convexity=0.1, local_solver=STEPS),
]


@pytest.mark.parametrize("strategy", METHODS, ids=lambda s: s.name)
@pytest.mark.parametrize("kind", ["least squares", "logistic", "softmax", "of several kinds"])
def test_the_same_iterates_and_work_as_local(strategy, kind, done):
    parts = objectives("least squares" if kind == "of several kinds" else kind)
    if kind == "of several kinds":
        parts[0] = LeastSquares(np.eye(6), np.arange(6.0))
    psi = {"regularizer": PSI} if strategy.name == "feddr" else {}
    problem = FederatedProblem(parts, **psi)
    found = same(strategy, problem)
    assert sum(done) == 29
    expected = simulate(strategy, problem, 30, seed=3, evaluate_every=10)
    for row, other in zip(expected.rows, found.rows, strict=True):
        for name in ("local_iterations", "local_evaluations"):
            assert other[name] == row[name] > 0


def test_cohorts(done):
    strategy = FedProx(proximal=1.0, local_solver=STEPS, participation=Sample(count=3))
    same(strategy, FederatedProblem(objectives("logistic")))
    assert sum(done) == 29


@pytest.mark.parametrize("psi", [None, L1(0.001)])
def test_who_diverges_is_dropped_as_with_local(psi, done):
    """Far away, though not yet where numbers end: the others go on."""
    single = np.float32
    sizes = (1.0, 1.5, 2.0, 1e4)
    parts = [Quadratic(np.eye(4, dtype=single) * single(k), np.ones(4, single)) for k in sizes]
    solver = GradientDescent(steps=9, lr=0.1)
    strategy: FedProx | FedDR = FedProx(proximal=1.0, local_solver=solver)
    if psi is not None:
        strategy = FedDR(psi, step_size=1.0, local_solver=solver)
    problem = FederatedProblem(parts, regularizer=psi)
    local, found = (simulate(strategy, problem, 4, engine=e) for e in ("local", "jax"))
    np.testing.assert_allclose(found.x, local.x, rtol=1e-5)
    assert found.rows[-1]["dropped"] == local.rows[-1]["dropped"] > 0


def test_what_it_does_not_take():
    problem = FederatedProblem(objectives("logistic"))
    for solver in ("exact", AOGM(), GradientDescent(steps=5), GradientDescent(tolerance=1e-6)):
        reason = why_not_traceable(FedPD(step_size=1.0, local_solver=solver), problem)
        assert reason is not None
        assert "by its own rule" in reason
