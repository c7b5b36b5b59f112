"""Steps that each client finds for itself: what they are, and what refuses them."""

from __future__ import annotations

import numpy as np
import pytest
from everywhere import agrees_everywhere
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.objectives import LeastSquares, LogisticRegression, Quadratic
from flower_fedcon.objectives.local_pass import LocalPass, Prox
from flower_fedcon.regularizers import L1
from flower_fedcon.schedules import AdaPGM, DeltaSGD
from flower_fedcon.strategies import FedAvg, FedMiD
from flower_fedcon.testing.run_checks import default_problem, quadratics

HALF = Sample(count=2)


def unlike(rows=8, scale=1.0):
    """Clients whose smoothness differs."""
    rng = np.random.default_rng(3)
    return [
        LeastSquares(scale * (j + 1) * rng.normal(size=(rows, 3)), rng.normal(size=rows))
        for j in range(4)
    ]


def test_first_steps_of_delta_sgd():
    # f = x^2/2 - 3x from 0, eta_0 = 1/2, gamma = 1, delta = 2: x_1 = 1.5, g: -3 -> -1.5
    # eta_1 = min{1.5/(2 1.5), sqrt(3)/2} = .5, theta = 1: x_2 = 2.25;  again .5: x_3 = 2.625
    problem = FederatedProblem([Quadratic(np.eye(1), np.array([3.0]))])
    strategy = FedAvg(client_lr=DeltaSGD(0.5, gamma=1.0, delta=2.0), local_steps=3)
    assert simulate(strategy, problem, 1).x == pytest.approx([2.625], rel=1e-15)
    # With eta_0 = 1/8 growth counts: sqrt(1.1)/8 = .1311, then sqrt(1 + .1 sqrt(1.1)) of that.
    eta = [0.125, 0.125 * 1.1**0.5]
    eta += [eta[1] * (1 + 0.1 * 1.1**0.5) ** 0.5]
    x = 3.0 - 3.0 * np.prod(1 - np.array(eta))
    strategy = FedAvg(client_lr=DeltaSGD(0.125), local_steps=3)
    assert simulate(strategy, problem, 1).x == pytest.approx([x], rel=1e-14)


def test_first_steps_of_adapgm():
    # f = 2x^2 - 4x + |x| from 0, eta_0 = 1/2: prox(2, 1/2) = 1.5; g: -4 -> 2, w' - w = 1.5
    # D = .5 (.5 36 - 9)/2.25 = 2: eta_1 = .5 min{sqrt 2, 1/(2 sqrt 2)} = .17678
    # prox(1.5 - .35355, .17678) = .96967; server: length .67678, prox of it: .29289
    problem = FederatedProblem([Quadratic(4 * np.eye(1), np.array([4.0]))], regularizer=L1(1.0))
    strategy = FedMiD(L1(1.0), client_lr=AdaPGM(0.5), local_steps=2)
    root = 0.25 / 2**0.5
    assert simulate(strategy, problem, 1).x == pytest.approx([1.0 - 4 * root], rel=1e-13)


@pytest.mark.parametrize("rate", [DeltaSGD(), AdaPGM()])
@pytest.mark.parametrize("kind", [LeastSquares, LogisticRegression])
def test_one_client_reaches_the_optimum(rate, kind):
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(20, 3)) * [1.0, 3.0, 10.0], np.sign(rng.normal(size=20))
    more = {"l2": 0.1} if kind is LogisticRegression else {}
    problem = FederatedProblem([kind(A, b, **more)])
    history = simulate(FedAvg(client_lr=rate, local_steps=20), problem, 150)
    assert history["objective"][-1] - problem.optimum.value < 1e-9


def test_adapgm_alone_reaches_the_optimum():
    rng = np.random.default_rng(0)
    f = LeastSquares(rng.normal(size=(20, 3)) * [1.0, 3.0, 10.0], rng.normal(size=20))
    zero, psi = np.zeros(3), L1(0.5)
    steps = LocalPass(zero, steps=400, rate=1e-4, point=Prox(psi, lambda k: 1e-4), first=zero)
    steps = steps._replace(onward=(0.0, 1.0), own_rate=AdaPGM(1e-4))
    done = steps.adapt(f.gradient, None, 1)
    optimum = FederatedProblem([f], regularizer=psi).optimum.x
    assert done.declared.at(done.end, done.steps) == pytest.approx(optimum, abs=1e-9)
    assert done.length > 400 / f.smoothness  # of steps that are longer than 1/L on the whole


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("participation", [None, HALF])
@pytest.mark.parametrize("rate", ["adaptive", DeltaSGD(delta=0.5)])
@pytest.mark.parametrize("psi", [None, L1(0.1)])
def test_engines_wires_and_resumed_runs_agree(rate, batch_size, participation, psi, tmp_path):
    """A step asks for one gradient; of a minibatch for a second one, but at first."""
    common = {"local_steps": 4, "batch_size": batch_size, "participation": participation}
    made = FedMiD(psi, client_lr=rate, **common) if psi else FedAvg(client_lr=rate, **common)
    problem = FederatedProblem(unlike(), regularizer=psi)
    history = agrees_everywhere(made, problem, tmp_path, rounds=6, near={"rel": 1e-12})
    each, clients = 4 if batch_size is None else 7, 4 if participation is None else 2
    assert history["gradients"][-1] == 6 * clients * each


def test_clients_with_unlike_rows():
    problem = FederatedProblem([*unlike(8), *unlike(5)])
    strategy = FedAvg(client_lr="adaptive", batch_size=6, batch_order="epoch", local_steps=3)
    local = simulate(strategy, problem, 4)
    stacked = simulate(strategy, problem, 4, engine="stacked")
    assert stacked.x == pytest.approx(local.x, rel=1e-12)


@pytest.mark.parametrize("rate", [DeltaSGD(), AdaPGM()])
def test_rounding_does_not_decide(rate):
    """Clients that have converged in a round go on: their differences are of rounding alone."""
    strategy, ends = FedMiD(L1(0.1), client_lr=rate), []
    for dtype in ("float32", "float64"):
        problem = default_problem(strategy, list(quadratics(strategy, dtype)))
        ends.append(simulate(strategy, problem, 20).x)
    assert ends[0].dtype == np.float32
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)


@settings(max_examples=15, deadline=None)
@given(power=st.integers(-5, 5), height=st.integers(-5, 5), seed=st.integers(0, 99))
def test_units_do_not_matter(power, height, seed):
    """With F(10^p x) 10^h the steps are 10^(-2p - h) times as long, and x is 10^-p times."""
    rng, unit = np.random.default_rng(seed), 10.0**power
    parts = [(rng.normal(size=(5, 2)), rng.normal(size=5)) for _ in range(3)]
    plain = FederatedProblem([LeastSquares(A, b) for A, b in parts])
    other = FederatedProblem([LeastSquares(unit * A, b, scale=10.0**height) for A, b in parts])
    strategy = FedAvg(client_lr="adaptive")
    x, y = (simulate(strategy, p, 5).x for p in (plain, other))
    assert unit * y == pytest.approx(x, rel=1e-6, abs=1e-9)
