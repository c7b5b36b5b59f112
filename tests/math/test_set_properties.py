"""Properties of matrix, group, K-sparse, flat and composed sets, whatever they are given."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from set_cases import EPS, FLAT, MATRIX, VECTOR, cases, make

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets import (
    Box,
    L1Ball,
    L2Ball,
    LInfBall,
    Simplex,
)
from flower_fedcon.wire.settings import decode, encode


@given(cases(), st.integers(0, 2**32 - 1))
def test_projection_properties(case, seed):
    D, x, kind = case
    before = x.copy()
    p = D.project(x)
    (back,) = decode(*encode({"set": D})).values()
    assert back.project(x).tobytes() == p.tobytes()
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
