"""Group, matrix, total-variation and layered regularizers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from flower_fedcon import regularizers
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import (
    L1,
    SLOPE,
    GroupLasso,
    Indicator,
    L2Norm,
    L2Squared,
    Nonnegative,
    NuclearNorm,
    Separable,
    SparseGroupLasso,
    TotalVariation1D,
    Zero,
)
from flower_fedcon.sets import GroupL2Ball, L1Ball, L2Ball, LInfBall, NuclearNormBall
from flower_fedcon.wire.settings import decode, encode

REGULARIZERS = {
    "l1": lambda weight, shape: L1(weight),
    "weights": lambda weight, shape: L1(weight * np.random.default_rng(0).random(shape)),
    "l2norm": lambda weight, shape: L2Norm(weight),
    "group": lambda weight, shape: GroupLasso(weight, 2 if math.prod(shape) % 2 == 0 else 1),
    "rows": lambda weight, shape: GroupLasso(weight, "rows" if len(shape) > 1 else 1),
    "labels": lambda weight, shape: GroupLasso(
        weight,
        np.minimum(np.arange(math.prod(shape)) % 3, math.prod(shape) - 1).reshape(shape),
    ),
    "sparse-group": lambda weight, shape: SparseGroupLasso(0.3 * weight, weight, shape[-1]),
    "tv": lambda weight, shape: TotalVariation1D(weight),
    "nonnegative": lambda weight, shape: Nonnegative(),
    "nuclear": lambda weight, shape: NuclearNorm(weight),
    "separable": lambda weight, shape: Separable(
        [(L1(weight), (1,)), (TotalVariation1D(weight), (math.prod(shape) - 1,))]
        if math.prod(shape) > 1
        else [(L2Norm(weight), (1,))]
    ),
    "elastic": lambda weight, shape: regularizers.ElasticNet(weight, weight),
    "slope": lambda weight, shape: SLOPE(
        np.sort(np.random.default_rng(0).integers(0, 4, math.prod(shape)))[::-1] * weight / 3
    ),
}
"""Regularizers, by a weight and the model's shape; a new one enters here."""
KINDS = tuple(REGULARIZERS)


def make(kind, weight, shape):
    return REGULARIZERS[kind](weight, shape)


