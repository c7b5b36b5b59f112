"""The problems made for theorems: what their builders promise."""

from __future__ import annotations

import re

import numpy as np
import pytest
from problems import Q6_L1_X, Q6_VALUE, q6, q6_shared, q6_walls

from flower_fedcon.errors import ConfigError
from flower_fedcon.problems import (
    facility,
    low_rank,
    quadratics,
    six_quadratics,
    sparse_regression,
)


def test_nobody_in_the_half_space_is_nearer_to_the_customers():
    problem = facility(clients=5, columns=6, distance=2.0, seed=3)
    best, rng = problem.optimum.x, np.random.default_rng(0)
    assert np.linalg.norm(best) == pytest.approx(2.0)
    assert problem.objective(np.zeros(6)) > problem.optimum.value + 0.5
    for size in (1e-3, 0.1, 1.0):
        for _ in range(50):
            x = best + size * rng.standard_normal(6)
            record = problem.evaluate(x)
            if record["constraint"] <= 0:
                assert record["residual"] > 0
            f, g = problem.objectives[0], problem.objectives[1]
            assert np.linalg.norm(f.gradient(x)) == pytest.approx(1.0)
            assert np.linalg.norm(g.constraint_gradient(x)) == pytest.approx(1.0)
    assert problem.objective(best - 0.1 * f.normal) > problem.optimum.value
    assert problem.objective(best + 0.1 * f.normal) < problem.optimum.value  # the border binds
    np.testing.assert_array_equal(f.gradient(f.place), np.zeros(6))


@pytest.mark.parametrize(("smallest", "expected"), [(1.0, 1.0), (0.0, 0.0)])
def test_quadratics_have_the_condition_asked_for(smallest, expected):
    problem = quadratics(clients=4, columns=8, condition=100.0, smallest=smallest, seed=1)
    for f in problem.objectives:
        values = np.linalg.eigvalsh(f.Q)
        assert values[-1] == pytest.approx(100.0)
        assert values[0] == pytest.approx(expected, abs=1e-12)
        assert (abs(values) < 1e-12).sum() == (0 if smallest else 4)
    best = problem.optimum.x
    assert np.linalg.norm(problem.gradient(best)) < 1e-12
    assert problem.metrics["error"](best) == 0
    assert problem.metrics["gradient"](best) == pytest.approx(
        np.linalg.norm(problem.gradient(best))
    )


def test_quadratics_of_both_signs_are_not_convex():
    problem = quadratics(clients=3, columns=8, condition=10.0, smallest=-1, radius=2.0)
    mean = np.mean([f.Q for f in problem.objectives], axis=0)
    assert np.linalg.eigvalsh(mean)[0] < -0.5
    assert problem.constraint.radius == 2.0


def test_quadratics_agree_on_the_steep_directions_or_not():
    aligned, apart = (
        quadratics(clients=4, columns=8, directions=kind) for kind in ("aligned", "apart")
    )
    mean = np.linalg.eigvalsh(np.mean([f.Q for f in aligned.objectives], axis=0))
    assert mean[[0, -1]] == pytest.approx([1.0, 100.0])  # the clients' own condition
    steep = [np.linalg.eigh(f.Q)[1][:, -2:] for f in apart.objectives]
    for f in apart.objectives:
        assert np.linalg.eigvalsh(f.Q) == pytest.approx([1.0] * 6 + [f.Q.trace() - 106, 100.0])
    assert np.abs(steep[0].T @ steep[1]).max() < 1e-12


def test_an_l1_norm_moves_the_optimum_of_quadratics():
    plain, sparse = (quadratics(clients=3, columns=6, l1=l1) for l1 in (0.0, 0.3))
    assert sparse.metrics["error"](sparse.optimum.x) == 0
    assert np.count_nonzero(abs(sparse.optimum.x) < 1e-9) > 0
    assert sparse.metrics["error"](plain.optimum.x) > 0.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"smallest": 2.0}, "smallest must be -1, 0 or 1, got 2.0"),
        ({"smallest": -1.0}, "unbounded below without a radius"),
        ({"condition": 0.5}, "condition must be at least 1, got 0.5"),
        ({"directions": "any"}, "directions must be one of 'mixed', 'aligned', 'apart'"),
        ({"directions": "apart", "clients": 9, "columns": 8}, "at most columns = 8, got 9"),
        ({"columns": 1}, "columns must be a whole number >= 2"),
    ],
)
def test_quadratics_refuse(arguments, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        quadratics(**arguments)


def test_clients_alike_and_errors_in_the_operator_norm():
    alike = sparse_regression(clients=40, rows=30, columns=4, nonzeros=2, shift=0.0)
    assert max(abs(f.A.mean()) for f in alike.objectives) < 0.5
    problem = low_rank(clients=2, rows=5, size=4, rank=2)
    error = problem.evaluate(np.diag([1.0, 1.0, 0.5, 0.0]))
    assert (error["error"], error["error_operator"]) == (0.5, 0.5)
    error = problem.evaluate(np.zeros((4, 4)))
    assert (error["error"], error["error_operator"]) == (pytest.approx(np.sqrt(2)), 1.0)


def test_the_six_quadratics_are_those_of_the_tests():
    """With the optima that were found in another way: values, signs, and the walls that bind."""
    for ours, theirs in (
        (six_quadratics(), q6()),
        (six_quadratics(shared=True), q6_shared()),
        (six_quadratics(walls=True), q6_walls()),
    ):
        for f, g in zip(ours.objectives, theirs.objectives, strict=True):
            x = np.arange(8.0)
            assert f.value(x) == pytest.approx(g.value(x), rel=1e-14)
        np.testing.assert_allclose(ours.optimum.x, theirs.optimum.x, atol=1e-10)
        assert ours.constraints == theirs.constraints
    walls = zip(six_quadratics(walls=True).objectives, q6_walls().objectives, strict=True)
    for f, g in walls:
        assert f.constraint_value(np.ones(8)) == pytest.approx(g.constraint_value(np.ones(8)))
        np.testing.assert_array_equal(f.constraint_gradient(np.ones(8)), g.a)
    assert six_quadratics().optimum.value == pytest.approx(Q6_VALUE, rel=1e-14)
    assert six_quadratics(l1=0.6).metrics["error"](Q6_L1_X) < 2e-6
    one, other = six_quadratics(walls=True, seed=2), six_quadratics(walls=True)
    for f, g in zip(one.objectives, other.objectives, strict=True):
        assert f.value(np.ones(8)) != g.value(np.ones(8))
        assert f.constraint_gradient(np.ones(8))[0] != g.constraint_gradient(np.ones(8))[0]
    with pytest.raises(ConfigError, match="give one of shared, walls and l1"):
        six_quadratics(shared=True, l1=0.1)
