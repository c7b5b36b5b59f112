"""A loss is three functions, which serve one client, a cohort and compiled rounds alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from losses import LOSSES, A, B, M, PseudoHuber, W
from nightly import nightly

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.engines.stacked import why_not_stackable
from flower_fedcon.objectives import (
    CoxRegression,
    LogisticRegression,
    NeymanPearson,
    Quadratic,
    Scaled,
)
from flower_fedcon.objectives.cohorts import key, stack
from flower_fedcon.strategies import FedAvg

N, ROWS = 5, 7

FORMS = ["plain", "weighted", "sparse", "intercept", "weighted sparse intercept"]
kinds = pytest.mark.parametrize("kind", LOSSES)
forms = pytest.mark.parametrize("form", FORMS)


def clients(kind: str, form: str) -> list[Any]:
    """Return clients with rows of their own, and every other one with another factor."""
    rng, made = np.random.default_rng(4), []
    for j in range(N):
        rows = rng.permutation(M)[:ROWS]
        data: Any = sp.csr_array(A[rows]) if "sparse" in form else A[rows]
        more: dict[str, Any] = {"intercept": True} if "intercept" in form else {}
        if "weighted" in form:
            more["sample_weight"] = W[rows] + 0.1
        f = LOSSES[kind](data, rows, **more)
        made.append(Scaled(f, 0.5 + j) if j % 2 else f)
    return made


@kinds
@forms
@pytest.mark.parametrize("which", [slice(0, N), slice(1, 3), np.array([4, 0, 1])], ids=repr)
@pytest.mark.parametrize("cached", [2**17, 60], ids=["one pass", "some clients at a time"])
def test_a_cohort_says_what_its_clients_say(kind, form, which, cached, monkeypatch):
    monkeypatch.setattr("flower_fedcon.objectives.stacked_objective._CACHED", cached)
    parts = clients(kind, form)
    whole, chosen, rng = stack(parts), np.arange(N)[which], np.random.default_rng(2)
    assert len({key(f) for f in parts}) == 1
    shape = parts[0].shape
    x, shared = rng.normal(size=(N, *shape)), rng.normal(size=shape)
    each, close = [parts[j] for j in chosen], {"rtol": 1e-12, "atol": 1e-14}
    own = [*zip(each, x[which], strict=True)]
    np.testing.assert_allclose(whole.values(shared), [f.value(shared) for f in parts], 1e-13)
    values = [f.value(y) for f, y in zip(parts, x, strict=True)]
    np.testing.assert_allclose(whole.own_values(x), values, 1e-13)
    expected = [f.gradient(shared) for f in each]
    np.testing.assert_allclose(whole.gradient(shared, which), expected, **close)
    expected = [f.gradient(y) for f, y in own]
    np.testing.assert_allclose(whole.gradient(x[which], which), expected, **close)
    out = np.ones((len(each), *shape))
    whole.add_gradient(x[which], out, 0.5, which)
    np.testing.assert_allclose(out, 1 + 0.5 * np.array(expected), **close)
    some = whole.only(which)
    values, gradients = some.value_and_gradient(x[which])
    np.testing.assert_allclose(values, [f.value(y) for f, y in own], 1e-13)
    np.testing.assert_allclose(gradients, expected, **close)
    products = some.hessian_products(x[which])
    if hasattr(each[0], "hessian_products"):
        expected = [f.hessian_products(y)(y) for f, y in own]
        np.testing.assert_allclose(products(x[which]), expected, **close)
    rows = np.stack([rng.permutation(ROWS)[:4] for _ in chosen])
    expected = [f.batch_gradient(y, r) for (f, y), r in zip(own, rows, strict=True)]
    np.testing.assert_allclose(whole.batch_gradient(x[which], which, rows), expected, **close)


PLAYED = [
    (nightly if engine == "jax" and (i + k) % len(FORMS) else pytest.param)(kind, form, engine)
    for k, kind in enumerate(LOSSES)
    for i, form in enumerate(FORMS)
    for engine in ("stacked", "jax")
]


@pytest.mark.parametrize(("kind", "form", "engine"), PLAYED)
def test_engines_find_what_the_local_one_finds(kind, form, engine, caplog):
    """Each loss is compiled in one form, each form with some loss; the others are nightly."""
    if engine == "jax":
        pytest.importorskip("jax")
    problem = FederatedProblem(clients(kind, form))
    strategy = FedAvg(client_lr=0.02, local_steps=3)
    if form == "weighted":
        strategy = FedAvg(
            client_lr=0.02, local_steps=3, participation=Sample(count=3), batch_size=4
        )
    assert why_not_stackable(strategy, problem) is None
    with caplog.at_level("WARNING", logger="flwr"):
        runs = [simulate(strategy, problem, 12, engine=e, seed=1).x for e in ("local", engine)]
    np.testing.assert_allclose(runs[1], runs[0], rtol=0, atol=1e-12)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (engine == "jax" and "sparse" in form)
    assert all("an objective has sparse rows, which JAX does not take" in line for line in told)


def test_what_has_more_than_three_functions_is_no_cohort():
    class Noisy(PseudoHuber):
        def gradient(self, x: Any) -> Any:
            return super().gradient(x) + 1.0

    class Counted(LogisticRegression):
        def _scores(self, x: Any, rows: Any) -> Any:
            return super()._scores(x, rows)

    class Named(LogisticRegression):
        """The losses of another, which are all that counts."""

    class Shifted(PseudoHuber):
        def __init__(self, A: Any, b: Any) -> None:
            super().__init__(A, b)
            self.shifts = np.arange(len(b))  # what a row's loss depends on, and no number

    class Own(Quadratic):
        """A quadratic function of one's own."""

    b = np.ones(M)
    for f in (Noisy(A, b), Counted(A, b), Shifted(A, b), Own(np.eye(2), np.ones(2))):
        assert key(f) is None
    assert key(CoxRegression(A, b, b)) is key(NeymanPearson(A, A)) is None
    assert key(Named(A, b)) is not None
    assert key(PseudoHuber(A, b)) != key(PseudoHuber(A, b, delta=2.0))
    assert key(PseudoHuber(A, b)) != key(PseudoHuber(A, b, intercept=True))
    other = PseudoHuber(A, b)
    other.metrics = lambda x: {}
    assert key(other) == key(Scaled(PseudoHuber(A, B, l2=1.0), 3.0))