@st.composite
def cases(draw, kinds=KINDS, batch=0):
    kind, weight = draw(st.sampled_from(kinds)), draw(st.sampled_from([1e-6, 0.3, 1.0, 1e6]))
    if kind == "nuclear":
        shape = (draw(st.integers(1, 60)), draw(st.integers(1, 60)))
    else:
        shape = (draw(st.one_of(st.integers(1, 8), st.integers(1, 2000))),)
        if kind != "separable" and draw(st.booleans()):
            shape = (draw(st.integers(1, 3)), *shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lead = (3,) * batch
    v = {
        "normal": lambda: rng.normal(size=(*lead, *shape)),
        "ties": lambda: rng.integers(-2, 3, size=(*lead, *shape)).astype(float),
        "zeros": lambda: np.zeros((*lead, *shape)),
        "walk": lambda: rng.normal(size=(*lead, *shape)).cumsum(axis=-1),
    }[draw(st.sampled_from(["normal", "ties", "zeros", "walk"]))]()
    if draw(st.integers(0, 5)) == 0:  # far beyond what a float32 holds
        return make(kind, weight, shape), v * draw(st.sampled_from([1e-100, 1e100]))
    v = v * weight * 10.0 ** draw(st.integers(-2, 3))
    return make(kind, weight, shape), v.astype(draw(st.sampled_from([np.float64, np.float32])))


@given(cases(), st.sampled_from([0.1, 1.0, 30.0]))
def test_proximal_points_meet_the_optimality_conditions(case, step):
    psi, v = case
    before = v.copy()
    p = psi.prox(v, step)
    assert (p.shape, p.dtype) == (v.shape, v.dtype)
    np.testing.assert_array_equal(v, before)
    assert psi.value(p) < math.inf
    if v.dtype == np.float64:
        size = float(np.linalg.norm(v)) + psi.prox(v * 0 + 1, 1.0).size ** 0.5 * 1e-9
        level = getattr(psi, "weight", 1.0)
        scale = size / step + float(np.max(level)) * math.sqrt(v.size)
        assert psi.subdifferential_distance(p, (p - v) / step) <= 1e-9 * scale
    other = (v + np.random.default_rng(0).normal(size=v.shape)).astype(v.dtype)
    gap = (p.astype(float) - psi.prox(other, step)).ravel()
    apart = (v.astype(float) - other).ravel()
    eps = 1e-10 if v.itemsize == 8 else 1e-4
    assert gap @ gap <= gap @ apart + eps * (apart @ apart + float(np.vdot(v, v)) + 1)


@given(cases(batch=1))
def test_a_stack_equals_its_rows(case):
    psi, v = case
    rows = [psi.prox(row, 0.5) for row in v]
    np.testing.assert_array_equal(psi.prox(v, 0.5, batch=1), rows)


@given(cases(), st.sampled_from([0.5, 3.0]))
def test_multiples_and_messages(case, factor):
    psi, v = case
    (back,) = decode(*encode({"psi": psi})).values()
    assert back == psi
    assert back.prox(v, 0.7).tobytes() == psi.prox(v, 0.7).tobytes()
    level = 1e-6 * max(1.0, float(np.abs(v).max()))
    np.testing.assert_allclose(
        psi.scaled(factor).prox(v, 0.7), psi.prox(v, factor * 0.7), rtol=1e-5, atol=level
    )


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 1.0, 1e3]))
def test_moreau_identity(seed, radius):
    """prox of radius ||.|| = the identity less the projection onto the dual ball."""
    v = np.random.default_rng(seed).normal(size=(6, 4)) * radius
    pairs = [
        (L1(radius), LInfBall(radius)),
        (L2Norm(radius), L2Ball(radius)),
    ]
    for psi, dual in pairs:
        np.testing.assert_allclose(psi.prox(v, 1.0) + dual.project(v), v, atol=1e-12 * radius)
    # The other way about: the projection onto the norm's ball leaves the dual norm's prox.
    for ball, norm in (
        (L1Ball(radius), lambda x: np.abs(x).max()),
        (NuclearNormBall(radius), lambda x: np.linalg.norm(x, 2)),
        (GroupL2Ball(radius, "rows"), lambda x: np.linalg.norm(x, axis=1).max()),
    ):
        p = ball.project(v)
        assert np.vdot(p, v - p) == pytest.approx(radius * norm(v - p), rel=1e-9, abs=1e-12)


def test_values_and_subgradients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4))
    s = np.linalg.svd(x, compute_uv=False)
    assert NuclearNorm(2.0)(x) == pytest.approx(2 * s.sum())
    assert GroupLasso(2.0, "rows")(x) == pytest.approx(2 * np.linalg.norm(x, axis=1).sum())
    assert SparseGroupLasso(0.5, 2.0, 4)(x) == pytest.approx(
        2 * np.linalg.norm(x, axis=1).sum() + 0.5 * np.abs(x).sum()
    )
    assert L2Norm(3.0)(x) == pytest.approx(3 * np.linalg.norm(x))
    assert TotalVariation1D(2.0)(x) == pytest.approx(2 * np.abs(np.diff(x, axis=1)).sum())
    weights = rng.random((3, 4))
    assert L1(weights)(x) == pytest.approx((weights * np.abs(x)).sum())
    for psi in (NuclearNorm(2.0), GroupLasso(2.0, "rows"), SparseGroupLasso(0.5, 2.0, 4),
                L2Norm(3.0), TotalVariation1D(2.0), L1(weights),
                SLOPE(-np.sort(-weights, axis=None))):  # fmt: skip
        q = psi.subgradient(x)
        for _ in range(20):
            y = rng.normal(size=x.shape)
            assert psi(y) >= psi(x) + np.vdot(q, y - x) - 1e-12
        assert np.vdot(q, x) == pytest.approx(psi(x))
        assert psi.scaled(3.0)(x) == pytest.approx(3 * psi(x))
        np.testing.assert_allclose(psi.scaled(3.0).prox(x, 0.1), psi.prox(x, 0.3), atol=1e-12)
        assert psi.prox(x, 0.0) is x
        assert not psi.subgradient(np.zeros((3, 4))).any()
        assert psi.subdifferential_distance(x, -q) <= 1e-12


