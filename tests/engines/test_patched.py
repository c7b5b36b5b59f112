"""Methods patched on one object, arrays that a client writes to, attributes that no loss reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import (
    HuberRegression,
    LeastSquares,
    LinearModel,
    LogisticRegression,
    NeymanPearson,
    Quadratic,
    SoftmaxRegression,
)
from flower_fedcon.objectives.cohorts import alike
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FedAvg, FedProx

RNG = np.random.default_rng(0)
A, Y = RNG.normal(size=(4, 8, 3)), RNG.choice([-1.0, 1.0], (4, 8))
METHODS = {
    "steps": lambda: FedAvg(client_lr=0.1, local_steps=2),
    "solves": lambda: FedProx(proximal=1.0, local_solver=GradientDescent(steps=5, lr=0.1)),
}


def clients(kind: Any = LogisticRegression) -> list[Any]:
    targets = (Y > 0).astype(int) if kind is SoftmaxRegression else Y
    more = {"num_classes": 2} if kind is SoftmaxRegression else {}
    return [kind(*own, **more) for own in zip(A, targets, strict=True)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [LogisticRegression, LeastSquares, SoftmaxRegression, Quadratic])
def test_engines_agree_about_a_client_that_lies(kind, method):
    def problem(lies: bool) -> FederatedProblem:
        if kind is Quadratic:
            own = [Quadratic(rows.T @ rows, rows[0]) for rows in A]
        else:
            own = clients(kind)
        if lies:
            honest = own[3].gradient
            own[3].gradient = lambda x: -2 * honest(x)
        return FederatedProblem(own)

    runs = [
        simulate(METHODS[method](), problem(lies), 4, engine=engine, evaluate_every=0).x
        for lies, engine in ((True, "local"), (True, "stacked"), (False, "local"))
    ]
    assert np.array_equal(runs[0], runs[1])
    assert np.abs(runs[0] - runs[2]).max() > 1e-3


def test_engines_agree_about_a_class_that_was_patched(monkeypatch):
    honest = LogisticRegression.gradient
    monkeypatch.setattr(LogisticRegression, "gradient", lambda self, x: 0.5 * honest(self, x))
    problem = FederatedProblem(clients())
    runs = [simulate(METHODS["steps"](), problem, 4, engine=e).x for e in ("local", "stacked")]
    assert np.abs(runs[0] - runs[1]).max() <= 1e-12


class Careless(LogisticRegression):
    """Without an intercept, by a line that writes into its argument."""

    def gradient(self, x):
        x[-1] = 0.0
        return super().gradient(x)

    def value(self, x):
        x *= 0.5
        return super().value(x)


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_writes_into_its_argument_changes_nobody_else(method):
    def found(kind: Any, **options: Any) -> Any:
        own = [kind(A[0], Y[0]), *clients()[1:]]
        return simulate(METHODS[method](), FederatedProblem(own, x0=np.ones(3)), 5, **options)

    class Careful(LogisticRegression):
        def gradient(self, x):
            return super().gradient(np.r_[x[:-1], 0.0])

        def value(self, x):
            return super().value(0.5 * x)

    right = found(Careful)
    for options in ({}, {"engine": "stacked"}, *([{"workers": 2}] if method == "steps" else [])):
        assert np.array_equal(found(Careless, **options).x, right.x)
    assert found(Careless)["objective"].tolist() == right["objective"].tolist()


def test_a_metric_cannot_change_the_model():
    for metrics in ({"worst": lambda x: float(np.sort(x)[0])}, {"worst": lambda x: x.sort()}):
        problem = FederatedProblem(clients(), metrics=metrics)
        if metrics["worst"](np.ones(3)) is None:
            with pytest.raises(ValueError, match="read-only"):
                simulate(METHODS["steps"](), problem, 3)
        else:
            assert len(simulate(METHODS["steps"](), problem, 3)["worst"]) == 3


class Linked(LinearModel):
    """Squares of linked residuals; the link is a function of the object."""

    def __init__(self, A: Any, b: Any, link: Any, **more: Any) -> None:
        super().__init__(A, b, **more)
        self.link, self.note = link, object()

    def loss(self, scores: Any, targets: Any) -> Any:
        return self._linked(scores, targets) ** 2 / 2

    def slope(self, scores: Any, targets: Any) -> Any:
        return self._linked(scores, targets)

    def curvature(self, scores: Any, targets: Any) -> Any:
        return np.ones_like(scores)

    def _linked(self, scores: Any, targets: Any) -> Any:
        return self.link(scores - targets)


def test_what_a_loss_reads_decides_who_is_alike():
    same, twice = (lambda r: r), (lambda r: 2.0 * r)
    for make, groups in (
        (lambda j: LeastSquares(A[j], Y[j]), 1),
        (lambda j: HuberRegression(A[j], Y[j], delta=1.0 + j % 2), 2),
        (lambda j: Linked(A[j], Y[j], same), 1),
        (lambda j: Linked(A[j], Y[j], (same, twice)[j % 2]), 2),
    ):
        own = [make(j) for j in range(4)]
        for j, objective in enumerate(own):
            objective.name, objective.notes = f"site {j}", [j]
        assert len(alike(own)) == groups
        runs = [
            simulate(METHODS["steps"](), FederatedProblem(own), 3, engine=engine).x
            for engine in ("local", "stacked")
        ]
        assert np.abs(runs[0] - runs[1]).max() <= 1e-12

    class Open(Linked):
        def loss(self, scores, targets):
            return super().loss(scores, targets) + 0.0 * getattr(self, "tilt" + "ed")

    own = [Open(A[0], Y[0], same) for _ in range(2)]
    for j, objective in enumerate(own):
        objective.tilted = float(j)
    assert None in alike(own) or len(alike(own)) == 2  # what it reads cannot be told
    assert list(alike([NeymanPearson(A[0], A[1])])) == [None]
