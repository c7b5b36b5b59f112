"""FedMLS against a loop of NumPy, its rate against linear programs, and what it refuses."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from kinks import (
    ENTRIES,
    absolute,
    absolute_rows,
    hinge,
    hinge_rows,
    least_deviations,
)
from pages import blocks
from problems import q6, q6_l1

from flower_fedcon import Buffered, FederatedProblem, Only, Sample, simulate
from flower_fedcon.errors import ConfigError, ParticipationError
from flower_fedcon.objectives import LeastAbsoluteDeviations, SupportVectorMachine
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedMLS


def loop(gradients, x0, rounds, step_size, growth):
    """Return the models after each round, by the program's sequences: y_i and theta are kept."""
    n, models = len(gradients), []
    y, z, w = x0, x0, x0
    z_i, w_i, y_i = [x0] * n, [x0] * n, [x0] * n
    for t in range(1, rounds + 1):
        lam, gamma, later = step_size / t, 2 / (t + 1), 2 / (t + 2)
        beta, beta_later = 4 / (lam * t), 4 / (lam * (t + 1))
        for i, gradient in enumerate(gradients):
            c, u, mean = z_i[i] - (y_i[i] - y) / (beta * lam), z_i[i], z_i[i]
            for k in range(1, math.ceil(growth * t) + 1):
                u = u - 2 / (2 + k) * (gradient(u) / (n * beta) + u - c)
                theta = (2 * k + 2) / (k * k + 3 * k)
                mean = (1 - theta) * mean + theta * u
            z_i[i], w_i[i] = u, (1 - gamma) * w_i[i] + gamma * mean
            y_i[i] = (1 - later) * w_i[i] + later * z_i[i]
        w = (1 - gamma) * w + gamma * z
        y = (1 - later) * w + later * z
        z = z - (y - np.mean(y_i, axis=0)) / (beta_later * lam)
        models.append((1 - later) * w + later * z)  # the program's w of the next round
    return models


def of_deviations(A, b):
    return lambda x: np.sign(A @ x - b) @ A / len(b)


def of_hinges(A, y):
    return lambda x: -(y * (y * (A @ x) < 1)) @ A / len(y)


PROBLEMS = {
    "absolute": (absolute, absolute_rows, of_deviations),
    "hinge": (hinge, hinge_rows, of_hinges),
}


@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
@pytest.mark.parametrize("growth", [0.7, 3.0])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_loop_of_numpy_finds_the_same(kind, growth, engine, caplog):
    """A compiled round has one number of steps, so the jax engine plays the stacked ones."""
    if engine == "jax":
        pytest.importorskip("jax")
    problem, rows, gradient = PROBLEMS[kind]
    gradients = [gradient(*own) for own in zip(*rows(), strict=True)]
    expected = loop(gradients, np.zeros(ENTRIES), 20, 5.0, growth)
    made = FedMLS(step_size=5.0, step_growth=growth)
    for rounds in (1, 2, 7, 20):
        with caplog.at_level(logging.INFO):
            x = simulate(made, problem(), rounds, engine=engine, evaluate_every=0).x
        np.testing.assert_allclose(x, expected[rounds - 1], rtol=0, atol=1e-12)
    if engine == "jax":
        assert "FedMLS: the mathematics asks for a value" in caplog.text


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_clients_of_different_sizes(engine):
    A, b = absolute_rows()
    tables = [(A[i, : 3 + 2 * i], b[i, : 3 + 2 * i]) for i in range(5)]
    problem = FederatedProblem([LeastAbsoluteDeviations(*own) for own in tables], x0=np.ones(4))
    expected = loop([of_deviations(*own) for own in tables], np.ones(4), 12, 3.0, 1.0)
    x = simulate(FedMLS(step_size=3.0, step_growth=1.0), problem, 12, engine=engine).x
    np.testing.assert_allclose(x, expected[-1], rtol=0, atol=1e-12)


def bound(distance, steepest, growth):
    """Return the constant of the bound at the rule's step, C of C/T."""
    return 2 * steepest * distance * math.sqrt(6 * (1 + 8 / growth))


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_optimum_of_a_linear_program_at_the_rate_of_the_theory(kind):
    """F - F* times the rounds stays below the bound of the card, and does not grow."""
    problem, (A, _) = PROBLEMS[kind][0](), PROBLEMS[kind][1]()
    distance = float(np.linalg.norm(problem.optimum.x))
    steepest = float(np.linalg.norm(A, axis=2).mean(axis=1).max())
    made = FedMLS(distance=distance, lipschitz=steepest)
    history = simulate(made, problem, 160, engine="stacked")
    rounds = np.arange(1, 161)
    far = history["objective"] - problem.optimum.value
    assert (far >= -1e-12).all()
    assert (far * rounds)[9:].max() < bound(distance, steepest, 1.0)
    assert (far * rounds)[119:].max() < 1.1 * (far * rounds)[9:40].max()
    assert far[-1] < 0.02 * far[0]


def test_the_rule_is_that_of_the_card():
    problem = q6()
    steepest = max(np.linalg.norm(f.gradient(np.zeros(8))) for f in problem.objectives)
    for growth in (0.5, 1.0):
        rule = 6 / 20 * math.sqrt(24 / (1 + 8 / growth))  # D/G = 1/L
        own = {"step_growth": growth}
        by_rule = simulate(FedMLS(**own), problem, 5).x
        np.testing.assert_allclose(
            by_rule, simulate(FedMLS(step_size=rule, **own), problem, 5).x, rtol=1e-12
        )
        given = FedMLS(distance=0.1, lipschitz=3.0, **own)
        np.testing.assert_allclose(
            simulate(given, problem, 5).x,
            simulate(FedMLS(step_size=rule * 20 * 0.1 / 3, **own), problem, 5).x,
            rtol=1e-12,
        )
        half = FedMLS(distance=0.1, **own)  # G alone by its rule
        np.testing.assert_allclose(
            simulate(half, problem, 5).x,
            simulate(FedMLS(step_size=rule * 20 * 0.1 / steepest, **own), problem, 5).x,
            rtol=1e-12,
        )


