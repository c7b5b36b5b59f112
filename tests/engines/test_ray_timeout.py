"""A client that hangs in Flower's simulation is stopped and named; Ray itself is left out here."""

from __future__ import annotations

import time

import pytest
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from problems import avg, q6_objectives

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.engines import grid, ray
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


def in_this_process(*, server_app, client_app, num_supernodes, backend_config):
    """Run what `run_simulation` is given, one client after another."""
    nodes = FakeGrid(range(num_supernodes), make=lambda load: client_app)
    server_app(nodes, Context(1, 1, {}, RecordDict(), {}))


@pytest.mark.parametrize("needed", [5, 6])
def test_a_client_that_hangs_costs_its_reply(needed, monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(ray, "run_simulation", in_this_process)
    monkeypatch.setattr(grid, "PAUSE", (0.0, 0.0))
    monkeypatch.setattr(Hangs, "asked", 0)
    objectives = list(q6_objectives())
    objectives[2] = Hangs(objectives[2].Q, objectives[2].b)
    problem = FederatedProblem(objectives)

    def run():
        return simulate(avg(min_replies=needed), problem, 2, engine="ray", timeout=0.1)

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
