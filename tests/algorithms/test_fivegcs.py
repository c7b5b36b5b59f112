"""FiveGCS: what it keeps true, and what stands before its step.

Its lost states are in test_conserved_sums.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun, client_states
from problems import q6, two_clients
from q6_runs import distance, first_below

from flower_fedcon import Sample, simulate
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FiveGCS


@pytest.mark.parametrize(
    ("settings", "rounds", "slack"),
    [
        ({}, 63, 1),
        ({"participation": Sample(count=3)}, 92, 0.2 * 92),
        ({"participation": Sample(count=1)}, 225, 0.2 * 225),
    ],
    ids=["full", "half", "one of six"],
)
def test_rounds_to_a_distance_of_1e_10(settings, rounds, slack):
    """Measured elsewhere, with other cohorts: one round of counting, a fifth under sampling."""
    strategy = FiveGCS(**settings)
    assert abs(first_below(1e-10, strategy, q6()) - rounds) <= slack


@pytest.mark.parametrize("count", [6, 3, 1])
def test_fivegcs_with_thirty_gradient_steps(count):
    solver = GradientDescent(steps=30)
    strategy = FiveGCS(participation=Sample(count=count), local_solver=solver)
    run = OpenRun(strategy, q6()).play(500)
    assert distance(run) < 1e-15
    assert run.server.work["evaluations"] == 500 * count * 30


def test_what_holds_at_the_optimum():
    problem = q6()
    optimum = problem.optimum.x
    gradients = np.array([f.gradient(optimum) for f in problem.objectives])
    run = OpenRun(FiveGCS(participation=Sample(count=3)), problem).play(600)
    u = np.array([s.variate for s in client_states(run)])
    assert u == pytest.approx((gradients - 1.0 * optimum) / 6, abs=1e-12)
    assert run.state.v == pytest.approx(-1.0 * optimum, abs=1e-12)


def test_fivegcs_with_half_of_the_clients():
    """N/C = 2 multiplies dv in x, and not in v; xhat = (x - v)/2."""
    # From xhat = .5 client 1 has dv = -1.3125: x = .5 + 2.625 = 3.125, xhat = (3.125 + 1.3125)/2;
    # client 2 has dv = .5: x = .5 - 1 = -.5, xhat = (-.5 - .5)/2.
    strategy = FiveGCS(primal_lr=1.0, dual_lr=1.5, participation=Sample(count=1))
    found = {simulate(strategy, two_clients(), 1, seed=s).x.item() for s in range(20)}
    assert found == {2.21875, -0.5}


def test_fivegcs_keeps_the_size_that_was_drawn():
    # Client 2's reply does not come: x = .5 + 1.3125 = 1.8125, not .5 + 2.625.
    run = OpenRun(
        FiveGCS(primal_lr=1.0, dual_lr=1.5),
        two_clients(),
        alter=lambda request, reply: [] if request.client == 1 else [reply],
    ).play()
    assert run.server.replies == 1
    assert run.state.x.item() == 1.8125
    assert run.x.item() == (1.8125 + 1.3125) / 2


def test_fivegcs_defaults():
    known = OpenRun(FiveGCS(participation=Sample(count=3)), q6()).server.strategy.constants
    assert known.mu == pytest.approx(1)
    assert known.gamma == pytest.approx(3 / 16 * np.sqrt(3 / (20 * 6)))
    assert known.tau == pytest.approx(8 / 3 * np.sqrt(20 / (6 * 3)))
    strategy = FiveGCS(primal_lr=0.1, strong_convexity=0.5)
    given = OpenRun(strategy, q6()).server.strategy.constants
    assert (given.mu, given.gamma, given.tau) == (0.5, 0.1, pytest.approx(1 / 1.2))


# --- refusals --------------------------------------------------------------------------------
