"""What a run with functional constraints leaves in doubt at its end, and says."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.core.participation import Bernoulli, Sample
from flower_fedcon.objectives import LossBound, Quadratic
from flower_fedcon.strategies import FedProxAL, FedSGM

STEPS = {"client_lr": 0.1, "local_steps": 2, "tolerance": 0.01, "constraints": "each"}
PLACES = (-1.0, -0.5, 0.5, 1.0)


def apart(bound: float) -> FederatedProblem:
    """(x - a)^2/2 for four a: the largest is 1/2 at least, at x = 0."""
    clients = [Quadratic([[1.0]], [a]) for a in PLACES]
    bounded = [LossBound(f, bound - a * a / 2) for f, a in zip(clients, PLACES, strict=True)]
    return FederatedProblem(bounded, constraints="each", names=["a", "b", "c", "d"])


def warnings(caplog, strategy, problem, rounds=60):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        simulate(strategy, problem, rounds, evaluate_every=0)
    found = [r.message for r in caplog.records if r.name == "flwr.strategies"]
    caplog.clear()
    return found


@pytest.mark.parametrize("participation", [None, Sample(count=1), Bernoulli(0.1)], ids=str)
@pytest.mark.parametrize("switching", ["hard", "soft"])
def test_a_bound_out_of_reach_is_said_at_the_end(caplog, participation, switching):
    chosen = {} if participation is None else {"participation": participation}
    strategy = FedSGM(**STEPS, **chosen, switching=switching)
    told = warnings(caplog, strategy, apart(0.3))
    assert sum("least_violation" in text for text in told) == 1
    assert apart(0.3).least_violation == pytest.approx(0.2, abs=1e-6)


def test_a_bound_that_is_kept_draws_no_warning(caplog):
    assert warnings(caplog, FedSGM(**STEPS, output="average"), apart(0.7)) == []
    assert warnings(caplog, FedProxAL(), apart(0.7), 100) == []


def test_the_augmented_lagrangian_says_so_too(caplog):
    (told,) = warnings(caplog, FedProxAL(), apart(0.3), 100)
    assert "no model satisfies the bounds, the multipliers grow" in told


class Unknown(Quadratic):
    """A loss that is never a number."""

    def value(self, x):
        return np.nan


def test_bounds_that_were_never_seen_are_named(caplog):
    f = Quadratic([[1.0]], [0.0])
    clients = [LossBound(f, 1.0), LossBound(f, 1.0, Unknown([[1.0]], [0.0])), f]
    problem = FederatedProblem(clients, constraints="each", names=["a", "b", "c"])
    (told,) = warnings(caplog, FedSGM(**STEPS, min_replies=1), problem, 5)
    assert "no usable answer of client b came in any round" in told
