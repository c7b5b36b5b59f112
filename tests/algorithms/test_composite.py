"""FedAvg, FedMiD and FedDualAvg: what the contract test does not say."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from harness import OpenRun
from problems import l1ls, q6, q6_l1

from flower_fedcon import FederatedProblem, Only, Sample, simulate
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.problems import mixture
from flower_fedcon.regularizers import L1, Indicator, NuclearNorm
from flower_fedcon.sets import L2Ball, Simplex
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedMiD


def test_elapsed_step_is_exact():
    problem = q6(0.6)
    strategy = FedDualAvg(problem.regularizer, client_lr=0.1, local_steps=7, server_lr=0.3)
    run = OpenRun(strategy, problem)
    run.play(1000)
    assert run.server.strategy.broadcast(run.state)["elapsed"] == 0.3 * 0.1 * 1000 * 7


@pytest.mark.parametrize("kind", [FedMiD, FedDualAvg])
def test_sets_keep_every_model_feasible(kind):
    ball = L2Ball(0.2)
    problem = q6()
    strategy = kind(ball, client_lr=1 / 40, local_steps=1, server_prox_only=True)
    assert isinstance(strategy.regularizer, Indicator)
    run = OpenRun(strategy, problem)
    for _ in range(200):
        run.play()
        assert ball.contains(run.x)
    assert np.linalg.norm(run.x) == pytest.approx(0.2)


def test_batches_are_drawn_without_replacement_in_a_local_pass():
    """10 rows in batches of 5: two steps see every row once."""
    problem = l1ls(2, l1=0.1)
    seen = []

    class Watched:
        num_examples, shape = 10, (50,)
        value, gradient = problem.objectives[0].value, problem.objectives[0].gradient
        stochastic_gradient = problem.objectives[0].stochastic_gradient

        def batch_gradient(self, x, rows):
            seen.append(rows.tolist())
            return problem.objectives[0].batch_gradient(x, rows)

    watched = type(problem)([Watched()], regularizer=L1(0.1))
    strategy = FedDualAvg(L1(0.1), client_lr=0.01, local_steps=4, batch_size=5)
    simulate(strategy, watched, 3)
    passes = [sorted(seen[i] + seen[i + 1]) for i in range(0, len(seen), 2)]
    assert passes == [list(range(10))] * 6
    assert len({str(batch) for batch in seen}) == 12


def test_fedavg_takes_a_regularizer_of_matrices():
    A, y = np.random.default_rng(0).standard_normal((2, 9, 2, 3)), np.ones((2, 9))
    problem = FederatedProblem(map(LeastSquares, A, y), regularizer=NuclearNorm(0.1))
    fedavg = FedAvg(client_lr=0.01, local_steps=3, regularizer=problem.regularizer)
    local, stacked = (simulate(fedavg, problem, 400, engine=e) for e in ("local", "stacked"))
    np.testing.assert_allclose(local.x, stacked.x, rtol=1e-9)
    assert local["objective"][-1] < problem.optimum.value + 0.02 < problem.objective(problem.x0)


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


class Recorded:
    """x'Qx/2 - b'x, whose gradients have noise and are kept."""

    def __init__(self, Q, b, std, seed):
        self.f, self.std, self.rng, self.seen = (
            Quadratic(Q, b),
            std,
            np.random.default_rng(seed),
            [],
        )

    def value(self, x):
        return self.f.value(x)

    def gradient(self, x):
        self.seen.append(self.f.gradient(x) + self.std * self.rng.normal(size=x.shape))
        return self.seen[-1]


@pytest.mark.parametrize(("steps", "std"), [(1, 0.0), (1, 1.0), (8, 0.0), (8, 1.0)])
def test_average_of_feddualavg_is_within_theorem_4_3(steps, std):
    """B/(eta K R) + eta sigma^2/M + eta^2 L K sigma^2, for clients that are alike, with constants.

    The average is the theorem's, of prox(mean_m z_m, eta t) after each local step t. Its own step's
    model is 1/eta strongly convex, and the clients' points are as far from it as their noise: with
    B = ||w* - x0||^2/2 the factors are 1, 1/(2 (1 - 2 eta L)) and exp(2 eta L K).
    """
    rng = np.random.default_rng(0)
    A, clients, rounds, eta = rng.normal(size=(12, 6)), 5, 40, 0.01
    Q, b, psi = A.T @ A, 4 * rng.normal(size=6), L1(1.0)
    L, runs = np.linalg.eigvalsh(Q)[-1], 6 if std else 1
    best = FederatedProblem([Quadratic(Q, b)], regularizer=psi).optimum
    gaps = []
    for seed in range(runs):
        each = [Recorded(Q, b, std, (seed, m)) for m in range(clients)]
        problem = FederatedProblem(each, regularizer=psi, x0=np.zeros(6))
        method = FedDualAvg(psi, client_lr=eta, local_steps=steps)
        history = simulate(method, problem, rounds, evaluate_every=0)
        z = np.cumsum(np.mean([f.seen for f in each], axis=0), axis=0) * -eta
        points = [psi.prox(own, eta * (t + 1)) for t, own in enumerate(z)]
        assert len(points) == steps * rounds
        assert points[-1] == pytest.approx(history.x, abs=1e-12)
        x = np.mean(points, axis=0)
        gaps.append(x @ Q @ x / 2 - b @ x + psi.value(x) - best.value)
    variance, done = 6 * std**2, steps * rounds
    bound = np.sum(best.x**2) / (2 * eta * done)
    bound += eta * variance / clients / (2 * (1 - 2 * eta * L))
    bound += eta**2 * L * steps * variance * np.exp(2 * eta * L * steps)
    assert 0 < np.mean(gaps) <= bound
