"""Atoms that came over the wire are checked; the nuclear-norm oracle at real sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import array_bytes
from flower_fedcon.sets import (
    Birkhoff,
    CappedSimplex,
    GroupL2Ball,
    HalfSpace,
    KSparsePolytope,
    L1Ball,
    LpBall,
    MatrixOperator,
    NuclearNormBall,
    PermutationAtom,
    Product,
    Simplex,
    SpectrahedronTraceBall,
)
from flower_fedcon.sets.atoms import Atom
from flower_fedcon.sets.lanczos import top_eigenpair

E1, E2 = np.array([1.0, 0.0]), np.array([0.6, 0.8])
NUCLEAR, BIRKHOFF = NuclearNormBall(1.0), Birkhoff(3)
GROUP, PRODUCT = GroupL2Ball(1.0, 2), Product([(L1Ball(1.0), (2,)), (Simplex(), (2,))])
I4, U1 = np.int32, np.uint8


@pytest.mark.parametrize(
    ("D", "shape", "arrays", "match"),
    [
        (NUCLEAR, (2, 2), {"u": E1}, "expected the arrays"),
        (NUCLEAR, (2, 2), {"u": E1, "v": 2 * E1}, "norm 2"),
        (NUCLEAR, (2, 2), {"u": 0 * E1, "v": E1}, "norm 0"),
        (NUCLEAR, (2, 2), {"u": E1, "v": np.ones(3)}, "shape"),
        (NUCLEAR, (2, 2), {"u": np.full(2, np.nan), "v": E1}, "not finite"),
        (NUCLEAR, (2, 2), {"u": E1, "v": E2.astype(np.float32)}, "dtype"),
        (NUCLEAR, (4,), {"u": E1, "v": E2}, "matrices"),
        (SpectrahedronTraceBall(1.0), (2, 2), {"u": E1 + E2}, "norm"),
        (BIRKHOFF, (3, 3), {"columns": np.array([0, 1, 1], U1)}, "not a permutation"),
        (BIRKHOFF, (3, 3), {"columns": np.array([0, 1, 3], U1)}, "not a permutation"),
        (BIRKHOFF, (3, 3), {"columns": np.array([0, 1, 2], I4)}, "dtype"),
        (BIRKHOFF, (3, 3), {"columns": np.array([0, 1], U1)}, "shape"),
        (GROUP, (4,), {"group": np.array(2, I4), "unit": E1}, "outside"),
        (GROUP, (4,), {"group": np.array(-1, I4), "unit": E1}, "outside"),
        (GROUP, (4,), {"group": np.array(1, I4), "unit": E1 + E2}, "norm"),
        (GROUP, (4,), {"group": np.array(1, I4), "unit": np.ones(1)}, "shape"),
        (GROUP, (4,), {"group": np.array(1.0), "unit": E1}, "dtype"),
        (KSparsePolytope(2, 1.0), (3,), {"codes": np.array([1, -1], I4)}, "occurs twice"),
        (KSparsePolytope(2, 1.0), (3,), {"codes": np.array([1, 0], I4)}, "outside"),
        (KSparsePolytope(2, 1.0), (3,), {"codes": np.array([1, -4], I4)}, "outside"),
        (KSparsePolytope(2, 1.0), (3,), {"codes": np.array([-(2**31), 1], I4)}, "outside"),
        (KSparsePolytope(2, 1.0), (3,), {"codes": np.array([1], I4)}, "shape"),
        (CappedSimplex(1.0, 2.0), (3,), {"codes": np.array([1, -2], I4)}, "outside"),
        (LpBall(3.0, 1.0), (2,), {"value": np.ones(2)}, "outside"),
        (PRODUCT, (4,), {"0.code": np.array(1)}, "expected the array"),
        (PRODUCT, (4,), {"0.code": np.array(1), "1.code": np.array(3)}, "outside"),
        (PRODUCT, (4,), {"2.code": np.array(1)}, "no part"),
        (PRODUCT, (4,), {"code": np.array(1)}, "no part"),
        (L1Ball(1.0).shifted(1.0), (2,), {"code": np.array(0)}, "outside"),
        (HalfSpace(np.ones(2)), (2,), {}, "unbounded"),
    ],
)
def test_arrays_that_are_no_atom(D, shape, arrays, match):
    with pytest.raises(ConfigError, match=match):
        D.decode_atom(arrays, shape, np.dtype(float))


def test_permutations_take_the_smallest_type():
    sizes = {1: "u1", 256: "u1", 257: "i2", 32768: "i2", 32769: "i4"}
    assert {n: PermutationAtom.code(n) for n in sizes} == {
        n: np.dtype(code) for n, code in sizes.items()
    }
    atom = Birkhoff(12).lmo(np.random.default_rng(0).normal(size=(12, 12)))
    assert atom.nbytes == 128 + 12


def test_atoms_are_small():
    rng = np.random.default_rng(0)
    dense = array_bytes((100_000,), np.dtype(float))
    assert L1Ball(1.0).lmo(rng.normal(size=100_000)).nbytes <= 1e-3 * dense
    dense = array_bytes((943, 1682), np.dtype(float))
    rank_one = np.outer(rng.normal(size=943), rng.normal(size=1682))
    assert NuclearNormBall(7000.0).lmo(rank_one).nbytes <= 3e-3 * dense


def test_atoms_have_no_dictionary():
    """A client has thousands of them; one base without `__slots__` gives each a dictionary."""
    kinds = [Atom]
    for kind in kinds:
        kinds += kind.__subclasses__()
    own = [kind for kind in kinds if kind.__module__.startswith("flower_fedcon.")]
    assert len(own) > 10
    assert [kind.__name__ for kind in own if kind.__dictoffset__] == []


# --- the nuclear-norm oracle ----------------------------------------------------------------------


def gaussian(m, n, seed=0):
    return np.random.default_rng(seed).normal(size=(m, n))


def low_rank(m, n, values, seed=0):
    u, v = (np.linalg.qr(gaussian(k, len(values), seed + k))[0] for k in (m, n))
    return (u * values) @ v.T


@pytest.mark.parametrize(
    "g",
    [
        gaussian(64, 64), gaussian(100, 300), gaussian(300, 100), gaussian(65, 2000),
        gaussian(1, 2000), gaussian(2000, 1), np.ones((80, 70)), np.eye(90),
        low_rank(90, 120, [3.0]), low_rank(90, 120, [3.0, 3.0, 1.0]),
        low_rank(90, 120, [3.0, 3.0 - 1e-9, 3.0 - 1e-6, 1.0]),
        np.diag(np.r_[5.0, np.ones(99)]), np.diag(1.0 / np.arange(1, 200)),
        np.pad([[2.0]], (0, 99)), gaussian(80, 80) * 1e-200, gaussian(80, 80) * 1e200,
        gaussian(80, 90).astype(np.float32), np.sign(gaussian(200, 150)),
    ],
    ids=lambda g: f"{g.shape}-{abs(float(g.flat[0])):.3g}",
)  # fmt: skip
def test_top_singular_pairs_against_dense(g):
    wide = g.astype(float)
    top = np.linalg.norm(wide / np.abs(wide).max(), 2) * np.abs(wide).max()
    atom = NuclearNormBall(1.0).lmo(g)
    rel = 1e-9 if g.dtype == float else 1e-6
    level = float(np.abs(wide).max())
    assert -np.vdot(wide / level, atom.dense()) == pytest.approx(top / level, rel=rel)
    for vector in (atom.u, atom.v):
        assert np.linalg.norm(vector.astype(float)) == pytest.approx(1, abs=1e-7)
    again = NuclearNormBall(1.0).lmo(g)
    assert atom.dtype == g.dtype
    assert (again.u.tobytes(), again.v.tobytes()) == (atom.u.tobytes(), atom.v.tobytes())


@pytest.mark.parametrize("shape", [(100, 150), (150, 100), (30, 40)])
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-9])
def test_tolerances(shape, tolerance):
    for seed in range(5):
        g = gaussian(*shape, seed=seed)
        best = np.linalg.norm(g, 2)
        value = -np.vdot(g, NuclearNormBall(1.0).lmo(g, tolerance=tolerance).dense())
        assert best * (1 - tolerance) - 1e-12 <= value <= best * (1 + 1e-12)


def test_the_dense_fall_back():
    values = np.r_[1.0 + 1e-13, np.linspace(1, 0.999, 1999)]
    pair = top_eigenpair(lambda v: values * v, 2000, tolerance=1e-16)
    assert not pair.converged or pair.value == pytest.approx(1.0)


def test_spectrahedron_at_real_size():
    s = gaussian(150, 150)
    s = s + s.T
    for g in (s, s + 100 * np.eye(150), np.outer(s[0], s[0]), -np.outer(s[0], s[0]), -np.eye(150)):
        least = min(0.0, np.linalg.eigvalsh(g)[0])
        atom = SpectrahedronTraceBall(3.0).lmo(g)
        error = abs(np.vdot(g, atom.dense()) - 3 * least)
        assert error <= 1e-8 * np.linalg.norm(g, 2)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_operators_are_their_dense_forms(m, n, k, seed):
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(0, m, k), rng.integers(0, n, k)
    sparse = MatrixOperator((m, n), rows=rows, cols=cols, values=rng.normal(size=k))
    factors = MatrixOperator((m, n), left=rng.normal(size=(m, 2)), right=rng.normal(size=(n, 2)))
    dense = rng.normal(size=(m, n))
    operator = (2.0 * sparse - factors) / 4.0 + dense + factors
    matrix = (2.0 * sparse.to_dense() - factors.to_dense()) / 4.0 + dense + factors.to_dense()
    np.testing.assert_allclose(operator.to_dense(), matrix, atol=1e-12)
    np.testing.assert_allclose((dense + sparse).to_dense(), dense + sparse.to_dense())
    v, u = rng.normal(size=n), rng.normal(size=m)
    np.testing.assert_allclose(operator.dot(v), matrix @ v, atol=1e-10)
    np.testing.assert_allclose(operator.transposed_dot(u), matrix.T @ u, atol=1e-10)
    for op in (operator, sparse, factors, -factors):
        full = op.to_dense()
        atom = NuclearNormBall(1.0).lmo(op)
        assert -np.vdot(full, atom.dense()) == pytest.approx(np.linalg.norm(full, 2), rel=1e-9)
        assert op.bound() > 0 or not full.any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rows": [2], "cols": [0], "values": [1.0]}, "outside its shape"),
        ({"rows": [0], "cols": [-1], "values": [1.0]}, "outside its shape"),
        ({"rows": [0], "cols": [0], "values": []}, "one length"),
        ({"dense": np.ones((3, 2))}, "dense part"),
        ({"left": np.ones((2, 1))}, "both left and right"),
        ({"left": np.ones((2, 1)), "right": np.ones((3, 1))}, "factors"),
    ],
)
def test_operators_that_do_not_fit(arguments, words):
    with pytest.raises(ConfigError, match=words):
        MatrixOperator((2, 2), **arguments)
    with pytest.raises(ConfigError, match="cannot be added"):
        MatrixOperator((2, 2)) + MatrixOperator((2, 3))
    with pytest.raises(ConfigError, match="not finite"):
        NuclearNormBall(1.0).lmo(MatrixOperator((2, 2), dense=np.full((2, 2), np.nan)))


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
@pytest.mark.parametrize("count", [1, 10, 31, 32, 100])  # summed in a loop, or by NumPy
def test_atoms_of_one_entry_sum_as_their_dense_forms(shape: tuple[int, ...], count: int) -> None:
    """In order, bit for bit, with entries that occur twice; so are their bytes."""
    rng = np.random.default_rng(count)
    atoms = [L1Ball(0.1).lmo(rng.standard_normal(shape)) for _ in range(count)]
    total = np.zeros(shape)
    for atom in atoms:
        total += atom.dense()
    found = type(atoms[0]).sum(atoms)
    assert found.shape == shape
    assert np.array_equal(found, total)
    assert type(atoms[0]).bytes_of(atoms) == sum(atom.nbytes for atom in atoms)
