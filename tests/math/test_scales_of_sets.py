"""Sets and regularizers whose data, or points, are of very different sizes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.regularizers import MCP, SCAD, SLOPE, Indicator, TotalVariation2D
from flower_fedcon.schedules import Inverse, InverseSqrt
from flower_fedcon.sets import AffineSubspace, ConvexHull, L2Ball, Polyhedron
from flower_fedcon.strategies import FedMiD
from flower_fedcon.wire.settings import make

SIDES = np.array([[-1.0, 0.0], [0.0, -1.0], [1.0, 1.0]])
EYE = np.eye(2)
CUBE = np.vstack([np.eye(3), -np.eye(3)])


@pytest.mark.parametrize(
    ("A", "b", "v", "expected"),
    [
        (EYE, [1.0, 1e15], [2.0, 0.0], [1.0, 0.0]),  # a bound that is none
        (EYE, [1e-6, 1e6], [1.8e-6, 0.0], [1e-6, 0.0]),
        (CUBE, np.ones(6), [1e13, 2.0, 0.5], [1.0, 1.0, 0.5]),  # one entry far away
        (-EYE, [0.0, 0.0], [-1e-13, 1e-13], [0.0, 1e-13]),
        (np.vstack([EYE, -EYE]), np.full(4, 1e-20), [1e-15, 0.0], [1e-20, 0.0]),
    ],
)
def test_each_inequality_counts_by_its_own_size(A, b, v, expected):
    found = Polyhedron(A, np.array(b)).project(np.array(v))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0)
    assert Polyhedron(A, np.array(b)).contains(found)


def test_an_empty_polyhedron_is_found_beside_a_large_bound():
    with pytest.raises(ConfigError, match="the Polyhedron is empty"):
        Polyhedron(np.array([[1.0], [-1.0], [1.0]]), np.array([-1.0, -1.0, 1e13]))


@pytest.mark.parametrize("size", [1e-150, 1e-9, 1.0, 1e21])
def test_vertices_and_diameters_of_any_size(size):
    triangle = Polyhedron(SIDES, np.array([0.0, 0.0, size]))
    vertex = triangle.lmo(np.array([1.0, -1.0])).dense()
    np.testing.assert_allclose(vertex, [0.0, size], rtol=1e-12, atol=1e-12 * size)
    assert triangle.diameter_for((2,)) == pytest.approx(np.hypot(size, size), rel=1e-9)


def test_polyhedra_and_points_of_many_sizes_against_their_conditions():
    """v - x is a combination >= 0 of the normals that hold with equality."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        d, m = rng.integers(1, 6), rng.integers(1, 12)
        A = rng.integers(-2, 3, (m, d)).astype(float)
        A = A[np.abs(A).sum(axis=1) > 0]
        if not len(A):
            continue
        inside = rng.standard_normal(d) * 10.0 ** rng.integers(-3, 4)
        b = A @ inside + rng.random(len(A)) if seed % 2 else np.zeros(len(A))
        v = rng.standard_normal(d) * 10.0 ** rng.integers(-4, 7)
        x = Polyhedron(A, b).project(v)
        assert Polyhedron(A, b).contains(x)
        near = (b - A @ x) <= 1e-9 * np.maximum(np.abs(b), np.abs(A) @ np.abs(v))
        normals = A[near].T if near.any() else np.zeros((d, 1))
        assert nnls(normals, v - x)[1] <= 1e-8 * np.linalg.norm(v)


def test_a_set_far_from_the_origin_contains_its_projections():
    rng = np.random.default_rng(0)
    hull = ConvexHull((100 + 0.1 * rng.normal(size=(6, 4))).astype(np.float32))
    flat, ball = AffineSubspace(np.ones((1, 3)), np.ones(1)), L2Ball(0.1).shifted(100.0)
    for _ in range(8):
        near = (100 + rng.normal(size=4)).astype(np.float32)
        assert Indicator(hull).value(hull.project(near)) == 0.0
        assert Indicator(ball).value(ball.project(near)) == 0.0
        assert Indicator(flat).value(flat.project(1e8 * rng.normal(size=3))) == 0.0


@pytest.mark.parametrize("limit", [49.0, 98.0, 103.0, 107.0, 197.0])
def test_a_step_at_the_limit_is_refused_whatever_rounding_makes_of_it(limit):
    for psi in (MCP(1.0, gamma=limit), SCAD(1.0, a=limit + 1.0)):
        with pytest.raises(ConfigError, match="exists only for steps below"):
            psi.prox(np.array([0.3]), limit)
        with pytest.raises(ConfigError, match=r"takes prox steps of up to"):
            FedMiD(psi, client_lr=limit, local_steps=1)
        assert np.isfinite(psi.prox(np.array([0.3]), limit * (1 - 1e-9))).all()


def test_values_of_clients_at_points_whose_squares_overflow():
    A, y = np.eye(3), np.array([1, -1, 1])
    free = [LogisticRegression(A, y, l2=0.0, intercept=True) for _ in range(2)]
    x = np.full(free[0].shape, 1e190)
    np.testing.assert_allclose(stack(free).values(x), [f.value(x) for f in free])
    mixed, x = [LogisticRegression(A, y, l2=l2) for l2 in (0.0, 0.1)], np.array([1e190, 0.0, 0.0])
    np.testing.assert_allclose(stack(mixed).values(x), [f.value(x) for f in mixed])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: AffineSubspace(np.array([[1e-200, 0.0]]), np.array([1e200])), "too large for row"),
        (
            lambda: AffineSubspace(np.array([[1.0, 0], [1, 0], [0, 1]]), np.array([0, 1.0, 1e10])),
            "contradict each other",
        ),
        (lambda: SLOPE(np.ones(3)).prox(np.array([1, 5, 2]), 0.3), "arrays of floats, got int64"),
        (lambda: TotalVariation2D(1.0).prox(np.eye(2, dtype=int), 1.0), "arrays of floats"),
        (lambda: TotalVariation2D(1.0, isotropic="no"), "isotropic"),
        (lambda: make("StepDecay", {"initial": 0.1}), "StepDecay needs the parameters every$"),
    ],
)
def test_refusals(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_small_things():
    image = np.arange(9.0).reshape(3, 3) * 1e150
    assert np.array_equal(TotalVariation2D(1e-200).prox(image, 1e-10), image)
    assert Polyhedron(SIDES, np.ones(3)).project(np.zeros((0, 2)), batch=1).shape == (0, 2)
    assert Inverse(1.0, 1e308).at(100) > 0
    assert InverseSqrt(5e-324).at(100) > 0
