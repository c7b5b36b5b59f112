"""A client that hangs in Flower's simulation is stopped and named; Ray itself is left out here."""

from __future__ import annotations

import time

import pytest
from fake_ray import fake_ray  # noqa: F401  (a fixture)
from problems import avg, q6_objectives

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.objectives import Quadratic


class Hangs(Quadratic):
    """In its gradient, once it has been asked for it three times."""

    asked = 0

    def gradient(self, x):
        Hangs.asked += 1
        if Hangs.asked > 3:
            time.sleep(60)
        return super().gradient(x)


@pytest.mark.usefixtures("fake_ray")
@pytest.mark.parametrize("block", [None, 1, 4])
@pytest.mark.parametrize("needed", [5, 6])
def test_a_client_that_hangs_costs_its_reply(needed, block, monkeypatch):
    monkeypatch.setattr(Hangs, "asked", 0)
    objectives = list(q6_objectives())
    objectives[2] = Hangs(objectives[2].Q, objectives[2].b)
    problem = FederatedProblem(objectives)

    def run():
        strategy, options = avg(min_replies=needed), {"engine": "ray", "timeout": 0.1}
        return simulate(strategy, problem, 2, **options, clients_per_message=block)

    if needed == 6:
        with pytest.raises(RoundError, match=r"client 2: refused: .*max-seconds = 0.1, and"):
            run()
        return
    history = run()
    assert history["replies"].tolist() == [6, 5]
    assert "refused" not in history  # as in the other engines


def test_the_timeout_is_refused_elsewhere():
    problem = FederatedProblem(q6_objectives())
    with pytest.raises(ConfigError, match='timeout=5 is for engine="ray", not for'):
        simulate(avg(), problem, 1, timeout=5)
    with pytest.raises(ConfigError, match="timeout must be finite and > 0, got -1"):
        simulate(avg(), problem, 1, engine="ray", timeout=-1)