class WithL1:
    """An objective plus l1 ||x||_1, by its subgradient."""

    def __init__(self, inner, l1):
        self.inner, self.l1, self.shape = inner, l1, inner.shape

    def value(self, x):
        return self.inner.value(x) + self.l1 * np.abs(x).sum()

    def gradient(self, x):
        return self.inner.gradient(x) + self.l1 * np.sign(x)


def test_a_regularizer_may_be_part_of_the_losses():
    """psi itself is refused; its subgradient in each f_i leads to the same optimum."""
    A, b = absolute_rows()
    least = least_deviations(A.reshape(-1, ENTRIES), b.ravel(), 0.2)
    problem = FederatedProblem([WithL1(f, 0.2) for f in absolute().objectives])
    history = simulate(FedMLS(distance=3.0, lipschitz=2.5), problem, 100)
    assert 0 <= history["objective"][-1] - least.value < 0.02
    with pytest.raises(ConfigError, match="FedMLS takes no regularizer"):
        FedMLS(L1(0.2))
    with pytest.raises(ConfigError, match="regularizer"):
        simulate(FedMLS(), q6_l1(), 1)


def test_minibatches():
    """Stochastic subgradients, as in the theorem, of all clients' rows alike."""
    problem = hinge()
    made = FedMLS(distance=3.0, lipschitz=2.0, batch_size=3)
    far = [simulate(made, problem, rounds, engine="stacked").x for rounds in (20, 100)]
    gaps = [problem.objective(x) - problem.optimum.value for x in far]
    assert gaps[1] < 0.3 * gaps[0]
    assert gaps[1] < 0.03
    local = simulate(made, problem, 6, evaluate_every=0).x
    np.testing.assert_allclose(
        local, simulate(made, problem, 6, engine="stacked", evaluate_every=0).x, rtol=1e-12
    )


def test_work_is_counted():
    history = simulate(FedMLS(step_size=1.0, step_growth=1.5), absolute(), 4)
    assert history["gradients"][-1] == 5 * (2 + 3 + 5 + 6)


def test_what_it_refuses_says_why():
    for rule in (Sample(count=2), Buffered()):
        with pytest.raises(ParticipationError, match="which change in every round"):
            simulate(FedMLS(step_size=1.0, participation=rule), absolute(), 1)
    with pytest.raises(ParticipationError, match="keeps state on every client"):
        FedMLS(participation=Only(0))
    for arguments, words in (
        ({"clip": 1.0}, "FedMLS takes no clip"),
        ({"batch_order": "epoch", "batch_size": 2}, "its number grows from round to round"),
        ({"privacy": GaussianDP(1.0, 1.0, 1e-5)}, "weighs round t by t"),
        ({"step_growth": 0.0}, "step_growth"),
        ({"local_steps": 3}, "no argument 'local_steps'"),
    ):
        with pytest.raises(ConfigError, match=words):
            simulate(FedMLS(step_size=1.0, **arguments), absolute(), 1)


def test_without_smoothness_a_distance_is_asked_for():
    """Estimates of L from jumps of gradients would be of rows, not of the problem."""
    for own in ({}, {"lipschitz": 2.0}):
        with pytest.raises(
            ConfigError, match=r"give distance, about \|\|x0 - x\*\|\|, or step_size"
        ):
            simulate(FedMLS(**own), hinge(), 1)
    problem = hinge()
    history = simulate(FedMLS(distance=3.0), problem, 60, engine="stacked")
    far = history["objective"] - problem.optimum.value
    assert far[-1] < 0.05 * far[0]


def test_the_page_s_block(capsys):
    """Between the third and the fourth of six rows every model is a median."""
    (block,) = blocks("python", "docs/which_method.md")
    names: dict = {}
    exec(compile(block, "which_method.md", "exec"), names)
    assert "a median of all:" in capsys.readouterr().out
    assert 2 <= names["history"].x.item() <= 3


# --- the losses -----------------------------------------------------------------------------------


def test_losses_with_kinks_state_no_smoothness():
    A, b = absolute_rows()
    y = hinge_rows()[1][0]
    for f in (LeastAbsoluteDeviations(A[0], b[0]), SupportVectorMachine(A[0], y)):
        assert f.smoothness is None
        assert f.strong_convexity == 0.0
        assert not f.hessian(np.ones(ENTRIES)).any()
    ridge = LeastAbsoluteDeviations(A[0], b[0], 0.3)
    assert ridge.strong_convexity == 0.3


def test_at_a_kink_the_subgradient_is_0():
    f = LeastAbsoluteDeviations(np.ones((1, 1)), np.array([2.0]))
    assert f.gradient(np.array([2.0])) == 0.0
    g = SupportVectorMachine(np.ones((1, 1)), np.array([1.0]))
    assert g.gradient(np.array([1.0])) == 0.0
    assert g.gradient(np.array([0.9])) == -1.0


def test_labels_are_checked():
    with pytest.raises(ConfigError, match=r"SupportVectorMachine\(y\) must be -1 or \+1, got 0"):
        SupportVectorMachine(np.ones((2, 1)), np.array([1.0, 0.0]))
