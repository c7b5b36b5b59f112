"""Matrix, group, K-sparse, flat and composed sets: against solvers and formulas; refusals."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from set_cases import fill

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets import (
    Birkhoff,
    CappedSimplex,
    GroupL2Ball,
    HalfSpace,
    Hyperplane,
    KSparsePolytope,
    L1Ball,
    L2Ball,
    LpBall,
    NuclearNormBall,
    Product,
    ScaledSet,
    ShiftedSet,
    Simplex,
    SpectrahedronTraceBall,
)
from flower_fedcon.sets.simplex import simplex_projection


def best(D, g):
    return float(np.vdot(g, D.lmo(g).dense()))


def test_lmos_against_linear_programmes():
    rng = np.random.default_rng(1)
    for d in (1, 2, 3, 5):
        g = rng.normal(size=d)
        signs = np.array(list(itertools.product([-1, 1], repeat=d)))
        for k in (1, 2, 7):
            found = linprog(g, signs, np.full(len(signs), 1.5 * k), bounds=(-1.5, 1.5))
            assert best(KSparsePolytope(k, 1.5), g) == pytest.approx(found.fun)
        for cap, radius in ((2.0, 1.5), (1.0, 1.0), (0.6, 0.6 * d), (0.7, 0.65 * d)):
            found = linprog(g, A_eq=np.ones((1, d)), b_eq=[radius], bounds=(0, cap))
            assert best(CappedSimplex(cap, radius), g) == pytest.approx(found.fun)
        G = rng.normal(size=(d, d))
        sums = np.vstack([np.kron(np.eye(d), np.ones(d)), np.kron(np.ones(d), np.eye(d))])
        found = linprog(G.ravel(), A_eq=sums, b_eq=np.ones(2 * d), bounds=(0, None))
        assert best(Birkhoff(d), G) == pytest.approx(found.fun)


def test_lmos_against_dual_norms():
    rng = np.random.default_rng(2)
    g = rng.normal(size=(4, 6))
    assert best(GroupL2Ball(2.0, "rows"), g) == pytest.approx(-2 * np.linalg.norm(g, axis=1).max())
    assert best(GroupL2Ball(2.0, 3), g) == pytest.approx(
        -2 * np.linalg.norm(g.reshape(8, 3), axis=1).max()
    )
    for p in (1.0, 1.2, 1.5, 2.0, 3.0, 10.0, math.inf):
        q = 1.0 if p == math.inf else math.inf if p == 1 else p / (p - 1)
        assert best(LpBall(p, 3.0), g) == pytest.approx(-3 * np.linalg.norm(g.ravel(), q))
    assert best(NuclearNormBall(2.0), g) == pytest.approx(-2 * np.linalg.norm(g, 2), rel=1e-12)
    s = rng.normal(size=(5, 5))
    least = np.linalg.eigvalsh((s + s.T) / 2)[0]
    assert best(SpectrahedronTraceBall(2.0), s) == pytest.approx(2 * least, rel=1e-12)
    both = Product([(L1Ball(1.0), (2, 3)), (NuclearNormBall(2.0), (3, 2))])
    v = rng.normal(size=12)
    expected = -np.abs(v[:6]).max() - 2 * np.linalg.norm(v[6:].reshape(3, 2), 2)
    assert best(both, v) == pytest.approx(expected)
    shift = rng.normal(size=6)
    assert best(ShiftedSet(L1Ball(2.0), shift), v[:6]) == pytest.approx(
        v[:6] @ shift - 2 * np.abs(v[:6]).max()
    )
    assert best(L1Ball(2.0).scaled(3.0).shifted(1.0), v) == pytest.approx(
        v.sum() - 6 * np.abs(v).max()
    )


def test_matrix_projections_against_dense_decompositions():
    rng = np.random.default_rng(3)
    for shape in ((1, 7), (7, 1), (20, 31), (70, 65)):
        x = rng.normal(size=shape)
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        for radius in (0.5, 4.0, 1e3):
            kept = L1Ball(radius).project(s)
            np.testing.assert_allclose(
                NuclearNormBall(radius).project(x), (u * kept) @ vt, atol=1e-12
            )
    x = rng.normal(size=(9, 9))
    values, vectors = np.linalg.eigh((x + x.T) / 2)
    p = SpectrahedronTraceBall(2.0).project(x)
    kept = simplex_projection(values, 2.0)
    np.testing.assert_allclose(p, (vectors * kept) @ vectors.T, atol=1e-12)
    np.testing.assert_array_equal(p, p.T)
    inside = vectors @ np.diag(np.linspace(0, 0.2, 9)) @ vectors.T
    np.testing.assert_allclose(SpectrahedronTraceBall(2.0).project(inside), inside, atol=1e-14)


@pytest.mark.parametrize("size", [1, 2, 12, 60])
def test_birkhoff_projections_meet_the_optimality_conditions(size):
    rng = np.random.default_rng(size)
    for scale in (1e-3, 1.0, 30.0):
        x = rng.normal(size=(size, size)) * scale
        p = Birkhoff(size).project(x)
        assert Birkhoff(size).excess(p) <= 1e-11
        # <x - p, z - p> <= 0 at the vertex where it is largest, so at all of them.
        vertex = Birkhoff(size).lmo(p - x).dense()
        assert np.vdot(x - p, vertex - p) <= 1e-10 * max(1.0, scale) * size


def test_vertices_and_ties_by_hand():
    one = CappedSimplex(1.0, 2.5).lmo(np.zeros(4))
    np.testing.assert_array_equal(one.dense(), [1, 1, 0.5, 0])
    np.testing.assert_array_equal(KSparsePolytope(2, 1.0).lmo(np.zeros(3)).dense(), [1, 1, 0])
    np.testing.assert_array_equal(GroupL2Ball(3.0, 2).lmo(np.zeros(4)).dense(), [3, 0, 0, 0])
    for shape in ((1, 1), (3, 2), (70, 80)):
        zero = NuclearNormBall(2.0).lmo(np.zeros(shape)).dense()
        assert zero[0, 0] == 2
        assert np.count_nonzero(zero) == 1
    assert not SpectrahedronTraceBall(1.0).lmo(np.zeros((3, 3))).dense().any()
    np.testing.assert_array_equal(LpBall(3.0, 2.0).lmo(np.zeros(2)).dense(), [2, 0])
    np.testing.assert_array_equal(LpBall(1.0, 2.0).lmo(np.zeros(2)).dense(), [2, 0])
    assert LpBall(math.inf, 2.0).project(np.array([3.0]))[0] == 2


def test_diameters():
    rng = np.random.default_rng(0)
    known = [
        (NuclearNormBall(2.0), (3, 4), 4.0),
        (GroupL2Ball(2.0, "rows"), (3, 4), 4.0),
        (SpectrahedronTraceBall(2.0), (3, 3), 8**0.5),
        (SpectrahedronTraceBall(2.0), (1, 1), 2.0),
        (Birkhoff(3), (3, 3), 6**0.5),
        (Birkhoff(1), (1, 1), 0.0),
        (KSparsePolytope(2, 1.5), (5,), 3 * 2**0.5),
        (KSparsePolytope(9, 1.5), (4,), 6.0),
        (CappedSimplex(1.0, 1.5), (9,), 2.5**0.5),
        (CappedSimplex(1.0, 2.0), (2,), 0.0),
        (CappedSimplex(1.0, 1.5), (3,), 2**0.5),
        (CappedSimplex(1.0, 1.25), (2,), 2**0.5 * 0.75),
        (LpBall(3.0, 1.0), (64,), 4.0),
        (LpBall(1.5, 1.0), (64,), 2.0),
        (L1Ball(2.0).scaled(3.0), (5,), 12.0),
        (Simplex(2.0).shifted(1.0), (5,), 8**0.5),
        (HalfSpace(np.ones(2)), (2,), math.inf),
        (Product([(L2Ball(1.5), (2,)), (L2Ball(2.0), (1,))]), (3,), 5.0),
    ]
    for D, shape, expected in known:
        assert D.diameter_for(shape) == pytest.approx(expected), D
        if expected < math.inf:
            pairs = [D.lmo(rng.normal(size=shape)).dense() for _ in range(40)]
            apart = max(np.linalg.norm(a - b) for a in pairs for b in pairs)
            assert apart <= expected * (1 + 1e-12) + 1e-12
    assert ScaledSet(L2Ball(1.0), 2.0).diameter == 4.0


def test_sets_are_compared_by_value():
    assert GroupL2Ball(1.0, [0, 1]) == GroupL2Ball(1.0, np.array([0, 1]))
    assert GroupL2Ball(1.0, [0, 1]) != GroupL2Ball(1.0, [1, 0])
    assert len({HalfSpace(np.ones(2)), HalfSpace(np.ones(2)), Hyperplane(np.ones(2))}) == 2
    assert Product([(L1Ball(1.0), [2])]) == Product([(L1Ball(1.0), (2,))])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LpBall(0.5, 1.0), "must be >= 1"),
        (lambda: LpBall(math.nan, 1.0), "must be finite"),
        (lambda: KSparsePolytope(0, 1.0), "whole number >= 1"),
        (lambda: Birkhoff(2.0), "whole number >= 1"),
        (lambda: GroupL2Ball(1.0, 0), "size >= 1"),
        (lambda: GroupL2Ball(1.0, "columns"), "size >= 1"),
        (lambda: GroupL2Ball(1.0, [0, 2]), "each of 0, 1"),
        (lambda: HalfSpace(np.zeros(2)), "not 0"),
        (lambda: HalfSpace(np.array([np.nan])), "not finite"),
        (lambda: Product([]), "must be pairs"),
        (lambda: Product([(L1Ball(1.0), 3)]), "must be pairs"),
        (lambda: Product([(3, (3,))]), "must be pairs"),
        (lambda: Product([(Birkhoff(3), (2, 2))]), "3 x 3"),
        (lambda: ScaledSet(L1Ball(1.0), -1.0), "must be finite and > 0"),
        (lambda: ShiftedSet(L1Ball(1.0), np.nan), "not finite"),
        (lambda: ShiftedSet(3, 1.0), "needs a constraint set"),
        (lambda: Simplex().shifted(np.ones(2)).lmo(np.ones(3)), "shift has shape"),
        (lambda: CappedSimplex(1.0, 3.0).lmo(np.ones(2)), "empty for a model of 2"),
        (lambda: HalfSpace(np.ones(2)).lmo(np.ones(2)), "unbounded"),
        (lambda: Hyperplane(np.ones(2)).lmo(np.ones(2)), "unbounded"),
        (lambda: HalfSpace(np.ones(2)).project(np.ones(3)), "normal of shape"),
        (lambda: NuclearNormBall(1.0).lmo(np.ones(3)), "set of matrices"),
        (lambda: NuclearNormBall(1.0).project(np.ones(3)), "set of matrices"),
        (lambda: NuclearNormBall(1.0).lmo(np.ones((2, 2)), tolerance=0), "tolerance"),
        (lambda: SpectrahedronTraceBall(1.0).lmo(np.ones((2, 3))), "square"),
        (lambda: Birkhoff(3).project(np.ones((2, 2))), "3 x 3"),
        (lambda: GroupL2Ball(1.0, 2).lmo(np.ones(3)), "do not divide"),
        (lambda: GroupL2Ball(1.0, "rows").lmo(np.ones(3)), "needs a matrix"),
        (lambda: GroupL2Ball(1.0, [0, 1]).lmo(np.ones(3)), "groups have shape"),
        (lambda: Product([(L1Ball(1.0), (2,))]).project(np.ones(3)), "of 2 entries"),
    ],
)  # fmt: skip
def test_refusals(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_bad_radii():
    for kind in (NuclearNormBall, SpectrahedronTraceBall, lambda r: LpBall(3.0, r),
                 lambda r: CappedSimplex(1.0, r), lambda r: CappedSimplex(r, 1.0),
                 lambda r: KSparsePolytope(1, r), lambda r: GroupL2Ball(r, 1)):  # fmt: skip
        for radius in (0, -1.0, math.nan, math.inf, "1", True):
            with pytest.raises(ConfigError, match="must be"):
                kind(radius)


def hidden(rng, d):
    """What every fourth entry, the sample of a long vector, does not show."""
    v = rng.normal(size=d)
    v[::4] = -1.0
    return v


def test_long_vectors_are_filtered_to_the_same_point():
    rng = np.random.default_rng(0)
    for d in (4097, 50_001):
        for how in ("normal", "ties", "zeros", "constant", "sparse", "hidden"):
            for scale, radius in (
                (1.0, 1.0), (1e8, 1e-6), (1e-8, 7.0), (1.0, 0.3 * d), (1.0, 2.0 * d), (1e100, 1e98)
            ):  # fmt: skip
                v = (hidden(rng, d) if how == "hidden" else fill(rng, how, (d,))) * scale
                p = simplex_projection(v, radius)
                # The definition, by sorting all.
                ordered = np.sort(v)[::-1]
                levels = (np.cumsum(ordered) - radius) / np.arange(1, d + 1)
                exact = np.maximum(v - levels[np.flatnonzero(ordered > levels)[-1]], 0)
                slack = 1e-9 * radius + 1e-12 * np.abs(v).max()
                assert np.linalg.norm(p - exact) <= slack * math.sqrt(d)
                assert p.sum() == pytest.approx(radius, rel=1e-11)
                level = (v - p)[p > 0]
                assert np.ptp(level) <= 1e-12 * np.abs(v).max() + 1e-12 * radius
                assert (v[p == 0] <= level.max() + 1e-12 * (radius + np.abs(v).max())).all()
                stacked = simplex_projection(np.stack([v, -v]), radius)
                np.testing.assert_array_equal(stacked[0], p)
