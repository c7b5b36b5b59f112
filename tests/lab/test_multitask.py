"""The multi-task problem: its data, its two forms, and what finds its support."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.problems import multitask
from flower_fedcon.regularizers import GroupLasso
from flower_fedcon.sets import GroupL2Ball
from flower_fedcon.strategies import CompositeFL, FedFW

SMALL = {"clients": 6, "rows": 20, "features": 12, "tasks": 3, "nonzeros": 3}


def test_each_client_has_its_rows_of_all_tasks():
    problem = multitask(**SMALL, weight=0.1, noise=0.0)
    f = problem.objectives[2]
    assert f.A.shape == (60, 12, 3)
    # Row i in task t: the features of row i in column t, zeros elsewhere.
    rows = f.A.reshape(20, 3, 12, 3)
    np.testing.assert_array_equal(rows[4, 1, :, [0, 2]], 0)
    np.testing.assert_array_equal(rows[4, 1, :, 1], rows[4, 2, :, 2])
    # Without noise the truth fits all, and it has the rows that the metrics say.
    truth = np.linalg.lstsq(rows[:, 0, :, 0], f.b.reshape(20, 3), rcond=None)[0]
    assert problem.metrics["error"](truth) == pytest.approx(0, abs=1e-10)
    assert problem.metrics["f1"](truth) == 1.0
    assert (np.linalg.norm(truth, axis=1) > 1e-8).tolist() == [True] * 3 + [False] * 9
    # The mean over rows and tasks of half the squared residual.
    x = np.random.default_rng(0).normal(size=(12, 3))
    residual = rows[:, 0, :, 0] @ x - f.b.reshape(20, 3)
    assert f.value(x) == pytest.approx(0.5 * np.mean(residual**2))


def test_clients_differ_by_their_means():
    def spread(shift):
        problem = multitask(**SMALL | {"rows": 400}, weight=0.1, shift=shift, seed=3)
        means = [f.A.reshape(400, 3, 12, 3)[:, 0, :, 0].mean(axis=0) for f in problem.objectives]
        return np.std(means)

    assert spread(0.0) < 0.1
    assert spread(2.0) == pytest.approx(2.0, rel=0.25)


def test_the_two_forms_have_one_optimum():
    lasso = multitask(**SMALL, weight=0.2)
    assert lasso.regularizer == GroupLasso(0.2, "rows")
    best = lasso.optimum.x
    radius = float(np.linalg.norm(best, axis=1).sum())
    ball = multitask(**SMALL, radius=radius)
    assert ball.constraint == GroupL2Ball(radius, "rows")
    np.testing.assert_allclose(ball.optimum.x, best, atol=1e-7)
    assert lasso.metrics["rows"](best) == 3


def test_composite_and_projection_free_runs():
    lasso = multitask(**SMALL, weight=0.2)
    steps = {"client_lr": 0.05, "local_steps": 5}
    run = simulate(CompositeFL(lasso.regularizer, **steps), lasso, 400)
    assert run.x == pytest.approx(lasso.optimum.x, abs=1e-9)
    assert run["f1"][-1] == 1.0
    ball = multitask(**SMALL, radius=float(np.linalg.norm(lasso.optimum.x, axis=1).sum()))
    found = simulate(FedFW(ball.constraint, penalty=0.05), ball, 2000, evaluate_every=0)
    gap = ball.objective(found.x) - ball.optimum.value
    assert 0 < gap < 0.05 * (ball.objective(ball.x0) - ball.optimum.value)


def test_refusals():
    for both in ({}, {"weight": 0.1, "radius": 1.0}):
        with pytest.raises(ConfigError, match=r"either weight .* or radius"):
            multitask(**both)
    with pytest.raises(ConfigError, match="at most features = 12, got 13"):
        multitask(**SMALL | {"nonzeros": 13}, weight=0.1)
    for key, value in (("weight", -1.0), ("radius", 0.0), ("shift", np.nan), ("noise", -0.1)):
        with pytest.raises(ConfigError, match=f"{key}.* must be finite"):
            multitask(
                **{"weight": 0.1} | ({"weight": None} if key == "radius" else {}) | {key: value}
            )
    for key in (*SMALL, "seed"):
        with pytest.raises(ConfigError, match=f"{key} must be a whole number"):
            multitask(**SMALL | {key: -1}, weight=0.1)
