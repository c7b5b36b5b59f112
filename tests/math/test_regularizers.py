"""Regularizers: proximal operators, subgradients and distances."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import (
    L1,
    ElasticNet,
    Indicator,
    L2Squared,
    Regularizer,
    Zero,
    as_regularizer,
)
from flower_fedcon.sets import Box, L1Ball, L2Ball, Simplex

ELEMENTWISE = (Zero(), L1(0.7), L1(0.0), L2Squared(1.3), ElasticNet(0.4, 2.0), ElasticNet(0, 0))
ALL = (*ELEMENTWISE, Indicator(L1Ball(1.0)), Indicator(Box(-0.5, 0.2)), Indicator(Simplex()))
numbers = st.one_of(st.just(0.0), st.floats(-1e3, 1e3))


@given(st.sampled_from(ELEMENTWISE), numbers, st.floats(1e-3, 1e3))
def test_prox_against_a_generic_minimiser(psi, v, step):
    def cost(w):
        return psi(np.array([w])) + (w - v) ** 2 / (2 * step)

    p = psi.prox(np.array([v]), step)
    found = minimize_scalar(cost, bounds=(-abs(v) - 1, abs(v) + 1), method="bounded")
    assert cost(p[0]) <= found.fun + 1e-9 * max(1, abs(found.fun))
    # The certificate: (v - p)/step is a subgradient at p.
    gap = psi.subdifferential_distance(p, (p - v) / step)
    assert gap <= 1e-12 * max(1.0, abs(v)) * max(1.0, 1 / step)


@given(
    st.sampled_from(ALL),
    st.integers(1, 30),
    st.integers(0, 10**6),
    st.sampled_from([1e-4, 0.1, 1.0, 50.0]),
    st.sampled_from([np.float64, np.float32]),
)
def test_prox_is_firmly_non_expansive_and_keeps_the_dtype(psi, d, seed, step, dtype):
    rng = np.random.default_rng(seed)
    v, w = (rng.normal(size=(2, d)) * 3).astype(dtype)
    v[rng.random(d) < 0.2] = 0
    before = v.copy()
    p, q = psi.prox(v, np.float64(step)), psi.prox(w, step)
    assert p.dtype == dtype
    np.testing.assert_array_equal(v, before)
    gap = (p - q).astype(float)
    assert gap @ gap <= gap @ (v - w).astype(float) + 1e-4 * (dtype == np.float32) + 1e-10
    assert psi.value(p) < math.inf


@pytest.mark.parametrize("psi", ALL, ids=repr)
def test_a_stack_equals_its_rows(psi):
    v = np.random.default_rng(0).normal(size=(4, 3, 2))
    rows = [psi.prox(row, 0.5) for row in v]
    np.testing.assert_array_equal(psi.prox(v, 0.5, batch=1), rows)


def test_closed_forms():
    v = np.array([3.0, -0.5, 0.0])
    np.testing.assert_array_equal(L1(2.0).prox(v, 0.5), [2.0, 0.0, 0.0])
    assert not np.signbit(L1(2.0).prox(v, 0.5)[1])
    np.testing.assert_array_equal(L2Squared(2.0).prox(v, 0.5), v / 2)
    np.testing.assert_array_equal(ElasticNet(2.0, 2.0).prox(v, 0.5), [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(Zero().prox(v, 0.5), v)
    assert L1(2.0)(v) == 7.0
    assert L2Squared(2.0)(v) == 9.25
    assert ElasticNet(2.0, 2.0)(v) == 16.25
    assert Zero()(v) == 0.0
    np.testing.assert_array_equal(L1(2.0).subgradient(v), [2, -2, 0])
    np.testing.assert_array_equal(L2Squared(2.0).subgradient(v), 2 * v)
    np.testing.assert_array_equal(ElasticNet(1.0, 2.0).subgradient(v), [7, -2, 0])
    np.testing.assert_array_equal(Zero().subgradient(v), np.zeros(3))


def test_subdifferential_distances_by_hand():
    x = np.array([1.0, 0.0, 0.0])
    grad = np.array([-3.0, 0.5, 5.0])
    assert Zero().subdifferential_distance(x, grad) == pytest.approx(np.sqrt(34.25))
    assert L1(1.0).subdifferential_distance(x, grad) == pytest.approx(np.sqrt(4 + 0 + 16))
    assert ElasticNet(1.0, 1.0).subdifferential_distance(x, grad) == pytest.approx(np.sqrt(1 + 16))
    assert L2Squared(3.0).subdifferential_distance(x, grad) == pytest.approx(np.sqrt(25.25))
    ball = Indicator(L2Ball(1.0))
    assert ball.subdifferential_distance(x, np.array([-2.0, 0.0, 0.0])) == 0.0
    assert ball.subdifferential_distance(x, np.array([2.0, 0.0, 0.0])) == 2.0


@pytest.mark.parametrize("psi", ELEMENTWISE, ids=repr)
def test_step_zero_and_scaling(psi):
    v = np.array([[1.0, -2.0], [0.0, 4.0]])
    np.testing.assert_array_equal(psi.prox(v, 0), v)
    tripled = psi.scaled(3.0)
    assert tripled(v) == pytest.approx(3 * psi(v))
    np.testing.assert_allclose(tripled.prox(v, 0.5), psi.prox(v, 1.5), rtol=1e-14)


@pytest.mark.parametrize("psi", ALL, ids=repr)
def test_bad_steps_and_factors(psi):
    for step in (-1e-9, math.inf, math.nan):
        with pytest.raises(ConfigError, match="step must be finite and >= 0"):
            psi.prox(np.ones(2), step)
    with pytest.raises(ConfigError, match="factor must be"):
        psi.scaled(-1.0)


@pytest.mark.parametrize(
    "kind", [L1, L2Squared, lambda w: ElasticNet(w, 1), lambda w: ElasticNet(1, w)]
)
def test_bad_weights(kind):
    for weight in (-1, math.nan, math.inf, "a", None):
        with pytest.raises(ConfigError, match="must be"):
            kind(weight)
    kind(0)


def test_indicators():
    psi = Indicator(L1Ball(1.0))
    assert psi(np.array([0.5, -0.5])) == 0.0
    assert psi(np.array([0.5, -0.5 - 1e-6])) == math.inf
    assert psi.scaled(4.0) is psi
    np.testing.assert_array_equal(psi.prox(np.array([5.0, 0.0]), 0.0), [1.0, 0.0])
    # A projected float32 point counts as inside.
    v = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    assert Indicator(Simplex()).value(Simplex().project(v)) == 0.0
    with pytest.raises(ConfigError, match="projects or calls the linear minimisation oracle"):
        psi.subgradient(np.zeros(2))
    with pytest.raises(ConfigError, match="needs a constraint set"):
        Indicator(3)


class Soft:
    """The l1 norm with pyproximal's conventions: vectors only, tau > 0."""

    sigma = 2.0

    def prox(self, x, tau):
        assert x.ndim == 1
        assert tau > 0
        x -= np.clip(x, -tau * self.sigma, tau * self.sigma)  # may work in place
        return x.astype(float)

    def __call__(self, x):
        assert x.ndim == 1
        return self.sigma * np.abs(x).sum()


