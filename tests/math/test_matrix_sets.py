"""Matrix, group, K-sparse, flat and composed sets: projections, oracles, atoms on the wire."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets import (
    Birkhoff,
    Box,
    CappedSimplex,
    GroupL2Ball,
    HalfSpace,
    Hyperplane,
    KSparsePolytope,
    L1Ball,
    L2Ball,
    LInfBall,
    LpBall,
    NuclearNormBall,
    Product,
    ScaledSet,
    ShiftedSet,
    Simplex,
    SpectrahedronTraceBall,
)
from flower_fedcon.sets.simplex import simplex_projection

fast = settings(max_examples=60, deadline=None)
EPS = {8: 1e-11, 4: 2e-5}
radii = st.sampled_from([1e-6, 0.3, 1.0, 7.0, 1e6])
dtypes = st.sampled_from([np.float64, np.float32])
VECTOR = ("capped", "ksparse", "group", "labels", "lp1.5", "lp3", "scaled", "shifted", "product")
MATRIX = ("nuclear", "spectrahedron", "birkhoff")
FLAT = ("halfspace", "hyperplane")


def halves(radius, size):
    if size == 1:
        return Product([(L1Ball(radius), (1,))])
    return Product([(L1Ball(radius), (size // 2,)), (Simplex(radius), (size - size // 2,))])


def make(kind, radius, shape):
    size = math.prod(shape)
    rng = np.random.default_rng(0)
    if kind == "labels":
        labels = np.minimum(np.arange(size) % 4, size - 1)
        return GroupL2Ball(radius, labels.reshape(shape))
    if kind in FLAT:
        known = {"halfspace": HalfSpace, "hyperplane": Hyperplane}
        return known[kind](rng.normal(size=shape) + 0.1, radius)
    return {
        "capped": lambda: CappedSimplex(radius / min(size, 2.5), radius),
        "ksparse": lambda: KSparsePolytope(3, radius),
        "group": lambda: GroupL2Ball(radius, 1 if size % 2 else 2),
        "lp1.5": lambda: LpBall(1.5, radius),
        "lp3": lambda: LpBall(3, radius),
        "scaled": lambda: ScaledSet(L1Ball(2.0), radius),
        "shifted": lambda: ShiftedSet(L2Ball(radius), radius * rng.normal(size=shape)),
        "product": lambda: halves(radius, size),
        "nuclear": lambda: NuclearNormBall(radius),
        "spectrahedron": lambda: SpectrahedronTraceBall(radius),
        "birkhoff": lambda: Birkhoff(shape[0]),
    }[kind]()  # fmt: skip


def fill(rng, how, shape):
    return {
        "normal": lambda: rng.normal(size=shape),
        "ties": lambda: rng.integers(-2, 3, size=shape).astype(float),
        "zeros": lambda: np.zeros(shape),
        "constant": lambda: np.full(shape, -1.5),
        "sparse": lambda: rng.normal(size=shape) * (rng.random(shape) < 0.1),
    }[how]()


@st.composite
def cases(draw, kinds=VECTOR + MATRIX + FLAT, batch=0):
    """A set and a model (or a stack): any size and scale, zeros, ties, one row."""
    kind, radius = draw(st.sampled_from(kinds)), draw(radii)
    if kind == "nuclear":
        shape = (draw(st.integers(1, 80)), draw(st.integers(1, 80)))
    elif kind in MATRIX:
        shape = (draw(st.integers(1, 20 if kind == "birkhoff" else 80)),) * 2
    else:
        shape = (draw(st.one_of(st.integers(1, 8), st.integers(1, 2000))),)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    how = draw(st.sampled_from(["normal", "ties", "zeros", "constant", "sparse"]))
    scale = 10.0 ** draw(st.integers(-8, 8 if kind != "birkhoff" else 2))
    x = fill(rng, how, (3,) * batch + shape)
    if kind != "birkhoff" and draw(st.integers(0, 5)) == 0:  # far beyond what a float32 holds
        return make(kind, radius, shape), x * draw(st.sampled_from([1e-100, 1e100])), kind
    return make(kind, radius, shape), (x * scale).astype(draw(dtypes)), kind


@settings(max_examples=400, deadline=None)
@given(cases(), st.integers(0, 2**32 - 1))
def test_projection_properties(case, seed):
    D, x, kind = case
    before = x.copy()
    p = D.project(x)
    assert (p.shape, p.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(x, before)
    eps = EPS[x.itemsize]
    # What lies on a hyperplane far away, or next to a far shift, is rounded there.
    far = float(np.abs(x).max()) if kind in FLAT else 0.0
    reach = D.scale + far + (float(np.abs(p).max()) if kind == "shifted" else 0.0)
    assert D.contains(p.astype(float), tolerance=10 * eps * reach * math.sqrt(x.size) / D.scale)
    magnitude = float(np.abs(x).max()) + reach
    assert np.abs(D.project(p) - p).max() <= 20 * eps * reach * math.sqrt(x.size)
    rng = np.random.default_rng(seed)
    gap = (x.astype(float) - p).ravel()
    others = [D.project(rng.normal(size=x.shape) * D.scale)]
    if kind not in FLAT:
        others.append(D.lmo((p - x).astype(float)).dense())
    for z in others:
        length = np.linalg.norm(z - p) + reach
        assert gap @ (z - p).ravel() <= 10 * eps * magnitude * length * math.sqrt(x.size)
    other = (x + D.scale * rng.normal(size=x.shape)).astype(x.dtype)
    moved = np.linalg.norm((D.project(other).astype(float) - p).ravel())
    apart = np.linalg.norm((other.astype(float) - x).ravel())
    assert moved <= apart * (1 + eps) + 10 * eps * magnitude * math.sqrt(x.size)
    if kind != "spectrahedron":
        assert D.violation(x) == pytest.approx(np.linalg.norm(gap), rel=1e-3, abs=1e-3 * magnitude)


@fast
@given(cases(batch=1))
def test_a_stack_equals_its_rows(case):
    D, x, kind = case
    rows = [D.project(row) for row in x]
    np.testing.assert_array_equal(D.project(x, batch=1), rows)
    if kind in FLAT:
        return
    stack, atoms = D.lmo(x, batch=1), [D.lmo(row) for row in x]
    np.testing.assert_array_equal(stack.dense(), [a.dense() for a in atoms])
    assert stack.dense().dtype == x.dtype
    np.testing.assert_array_equal(
        stack.mix(x, 0.3), [a.mix(row, 0.3) for a, row in zip(atoms, x, strict=True)]
    )
    total, totals = x.copy(), x.copy()
    stack.add_to(total)
    for atom, row in zip(atoms, totals, strict=True):
        atom.add_to(row)
    np.testing.assert_array_equal(total, totals)


@settings(max_examples=300, deadline=None)
@given(cases(kinds=VECTOR + MATRIX), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_atoms_are_vertices_that_survive_the_wire(case, step, seed):
    D, g, kind = case
    atom = D.lmo(g)
    s = atom.dense()
    assert (s.shape, s.dtype, atom.shape) == (g.shape, g.dtype, g.shape)
    eps = EPS[g.itemsize]
    assert D.contains(s.astype(float), tolerance=max(eps, 1e-9) * (50 if kind == "shifted" else 1))
    arrays = atom.arrays()
    assert atom.nbytes == sum(128 + a.nbytes for a in arrays.values())
    again = D.decode_atom(arrays, g.shape, g.dtype)
    np.testing.assert_array_equal(again.dense(), s)
    x = np.random.default_rng(seed).normal(size=g.shape).astype(g.dtype)
    np.testing.assert_array_equal(again.mix(x, step), atom.mix(x, step))
    atol = 10 * np.finfo(g.dtype).eps * (float(np.abs(s).max()) + float(np.abs(x).max()))
    np.testing.assert_allclose(atom.mix(x, step), (1.0 - step) * x + step * s, rtol=0, atol=atol)
    assert atom.mix(x, step).dtype == g.dtype
    total = x.copy()
    atom.add_to(total)
    np.testing.assert_allclose(total, x + s, rtol=0, atol=atol)
    # No point of the set does better.
    wide = g.astype(float)
    rival = D.project(np.random.default_rng(seed).normal(size=g.shape) * D.scale)
    slack = 100 * eps * float(np.abs(wide).sum()) * (D.scale + float(np.abs(s).max()))
    assert np.vdot(wide, s) <= np.vdot(wide, rival) + slack


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


@pytest.mark.parametrize("kind", ["nuclear", "spectrahedron", "birkhoff", *VECTOR, *FLAT])
def test_values_that_are_not_finite(kind):
    shape = (2, 2) if kind in MATRIX else (4,)
    for D in (
        make(kind, 1.0, shape),
        L1Ball(1.0),
        L2Ball(1.0),
        LInfBall(1.0),
        Box(0, 1),
        Simplex(),
    ):
        for bad in (math.nan, math.inf, -math.inf):
            x = np.ones(shape)
            x.flat[1] = bad
            for call in (D.project, D.lmo):
                with pytest.raises(ConfigError, match=r"not finite|unbounded"):
                    call(x)


@pytest.mark.parametrize("kind", ["nuclear", "spectrahedron", "birkhoff", *VECTOR, *FLAT])
def test_whole_numbers_are_not_cut_off(kind):
    shape = (2, 2) if kind in MATRIX else (4,)
    x = np.full(shape, 3)
    for D in (make(kind, 0.5, shape), L1Ball(0.5), L2Ball(0.5), Simplex(0.5)):
        with pytest.raises(ConfigError, match="takes arrays of floats, got int64"):
            D.project(x)


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
