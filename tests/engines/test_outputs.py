"""Least squares with several outputs and l2 in every engine: the local engine's run."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from agreement import agree

from flower_fedcon import FederatedProblem, Full, Sample
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.regularizers import L1, NuclearNorm
from flower_fedcon.sets import L1Ball, NuclearNormBall
from flower_fedcon.strategies import FedAvg, FedDR, FedFW, FedMiD, FedPD, Scaffnew, Scaffold

N, M, D, K = 5, 9, 6, 3
METHODS = {
    "FedAvg": lambda: FedAvg(client_lr=0.1, local_steps=4),
    "Scaffold": lambda: Scaffold(
        client_lr=0.1, local_steps=4, batch_size=3, participation=Sample(count=3)
    ),
    "FedDR": lambda: FedDR(step_size=1.0, regularizer=NuclearNorm(0.05)),
    "FedDR of l1": lambda: FedDR(step_size=1.0, regularizer=L1(0.02)),
    "FedPD": lambda: FedPD(step_size=1.0, participation=Full()),
    "Scaffnew": lambda: Scaffnew(client_lr=0.1, communication_probability=0.4),
    "FedMiD": lambda: FedMiD(
        client_lr=0.1, local_steps=3, batch_size=2, regularizer=NuclearNorm(0.05)
    ),
    "FedMiD of l1": lambda: FedMiD(client_lr=0.1, local_steps=3, regularizer=L1(0.02)),
    "FedFW": lambda: FedFW(NuclearNormBall(2.0), penalty=0.5),
    "FedFW of l1": lambda: FedFW(L1Ball(2.0), penalty=0.5),
}


def clients(kind: str) -> list[LeastSquares]:
    """Return clients whose l2 differ; only some of them have as many rows as the model."""
    rng = np.random.default_rng(3)
    found = []
    for j in range(N):
        m = M + j * (kind == "unequal") - 6 * (kind == "few rows")
        rows, b = rng.normal(size=(m, D)) / 2, rng.normal(size=(m, K))
        options = {"l2": 0.0 if kind == "no l2" else 0.1 * j}
        if kind == "weighted":
            options["sample_weight"] = rng.uniform(0.5, 2.0, m)
        given = sp.csr_array(rows * (rng.random(rows.shape) < 0.6)) if kind == "sparse" else rows
        found.append(LeastSquares(given, b, 1.5, intercept=kind == "intercept", **options))
    return found


def problem_of(strategy, objectives):
    own = {name: getattr(strategy, name, None) for name in ("regularizer", "constraint")}
    return FederatedProblem(objectives, **own)


BATCHES = ("Scaffold", "FedMiD")  # whose clients must have one size
CASES = [(kind, method) for kind in ("no l2", "few rows") for method in METHODS]
CASES += [("unequal", method) for method in METHODS if method not in BATCHES]


@pytest.mark.parametrize("engine", ["stacked", "jax"])
@pytest.mark.parametrize(("kind", "method"), CASES)
def test_engines_agree(kind, method, engine):
    strategy = METHODS[method]()
    agree(strategy, problem_of(strategy, clients(kind)), 10, 1e-12, engine=engine)


@pytest.mark.parametrize("method", ["Scaffold", "FedDR", "FedFW"])
@pytest.mark.parametrize("kind", ["weighted", "sparse", "intercept"])
def test_stacked_data(kind, method):
    strategy = METHODS[method]()
    agree(strategy, problem_of(strategy, clients(kind)), 10, 1e-12)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("method", METHODS)
def test_compiled_loops(method):
    """Of numba, at any size."""
    strategy = METHODS[method]()
    agree(strategy, problem_of(strategy, clients("l2")), 10, 1e-12)


@pytest.mark.parametrize("method", ["Scaffold", "FedDR"])
def test_many_clients_in_one_array(method):
    strategy, rng = METHODS[method](), np.random.default_rng(6)
    A, b = rng.normal(size=(N, M, D)), rng.normal(size=(N, M, K))
    whole = ManyClients(LeastSquares, A, b, l2=0.2)
    each = [LeastSquares(*own, l2=0.2) for own in zip(A, b, strict=True)]
    found = agree(strategy, problem_of(strategy, whole), 10, 1e-12)
    expected = agree(strategy, problem_of(strategy, each), 10, 1e-12)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-12)
    x = rng.normal(size=(D, K))
    mean = np.mean([f.gradient(x) for f in each], axis=0)
    np.testing.assert_allclose(whole.mean.gradient(x), mean, rtol=1e-12)
    constants = [[f.smoothness for f in each], [f.strong_convexity for f in each]]
    np.testing.assert_allclose(whole.constants(), constants, rtol=1e-12)
