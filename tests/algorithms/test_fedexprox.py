"""FedExProx: what the contract test does not say."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from problems import one_minimiser, q6, q6_shared

from flower_fedcon import Bernoulli, FederatedProblem, Sample, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedExProx


@pytest.mark.parametrize("rule", ["diversity", "polyak"])
def test_without_a_shared_minimiser_alpha_is_capped_and_one_warning_says_so(rule, caplog):
    strategy = FedExProx(step_size=0.1, extrapolation=rule, max_extrapolation=50.0)
    with caplog.at_level(logging.WARNING):
        history = simulate(strategy, q6(), 60)
    assert history["extrapolation"].max() == 50
    assert "above max_extrapolation=50" in caplog.text
    assert caplog.text.count("share a minimiser") == 1


def test_a_given_infimum_is_the_one_that_clients_find():
    settings = {"step_size": 1.0, "extrapolation": "polyak"}
    found = simulate(FedExProx(**settings), one_minimiser(), 3).x
    given = simulate(FedExProx(**settings, infimum=0.0), one_minimiser(), 3).x
    assert found.tobytes() == given.tobytes() == np.array([0.125]).tobytes()
    # a bound that is too low makes longer steps
    lower = simulate(FedExProx(**settings, infimum=-1.0), one_minimiser(), 1).x
    assert lower == pytest.approx(1 - (7 / 24 + 1) / (49 / 144) * 7 / 12)


@pytest.mark.parametrize(
    ("participation", "alpha"),
    [
        # envelopes 1/2 and 3/4 (gamma = 1, L = 1 and 3), mean 5/8
        (None, 8 / 5),
        (Sample(count=2), 8 / 5),
        (Sample(count=1), 4 / 3),
        (Bernoulli(0.5), 4 / 3),
    ],
)
def test_the_constant_alpha_follows_the_size_of_cohorts(participation, alpha):
    clients = [Quadratic([[q]], [q]) for q in (1.0, 3.0)]
    strategy = FedExProx(step_size=1.0, participation=participation)
    history = simulate(strategy, FederatedProblem(clients), 1)
    assert history["extrapolation"] == pytest.approx([alpha], rel=1e-15)


def test_values_that_drown_in_rounding_give_way_to_diversity():
    """Else the error stalls near 1e-8, the square root of the rounding of M_i - inf f_i."""
    history = simulate(
        FedExProx(step_size=0.1, extrapolation="polyak"), q6_shared(), 200, evaluate_every=0
    )
    assert np.linalg.norm(history.x - q6().optimum.x) < 1e-15


class Unknown:
    """A quadratic that does not state its L."""

    def value(self, x):
        return float(x @ x)

    def gradient(self, x):
        return 2 * x


def test_diversity_needs_no_smoothness():
    problem = FederatedProblem([Unknown()], x0=np.ones(2))
    assert simulate(FedExProx(step_size=1.0, extrapolation="diversity"), problem, 40).x == (
        pytest.approx(np.zeros(2), abs=1e-12)
    )
