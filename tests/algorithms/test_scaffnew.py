"""Scaffnew: what it keeps true, and what breaks it."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun, settled
from problems import q6, q6_l1
from q6_runs import error, lose, ten_digits, unknown

from flower_fedcon.strategies import Scaffnew


@pytest.mark.parametrize("problem", [q6, q6_l1])
def test_rounds_to_ten_digits(problem):
    """The first round with an error below 1e-10, and the error in the end."""
    first, last = ten_digits(Scaffnew(regularizer=problem().regularizer), problem(), 300)
    assert abs(first - 74) <= 15
    assert last < 3e-16


@pytest.mark.parametrize("problem", [q6, q6_l1])
def test_scaffnew_heals_in_one_round(problem):
    strategy = Scaffnew(regularizer=problem().regularizer)
    run = OpenRun(strategy, problem()).play(30)
    lose(run, 0)
    run.play()
    psi = run.server.strategy.regularizer
    assert psi.subdifferential_distance(run.x, settled(run, "h").mean(0)) < 1e-13
    assert error(run.play(150)) < 1e-15


def test_scaffnew_draws_its_steps():
    run = OpenRun(Scaffnew(communication_probability=0.2), q6())
    strategy, state = run.server.strategy, run.state
    steps = [strategy.broadcast(state._replace(r=r))["steps"] for r in range(1, 4001)]
    assert min(steps) == 1
    assert np.mean(steps) == pytest.approx(5, rel=0.03)  # four standard errors are 6 %
    assert np.mean(np.array(steps) == 1) == pytest.approx(0.2, abs=0.02)


def test_scaffnew_defaults():
    known = OpenRun(Scaffnew(), q6()).server.info.settings
    assert known["client_lr"] == pytest.approx(1 / 20)
    assert known["communication_probability"] == pytest.approx(20**-0.5)
    assert OpenRun(Scaffnew(client_lr=0.01), unknown()).server.info.settings == {
        "client_lr": 0.01,
        "communication_probability": 0.1,
        "batch_size": None,
        "clip": None,
    }
