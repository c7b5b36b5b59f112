"""FedDualAvg with the entropy in place of the squared Euclidean norm."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from problems import q6_l1

from flower_fedcon import FederatedProblem, Only, Sample, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems import mixture
from flower_fedcon.sets import Simplex
from flower_fedcon.strategies import FedDualAvg


def test_entropy_is_the_multiplicative_update():
    """One step and one client: w_j is multiplied by exp(-eta g_j), and normalised."""
    clients = [Quadratic(np.diag([1.0, 2.0, 3.0]), np.array([1.0, 0.5, 0.0]))]
    start = np.array([0.4, 1.2, 0.4])
    problem = FederatedProblem(clients, constraint=Simplex(2.0), x0=start)
    strategy = FedDualAvg(problem.constraint, client_lr=0.3, local_steps=1, distance="entropy")
    x = start
    for _ in range(5):
        x = x * np.exp(-0.3 * clients[0].gradient(x))
        x *= 2.0 / x.sum()
    history = simulate(strategy, problem, 5)
    assert history.x == pytest.approx(x, rel=1e-13)
    assert history["violation"].max() < 1e-14


@pytest.mark.parametrize("rule", [None, Sample(count=2)])
def test_both_distances_find_one_optimum(rule):
    problem = mixture(clients=4, rows=60, columns=12, nonzeros=3)
    for distance, lr in (("entropy", 1.0), ("euclidean", 0.1)):
        strategy = FedDualAvg(
            problem.constraint, client_lr=lr, local_steps=1, distance=distance, participation=rule
        )
        runs = [simulate(strategy, problem, 300, engine=e) for e in ("local", "stacked")]
        assert runs[1].x == pytest.approx(runs[0].x, abs=1e-12)
        gap = problem.objective(runs[0].x) - problem.optimum.value
        assert gap < (1e-4 if rule is None else 1e-2)


def test_only_one_client_trains():
    problem = q6_l1()
    alone = FederatedProblem([problem.objectives[4]], regularizer=problem.regularizer)
    steps = {"client_lr": 1 / 40, "local_steps": 2}
    found = simulate(
        FedDualAvg(problem.regularizer, participation=Only(4), **steps), problem, 30, seed=1
    )
    expected = simulate(FedDualAvg(problem.regularizer, **steps), alone, 30)
    assert found.x.tobytes() == expected.x.tobytes()
    assert found["objective"][-1] == problem.objective(found.x)  # of everyone
    assert set(found["cohort"]) == {1}