def test_distances_at_zero():
    grad = np.array([[3.0, 4.0], [0.3, 0.4]])
    zero = np.zeros((2, 2))
    assert L2Norm(1.0).subdifferential_distance(zero, grad) == pytest.approx(5.025 - 1, abs=1e-4)
    assert GroupLasso(1.0, "rows").subdifferential_distance(zero, grad) == pytest.approx(4.0)
    s = np.linalg.svd(grad, compute_uv=False)
    assert NuclearNorm(1.0).subdifferential_distance(zero, grad) == pytest.approx(
        np.linalg.norm(np.maximum(s - 1, 0))
    )
    flat = np.array([1.0, -1.0, 0.5])
    assert Nonnegative().subdifferential_distance(np.array([0.0, 0.0, 2.0]), flat) == pytest.approx(
        math.hypot(1, 0.5)
    )
    assert Nonnegative().subdifferential_distance(-np.ones(3), flat) == math.inf
    # Constant runs: what is left is the part of the gradient that no dual variable can carry.
    tv = TotalVariation1D(10.0)
    assert tv.subdifferential_distance(np.ones(3), flat) == pytest.approx(0.5 / 3**0.5)


def tv_by_brute_force(y, level):
    """The best over all patterns of joined neighbours and of signs between runs."""
    found, least = None, math.inf
    n = len(y)
    for cuts in itertools.product([-1, 0, 1], repeat=n - 1):  # the sign of each difference
        runs, start = [], 0
        for i in range(n):
            if i == n - 1 or cuts[i]:
                runs.append((start, i + 1))
                start = i + 1
        signs = [0, *[c for c in cuts if c], 0]
        b = np.concatenate([
            np.full(e - s, y[s:e].mean() + level * (signs[k + 1] - signs[k]) / (e - s))
            for k, (s, e) in enumerate(runs)
        ])  # fmt: skip
        cost = 0.5 * ((b - y) ** 2).sum() + level * np.abs(np.diff(b)).sum()
        if cost < least:
            found, least = b, cost
    return found


def test_total_variation_against_enumeration():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 6):
        for level in (0.01, 0.3, 1.0, 5.0):
            y = rng.normal(size=n)
            expected = tv_by_brute_force(y, level)
            np.testing.assert_allclose(TotalVariation1D(level).prox(y, 1.0), expected, atol=1e-12)
    y = rng.normal(size=(2, 3, 5)) + 1e8
    found = TotalVariation1D(1e3).prox(y, 1.0)
    np.testing.assert_allclose(found, np.broadcast_to(y.mean(-1, keepdims=True), y.shape))


