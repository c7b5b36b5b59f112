"""Polyhedra, hulls, intersections and k-norm balls, against enumeration and closed forms."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nightly import at_night
from scipy.optimize import brentq, nnls

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.sets import (
    AffineSubspace,
    Box,
    ConvexHull,
    HalfSpace,
    Hyperplane,
    Intersection,
    KNormBall,
    L1Ball,
    L2Ball,
    LInfBall,
    Polyhedron,
    Simplex,
)
from flower_fedcon.strategies import FedDR, FedFW

seeds = st.integers(0, 10**6)


def by_enumeration(A, b, C, d, v):
    """Return the nearest point over all sets of active inequalities; None if there is none."""
    best, least = None, math.inf
    for chosen in itertools.product([False, True], repeat=len(A)):
        rows = np.vstack([A[list(chosen)], C])
        levels = np.concatenate([b[list(chosen)], d])
        x = v - np.linalg.pinv(rows) @ (rows @ v - levels) if len(rows) else v
        kept = (A @ x <= b + 1e-9).all() and np.allclose(C @ x, d, atol=1e-9)
        if kept and np.linalg.norm(x - v) < least:
            best, least = x, np.linalg.norm(x - v)
    return best


@given(
    st.integers(1, 4), st.integers(1, 6), st.integers(0, 2), seeds, st.sampled_from([0.5, 5.0, 1e4])
)
def test_projections_onto_polyhedra_against_enumeration(n, m, k, seed, far):
    rng = np.random.default_rng(seed)
    whole = seed % 3 == 0  # normals and offsets that depend on each other
    A, C = rng.normal(size=(m, n)), rng.normal(size=(min(k, n), n))
    if whole:
        A, C = np.sign(np.round(A, 0)), np.round(C, 0)
        assume(A.any(axis=1).all() and C.any(axis=1).all())
    b, d = np.round(rng.normal(size=m), 1), np.round(rng.normal(size=len(C)), 1)
    v = far * rng.normal(size=n)
    expected = by_enumeration(A, b, C, d, v)
    equations = (C, d) if len(C) else (None, None)
    if expected is None:
        with pytest.raises(ConfigError, match="is empty"):
            Polyhedron(A, b, *equations)
        return
    D = Polyhedron(A, b, *equations)
    p = D.project(v)
    np.testing.assert_allclose(p, expected, rtol=0, atol=1e-9 * max(1, far))
    assert D.excess(p) <= 1e-10 * max(1, far)
    assert D.violation(v) == pytest.approx(np.linalg.norm(v - expected), rel=1e-9, abs=1e-9)
    assert D.contains(p, 1e-9 * max(1, far)) == D.contains(expected, 1e-9 * max(1, far)) == True  # noqa: E712


@given(st.integers(1, 3), seeds)
def test_vertices_against_enumeration(n, seed):
    rng = np.random.default_rng(seed)
    A = np.vstack([rng.normal(size=(3, n)), np.eye(n), -np.eye(n)])
    b = np.concatenate([rng.uniform(0.2, 1, 3), rng.uniform(0.5, 2, 2 * n)])
    D, g = Polyhedron(A, b), rng.normal(size=n)
    vertices = []
    for rows in itertools.combinations(range(len(A)), n):
        if abs(np.linalg.det(A[list(rows)])) > 1e-9:
            x = np.linalg.solve(A[list(rows)], b[list(rows)])
            if (A @ x <= b + 1e-9).all():
                vertices.append(x)
    atom = D.lmo(g)
    assert g @ atom.dense() == pytest.approx(min(g @ x for x in vertices), abs=1e-9)
    assert D.excess(atom.dense()) <= 1e-11
    again = D.decode_atom(atom.arrays(), g.shape, g.dtype)
    np.testing.assert_array_equal(again.dense(), atom.dense())
    across = max(np.linalg.norm(x - y) for x in vertices for y in vertices)
    assert across <= D.diameter_for((n,)) + 1e-9 <= across * math.sqrt(n) + 1e-8
    stack = np.stack([g, -g])
    np.testing.assert_array_equal(D.lmo(stack, batch=1).dense()[1], D.lmo(-g).dense())
    np.testing.assert_array_equal(D.project(9 * stack, batch=1)[0], D.project(9 * g))


def test_a_polyhedron_is_the_set_that_it_describes():
    rng = np.random.default_rng(0)
    n = 12
    simplex = Polyhedron(-np.eye(n), np.zeros(n), np.ones((1, n)), np.ones(1))
    ball = Polyhedron(np.vstack([np.eye(n), -np.eye(n)]), np.full(2 * n, 0.5))
    for v in rng.normal(size=(20, n)) * 3:
        np.testing.assert_allclose(simplex.project(v), Simplex().project(v), atol=1e-13)
        np.testing.assert_allclose(ball.project(v), LInfBall(0.5).project(v), atol=1e-15)
        np.testing.assert_allclose(simplex.lmo(v).dense(), Simplex().lmo(v).dense(), atol=1e-12)
    halves = Polyhedron(rng.normal(size=(1, 2, 3)), np.ones(1))  # matrices
    x = rng.normal(size=(2, 3)).astype(np.float32) * 9
    expected = HalfSpace(halves.A[0], 1.0).project(x.astype(float))
    np.testing.assert_allclose(halves.project(x), expected, rtol=1e-6)
    assert halves.project(x).dtype == np.float32
    assert halves.diameter_for((2, 3)) == math.inf


def test_equations_that_depend_on_each_other():
    A, b = (
        np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1e-8]]),
        np.array([2.0, 4.0, 3e-8]),
    )
    D = AffineSubspace(A, b)
    np.testing.assert_allclose(D.project(np.array([5.0, 1.0, 0.0])), [3.0, -1.0, 3.0], atol=1e-14)
    one = Hyperplane(A[0], 2.0)
    v = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(
        AffineSubspace(A[:1], b[:1]).project(v, batch=1), one.project(v, batch=1), atol=1e-14
    )
    assert AffineSubspace(np.eye(2), np.ones(2)).diameter_for((2,)) == 0


@given(st.integers(1, 7), st.integers(1, 5), seeds, st.sampled_from([0.3, 3.0, 1e3]))
def test_projections_onto_hulls_against_nonnegative_least_squares(m, n, seed, far):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(m, n)) if seed % 2 else rng.integers(-1, 2, (m, n)).astype(float)
    v = far * rng.normal(size=n)
    p = ConvexHull(points).project(v)
    unit = 1e3 * max(1, far)
    weights, _ = nnls(np.vstack([points.T, np.full(m, unit)]), np.append(v, unit))
    rival = points.T @ (weights / weights.sum())
    assert np.linalg.norm(p - v) <= np.linalg.norm(rival - v) + 1e-12 * far
    assert (points @ (v - p)).max() <= p @ (v - p) + 1e-11 * max(1, far)  # no point is nearer
    _, rest = nnls(np.vstack([points.T, np.full(m, 1e3)]), np.append(p, 1e3))
    assert rest <= 1e-9  # and p is in the hull
    assert ConvexHull(points).excess(p) <= 1e-12 * max(1, far)
    assert ConvexHull(points).lmo(v).index == (points @ v).argmin()


@given(st.integers(1, 4), st.integers(1, 5), seeds, st.sampled_from([0.1, 1.0, 3.0]))
def test_k_norm_balls_against_their_faces(n, k, seed, radius):
    rng = np.random.default_rng(seed)
    v = rng.normal(size=n) * 2 if seed % 2 else rng.integers(-2, 3, n).astype(float)
    ball, size = KNormBall(k, radius), min(k, n)
    rows = []
    for chosen in itertools.combinations(range(n), size):
        for signs in itertools.product([-1.0, 1.0], repeat=size):
            row = np.zeros(n)
            row[list(chosen)] = signs
            rows.append(row)
    faces = Polyhedron(np.array(rows), np.full(len(rows), radius))
    np.testing.assert_allclose(ball.project(v), faces.project(v), rtol=0, atol=1e-12)
    assert ball.excess(v) == pytest.approx((rows @ v).max() - radius)
    if v.any():
        assert v @ ball.lmo(v).dense() == pytest.approx(v @ faces.lmo(v).dense(), abs=1e-9)
    if k == 1:
        np.testing.assert_allclose(ball.project(v), LInfBall(radius).project(v), atol=1e-14)
    if k >= n:
        np.testing.assert_allclose(ball.project(v), L1Ball(radius).project(v), atol=1e-14)


@given(st.integers(2, 5), seeds)
def test_intersections_of_half_spaces_and_boxes_against_polyhedra(n, seed):
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(3, n)), rng.uniform(0.1, 1, 3)
    sets = [HalfSpace(row, level) for row, level in zip(A, b, strict=True)]
    D = Intersection([*sets, Box(-1.0, 1.0)])
    whole = Polyhedron(np.vstack([A, np.eye(n), -np.eye(n)]), np.concatenate([b, np.ones(2 * n)]))
    v = 4 * rng.normal(size=(2, n))
    p = D.project(v, batch=1)
    np.testing.assert_allclose(p, whole.project(v, batch=1), rtol=0, atol=2e-5)
    np.testing.assert_array_equal(p[1], D.project(v[1]))
    assert D.contains(p[0], 1e-9)
    assert D.violation(p[0]) <= 1e-5


def test_a_ball_and_a_plane():
    """The projection onto a ball cut by a plane is, in the plane, that onto a smaller ball."""
    v = np.array([3.0, 1.0, -2.0])
    D = Intersection([L2Ball(1.0), Hyperplane(np.array([0.0, 0.0, 1.0]), 0.6)])
    flat = v[:2] / np.linalg.norm(v[:2]) * 0.8
    np.testing.assert_allclose(D.project(v), [*flat, 0.6], atol=3e-6)
    assert D.diameter_for((3,)) == 2.0
    # ||x - v||^2 over the simplex and a ball: x = P((v + t y)/(1 + t)) for the multiplier t.
    D = Intersection([Simplex(), L2Ball(0.6)])

    def over(t):
        return np.linalg.norm(Simplex().project(v / (1 + t))) - 0.6

    t = brentq(over, 0, 1e3)
    wanted = Simplex().project(v / (1 + t))
    np.testing.assert_allclose(D.project(v), wanted, atol=5e-6)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([Box(0, 1), HalfSpace(np.ones(2), -0.1)], "no common point"),
        ([L2Ball(1.0), Hyperplane(np.ones(2), 1.5)], "no common point"),
        ([HalfSpace(np.ones(2), 0.0), HalfSpace(-np.ones(2), -1.0)], "no common point"),
        ([Simplex(), L2Ball(0.7)], "no common point"),
    ],
)
def test_empty_intersections_are_refused(sets, words):
    for v in (np.zeros(2), np.array([30.0, -4.0])):
        with pytest.raises(ConfigError, match=words):
            Intersection(sets).project(v)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: AffineSubspace([[1.0, 1.0], [1.0, 1.0]], [0.0, 1.0]), "is empty: its 2 equations"),
        (lambda: AffineSubspace([[0.0, 0.0]], [0.0]), r"row 0 of AffineSubspace\(A\) is 0"),
        (lambda: AffineSubspace(np.eye(2), [0.0]), r"and b the shape \(m,\)"),
        (lambda: AffineSubspace(np.eye(2), np.zeros(2)).lmo(np.ones(2)), "is unbounded"),
        (lambda: AffineSubspace(np.eye(2), np.zeros(2)).project(np.ones(3)), "normals of shape"),
        (lambda: Polyhedron([[1.0], [-1.0]], [0.0, -1.0]), "is empty: no x has A x <= b. Check"),
        (lambda: Polyhedron(np.eye(2), np.zeros(2), np.ones((1, 2)), [1.0]), "empty: .* C x = d"),
        (lambda: Polyhedron(np.eye(2), np.zeros(2), np.ones((1, 2))), "both C and d"),
        (lambda: Polyhedron(np.eye(2), np.zeros(2), np.ones((1, 3)), [1.0]), "its C of"),
        (lambda: Polyhedron(np.eye(2), np.zeros(2)).lmo(np.ones(2)), "Polyhedron is unbounded"),
        (lambda: Polyhedron([[1.0, 0.0], [-1.0, 0.0]], [1.0, 1.0]).lmo(np.ones(2)), "unbounded"),
        (lambda: Polyhedron(np.eye(2), np.zeros(2)).project(np.array([1.0, np.nan])), "not finite"),
        (lambda: ConvexHull(np.ones(3)), r"the shape \(m, \*model\)"),
        (lambda: ConvexHull(np.ones((3, 2))).project(np.ones(3)), "points of shape"),
        (lambda: ConvexHull(np.ones((3, 2))).decode_atom(
            {"index": np.array(3)}, (2,), np.dtype(float)),
         "index 3 is outside"),
        (lambda: Intersection([Box(0, 1)]), "two or more sets"),
        (lambda: Intersection([Box(0, 1), 3]), "two or more sets"),
        (lambda: Intersection([Box(0, 1), L2Ball(1.0)], tolerance=0.0), "tolerance"),
        (lambda: Intersection([Box(0, 1), L2Ball(1.0)]).lmo(np.ones(2)), "no linear minimisation"),
        (lambda: KNormBall(0, 1.0), r"KNormBall\(k\)"),
        (lambda: KNormBall(2, -1.0), r"KNormBall\(radius\)"),
    ],
)  # fmt: skip
def test_refusals(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


@pytest.mark.parametrize("engine", at_night(["local", "stacked"], but=["stacked"]))
def test_methods_run_on_them(engine):
    """FedFW by vertices, FedDR by projections, to the same point.

    The stacked engine asks each set for the vertices of all clients at once, the local one at
    night for one after the other.
    """
    b = np.array([2.0, -1.0, 0.5])
    objectives = [Quadratic(np.eye(3), s * b) for s in (0.5, 1.5)]
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, -1, 0], [0, 0, 1.0]])
    for D in (
        ConvexHull(corners),
        KNormBall(2, 1.2),
        Polyhedron(
            np.vstack([np.eye(3), -np.eye(3), np.ones((1, 3))]), np.array([1, 1, 1, 1, 1, 1, 0.5])
        ),
    ):
        problem = FederatedProblem(objectives, constraint=D)
        exact = D.project(b)
        found = simulate(FedDR(D, step_size=1.0), problem, 200, evaluate_every=200)
        np.testing.assert_allclose(found.x, exact, atol=1e-9)
        found = simulate(FedFW(D, penalty=1.0), problem, 2000, evaluate_every=2000, engine=engine)
        np.testing.assert_allclose(found.x, exact, atol=0.05)