class Inside:
    def prox(self, x, tau):
        return np.clip(x, -1, 1)

    def __call__(self, x):
        return bool(np.abs(x).max() <= 1)


def test_foreign_operators():
    psi = as_regularizer(Soft())
    assert isinstance(psi, Regularizer)
    v = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
    before = v.copy()
    for batch in (0, 1):
        p = psi.prox(v, 0.25, batch=batch)
        assert p.dtype == np.float32
        np.testing.assert_array_equal(p, L1(2.0).prox(v, 0.25))
    np.testing.assert_array_equal(v, before)
    assert psi.prox(v, 0.0) is v
    assert psi(v) == pytest.approx(L1(2.0)(v), rel=1e-6)
    assert psi.scaled(3.0).scaled(0.5)(v) == pytest.approx(1.5 * psi(v))
    np.testing.assert_array_equal(psi.scaled(2.0).prox(v, 0.1), L1(4.0).prox(v, 0.1))
    assert as_regularizer(Inside())(np.ones(2)) == 0.0
    assert as_regularizer(Inside())(2 * np.ones(2)) == math.inf
    with pytest.raises(ConfigError, match="no subgradient"):
        psi.subgradient(v)
    # Stationary for f + 2 |x| with gradient -2 at a positive entry, and any |g| <= 2 at zero.
    assert psi.subdifferential_distance(np.array([1.0, 0.0]), np.array([-2.0, 1.5])) == 0.0


def test_as_regularizer():
    assert as_regularizer(None) == Zero()
    assert as_regularizer(L1(1.0)) == L1(1.0)
    assert as_regularizer(L1Ball(1.0)) == Indicator(L1Ball(1.0))
    for wrong in (3, "l1", np.sin, object()):
        with pytest.raises(ConfigError, match="a regularizer must be None"):
            as_regularizer(wrong)
    with pytest.raises(ConfigError, match=r"such as L1\(...\)"):
        as_regularizer(L1)
