"""MCFedDA's first stage on the paper's sparse regression, by a loop of the published steps."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon.problems import sparse_regression

GAMMA, MU, STEPS, ROUNDS, WEIGHT, RADIUS = 600.0, 0.1, 10, 250, 2.0**-3, 5000.0


def first_stage(problem, rng):
    """Return F1 after a stage with 10 of the clients, batches of 10 rows, and draws of its own.

    The prox is taken without the ball and the point is then pulled to it, as in the authors' code.
    """
    start = w = problem.start
    gradients, models = np.zeros_like(w), w.copy()  # their sums so far
    for r in range(1, ROUNDS + 1):
        curvature = MU / 2 + GAMMA / (r * STEPS)

        def point(g):
            v = (MU / 2 * models / r + (GAMMA * start - g) / (r * STEPS)) / curvature  # noqa: B023
            v = np.sign(v) * np.maximum(np.abs(v) - WEIGHT / curvature, 0.0)  # noqa: B023
            assert np.abs(v - start).sum() < RADIUS  # so the projection leaves it where it is
            return v

        sums = []
        for i in rng.choice(problem.num_clients, 10, replace=False):
            A, b = problem.objectives[i].A, problem.objectives[i].b
            g, v = gradients.copy(), w
            for _ in range(STEPS):
                rows = rng.choice(len(b), 10, replace=False)
                g += A[rows].T @ (A[rows] @ v - b[rows]) / 10
                v = point(g)
            sums.append(g)
        gradients = np.mean(sums, axis=0)
        w = point(gradients)
        models += w
    return problem.metrics["f1"](w)


@pytest.mark.parametrize(("start", "low", "high"), [(1.0, 0.85, 0.93), (0.0, 0.99, 1.0)])
def test_the_start_decides_whether_the_first_stage_finds_the_support(start, low, high):
    """From N(0, I), as in the authors' code, it does not; from 0, with the same steps, it does."""
    assert low < first_stage(sparse_regression(start=start), np.random.default_rng(0)) <= high
