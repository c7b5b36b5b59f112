"""L where clients do not state it: estimated in any units, from where local steps lead, too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import KINDS, random_objective

from flower_fedcon.core.scales import MARGIN, estimate
from flower_fedcon.objectives import (
    LeastSquares,
)

MOST = 1 + 8 + 7 + 11  # gradients


class Quartic:
    """x^4/4 + x^2/200 - b'x: it bends little at 0, and more and more farther off."""

    def __init__(self, b):
        self.b = np.asarray(b, dtype=float)
        self.shape = self.b.shape

    def gradient(self, x):
        return x**3 + x / 100 - self.b


def random_clients(seed):
    rng = np.random.default_rng(seed)
    kind, d, rows = rng.choice(KINDS), int(rng.integers(1, 6)), int(rng.integers(2, 12))
    found = [random_objective(kind, rng, rows, d) for _ in range(int(rng.integers(1, 4)))]
    return found, (d, 3) if kind == "softmax" else (d,)


def estimated(clients, x0, length=1.0, height=1.0):
    """Return L_i of height f(x / length), and the most gradients that one took."""
    found, most = [], 0
    for f in clients:
        asked = []

        def gradient(x, f=f, asked=asked):
            asked.append(x)
            return height / length * f.gradient(x / length)

        found.append(estimate(gradient, length * x0, np.random.default_rng(0)).smoothness)
        most = max(most, len(asked))
    return np.array(found), most


def check_units(seed, length, height, *, at_zero):
    """In other units of x and of f, L is the same in those."""
    clients, shape = random_clients(seed)
    x0 = np.zeros(shape) if at_zero else np.random.default_rng(seed).normal(size=shape)
    L, taken = estimated(clients, x0)
    other, others = estimated(clients, x0, length, height)
    np.testing.assert_allclose(other * length**2 / height, L, rtol=5e-3, atol=0)
    assert max(taken, others) <= MOST
    stated = np.array([f.smoothness or np.inf for f in clients])
    assert ((1 + 1e-6) * MARGIN * stated >= L).all()


UNITS = st.floats(-12, 12).map(lambda power: 10.0**power)
RANDOM = given(st.integers(0, 10**6), UNITS, UNITS, st.booleans())


@settings(max_examples=30, deadline=None, derandomize=True)
@RANDOM
def test_an_estimate_follows_the_units(seed, length, height, at_zero):
    check_units(seed, length, height, at_zero=at_zero)


@pytest.mark.nightly
@settings(max_examples=2000, deadline=None)
@RANDOM
def test_estimates_follow_the_units_of_many(seed, length, height, at_zero):
    check_units(seed, length, height, at_zero=at_zero)


@pytest.mark.parametrize("length", [1e-9, 1e-3, 1.0, 1e4, 1e9])
@pytest.mark.parametrize("b", [0.1, 1.0, 10.0])
def test_it_holds_where_a_clients_own_steps_lead(b, length):
    """By its curvature at 0 alone L was 0.01, and steps of 1/L went to b/0.01."""
    clients = [Quartic([b, -b]), Quartic([2 * b, b])]
    L, taken = estimated(clients, np.zeros(2), length)
    L = L * length**2
    assert taken <= MOST
    for client, own in zip(clients, L, strict=True):
        at_its_minimum = 3 * np.abs(client.b).max() ** (2 / 3)
        assert 0.3 * at_its_minimum < own < 10 * at_its_minimum
        x = np.zeros(2)
        for _ in range(3):
            step = client.gradient(x) / own
            bent = client.gradient(x - step) - client.gradient(x)
            assert np.linalg.norm(bent) <= (1 + 1e-6) * own * np.linalg.norm(step)
            x = x - step


def test_a_client_at_its_own_minimum_finds_its_units():
    """Of its gradient there, which is 0 or rounding, nothing is to be learnt."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(20, 3))
    x0 = np.array([1.0, -2.0, 3.0])
    clients = [LeastSquares(A, A @ x0), LeastSquares(A, A @ x0 + 1), Quartic([0.0, 0.0, 0.0])]
    for length in (1e-9, 1.0, 1e9):
        L, _ = estimated(clients[:2], x0, length)
        np.testing.assert_allclose(L * length**2 / MARGIN, clients[0].smoothness, rtol=1e-3)
    L, _ = estimated(clients[1:], np.zeros(3))
    assert L[1] < 0.02


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_linear_objective_has_none(dtype):
    class Linear:
        def gradient(self, x):
            return np.ones_like(x)

    asked = []

    def gradient(x):
        asked.append(x)
        return Linear().gradient(x)

    assert estimate(gradient, np.zeros(2, dtype), np.random.default_rng(0)).smoothness == 0.0
    assert len(asked) <= MOST
