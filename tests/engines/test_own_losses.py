"""Losses of rows of one's own: who may share a stack, and what becomes of those that may not."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    HuberRegression,
    LeastSquares,
    LinearModel,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from flower_fedcon.objectives.cohorts import alike, key, why_not_one_stack
from flower_fedcon.strategies import FedAvg, Scaffold

RNG = np.random.default_rng(0)
DATA = [(RNG.normal(size=(6, 3)), np.sign(RNG.normal(size=6))) for _ in range(3)]
ENGINES = ["local", "stacked"]


class Own(LinearModel):
    """Half the squares of the residuals, times what an attribute says."""

    def __init__(self, A: Any, b: Any, factor: Any = None) -> None:
        super().__init__(A, b)
        self.factor = factor

    def loss(self, scores: Any, targets: Any) -> Any:
        return 0.5 * self._times(1.0) * (scores - targets) ** 2

    def slope(self, scores: Any, targets: Any) -> Any:
        return self._times(scores - targets)

    def curvature(self, scores: Any, targets: Any) -> Any:
        return np.full_like(scores, self._times(1.0))

    def _times(self, values: Any) -> Any:
        return self.factor(values) if callable(self.factor) else values


def end(objectives: Any, engine: str, rounds: int = 3, method: Any = FedAvg, **more: Any) -> Any:
    problem = FederatedProblem(objectives)
    return simulate(method(client_lr=0.1, local_steps=2), problem, rounds, engine=engine, **more)


def twice(values: Any) -> Any:
    return 2.0 * values


# --- who shares a stack ---------------------------------------------------------------------------


def test_functions_that_clients_have_of_their_own_count_in_each_engine():
    factors = [partial(np.multiply, 1.0 + i) for i in range(3)]
    clients = [Own(A, b, f) for (A, b), f in zip(DATA, factors, strict=True)]
    assert len({key(f) for f in clients}) == 3
    local, stacked = (end(clients, engine).x for engine in ENGINES)
    np.testing.assert_allclose(stacked, local, rtol=1e-12)
    shared = [Own(A, b, twice) for A, b in DATA]
    assert len({key(f) for f in shared}) == 1
    np.testing.assert_allclose(end(shared, "stacked").x, end(shared, "local").x, rtol=1e-12)


@pytest.mark.parametrize("name", ["gradient", "loss", "slope", "add_gradient"])
def test_an_object_with_a_method_of_its_own_is_in_no_stack(name, caplog):
    clients: list[Any] = [LeastSquares(A, b) for A, b in DATA]
    setattr(clients[1], name, lambda *given: np.ones(3 if name == "gradient" else len(given[0])))
    assert key(clients[1]) is None
    assert end(clients, "stacked").x.tobytes() == end(clients, "local").x.tobytes()
    assert "running on the local engine" in caplog.text


OTHERS = [np.float32(2), np.ones(2), [1.0], {"a": 1}, twice, max, math.sin, ValueError]
NUMBERS = st.booleans() | st.integers() | st.floats(allow_nan=False)
VALUES = st.recursive(
    st.none() | NUMBERS | st.text(max_size=3) | st.sampled_from(OTHERS),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)


@settings(max_examples=30)
@given(VALUES, VALUES)
def test_clients_share_a_stack_only_if_all_that_they_have_is_the_same(first, second):
    one, other = Own(*DATA[0], first), Own(*DATA[1], second)
    groups = alike([one, other])  # and nothing is an error
    if len(groups) == 1 and None not in groups:
        assert first == second
    assert len(alike([one, Own(*DATA[1], first)])) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_that_are_arrays_run_one_by_one(engine):
    clients = [LogisticRegression(A, b) for A, b in DATA]
    plain = [LogisticRegression(A, b, l2=0.5) for A, b in DATA]
    for f in clients:
        f.l2 = np.array(0.5)
    clients[0].names = (np.ones(1), ["a"])
    assert key(clients[0]) is key(clients[1]) is None
    np.testing.assert_allclose(end(clients, engine).x, end(plain, engine).x, rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_sparse_rows_without_any_entry(engine):
    clients = [LeastSquares(csr_array((2, 2)), np.ones(2)) for _ in range(3)]
    history = end(clients, engine)
    assert history.x.tolist() == [0.0, 0.0]
    assert history["objective"][-1] == 0.5


@pytest.mark.parametrize("kind", [LeastSquares, LogisticRegression])
def test_the_values_of_compiled_loops_are_those_of_an_own_loss(kind):
    class Raised(kind):
        def loss(self, scores, targets):
            return super().loss(scores, targets) + 1.0

    n, m, d = 60, 40, 100  # from here on loops are compiled
    A, b = RNG.normal(size=(n, m, d)) / 10, np.sign(RNG.normal(size=(n, m)))
    plain, raised = (list(map(made, A, b)) for made in (kind, Raised))
    raised_by = [end(raised, e, 1)["objective"] - end(plain, e, 1)["objective"] for e in ENGINES]
    np.testing.assert_allclose(raised_by, 1.0, rtol=1e-12)


# --- what does not work along an axis -------------------------------------------------------------


class ByRows(Own):
    curvature = Own.curvature

    def slope(self, scores, targets):
        return np.array([math.tanh(a - b) for a, b in zip(scores, targets, strict=True)])


class OfAllTargets(Own):
    curvature = Own.curvature

    def slope(self, scores, targets):
        return scores - targets / (1 + np.sum(targets > 0))


class OfOneShape(Own):
    def loss(self, scores, targets):
        return (0.5 * (scores - targets) ** 2).reshape(-1)


class OfClasses(SoftmaxRegression):
    def slope(self, scores, targets):
        return np.exp(scores) / np.exp(scores).sum(axis=0) - (
            np.arange(self.num_classes)[:, None] == targets
        )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ByRows, r"slope of scores of shape \(2, 6\), .* raises TypeError: only"),
        (OfAllTargets, "slope .* has other values, .*: write it entry by entry"),
        (OfOneShape, r"loss .* has shape \(12,\)"),
        (OfClasses, r"slope of scores of shape \(2, 2, 6\)"),
    ],
)
def test_what_is_right_one_client_at_a_time_alone_runs_so(kind, reason, caplog):
    labels = kind is OfClasses
    clients = [kind(A, (b > 0).astype(int), 2) if labels else kind(A, b) for A, b in DATA]
    told = why_not_one_stack(clients)
    assert told is not None
    assert re.search(reason, told)
    assert end(clients, "stacked").x.tobytes() == end(clients, "local").x.tobytes()
    assert told in caplog.text
    assert why_not_one_stack([Own(A, b, twice) for A, b in DATA]) is None


class Failing(Own):
    """Fails with some targets, whoever has them."""

    def slope(self, scores, targets):
        if np.any(targets > 90):
            raise RuntimeError("boom")
        return scores - targets


@pytest.mark.parametrize("method", [FedAvg, Scaffold])
def test_an_exception_in_an_own_loss_drops_that_client_alone(method, caplog):
    clients = [Failing(A, b) for A, b in DATA]
    clients[1] = Failing(DATA[1][0], np.full(6, 99.0))
    runs = {engine: end(clients, engine, method=method) for engine in ENGINES}
    local, stacked = (runs[engine] for engine in ENGINES)
    assert stacked["dropped"].tolist() == local["dropped"].tolist()
    assert min(local["dropped"]) >= 1
    np.testing.assert_allclose(stacked.x, local.x, rtol=1e-12)
    assert caplog.text.count("Traceback") == 2  # one in each run


# --- names of before ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HuberRegression, PoissonRegression, LogisticRegression])
@pytest.mark.parametrize(("old", "new"), [("losses", "loss"), ("slopes", "slope")])
def test_functions_by_the_names_of_before_are_refused(kind, old, new):
    text = f"Mine.{old} would be ignored, and {kind.__name__}.{new} used: call it {new}"
    with pytest.raises(ConfigError, match=text):
        type("Mine", (kind,), {old: lambda self, scores, targets: scores})
    three = {name: lambda self, s, t: s for name in ("loss", "slope", "curvature")}
    type("Mine", (kind,), {old: lambda self: 1, **three})
    type("Mine", (LinearModel,), {old: lambda self: 1})
