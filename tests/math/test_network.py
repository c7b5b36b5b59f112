"""The network with a hidden layer, its problem on the digits, and the certificate of a run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import TanhNetwork
from flower_fedcon.problems import digits_network
from flower_fedcon.strategies import CompositeFL, FedDR

RNG = np.random.default_rng(3)
A, Y = RNG.normal(size=(7, 3)), RNG.integers(0, 4, 7)


def network(rows=slice(None), l2=0.3) -> TanhNetwork:
    return TanhNetwork(A[rows], Y[rows], num_classes=4, hidden=5, l2=l2)


def point() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=shape) for shape in network().shape]


def test_value_is_the_formula_term_by_term():
    W, b, V, c = point()
    total = 0.0
    for row, label in zip(A, Y, strict=True):
        units = [math.tanh(sum(row[i] * W[i, j] for i in range(3)) + b[j]) for j in range(5)]
        logits = [sum(units[j] * V[j, k] for j in range(5)) + c[k] for k in range(4)]
        total += math.log(sum(map(math.exp, logits))) - logits[label]
    squares = sum(float((layer**2).sum()) for layer in point())
    assert network().value(point()) == pytest.approx(total / 7 + 0.15 * squares, rel=1e-13)


@pytest.mark.parametrize("rows", [slice(None), [4, 1]])
def test_gradient_by_central_differences(rows):
    f, x = network(rows), point()
    whole = network().batch_gradient(x, np.arange(7)[rows])
    value, same = f.value_and_gradient(x)
    assert value == f.value(x)
    for layer, (own, batch, again) in enumerate(zip(f.gradient(x), whole, same, strict=True)):
        np.testing.assert_allclose(batch, own, rtol=1e-12)
        np.testing.assert_array_equal(again, own)
        for entry in np.ndindex(own.shape):
            ends = []
            for h in (1e-6, -1e-6):
                moved = [part.copy() for part in x]
                moved[layer][entry] += h
                ends.append(f.value(moved))
            assert own[entry] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-8)


def test_large_logits_do_not_overflow():
    x = [1e3 * layer for layer in point()]
    value, gradient = network(l2=0.0).value_and_gradient(x)
    assert math.isfinite(value)
    assert all(np.isfinite(layer).all() for layer in gradient)


def test_single_precision_stays():
    f = TanhNetwork(A.astype(np.float32), Y, 4, 5)
    assert {layer.dtype for layer in f.start(RNG)} == {np.dtype(np.float32)}
    assert {layer.dtype for layer in f.gradient(f.start(RNG))} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((A, Y[:3], 4, 5), r"must hold 7 integers, one for each row of A, got int64 of shape"),
        ((A, Y.astype(float), 4, 5), "must hold 7 integers"),
        ((A, Y, 3, 5), r"\(y\) must be 0 to 2, got 3"),
        ((A[:0], Y[:0], 4, 5), "must have a row and a feature"),
        ((A, Y, 4, 0), r"\(hidden\) must be a whole number >= 1"),
        ((A * np.nan, Y, 4, 5), "TanhNetwork.A."),
    ],
)
def test_what_a_network_refuses(arguments, words):
    with pytest.raises(ConfigError, match=words):
        TanhNetwork(*arguments)
    with pytest.raises(ConfigError, match="takes a list of arrays of shapes"):
        network().value(point()[:3])


# --- the problem ----------------------------------------------------------------------------------


def test_the_regularizer_is_on_the_weights_alone():
    W, b, V, c = x = [RNG.normal(size=layer.shape) for layer in digits_network().x0]
    smooth = digits_network().objective(x)
    l1 = np.abs(W).sum() + np.abs(V).sum()
    assert digits_network(l1=0.1).objective(x) - smooth == pytest.approx(0.1 * l1)
    nuclear = sum(np.linalg.svd(layer)[1].sum() for layer in (W, V))
    assert digits_network(nuclear=0.2).objective(x) - smooth == pytest.approx(0.2 * nuclear)
    x[0] = np.outer(W[:, 0], b)
    x[2] = np.zeros_like(V)
    found = digits_network().metrics
    assert found["rank"](x) == 1
    assert found["sparsity"](x) == pytest.approx(320 / (64 * 32 + 320))
    assert 0 <= found["test_accuracy"]([W, b, V, c]) < 0.5  # random
    with pytest.raises(ConfigError, match="give l1 or nuclear, not both"):
        digits_network(l1=0.1, nuclear=0.1)


@pytest.mark.parametrize("weights", [{"l1": 1e-3}, {"nuclear": 3e-3}])
@pytest.mark.parametrize(
    "make",
    [
        lambda psi: CompositeFL(psi, client_lr=0.5, local_steps=2),
        lambda psi: FedDR(psi, step_size=1.0),
    ],
    ids=["CompositeFL", "FedDR"],
)
def test_the_certificate_is_the_proximal_gradient_step(weights, make):
    """At the model that a run ends with, by the formula."""
    problem = digits_network(**weights, clients=3, hidden=4, test_size=1500)
    history = simulate(make(problem.regularizer), problem, 60, evaluate_every=20, certificates=True)
    gradients, x, squares = problem.gradient(history.x), history.x, 0.0
    for layer, slope, weighted in zip(x, gradients, (1, 0, 1, 0), strict=True):
        v, level = layer - slope, sum(weights.values()) * weighted
        if "l1" in weights or not weighted:
            stepped = np.sign(v) * np.maximum(np.abs(v) - level, 0)
        else:
            u, s, vt = np.linalg.svd(v, full_matrices=False)
            stepped = (u * np.maximum(s - level, 0)) @ vt
        squares += float(((layer - stepped) ** 2).sum())
    assert history["kkt"][-1] == pytest.approx(math.sqrt(squares), rel=1e-9)
