"""MCP and SCAD: values by integration, proxes by search, and what is said of their modulus."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import (
    L1,
    MCP,
    SCAD,
    Each,
    Separable,
    WithIntercept,
    as_regularizer,
)

KINDS = (MCP(0.7, 1.5), MCP(2.0, 0.1), MCP(0.4), SCAD(0.7), SCAD(1.1, 2.1), SCAD(0.5, 3.0, 4.0))


def slope(psi, t):
    """Return p'(t) as the papers define it."""
    if isinstance(psi, MCP):
        return max(psi.weight - t / psi.gamma, 0.0)
    if t <= psi.weight:
        return psi.factor * psi.weight
    return psi.factor * max(psi.a * psi.weight - t, 0.0) / (psi.a - 1)


@pytest.mark.parametrize("psi", KINDS, ids=repr)
def test_values_are_the_integrals_of_the_slopes(psi):
    for t in (0.0, 0.05, 0.3, 0.9, 1.4, 2.5, 30.0):
        kinks = [psi.weight, getattr(psi, "a", 0) * psi.weight, getattr(psi, "gamma", 0)]
        area = quad(lambda u: slope(psi, u), 0, t, points=[k for k in kinks if 0 < k < t] or None,
                    limit=200)[0]  # fmt: skip
        assert psi(np.array([t, -t])) == pytest.approx(2 * area, rel=1e-6, abs=1e-9)
        if t:
            assert psi.subgradient(np.array([-t]))[0] == pytest.approx(-slope(psi, t))


@given(
    st.sampled_from(KINDS),
    st.one_of(st.just(0.0), st.floats(-5, 5), st.floats(-1e3, 1e3)),
    st.floats(0.001, 0.98),
)
def test_prox_against_a_search(psi, v, share):
    step = share / psi.weak_convexity
    (p,) = psi.prox(np.array([v]), step)
    grid = np.linspace(min(0, v), max(0, v), 20001)
    sizes = np.abs(grid)
    if isinstance(psi, MCP):
        inside = psi.weight * sizes - sizes**2 / (2 * psi.gamma)
        values = np.where(sizes <= psi.gamma * psi.weight, inside, psi.gamma * psi.weight**2 / 2)
    else:
        w, a = psi.weight, psi.a
        middle = (2 * a * w * sizes - sizes**2 - w**2) / (2 * (a - 1))
        values = np.where(
            sizes <= w, w * sizes, np.where(sizes <= a * w, middle, w**2 * (a + 1) / 2)
        )
        values = psi.factor * values
    costs = values + (grid - v) ** 2 / (2 * step)
    cost = psi(np.array([p])) + (p - v) ** 2 / (2 * step)
    assert cost <= costs.min() + 1e-9 * max(1.0, abs(costs.min()))
    gap = psi.subdifferential_distance(np.array([p]), np.array([(p - v) / step]))
    assert gap <= 1e-9 * max(1.0, abs(v)) / (step * (1 - share))


@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.floats(0.01, 0.95))
def test_prox_expands_by_no_more_than_the_modulus_allows(psi, seed, share):
    v, w = np.random.default_rng(seed).normal(size=(2, 40)) * 3
    step = share / psi.weak_convexity
    moved = np.abs(psi.prox(v, step) - psi.prox(w, step))
    assert (moved <= np.abs(v - w) / (1 - share) + 1e-9).all()


@pytest.mark.parametrize("psi", KINDS, ids=repr)
def test_the_modulus_is_the_least(psi):
    rho, t = psi.weak_convexity, np.linspace(-3, 3, 2001)
    for factor, convex in ((1.0, True), (0.99, False)):
        values = np.array([psi(np.array([x])) for x in t]) + factor * rho / 2 * t**2
        second = np.diff(values, 2) / np.diff(t)[0] ** 2
        assert (second.min() >= -1e-6) == convex


@pytest.mark.parametrize("psi", KINDS, ids=repr)
def test_steps_stacks_and_scaling(psi):
    limit = 1 / psi.weak_convexity
    v = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    with pytest.raises(ConfigError, match=rf"steps below {limit:g}, .*got {limit:g}"):
        psi.prox(v, limit)
    with pytest.raises(ConfigError, match="step must be finite"):
        psi.prox(v, -0.1)
    rows = [psi.prox(row, 0.5 * limit) for row in v]
    np.testing.assert_array_equal(psi.prox(v, 0.5 * limit, batch=1), rows)
    assert psi.prox(v, 0.5 * limit).dtype == psi.subgradient(v).dtype == np.float32
    assert psi.prox(v, 0.0) is v
    wide = v.astype(float)
    tripled = psi.scaled(3.0)
    assert tripled(wide) == pytest.approx(3 * psi(wide))
    assert tripled.weak_convexity == pytest.approx(3 * psi.weak_convexity)
    expected = psi.prox(wide, 0.3 * limit)
    np.testing.assert_allclose(tripled.prox(wide, 0.1 * limit), expected, atol=1e-13)
    assert psi.scaled(0.0)(wide) == psi.scaled(0.0).weak_convexity == 0
    np.testing.assert_array_equal(psi.scaled(0.0).prox(wide, 50.0), wide)
    assert psi.prox_residual(np.zeros(2), np.full(2, 1e-3)) == 0
    for bad in (math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"not finite .* has the run diverged\?"):
            psi.prox(np.array([1.0, bad]), 0.5 * limit)


class Mine:
    weak_convexity = 0.5

    def __call__(self, v):
        return MCP(1.0, 2.0)(v)

    def prox(self, v, step):
        return MCP(1.0, 2.0).prox(v, step)


def test_what_is_made_of_them_says_so():
    psi = MCP(1.0, 2.0)
    assert WithIntercept(psi).weak_convexity == Each(psi).weak_convexity == 0.5
    assert Separable([(L1(1.0), (2,)), (psi, (1,)), (SCAD(1.0), (1,))]).weak_convexity == 0.5
    assert as_regularizer(Mine()).scaled(3.0).weak_convexity == 1.5
    assert as_regularizer(Mine()).subdifferential_distance(np.array([5.0]), np.zeros(1)) == 0
    assert L1(1.0).weak_convexity == 0


def test_refusals():
    with pytest.raises(ConfigError, match=r"MCP\(weight\) must be"):
        MCP(-1.0)
    with pytest.raises(ConfigError, match=r"MCP\(gamma\) must be"):
        MCP(1.0, 0.0)
    with pytest.raises(ConfigError, match=r"SCAD\(a\) must be > 2"):
        SCAD(1.0, 2.0)
    with pytest.raises(ConfigError, match=r"SCAD\(factor\) must be"):
        SCAD(1.0, 3.0, -1.0)
