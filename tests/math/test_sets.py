"""Constraint sets: projections, linear minimisation oracles, atoms."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets import Box, CoordinateAtom, L1Ball, L2Ball, LInfBall, Simplex

KINDS = ("l1", "l2", "linf", "box", "simplex")
EPS = {np.float64: 1e-12, np.float32: 1e-5}


def make_set(kind, radius, shape=()):
    if kind == "box":
        rng = np.random.default_rng(0)
        low = -radius * rng.random(shape)
        return Box(low, low + radius * rng.random(shape))
    return {"l1": L1Ball, "l2": L2Ball, "linf": LInfBall, "simplex": Simplex}[kind](radius)


@st.composite
def points(draw, batch=0):
    """A vector (or a stack): any size and scale, with zeros and ties."""
    size = draw(st.one_of(st.integers(1, 8), st.integers(1, 2000)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (3,) * batch + (size,)
    x = {
        "normal": lambda: rng.normal(size=shape),
        "ties": lambda: rng.integers(-2, 3, size=shape).astype(float),
        "zeros": lambda: np.zeros(shape),
        "constant": lambda: np.full(shape, -1.5),
        "sparse": lambda: rng.normal(size=shape) * (rng.random(shape) < 0.1),
    }[draw(st.sampled_from(["normal", "ties", "zeros", "constant", "sparse"]))]()
    if draw(st.integers(0, 5)) == 0:  # far beyond what a float32 holds
        return x * draw(st.sampled_from([1e-100, 1e100]))
    scale = 10.0 ** draw(st.integers(-8, 8))
    return (x * scale).astype(draw(st.sampled_from([np.float64, np.float32])))


radii = st.sampled_from([1e-6, 0.3, 1.0, 7.0, 1e6])
kinds = st.sampled_from(KINDS)


@given(points(), kinds, radii, st.integers(0, 2**32 - 1))
def test_projection_properties(x, kind, radius, seed):
    D = make_set(kind, radius, x.shape)
    p = D.project(x)
    assert p.shape == x.shape
    assert p.dtype == x.dtype
    eps = EPS[x.dtype.type]
    assert D.contains(p, tolerance=eps)
    magnitude = float(np.abs(x).max()) + radius
    assert np.abs(D.project(p) - p).max() <= eps * radius * 10
    # The variational inequality, at random points of D and at its vertices.
    rng = np.random.default_rng(seed)
    gap = (x - p).astype(float)
    for z in (D.project(rng.normal(size=x.shape) * radius), D.lmo((p - x).astype(float)).dense()):
        assert gap @ (z - p) <= 10 * eps * magnitude * radius * x.size
    other = (x + radius * rng.normal(size=x.shape)).astype(x.dtype)
    moved = np.linalg.norm((D.project(other) - p).astype(float))
    apart = np.linalg.norm((other - x).astype(float))
    assert moved <= apart * (1 + eps) + eps * magnitude * np.sqrt(x.size)


@given(points(), kinds, radii)
def test_points_inside_stay(x, kind, radius):
    if kind == "simplex":
        return
    D = make_set(kind, radius, x.shape)
    inside = D.project(x) * 0.5 + 0.5 * D.project(np.zeros_like(x))
    inside = inside.astype(x.dtype)
    np.testing.assert_allclose(D.project(inside), inside, rtol=1e-6 if x.itemsize == 4 else 1e-14)


@given(points(), radii)
def test_moreau_identity_of_the_l1_and_linf_balls(x, radius):
    # prox of radius * ||.||_inf is x - P(x) for the l1 ball of that radius; check its optimality:
    # x - p has all its largest entries where p is not 0, with p's signs.
    p = L1Ball(radius).project(x)
    gap = (x - p).astype(float)
    if np.abs(x.astype(float)).sum() > radius * (1 + EPS[x.dtype.type]):
        top = np.abs(gap).max()
        slack = EPS[x.dtype.type] * 10 * float(np.abs(x).max())
        assert (np.abs(gap[p != 0]) >= top - slack).all()
        assert (np.sign(p[p != 0]) == np.sign(x[p != 0])).all()
    # The dual pair: P_linf(x) + soft_threshold(x) = x.
    soft = np.sign(x) * np.maximum(np.abs(x) - x.dtype.type(radius), 0)
    clipped = LInfBall(radius).project(x)
    # Rounding is relative to the larger of the two terms.
    atol = EPS[x.dtype.type] * float(np.abs(x).max())
    np.testing.assert_allclose(clipped + soft, x, rtol=1e-6, atol=atol)


@given(points(batch=1), kinds, radii)
def test_a_stack_equals_its_rows(x, kind, radius):
    D = make_set(kind, radius, x.shape[1:])
    stacked, atoms = D.project(x, batch=1), D.lmo(x, batch=1)
    for row, projected, vertex in zip(x, stacked, atoms.dense(), strict=True):
        np.testing.assert_array_equal(D.project(row), projected)
        np.testing.assert_array_equal(D.lmo(row).dense(), vertex)
    assert atoms.dense().dtype == x.dtype


@given(points(), kinds, radii)
def test_the_lmo_is_no_worse_than_any_vertex(g, kind, radius):
    D = make_set(kind, radius, g.shape)
    s = D.lmo(g).dense()
    assert s.dtype == g.dtype
    assert D.contains(s.astype(float), tolerance=EPS[g.dtype.type])
    g64 = g.astype(float)
    dual = {
        "l1": lambda: -radius * np.abs(g64).max(),
        "l2": lambda: -radius * np.linalg.norm(g64),
        "linf": lambda: -radius * np.abs(g64).sum(),
        "box": lambda: np.minimum(g64 * D.lower, g64 * D.upper).sum(),
        "simplex": lambda: radius * g64.min(),
    }[kind]()
    assert g64 @ s == pytest.approx(dual, rel=1e-5 if g.itemsize == 4 else 1e-10)


@pytest.mark.parametrize("kind", ["l1", "linf", "box", "simplex"])
def test_the_lmo_against_linprog(kind):
    rng = np.random.default_rng(1)
    for d in (1, 2, 5):
        g = rng.normal(size=d)
        D = make_set(kind, 1.5, (d,))
        bounds = (None, None)
        matrices = {}
        if kind == "l1":  # |x| summed with every pattern of signs
            signs = np.array(list(itertools.product([-1, 1], repeat=d)))
            matrices = {"A_ub": signs, "b_ub": np.full(len(signs), 1.5)}
        elif kind == "simplex":
            bounds, matrices = (0, None), {"A_eq": np.ones((1, d)), "b_eq": [1.5]}
        elif kind == "linf":
            bounds = (-1.5, 1.5)
        else:
            bounds = np.stack([D.lower, D.upper], axis=1)
        best = linprog(g, bounds=bounds, **matrices)
        assert g @ D.lmo(g).dense() == pytest.approx(best.fun)


@given(points(), kinds, radii, st.floats(0, 1))
def test_atoms_survive_the_wire_and_mix_as_dense(g, kind, radius, step):
    D = make_set(kind, radius, g.shape)
    atom = D.lmo(g)
    arrays = atom.arrays()
    again = D.decode_atom(arrays, g.shape, g.dtype)
    s = atom.dense()
    np.testing.assert_array_equal(again.dense(), s)
    assert atom.nbytes == sum(128 + a.nbytes for a in arrays.values())
    # Bit for bit, whatever the form.
    np.testing.assert_array_equal(atom.mix(g, step), (1.0 - step) * g + step * s)
    assert atom.mix(g, step).dtype == g.dtype
    total = g.copy()
    atom.add_to(total)
    np.testing.assert_array_equal(total, g + s)


def test_coordinate_atoms_in_fortran_order_and_in_stacks():
    x = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    atom = L1Ball(2.0).lmo(np.asfortranarray([[0.0, -5.0, 1.0], [0.0, 0.0, 0.0]]))
    expected = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(atom.dense(), expected)
    np.testing.assert_array_equal(atom.mix(x, 0.25), 0.75 * x + 0.25 * expected)
    atom.add_to(x)
    assert x[0, 1] == 3.0
    stack = CoordinateAtom(np.array([-1, 3]), 2.0, (2, 3), np.dtype(float))
    np.testing.assert_array_equal(stack.dense(), [[-2, 0, 0], [0, 0, 2]])
    assert stack.nbytes == 128 + 16


@given(st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0]), min_size=1, max_size=8))
def test_the_atom_of_an_l1_ball_is_at_the_first_of_the_largest(entries):
    """One model and a stack of models alike."""
    g = np.array(entries)
    index = int(np.abs(g).argmax())
    expected = np.zeros(len(g))
    expected[index] = -3.0 if g[index] > 0 else 3.0
    np.testing.assert_array_equal(L1Ball(3.0).lmo(g).dense(), expected)
    np.testing.assert_array_equal(L1Ball(3.0).lmo(g[None], batch=1).dense(), expected[None])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_l1_ball_has_no_atom_where_the_gradient_is_not_finite(bad):
    for place in range(3):
        g = np.array([1.0, -2.0, 0.5])
        g[place] = bad
        with pytest.raises(ConfigError, match="finite"):
            L1Ball(1.0).lmo(g)
    largest = np.finfo(float).max
    code = L1Ball(1.0).lmo(np.array([-largest, largest])).code
    assert code == 1


def test_ties_and_zero_gradients_take_the_lowest_index():
    np.testing.assert_array_equal(L1Ball(1.0).lmo(np.array([1.0, -1.0])).dense(), [-1, 0])
    np.testing.assert_array_equal(L1Ball(1.0).lmo(np.zeros(2)).dense(), [1, 0])
    np.testing.assert_array_equal(Simplex().lmo(np.zeros(2)).dense(), [1, 0])
    np.testing.assert_array_equal(L2Ball(3.0).lmo(np.zeros(2)).dense(), [3, 0])
    np.testing.assert_array_equal(LInfBall(1.0).lmo(np.array([0.0, 1.0])).dense(), [1, -1])
    np.testing.assert_array_equal(Box(0.0, 1.0).lmo(np.array([0.0, 1.0])).dense(), [1, 0])


def test_projections_by_hand():
    np.testing.assert_allclose(L1Ball(1.0).project(np.array([0.8, -0.6])), [0.6, -0.4])
    np.testing.assert_allclose(Simplex(2.0).project(np.array([3.0, 2.0, -5.0])), [1.5, 0.5, 0])
    assert not np.signbit(L1Ball(1.0).project(np.array([5.0, -1.0]))).any()
    # A small radius beside large entries, and squares that overflow or underflow.
    assert Simplex(1e-10).project(np.array([1e10, 0.0]))[0] == 1e-10
    assert L1Ball(1e-10).project(np.array([-1e10, 0.0]))[0] == -1e-10
    np.testing.assert_allclose(L2Ball(5.0).project(np.array([3e200, 4e200])), [3, 4])
    np.testing.assert_allclose(L2Ball(5e-200).project(np.array([3e-190, 4e-190])), [3e-200, 4e-200])
    np.testing.assert_allclose(L2Ball(1.0).lmo(np.array([3e-200, 4e-200])).dense(), [-0.6, -0.8])


@pytest.mark.parametrize(
    ("D", "expected"),
    [(L1Ball(2.0), 4.0), (L2Ball(2.0), 4.0), (Simplex(2.0), 2 * 2**0.5)],
)
def test_diameters(D, expected):
    assert D.diameter == expected
    assert D.diameter_for((3, 2)) == expected


def test_diameters_that_depend_on_the_dimension():
    assert LInfBall(1.0).diameter_for((4,)) == 4.0
    assert Box(np.zeros(2), np.array([3.0, 4.0])).diameter_for((2,)) == 5.0
    assert Box(0.0, 1.0).diameter_for((2, 2)) == 2.0
    assert Simplex().diameter_for((1,)) == 0.0
    for D in (LInfBall(1.0), Box(0.0, 1.0)):
        with pytest.raises(ConfigError, match="use diameter_for"):
            D.diameter  # noqa: B018


def test_violation_is_the_distance():
    assert L2Ball(1.0).violation(np.array([3.0, 4.0])) == pytest.approx(4.0)
    assert L1Ball(1.0).violation(np.array([0.5, 0.5])) == 0.0
    assert Box(0.0, 1.0).violation(np.array([[4.0, 5.0], [1.0, 0.0]])) == 5.0
    assert Simplex().violation(np.array([1.0, 1.0])) == pytest.approx(0.5**0.5)
    assert Simplex().violation(np.full(10, 0.1)) == 0.0


@pytest.mark.parametrize("kind", [L1Ball, L2Ball, LInfBall, Simplex])
def test_bad_radii(kind):
    for radius in (0, -1.0, float("nan"), float("inf"), "1", True):
        with pytest.raises(ConfigError, match=rf"{kind.__name__}\(radius\) must be"):
            kind(radius)
    assert kind(np.float64(2)) == kind(2)
    assert isinstance(kind(np.float64(2)).radius, float)


def test_bad_boxes():
    with pytest.raises(ConfigError, match="lower <= upper"):
        Box(1.0, 0.0)
    with pytest.raises(ConfigError, match="lower has shape"):
        Box(np.zeros(2), np.ones(3))
    with pytest.raises(ConfigError, match="needs finite bounds, got lower = -inf"):
        Box(-np.inf, 0.0)
    with pytest.raises(ConfigError, match="bounds of shape"):
        Box(np.zeros(2), 1.0).contains(np.zeros(3))


@pytest.mark.parametrize(
    ("D", "arrays", "match"),
    [
        (L1Ball(1.0), {"code": np.array(0)}, "outside"),
        (L1Ball(1.0), {"code": np.array(-4)}, "outside"),
        (L1Ball(1.0), {"code": np.array([1])}, "shape"),
        (L1Ball(1.0), {"other": np.array(1)}, "expected the array"),
        (Simplex(), {"code": np.array(-1)}, "outside"),
        (L2Ball(1.0), {"value": np.ones(3)}, "outside"),
        (L2Ball(1.0), {"value": np.full(3, np.nan)}, "not finite"),
        (LInfBall(1.0), {"bits": np.zeros(2, np.uint8)}, "shape"),
        (Box(0.0, 1.0), {"bits": np.zeros(1)}, "dtype"),
    ],
)
def test_arrays_that_are_no_atom(D, arrays, match):
    with pytest.raises(ConfigError, match=match):
        D.decode_atom(arrays, (3,), np.dtype(float))
