"""A loss is three functions, which serve one client, a cohort and compiled rounds alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.engines.stacked import why_not_stackable
from flower_fedcon.objectives import LinearModel, LogisticRegression, Scaled
from flower_fedcon.objectives.stacked import key, stack
from flower_fedcon.strategies import FedAvg

N, M, D = 5, 9, 4


class PseudoHuber(LinearModel):
    """delta^2 (sqrt(1 + (r / delta)^2) - 1), for the residuals r."""

    curvatures = (0.0, 1.0)

    def __init__(self, A: Any, b: Any, delta: float = 0.7, **more: Any) -> None:
        super().__init__(A, b, **more)
        self.delta = delta

    def loss(self, scores: Any, targets: Any) -> Any:
        return self.delta**2 * (self._root(scores - targets) - 1)

    def slope(self, scores: Any, targets: Any) -> Any:
        return (scores - targets) / self._root(scores - targets)

    def curvature(self, scores: Any, targets: Any) -> Any:
        return self._root(scores - targets) ** -3

    def _root(self, residuals: Any) -> Any:
        return np.sqrt(1 + (residuals / self.delta) ** 2)


def clients(**more: Any) -> list[PseudoHuber]:
    rng = np.random.default_rng(4)
    made = []
    for j in range(N):
        A = rng.standard_normal((M, D)) * (rng.random((M, D)) < 0.6)
        A[0] = 1.0
        weights = rng.integers(0, 3, M) + 0.1 if more.get("weighted") else None
        rows = sp.csr_array(A) if more.get("sparse") else A
        l2 = 0.1 * (j % 3) if more.get("l2") else 0.0
        b, own = rng.standard_normal(M), {"l2": l2, "sample_weight": weights}
        made.append(PseudoHuber(rows, b, intercept=more.get("intercept", False), **own))
    return made


FORMS = [
    {},
    {"l2": True},
    {"weighted": True},
    {"sparse": True},
    {"intercept": True, "l2": True},
    {"weighted": True, "sparse": True, "intercept": True, "l2": True},
]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda f: "+".join(f) or "plain")


def slopes(function: Any, x: Any, h: float = 1e-6) -> Any:
    return np.array([(function(x + e) - function(x - e)) / (2 * h) for e in h * np.eye(len(x))])


@forms
def test_derivatives_and_constants(form):
    for f in clients(**form):
        x = np.random.default_rng(1).normal(size=f.shape)
        value, gradient = f.value_and_gradient(x)
        assert isinstance(value, float)
        assert value == pytest.approx(f.value(x), rel=1e-14)
        np.testing.assert_allclose(f.gradient(x), gradient, rtol=1e-14)
        np.testing.assert_allclose(gradient, slopes(f.value, x), rtol=1e-6, atol=1e-8)
        hessian = f.hessian(x)
        np.testing.assert_allclose(hessian, slopes(f.gradient, x), rtol=1e-6, atol=1e-8)
        v = np.ones_like(x)
        np.testing.assert_allclose(f.second_derivatives(x)(v), hessian @ v, rtol=1e-12)
        assert np.linalg.eigvalsh(hessian)[-1] <= f.smoothness * (1 + 1e-12)
        each = np.mean([f.batch_gradient(x, np.array([i])) for i in range(M)], axis=0)
        np.testing.assert_allclose(each, gradient, rtol=1e-12, atol=1e-15)
        assert f.subset(np.arange(M)).value(x) == pytest.approx(value, rel=1e-14)


@forms
@pytest.mark.parametrize("which", [slice(0, N), slice(1, 3), np.array([4, 0, 1])], ids=repr)
def test_a_cohort_says_what_its_clients_say(form, which, monkeypatch):
    parts = clients(**form)
    parts = [f if j % 2 else Scaled(f, 0.5 + j) for j, f in enumerate(parts)]
    for cached in (2**17, 2 * M * D):  # in one pass, or two clients at a time
        monkeypatch.setattr("flower_fedcon.objectives.cohort._CACHED", cached)
        whole, chosen, rng = stack(parts), np.arange(N)[which], np.random.default_rng(2)
        x, shared = rng.normal(size=(N, *parts[0].shape)), rng.normal(size=parts[0].shape)
        rows = np.stack([rng.permutation(M)[:4] for _ in chosen])
        each, close = [parts[j] for j in chosen], {"rtol": 1e-12, "atol": 1e-14}
        np.testing.assert_allclose(whole.values(shared), [f.value(shared) for f in parts], 1e-13)
        np.testing.assert_allclose(
            whole.own_values(x), [f.value(own) for f, own in zip(parts, x, strict=True)], 1e-13
        )
        for point in (x[which], shared):
            own = point if point.ndim > 1 else [shared] * len(each)
            expected = np.stack([f.gradient(y) for f, y in zip(each, own, strict=True)])
            np.testing.assert_allclose(whole.gradient(point, which), expected, **close)
        batches = [f.batch_gradient(y, r) for f, y, r in zip(each, x[which], rows, strict=True)]
        np.testing.assert_allclose(whole.batch_gradient(x[which], which, rows), batches, **close)
        values, gradients = whole.only(which).value_and_gradient(x[which])
        np.testing.assert_allclose(
            values, [f.value(y) for f, y in zip(each, x[which], strict=True)], 1e-13
        )
        expected = [f.gradient(y) for f, y in zip(each, x[which], strict=True)]
        np.testing.assert_allclose(gradients, expected, **close)


@forms
@pytest.mark.parametrize("engine", ["stacked", "jax"])
def test_engines_find_what_the_local_one_finds(form, engine, caplog):
    if engine == "jax":
        pytest.importorskip("jax")
    problem = FederatedProblem(clients(**form), weights=[1, 2, 3, 4, 5])
    for more in ({}, {"participation": Sample(count=3), "batch_size": 4}):
        strategy = FedAvg(client_lr=0.1, local_steps=3, **more)
        assert why_not_stackable(strategy, problem) is None
        with caplog.at_level("WARNING", logger="flwr"):
            runs = [simulate(strategy, problem, 12, engine=e, seed=1).x for e in ("local", engine)]
        np.testing.assert_allclose(runs[1], runs[0], rtol=0, atol=1e-12)
    told = "sparse rows" in caplog.text
    assert told == (engine == "jax" and "sparse" in form), caplog.text
    assert told or not caplog.records


def test_what_has_more_than_three_functions_is_no_cohort():
    class Noisy(PseudoHuber):
        def gradient(self, x: Any) -> Any:
            return super().gradient(x) + 1.0

    class Named(LogisticRegression):
        """The losses of another, which are all that counts."""

    class Shifted(PseudoHuber):
        def __init__(self, A: Any, b: Any) -> None:
            super().__init__(A, b)
            self.shifts = np.arange(len(b))  # what a row's loss depends on, and no number

    A, b = np.eye(3), np.ones(3)
    assert key(Noisy(A, b)) is None
    assert key(Shifted(A, b)) is None
    assert key(Named(A, b)) is not None
    assert key(PseudoHuber(A, b)) != key(PseudoHuber(A, b, delta=2.0))
    assert key(PseudoHuber(A, b)) != key(PseudoHuber(A, b, intercept=True))
    other = PseudoHuber(A, b)
    other.metrics = lambda x: {}
    assert key(other) == key(Scaled(PseudoHuber(A, 2 * b, l2=1.0), 3.0))
