"""What FedAvg, FedMiD and FedDualAvg keep true."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun
from problems import l1ls, q6

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.regularizers import L1, Indicator, NuclearNorm
from flower_fedcon.sets import L2Ball
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
