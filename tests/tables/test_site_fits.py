"""What a site finds alone: the same whoever has the intercept, in any order, weights as copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedcon import Policy
from flower_fedcon.core.protocol import STATISTICS, Request
from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.objectives import (
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    Profiled,
    SoftmaxRegression,
)
from flower_fedcon.objectives.private_objective import PrivateObjective
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.registry import client_class
from flower_fedcon.tables.statistics.estimates import estimate
from flower_fedcon.tables.statistics.site_fits import alone, apart

KINDS = {"squared": LeastSquares, "logistic": LogisticRegression, "poisson": PoissonRegression}


def made(loss, A, y, **more):
    return KINDS[loss](A, y, intercept=True, **more)


def drawn(loss, seed, rows, columns):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(rows, columns)) * rng.uniform(0.1, 10.0, columns)
    scores = 0.5 * A @ (rng.normal(size=columns) / np.abs(A).max(axis=0)) + rng.normal()
    if loss == "squared":
        return A, scores + rng.normal(size=rows), rng
    if loss == "poisson":
        return A, rng.poisson(np.exp(scores)).astype(float) + (np.arange(rows) == 0), rng
    y = np.where(rng.random(rows) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    y[:2] = 1.0, -1.0
    return A, y, rng


def estimates(loss, f, names):
    told = alone(f, {"x": np.zeros(f.shape)})
    return None if told["step"].any() else estimate(loss, "model", names, told["values"], told)


@pytest.mark.parametrize("size", [1, 9])
@pytest.mark.parametrize("name", ["estimates", "alone", "apart"])
def test_a_node_counts_the_parameters_of_its_own_model(name, size):
    A, y, _ = drawn("squared", 0, 12, 8)
    node = client_class("fednewton")(
        made("squared", A, y), policy=Policy(phases="statistics,alone")
    )
    node._incarnation = 0
    down = {"x": np.zeros(size), f"asks.{name}": 1.0, "method": 0.0, "at": np.zeros((1, 9)),
            "entries": np.zeros(1)}  # fmt: skip
    none = np.zeros(1, dtype=np.int64)
    request = Request([0], 1, none, down, none, phase=STATISTICS)
    with pytest.raises(RefusedError, match="for each row, and there are 9 and 12"):
        node.serve(request, 0, 0, 0, down, None)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6), st.integers(1, 4))
def test_a_fit_alone(loss, seed, columns):
    A, y, rng = drawn(loss, seed, 60, columns)
    names = [f"x{j}" for j in range(columns)]
    common = estimates(loss, made(loss, A, y), [*names, "1"])
    own = estimates(loss, Profiled(made(loss, A, y)), names)
    assert (common is None) == (own is None)  # separated, for both
    if common is None or own is None:
        return
    np.testing.assert_allclose(own.values, common.values[:-1], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(own.bse, common.bse[:-1], rtol=1e-6)
    counts = rng.integers(1, 4, 60)
    order = rng.permutation(60)
    weighed = made(loss, A[order], y[order], sample_weight=counts[order].astype(float))
    copies = made(loss, np.repeat(A, counts, axis=0), np.repeat(y, counts))
    one, other = (estimates(loss, f, [*names, "1"]) for f in (weighed, copies))
    if one is None or other is None:
        assert one is other
        return
    np.testing.assert_allclose(one.values, other.values, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.bse, other.bse, rtol=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6))
def test_an_entry_of_its_own_is_as_good_as_its_best_value(loss, seed):
    """At the site's fit nothing is gained; elsewhere the deviance is the least over the entry."""
    A, y, rng = drawn(loss, seed, 50, 3)
    f = made(loss, A, y)
    told = alone(f, {"x": np.zeros(4)})
    if told["step"].any():
        return
    at = np.stack([told["values"], told["values"] + 0.1 * rng.normal(size=4)])
    found = apart(f, {"x": np.zeros(4), "at": at, "entries": np.array([1.0, 2.0])})
    np.testing.assert_allclose(found["numbers"][0, 2], told["numbers"][2], rtol=1e-9)
    np.testing.assert_allclose(found["score"][0], 0.0, atol=1e-4 * len(y))
    for value in (at[1, 2], told["values"][2]):
        x = at[1].copy()
        x[2] = value
        base = 2.0 * len(y) * (f.value(x) - f.value(told["values"]))
        gained = found["numbers"][1, 2] - told["numbers"][2]
        assert gained <= base * (1 + 1e-9) + 1e-7


def test_what_is_asked_for_is_checked():
    A, y, _ = drawn("squared", 0, 20, 2)
    f = made("squared", A, y)
    for at, entries in (
        (np.zeros((1, 3)), [3.0]), (np.zeros((1, 3)), [0.5]), (np.zeros((1, 2)), [0.0]),
        (np.zeros((2, 3)), [0.0]), (np.zeros((0, 3)), []),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="entries of a model of 3 are asked about"):
            apart(f, {"x": np.zeros(3), "at": at, "entries": np.array(entries)})
    with pytest.raises(ConfigError, match="each entry of a model can be requested once"):
        apart(f, {"x": np.zeros(3), "at": np.zeros((3, 3)), "entries": np.array([1.0, 0.0, 1.0])})
    with pytest.raises(ConfigError, match="3 rows for 3 parameters"):
        alone(made("squared", A[:3], y[:3]), {"x": np.zeros(3)})
    with pytest.raises(ConfigError, match="outcomes are all alike"):
        alone(made("logistic", A, np.ones(20)), {"x": np.zeros(3)})
    for other in (
        HuberRegression(A, y, intercept=True),
        SoftmaxRegression(A, np.arange(20) % 3, 3, intercept=True),
    ):
        with pytest.raises(ConfigError, match="each site's own coefficients are for"):
            alone(other, {"x": np.zeros(other.shape)})
    rule = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    with pytest.raises(RefusedError, match="examples are private"):
        alone(PrivateObjective(f, rule, Ledger(rule)), {"x": np.zeros(3)})
