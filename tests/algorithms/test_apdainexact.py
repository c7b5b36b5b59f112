"""APDAInexact: what it keeps true, and what breaks it."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun, settled
from problems import q6
from q6_runs import error, gradients, lose, played, ten_digits, unknown

from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import APDAInexact

PRIMAL_DUAL = APDAInexact(primal_lr=0.1)


@pytest.mark.parametrize(
    "strategy",
    [PRIMAL_DUAL, APDAInexact(primal_lr=0.1, local_solver=GradientDescent(steps=20))],
    ids=["exact", "twenty steps"],
)
def test_rounds_to_ten_digits(strategy):
    """The first round with an error below 1e-10, and the error in the end."""
    first, last = ten_digits(strategy, q6(), 3000)
    assert abs(first - 1164) <= 1
    assert last < 4e-15


def test_primal_dual_ends_with_the_gradients():
    run = played(PRIMAL_DUAL, 2500)
    assert settled(run, "y") == pytest.approx(-gradients(run), abs=1e-12)


def test_primal_dual_heals_in_one_round():
    run = OpenRun(PRIMAL_DUAL, q6()).play(300)
    lose(run, 0)
    run.play()
    assert settled(run, "y").sum(0) == pytest.approx(np.zeros(8), abs=1e-13)
    assert error(run.play(2500)) < 5e-15


def test_primal_dual_defaults(caplog):
    known = OpenRun(PRIMAL_DUAL, q6()).server.info.settings
    assert known["dual_lr"] == pytest.approx(1 / 3.2)
    assert known["dual_damping"] == pytest.approx(1 / 20)
    assert known["theta"] == pytest.approx(max(2 / 2.1, 1 - 1 / 64))
    assert not caplog.records
    strategy = APDAInexact(primal_lr=0.1, dual_damping=1 / 20)
    assert OpenRun(strategy, unknown()).play(3).server.info.settings["theta"] == 1.0
    assert [r.message for r in caplog.records if "theta is 1" in r.message] == [
        "APDAInexact: the clients' strong convexity is unknown, so theta is 1, which may be slow. "
        "State `strong_convexity` in the objectives"
    ]
