"""Weakly convex regularizers: who takes them, for which steps, and where the runs stop."""

import itertools

import numpy as np
import pytest
from problems import random_quadratics

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.problems.reference import solve
from flower_fedcon.regularizers import L1, MCP, SCAD
from flower_fedcon.strategies import CompositeFL, FedAvg, FedDR, FedMiD


@pytest.mark.parametrize(
    ("build", "longest"),
    [
        (lambda psi: FedDR(psi, step_size=0.5), 0.5),
        (lambda psi: FedMiD(psi, client_lr=0.25, local_steps=2), 0.5),
        (lambda psi: FedMiD(psi, client_lr=0.5, local_steps=2, server_lr=0.1), 0.5),
        (lambda psi: CompositeFL(psi, client_lr=0.25, local_steps=2), 0.5),
        (lambda psi: CompositeFL(psi, client_lr=0.25, local_steps=3, server_lr=0.5), 0.5),
    ],
)
def test_prox_steps_stay_below_the_inverse_of_the_modulus(build, longest):
    assert build(MCP(1.0, gamma=0.51)).longest_prox() == pytest.approx(longest)
    with pytest.raises(ConfigError, match=r"prox steps of up to 0\.5, .* for steps below 0\.5,"):
        build(MCP(1.0, gamma=0.5))


def test_subgradients_need_no_prox():
    assert FedAvg(client_lr=3.0, local_steps=5, regularizer=MCP(1.0, gamma=0.1)).longest_prox() == 0


@pytest.mark.parametrize("psi", [MCP(0.3, gamma=2.0), SCAD(0.3, a=3.7)], ids=repr)
@pytest.mark.parametrize(
    ("build", "engine"),
    [
        (lambda psi: FedDR(psi, step_size=0.2), "stacked"),
        (lambda psi: CompositeFL(psi, client_lr=0.05, local_steps=3), "stacked"),
        (lambda psi: FedMiD(psi, client_lr=0.2, local_steps=1, server_prox_only=True), "local"),
    ],
)
def test_they_stop_at_the_minimiser_of_a_sum_that_is_convex(build, engine, psi):
    """F is 1-strongly convex, psi weakly with a modulus below 1: one minimiser, by enumeration."""
    problem = FederatedProblem(random_quadratics(0, d=5), regularizer=psi)
    Q = np.mean([f.Q for f in problem.objectives], axis=0)
    b = np.mean([f.b for f in problem.objectives], axis=0)
    exact = minimiser(Q, b, psi)
    history = simulate(
        build(psi), problem, 1500, engine=engine, evaluate_every=1500, certificates=True
    )
    np.testing.assert_allclose(history.x, exact, atol=1e-11)
    assert history["kkt"][-1] <= 1e-10
    assert (exact == 0).any()
    assert (np.abs(exact) > 0.5).any()  # where psi bends


def minimiser(Q, b, psi):
    """Return the stationary point, by trying every piece of psi in every entry.

    On a piece psi's slope is (l + c t) sign.
    """
    if isinstance(psi, MCP):
        w, g = psi.weight, psi.gamma
        pieces = [(0, g * w, w, -1 / g), (g * w, np.inf, 0.0, 0.0)]
    else:
        w, a = psi.weight, psi.a
        pieces = [(0, w, w, 0.0), (w, a * w, a * w / (a - 1), -1 / (a - 1)), (a * w, np.inf, 0, 0)]
    choices = [None, *((s, *piece) for s in (-1, 1) for piece in pieces)]
    for pick in itertools.product(choices, repeat=len(b)):
        on = np.array([one is not None for one in pick])
        x = np.zeros(len(b))
        if on.any():
            s, low, high, level, curve = np.array([one for one in pick if one is not None]).T
            x[on] = np.linalg.solve(Q[np.ix_(on, on)] + np.diag(curve), b[on] - s * level)
            if not ((s * x[on] > low) & (s * x[on] <= high)).all():
                continue
        if (np.abs(Q @ x - b)[~on] <= w).all():
            return x
    raise AssertionError("no stationary point")


def test_what_would_certify_a_minimum_refuses():
    paths = pytest.importorskip("flower_fedcon.paths", reason="a path is refused, too")
    problem = FederatedProblem(random_quadratics(0, d=5), regularizer=MCP(0.3))
    with pytest.raises(ConfigError, match=r"not convex, so no solver .* \(reference = false\)"):
        _ = problem.optimum
    with pytest.raises(ConfigError, match="not convex"):
        solve(problem.objectives, SCAD(0.1), np.zeros(5))
    with pytest.raises(ConfigError, match="a path follows minimisers"):
        paths.regularization_path(problem)
    strategy = FedDR(L1(0.3), step_size=0.2)
    strategy.regularizer = MCP(0.3, gamma=0.1)  # what a path would do
    problem = FederatedProblem(random_quadratics(0, d=5), regularizer=strategy.regularizer)
    with pytest.raises(ConfigError, match="has a prox only for steps below"):
        simulate(strategy, problem, 1)
