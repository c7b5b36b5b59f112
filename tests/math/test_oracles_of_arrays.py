"""Prox and projections of arrays of any kind, their errors, and recursions that are compiled."""

from __future__ import annotations

import subprocess
import sys
import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from flower_fedcon import compiled
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import (
    L1,
    MCP,
    SLOPE,
    ElasticNet,
    GroupLasso,
    L2Norm,
    L2Squared,
    SparseGroupLasso,
    TotalVariation1D,
)
from flower_fedcon.sets import (
    Birkhoff,
    Box,
    CappedSimplex,
    KSparsePolytope,
    L1Ball,
    L2Ball,
    LInfBall,
    Simplex,
)


def weights(d):
    return np.sort(np.random.default_rng(d).exponential(size=d))[::-1].copy()


def labels(d):
    return np.random.default_rng(d).permutation(np.arange(d) % (d // 3 + 1))


REGULARIZERS = {
    "l1": lambda d: L1(0.3),
    "weighted l1": lambda d: L1(weights(d)),
    "l1 with weights of 0": lambda d: L1(weights(d) * (np.arange(d) % 3 > 0)),
    "weighted l1, float32": lambda d: L1(weights(d).astype(np.float32)),
    "l2 squared": lambda d: L2Squared(0.7),
    "elastic net": lambda d: ElasticNet(0.3, 0.7),
    "mcp": lambda d: MCP(0.3, 3.0),
    "l2": lambda d: L2Norm(0.9),
    "groups": lambda d: GroupLasso(0.5, d),
    "labels": lambda d: GroupLasso(weights(d // 3 + 1), labels(d)),
    "sparse groups": lambda d: SparseGroupLasso(0.2, 0.5, labels(d)),
    "slope": lambda d: SLOPE(weights(d)),
    "equal slope": lambda d: SLOPE(np.full(d, 0.4, np.float32)),
    "variation": lambda d: TotalVariation1D(0.4),
}
SETS = {
    "l1 ball": L1Ball(0.8),
    "simplex": Simplex(0.8),
    "l2 ball": L2Ball(0.8),
    "linf ball": LInfBall(0.8),
    "box": Box(-0.2, 0.8),
    "capped simplex": CappedSimplex(1.0, 0.9),
    "k-sparse": KSparsePolytope(2, 0.3),
}


def oracle(name, d):
    if name in SETS:
        return lambda v, batch: SETS[name].project(v, batch=batch)
    return lambda v, batch: REGULARIZERS[name](d).prox(v, 0.7, batch=batch)


SIZES = st.sampled_from([1, 2, 7, 8, 9, 30, 130, 600])
KINDS = ["normal", "whole", "sparse", "walk", "tiny", "huge"]


def entries(kind, shape, dtype, seed):
    v = np.random.default_rng(seed).standard_normal(shape)
    extreme = 1e150 if dtype == np.float64 else 1e30
    v = {
        "normal": v,
        "whole": np.round(2 * v),  # ties
        "sparse": v * (np.abs(v) > 1.5),
        "walk": np.cumsum(v, axis=-1),
        "tiny": v / extreme,
        "huge": v * extreme,
    }[kind]
    return v.astype(dtype)


@pytest.mark.parametrize("name", ["slope", "equal slope", "variation"])
@given(
    d=SIZES,
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([np.float64, np.float32]),
    batch=st.integers(0, 1),
    seed=st.integers(0, 10**6),
)
def test_compiled_recursions_have_the_bits_of_pythons(name, d, kind, dtype, batch, seed):
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    v = entries(kind, (3, d) if batch else (d,), dtype, seed)
    find, before = oracle(name, d), v.copy()
    with warnings.catch_warnings(), mock.patch.object(compiled, "_interpreted", -(10**9)):
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = find(v, batch)
    with mock.patch.object(compiled, "_interpreted", 10**9):
        found = find(v, batch)
    assert found.dtype == expected.dtype == dtype
    assert found.shape == v.shape
    assert found.tobytes() == expected.tobytes()
    assert v.tobytes() == before.tobytes()


@pytest.mark.parametrize("name", [*REGULARIZERS, *SETS])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(name, value):
    v = np.ones((2, 40))
    v[1, 33] = value
    with pytest.raises(ConfigError, match=r"not finite \(.*\) at \(1, 33\)"):
        oracle(name, 40)(v, 1)


@pytest.mark.parametrize("psi", [GroupLasso(0.5, 4), SparseGroupLasso(0.2, 0.5, 4)], ids=repr)
def test_groups_of_many_models_are_those_of_each(psi):
    """Bit for bit, with what is extreme, too, wherever that is."""
    x = np.random.default_rng(0).standard_normal((3, 4 * 50))
    x[:, 40:60] = 0.0
    for extreme in (None, 1e-120, 1e150, -0.0):
        if extreme is not None:
            x[:, 8:12] = extreme
        found = psi.prox(x, 0.7, batch=1)
        each = np.stack([psi.prox(v, 0.7) for v in x])
        assert found.tobytes() == each.tobytes()
    assert psi.prox(x[:0], 0.7, batch=1).shape == (0, 200)


@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize("step", [-1.0, np.nan, np.inf, np.float64(-1.0), -1])
def test_bad_steps_are_refused(name, step):
    with pytest.raises(ConfigError, match="step must be finite and >= 0"):
        REGULARIZERS[name](40).prox(np.ones(40), step)


@pytest.mark.parametrize("name", [*REGULARIZERS, *SETS])
def test_other_arrays_are_numpys(name):
    """Whatever their order in memory, their type and the type of the step."""
    find, v = oracle(name, 12), np.random.default_rng(0).standard_normal((3, 12))
    expected = find(v, 1)
    for other in (np.asfortranarray(v), np.repeat(v, 2, axis=1)[:, ::2], v.astype(">f8")):
        np.testing.assert_allclose(find(other, 1), expected, rtol=0, atol=1e-14)
    frozen = v.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(find(frozen, 1), expected)
    np.testing.assert_allclose(find(v.astype(np.longdouble), 1), expected, rtol=0, atol=1e-14)
    if name in REGULARIZERS:
        psi = REGULARIZERS[name](12)
        for step in (np.float64(1.0), np.float32(1.0), 1):
            np.testing.assert_allclose(psi.prox(v, step, batch=1), psi.prox(v, 1.0, batch=1))


def test_steps_of_mcp_that_are_too_long_are_refused():
    with pytest.raises(ConfigError, match="for steps below 3"):
        MCP(1.0, gamma=3.0).prox(np.ones(40), 3.0)


@given(st.integers(0, 10**6), st.integers(1, 40), st.floats(0.05, 0.95), st.floats(0.1, 3.0))
def test_the_capped_simplex_by_a_search_for_its_level(seed, d, share, cap):
    v = np.random.default_rng(seed).standard_normal(d) * 2
    radius = share * cap * d
    found = CappedSimplex(cap, radius).project(v)

    def dual(tau):  # maximised at the level
        w = np.clip(v - tau, 0, cap)
        return -(0.5 * ((w - v) ** 2).sum() + tau * (w.sum() - radius))

    bounds = (float(v.min()) - cap, float(v.max()))
    tau = minimize_scalar(dual, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    np.testing.assert_allclose(found, np.clip(v - tau, 0, cap), rtol=0, atol=1e-5)
    assert found.sum() == pytest.approx(radius, rel=1e-12)


CODE = """
import sys
import numpy as np
from flower_fedcon import compiled
from flower_fedcon.regularizers import L1, TotalVariation1D
from flower_fedcon.sets import L1Ball
{}
"""


@pytest.mark.parametrize("cap", [1e-300, 1e-3, 1e14, 1e16, 1e54, 1e300])
def test_a_cap_of_any_size(cap):
    """Where it is far above the radius, the set is a simplex; far below, the entries decide."""
    rng = np.random.default_rng(0)
    for d in (2, 5, 11, 40):
        v = rng.standard_normal(d)
        found = CappedSimplex(cap, min(1.0, 0.6 * d * cap)).project(v)
        if cap > 1:
            np.testing.assert_allclose(found, Simplex(1.0).project(v), rtol=0, atol=1e-15)
        else:
            whole = np.sort(v)[::-1][: int(0.6 * d)].min()
            np.testing.assert_array_equal(found[v >= whole], cap)
            assert float((found / cap).sum()) == pytest.approx(min(1 / cap, 0.6 * d), rel=1e-13)


@pytest.mark.parametrize("kind", ["normal", "ties", "alike", "projected", "nearly a simplex"])
@pytest.mark.parametrize("d", [1, 7, 64, 65, 300, 40_000])
def test_a_capped_projection_has_one_threshold(d, kind):
    """Also where the threshold is a kink, as of what was projected already."""
    rng = np.random.default_rng(d)
    v = rng.standard_normal(d)
    v = {"ties": np.round(v, 1), "alike": np.full(d, v[0])}.get(kind, v)
    for share in (1e-3, 0.2, 0.5, 0.9, 1.0):
        cap = 1e9 if kind == "nearly a simplex" else 0.7
        bounds = CappedSimplex(cap, share * (1.0 if cap > 1 else cap * d))
        if kind == "projected":
            v = bounds.project(v)
        found = bounds.project(v)
        assert found.min() >= 0
        assert found.max() <= bounds.cap * (1 + 1e-15)
        assert float(found.sum()) == pytest.approx(bounds.radius, rel=1e-13)
        tau = v - found  # alike between the bounds, at most it below, at least it above
        free = (found > 0) & (found < bounds.cap)
        scale = np.abs(v).max() + bounds.radius
        if free.any():
            level = tau[free].mean()
            assert np.abs(tau[free] - level).max() <= 1e-14 * scale
            assert (tau[found == 0] <= level + 1e-14 * scale).all()
            assert (tau[found >= bounds.cap] >= level - 1e-14 * scale).all()


@pytest.mark.parametrize(
    "rest",
    [
        # arrays never load numba
        "x = np.ones(2**16)\n"
        "for _ in range(9): L1(1.0).prox(x, 1.0), L1Ball(1.0).project(x)\n"
        "assert 'numba' not in sys.modules",
        # recursions over many numbers do
        "for _ in range(400): TotalVariation1D(1.0).prox(np.arange(100.0) % 7, 0.1)\n"
        "assert 'numba' in sys.modules",
        # without numba all goes on
        "sys.modules['numba'] = None\n"
        "compiled._interpreted = 10**9\n"
        "assert TotalVariation1D(1.0).prox(np.arange(6.0), 0.5).tolist() == [.5, 1, 2, 3, 4, 4.5]\n"
        "assert compiled.loops(np.ones(2**20)) is None",
    ],
    ids=["arrays", "recursions", "without numba"],
)
def test_when_they_are_loaded(rest):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(rest)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
def test_assignments_among_extreme_entries(value):
    """Those not finite are refused; of others it is SciPy that says whether it can add them."""
    g = np.full((2, 2), value)
    if np.isfinite(value):
        assert Birkhoff(2).lmo(-g).columns.tolist() == [0, 1]
        with pytest.raises(ConfigError, match=r"the model has shape \(2,\)"):
            Birkhoff(2).lmo(g, batch=1)
    else:
        with pytest.raises(ConfigError, match=r"not finite \(.*\) at \(0, 0\)"):
            Birkhoff(2).lmo(g)
