"""What private examples cost on a real table, as the page of private examples states it."""

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LogisticRegression, PrivateObjective
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedDualAvg

pytest.importorskip("dp_accounting")
datasets = pytest.importorskip("sklearn.datasets")


@pytest.mark.nightly
def test_breast_cancer_at_epsilon_1() -> None:
    """Mean accuracy over forty splits is at most 0.02 below that without noise."""
    X, labels = datasets.load_breast_cancer(return_X_y=True)
    X = np.c_[(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))]
    y = 2.0 * labels - 1
    accuracy: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(40):
        order = np.random.default_rng(seed).permutation(len(y))
        train, held = order[:427], order[427:]
        losses = [LogisticRegression(X[rows], y[rows]) for rows in np.array_split(train, 4)]
        private = [PrivateObjective(f, ExampleDP(1.0, 11.92, 1e-5)) for f in losses]
        for noisy, rounds in ((True, 10), (False, 200)):
            problem = FederatedProblem(private if noisy else losses, regularizer=L1(0.03))
            method = FedDualAvg(problem.regularizer, client_lr=2.0, local_steps=1)
            x = simulate(method, problem, rounds, seed=seed, evaluate_every=rounds).x
            accuracy[noisy].append(float(np.mean(np.sign(X[held] @ x) == y[held])))
        assert all(0.95 < f.ledger.epsilon < 1.0 for f in private)
    assert np.mean(accuracy[False]) == pytest.approx(0.966, abs=0.003)
    assert np.mean(accuracy[True]) > np.mean(accuracy[False]) - 0.02
