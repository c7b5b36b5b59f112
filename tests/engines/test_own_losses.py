"""Losses of rows of one's own: who shares a stack, and what becomes of those that do not."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from agreement import near
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
    NeymanPearson,
    PoissonRegression,
    Quadratic,
    SoftmaxRegression,
)
from flower_fedcon.objectives.cohorts import alike, key, why_not_one_stack
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FedAvg, FedProx, Scaffold

RNG = np.random.default_rng(0)
DATA = [(RNG.normal(size=(6, 3)), np.sign(RNG.normal(size=6))) for _ in range(4)]
ENGINES = ["local", "stacked"]
STEPS = {"client_lr": 0.1, "local_steps": 2}
METHODS = {
    "steps": FedAvg(**STEPS),
    "solves": FedProx(proximal=1.0, local_solver=GradientDescent(steps=5, lr=0.1)),
}
each_method = pytest.mark.parametrize("method", METHODS)
each_engine = pytest.mark.parametrize("engine", ENGINES)


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


def clients(kind: Any, *each: Any, **more: Any) -> list[Any]:
    """Return a client for each table; `each` are further arguments of their own."""
    if issubclass(kind, SoftmaxRegression):
        return [kind(A, (b > 0).astype(int), 2) for A, b in DATA]
    if issubclass(kind, Quadratic):
        return [kind(A.T @ A, A[0]) for A, _ in DATA]
    columns = [(A, b, *own) for (A, b), *own in zip(DATA, *each, strict=True)]
    return [kind(*own, **more) for own in columns]


def end(objectives: Any, engine: str = "local", rounds: int = 3, **more: Any) -> Any:
    made = more.pop("method", METHODS["steps"])
    return simulate(made, FederatedProblem(objectives), rounds, engine=engine, **more)


def twice(values: Any) -> Any:
    return 2.0 * values


# --- who shares a stack ---------------------------------------------------------------------------

FACTORS = [partial(np.multiply, 1.0 + i) for i in range(4)]
GROUPS = {
    "one class": (lambda: clients(LeastSquares), 1),
    "two settings": (
        lambda: [HuberRegression(*own, delta=1.0 + j % 2) for j, own in enumerate(DATA)], 2),
    "one function": (lambda: clients(Own, [twice] * 4), 1),
    "two functions": (lambda: clients(Own, [twice, None, twice, None]), 2),
    "functions of their own": (lambda: clients(Own, FACTORS), 4),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_what_a_loss_reads_decides_who_is_alike(name):
    """And not what it has beside that."""
    make, groups = GROUPS[name]
    own = make()
    for j, objective in enumerate(own):
        objective.name, objective.notes, objective.mark = f"site {j}", [j], object()
    assert len(alike(own)) == groups
    assert None not in alike(own)
    np.testing.assert_allclose(end(own, "stacked").x, end(own).x, rtol=1e-12)


def test_what_a_loss_reads_and_nobody_can_tell():
    class Open(Own):
        def loss(self, scores, targets):
            return super().loss(scores, targets) + 0.0 * getattr(self, "tilt" + "ed")

    own = [Open(*DATA[0]) for _ in range(2)]
    for j, objective in enumerate(own):
        objective.tilted = float(j)
    assert None in alike(own) or len(alike(own)) == 2
    assert list(alike([NeymanPearson(DATA[0][0], DATA[1][0])])) == [None]


@pytest.mark.parametrize("name", ["gradient", "loss", "slope", "add_gradient"])
def test_an_object_with_a_method_of_its_own_is_in_no_stack(name, caplog):
    own = clients(LeastSquares)
    setattr(own[1], name, lambda *given: np.ones(3 if name == "gradient" else len(given[0])))
    assert key(own[1]) is None
    assert end(own, "stacked").x.tobytes() == end(own).x.tobytes()
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
    groups = alike([Own(*DATA[0], first), Own(*DATA[1], second)])  # and nothing is an error
    if len(groups) == 1 and None not in groups:
        assert first == second
    assert len(alike([Own(*DATA[0], first), Own(*DATA[1], first)])) == 1


@each_engine
def test_numbers_that_are_arrays_run_one_by_one(engine):
    own = clients(LogisticRegression)
    for f in own:
        f.l2 = np.array(0.5)
    own[0].names = (np.ones(1), ["a"])
    assert key(own[0]) is key(own[1]) is None
    plain = end(clients(LogisticRegression, l2=0.5), engine)
    np.testing.assert_allclose(end(own, engine).x, plain.x, rtol=1e-12)


@each_engine
def test_sparse_rows_without_any_entry(engine):
    history = end([LeastSquares(csr_array((2, 2)), np.ones(2)) for _ in range(3)], engine)
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


# --- what is patched, and what writes into its argument -------------------------------------------


@each_method
@pytest.mark.parametrize("kind", [LogisticRegression, LeastSquares, SoftmaxRegression, Quadratic])
def test_engines_agree_about_a_client_that_lies(kind, method):
    own, how = clients(kind), {"method": METHODS[method], "rounds": 4}
    honest, truth = own[3].gradient, end(own, **how).x
    own[3].gradient = lambda x: -2 * honest(x)
    lied = end(own, **how).x
    assert np.array_equal(end(own, "stacked", **how).x, lied)
    assert np.abs(lied - truth).max() > 1e-3


def test_engines_agree_about_a_class_that_was_patched(monkeypatch):
    honest = LogisticRegression.gradient
    monkeypatch.setattr(LogisticRegression, "gradient", lambda self, x: 0.5 * honest(self, x))
    near(*(end(clients(LogisticRegression), engine, 4).x for engine in ENGINES), 1e-12)


class Careless(LogisticRegression):
    """Without an intercept, by a line that writes into its argument."""

    def gradient(self, x):
        x[-1] = 0.0
        return super().gradient(x)

    def value(self, x):
        x *= 0.5
        return super().value(x)


class Careful(LogisticRegression):
    """The same, and what it is asked about stays as it is."""

    def gradient(self, x):
        return super().gradient(np.r_[x[:-1], 0.0])

    def value(self, x):
        return super().value(0.5 * x)


@pytest.mark.parametrize("engine", ["local", "stacked", "workers"])
@each_method
def test_a_gradient_that_writes_into_its_argument_changes_nobody_else(method, engine):
    def found(kind: Any, **options: Any) -> Any:
        own = [kind(*DATA[0]), *clients(LogisticRegression)[1:]]
        problem = FederatedProblem(own, x0=np.ones(3))
        return simulate(METHODS[method], problem, 5, **options)

    here, right = found(Careless), found(Careful)
    there = found(Careless, **({"workers": 2} if engine == "workers" else {"engine": engine}))
    assert np.array_equal(there.x, right.x)
    assert here["objective"].tolist() == right["objective"].tolist()


def test_a_metric_cannot_change_the_model():
    problem = FederatedProblem(
        clients(LogisticRegression), metrics={"worst": lambda x: float(np.sort(x)[0])}
    )
    assert len(simulate(METHODS["steps"], problem, 3)["worst"]) == 3
    problem = FederatedProblem(clients(LogisticRegression), metrics={"worst": lambda x: x.sort()})
    with pytest.raises(ValueError, match="read-only"):
        simulate(METHODS["steps"], problem, 3)


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
    own = clients(kind)
    told = why_not_one_stack(own)
    assert re.search(reason, str(told))
    assert end(own, "stacked").x.tobytes() == end(own).x.tobytes()
    assert told in caplog.text
    assert why_not_one_stack(clients(Own, [twice] * 4)) is None


class Failing(Own):
    """Fails with some targets, whoever has them."""

    def slope(self, scores, targets):
        if np.any(targets > 90):
            raise RuntimeError("boom")
        return scores - targets


@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
def test_an_exception_in_an_own_loss_drops_that_client_alone(kind, caplog):
    own = clients(Failing)
    own[1] = Failing(DATA[1][0], np.full(6, 99.0))
    local, stacked = (end(own, engine, method=kind(**STEPS)) for engine in ENGINES)
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