def test_prox_against_a_generic_minimiser():
    rng = np.random.default_rng(1)
    for psi in (GroupLasso(0.7, 2), SparseGroupLasso(0.2, 0.5, 2), L2Norm(0.5)):
        v = rng.normal(size=4) * 2

        def cost(w, psi=psi, v=v):
            return psi(w) + ((w - v) ** 2).sum() / 0.8

        p = psi.prox(v, 0.4)
        found = minimize(cost, v, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
        assert cost(p) <= found.fun + 1e-10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(kind, bad):
    v = np.ones((1, 4)) if kind != "separable" else np.ones(4)
    v.flat[2] = bad
    psi = make(kind, 1.0, v.shape)
    with pytest.raises(ConfigError, match=r"not finite .* has the run diverged\?"):
        psi.prox(v, 0.5)
    v.flat[2] = 1e200  # whose square is not finite
    assert np.isfinite(psi.prox(v, 0.5)).all()


def test_separable():
    psi = Separable(
        [(L1(1.0), (2,)), (NuclearNorm(0.5), (2, 2)), (L1Ball(1.0), (1,)), (None, (1,))]
    )
    v = np.random.default_rng(0).normal(size=8) * 3
    p = psi.prox(v, 0.5)
    np.testing.assert_array_equal(p[:2], L1(1.0).prox(v[:2], 0.5))
    np.testing.assert_array_equal(p[2:6], NuclearNorm(0.5).prox(v[2:6].reshape(2, 2), 0.5).ravel())
    np.testing.assert_array_equal(p[6:], [np.clip(v[6], -1, 1), v[7]])
    assert psi(p) == pytest.approx(np.abs(p[:2]).sum() + NuclearNorm(0.5)(p[2:6].reshape(2, 2)))
    assert psi.scaled(2.0).parts[0][0] == L1(2.0)
    assert psi.parts[3][0] == Zero()
    assert psi == Separable(list(psi.parts))
    smooth = Separable([(L2Squared(2.0), (2,)), (L1(1.0), (1,))])
    np.testing.assert_array_equal(smooth.subgradient(np.array([1.0, -2, 3])), [2, -4, 1])
    with pytest.raises(ConfigError, match="no subgradient"):
        psi.subgradient(v)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: L1([1.0, -1.0]), "weights >= 0"),
        (lambda: L1([1.0, math.nan]), "not finite"),
        (lambda: L1([1.0, 2.0]).prox(np.ones(3), 1.0), "weights of shape"),
        (lambda: L1([1.0, 2.0]).value(np.ones(3)), "weights of shape"),
        (lambda: L2Norm(-1.0), r"L2Norm\(weight\) must be"),
        (lambda: GroupLasso(-1.0, 2), r"GroupLasso\(weight\) must be"),
        (lambda: GroupLasso(1.0, 2.5), r"GroupLasso\(groups\) must be"),
        (lambda: SparseGroupLasso(-1.0, 1.0, 2), r"SparseGroupLasso\(l1\) must be"),
        (lambda: GroupLasso(1.0, 2).prox(np.ones(3), 1.0), "do not divide"),
        (lambda: NuclearNorm(-1.0), r"NuclearNorm\(weight\) must be"),
        (lambda: NuclearNorm(1.0).prox(np.ones(3), 1.0), "set of matrices|matrices"),
        (lambda: NuclearNorm(1.0).prox(np.full((2, 2), np.nan), 1.0), "not finite"),
        (lambda: TotalVariation1D(-1.0), r"TotalVariation1D\(weight\) must be"),
        (lambda: TotalVariation1D(1.0).prox(np.ones(3), -1.0), "step must be"),
        (lambda: Nonnegative().prox(np.ones(3), -1.0), "step must be"),
        (lambda: Nonnegative().subgradient(np.ones(3)), "no subgradient"),
        (lambda: Separable([(3, (2,))]), "a regularizer must be None"),
        (lambda: Separable([L1(1.0)]), "must be pairs"),
        (lambda: Separable([(L1(1.0), (2,))]).prox(np.ones(3), 1.0), "of 2 entries"),
        (lambda: Separable([(Indicator(NuclearNormBall(1.0)), (2,))]), "set of matrices"),
    ],
)
def test_refusals(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


@pytest.mark.parametrize(
    "psi",
    [
        L1(np.ones(4)),
        L2Norm(1.0),
        GroupLasso(1.0, 2),
        GroupLasso(1.0, np.array([0, 0, 1, 1])),
        SparseGroupLasso(1.0, 1.0, 2),
        SLOPE(np.ones(4)),
        TotalVariation1D(1.0),
    ],
    ids=repr,
)
def test_a_prox_that_integers_would_truncate_refuses_them(psi):
    with pytest.raises(ConfigError, match=r"takes arrays of floats, got int64: pass np\.asarray"):
        psi.prox(np.array([3, -5, 1, 7]), 0.5)
