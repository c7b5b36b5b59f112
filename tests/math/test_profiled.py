"""A loss of which a site's own coefficients are eliminated: value, slope and curvature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    GammaRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    Profiled,
    Scaled,
    WithOffset,
)
from flower_fedcon.objectives.curvatures import in_units

KINDS = {
    "squared": (LeastSquares, lambda rng, m: rng.normal(size=m) * 3 + 20),
    "logistic": (LogisticRegression, lambda rng, m: np.r_[1, -1, rng.choice([-1, 1], m - 2)]),
    "poisson": (PoissonRegression, lambda rng, m: np.r_[1, rng.poisson(3, m - 1)]),
}


def made(rng, name, *, own=(-1,), form=np.asarray, weighted=False, offset=False):
    """A profile and the loss that it is of."""
    kind, outcomes = KINDS[name]
    A, y = rng.normal(size=(30, 3)), outcomes(rng, 30)
    more = {"sample_weight": rng.integers(1, 4, 30)} if weighted else {}
    if offset:
        loss = WithOffset(lambda rows: kind(rows, y, intercept=True, **more), form(A), A[:, 0] ** 2)
    else:
        loss = kind(form(A), y, intercept=True, **more)
    return Profiled(loss, own), loss


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(list(KINDS)),
    st.sampled_from([(-1,), (0,), (0, -1)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([np.asarray, sparse.csr_array]),
)
def test_a_profile_is_the_least_over_what_is_own(seed, name, own, weighted, offset, form):
    rng = np.random.default_rng(seed)
    f, loss = made(rng, name, own=own, form=form, weighted=weighted, offset=offset)
    x = 0.5 * rng.normal(size=f.shape)
    whole = f.full(x)
    np.testing.assert_allclose(loss.gradient(whole)[f.own], 0.0, atol=1e-9)
    np.testing.assert_allclose(f.value(x), loss.value(whole), rtol=1e-12)
    np.testing.assert_allclose(f.gradient(x), loss.gradient(whole)[f.entries], atol=1e-12)
    # The inverse of a Schur complement is a block of the whole inverse.
    block = np.linalg.inv(loss.hessian(whole))[np.ix_(f.entries, f.entries)]
    np.testing.assert_allclose(np.linalg.inv(f.hessian(x)), block, rtol=1e-7)
    step = 1e-5 * np.eye(f.shape[0])
    slopes = np.array([f.gradient(x + s) - f.gradient(x - s) for s in step]) / 2e-5
    np.testing.assert_allclose(f.hessian(x), slopes, rtol=1e-5, atol=1e-6)
    around = f.at(x)
    for one, other in ((around.value, f.value), (around.gradient, f.gradient)):
        np.testing.assert_allclose(one(x), other(x), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(around.hessian(x), f.hessian(x), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(f.hessian(x, np.array([1])), f.hessian(x)[1:2, 1:2], rtol=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(list(KINDS)), st.booleans(), st.booleans())
def test_second_derivatives_in_other_units_and_of_some_columns(seed, name, profiled, offset):
    rng = np.random.default_rng(seed)
    f = made(rng, name, offset=offset)[0 if profiled else 1]
    x, sizes = 0.5 * rng.normal(size=f.shape), np.exp(rng.normal(size=f.shape))
    expected = 0.3 * f.hessian(x) * sizes * sizes[:, None]
    for g in (Scaled(in_units(f, sizes), 0.3), in_units(Scaled(f, 0.3), sizes)):
        np.testing.assert_allclose(g.hessian(x / sizes), expected, rtol=1e-9, atol=1e-12)
        some = g.hessian(x / sizes, np.array([2, 0]))
        np.testing.assert_allclose(some, expected[np.ix_([2, 0], [2, 0])], rtol=1e-9, atol=1e-12)


def test_far_from_the_fit_it_is_found_as_well():
    rng = np.random.default_rng(3)
    for name in KINDS:
        f, loss = made(rng, name)
        for x in (np.array([30.0, -40.0, 5.0]), np.array([-0.1, 20.0, 20.0])):
            slope = float(loss.gradient(f.full(x))[-1])
            assert abs(slope) < 1e-6, (name, x, slope)


@pytest.mark.parametrize(("name", "y"), [("logistic", np.ones(30)), ("poisson", np.zeros(30))])
def test_an_infinite_intercept_leaves_nothing(name, y):
    A = np.random.default_rng(0).normal(size=(30, 2))
    f = Profiled(KINDS[name][0](A, y, intercept=True))
    x = np.ones(2)
    assert not f.informative
    assert (f.value(x), f.own_count) == (0.0, 0)
    assert not f.gradient(x).any()
    assert not f.hessian(x).any()


def test_what_has_no_profile_is_refused():
    A, y = np.ones((3, 2)), np.array([1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match=r"are for LeastSquares, .* got GammaRegression"):
        Profiled(GammaRegression(A, y, intercept=True))
    with pytest.raises(ConfigError, match=r"has l2 = 0\.1"):
        Profiled(PoissonRegression(A, y, 0.1, intercept=True))
