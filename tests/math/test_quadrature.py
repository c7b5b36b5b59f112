"""The likelihood that random intercepts are integrated out of: its value and derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.integrate import quad
from scipy.stats import bernoulli, norm, poisson

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    GammaRegression,
    LogisticRegression,
    PoissonRegression,
    RandomIntercepts,
    WithOffset,
)

KINDS = {
    "logistic": (LogisticRegression, lambda rng, m: rng.choice([-1.0, 1.0], m)),
    "poisson": (PoissonRegression, lambda rng, m: rng.poisson(3, m).astype(float)),
}


def made(rng, name, nodes, *, form=np.asarray, weighted=False, offset=False, m=24):
    kind, outcomes = KINDS[name]
    A, y = rng.normal(size=(m, 2)), outcomes(rng, m)
    more = {"sample_weight": rng.integers(0, 4, m) + (np.arange(m) == 0)} if weighted else {}
    if offset:
        loss = WithOffset(lambda rows: kind(rows, y, intercept=True, **more), form(A), A[:, 0] ** 2)
    else:
        loss = kind(form(A), y, intercept=True, **more)
    return RandomIntercepts(loss, rng.integers(0, 4, m), nodes)


def hold_derivatives(seed, name, nodes, weighted, offset, form):
    rng = np.random.default_rng(seed)
    f = made(rng, name, nodes, form=form, weighted=weighted, offset=offset)
    x = 0.5 * rng.normal(size=f.shape)
    step = 1e-5 * np.eye(f.shape[0])
    slopes = np.array([f.value(x + s) - f.value(x - s) for s in step]) / 2e-5
    np.testing.assert_allclose(f.gradient(x), slopes, rtol=1e-6, atol=1e-8)
    curves = np.array([f.gradient(x + s) - f.gradient(x - s) for s in step]) / 2e-5
    np.testing.assert_allclose(f.hessian(x), curves, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(f.hessian(x, np.array([1])), f.hessian(x)[1:2, 1:2], rtol=1e-12)


CASES = (
    st.integers(0, 2**32 - 1),
    st.sampled_from(list(KINDS)),
    st.sampled_from([1, 3, 7, 25]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([np.asarray, sparse.csr_array]),
)


@settings(max_examples=15, deadline=None)
@given(*CASES)
def test_derivatives_are_those_of_the_computed_value(seed, name, nodes, weighted, offset, form):
    hold_derivatives(seed, name, nodes, weighted, offset, form)


@pytest.mark.nightly
@settings(max_examples=1000, deadline=None)
@given(*CASES)
def test_derivatives_are_those_of_the_computed_value_often(
    seed, name, nodes, weighted, offset, form
):
    hold_derivatives(seed, name, nodes, weighted, offset, form)


@pytest.mark.parametrize("name", KINDS)
def test_many_nodes_give_the_integral(name):
    rng = np.random.default_rng(1)
    f = made(rng, name, 25, weighted=True, offset=True)
    x, y, codes = np.array([0.3, -0.4, 0.2, np.log(0.8)]), f.targets, f._codes
    scores = f._modes(x)[0]

    def density(u, c):
        own = codes == c
        s = scores[own] + u
        if name == "poisson":
            logs = poisson.logpmf(y[own], np.exp(s))
        else:
            logs = bernoulli.logpmf(y[own] > 0, 1 / (1 + np.exp(-s)))
        return np.exp(f._w[own] @ logs) * norm.pdf(u, scale=0.8)

    for c, found in enumerate(f.logliks(x)):
        whole = quad(density, -6, 6, (c,), epsabs=0, epsrel=1e-12)[0]
        np.testing.assert_allclose(found, np.log(whole), rtol=1e-8)


def test_one_node_is_the_approximation_of_laplace():
    f = made(np.random.default_rng(2), "poisson", 1)
    x = np.array([0.1, 0.2, 0.3, np.log(0.7)])
    u, scores, codes = f.effects(x), f._modes(x)[0], f._codes
    s = scores + u[codes]
    rows = poisson.logpmf(f.targets, np.exp(s))
    h = np.bincount(codes, np.exp(s)) + 1 / 0.49
    known = np.bincount(codes, rows) + norm.logpdf(u, scale=0.7) + 0.5 * np.log(2 * np.pi / h)
    np.testing.assert_allclose(f.logliks(x), known, rtol=1e-12)


@pytest.mark.parametrize("log_sd", [-12.0, -3.0, 0.0, 3.0])
@pytest.mark.parametrize("shift", [-800.0, -30.0, 0.0, 30.0, 800.0])
@pytest.mark.parametrize("name", KINDS)
def test_modes_are_found_wherever_the_scores_are(name, shift, log_sd):
    rng = np.random.default_rng(4)
    A = np.ones((12, 1))
    if name == "poisson":
        y = np.r_[0.0, 0.0, 0.0, rng.poisson(2.0, 6), 1e9, 3e9, 2e9]
    else:
        y = np.r_[1.0, 1.0, 1.0, -1.0, -1.0, -1.0, rng.choice([-1.0, 1.0], 6)]
    f = RandomIntercepts(KINDS[name][0](A, y), np.repeat(np.arange(4), 3), 7)
    x = np.array([shift, log_sd])
    u = f.effects(x)
    first, second = f._slopes(shift + u[f._codes])
    P = np.exp(-2 * log_sd)
    left = (f._sum @ first - P * u) / (P - f._sum @ second)  # how far Newton's method would go
    np.testing.assert_allclose(left, 0.0, atol=1e-8 * (1 + abs(u).max()))
    assert np.isfinite(f.value(x))
    assert np.isfinite(f.hessian(x)).all()


def test_what_is_not_integrated_is_refused():
    A, y = np.ones((3, 1)), np.array([1.0, 2.0, 1.0])
    with pytest.raises(ConfigError, match="LogisticRegression and PoissonRegression, without l2"):
        RandomIntercepts(GammaRegression(A, y))
    with pytest.raises(ConfigError, match="without l2"):
        RandomIntercepts(PoissonRegression(A, y, 0.1))
    for nodes in (0, 4, 27, 7.0, True, "7"):
        with pytest.raises(ConfigError, match="nodes must be odd, from 1"):
            RandomIntercepts(PoissonRegression(A, y), nodes=nodes)
