"""DualFL where clients lose their state: with a mirror, and without."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.dualfl import pairs, states
from harness import OpenRun
from problems import q6, q6_objectives

from flower_fedcon import Bernoulli, FederatedProblem, Sample
from flower_fedcon.core.participation import Full
from flower_fedcon.strategies import DualFL

HALF = Sample(count=3)
RULES = pytest.mark.parametrize(
    ("rule", "form"),
    [
        (Full(), "paper"),
        (HALF, "block"),
        (Full(), "accelerated"),
        (HALF, "accelerated"),
        (Bernoulli(0.4), "accelerated"),
    ],
    ids=repr,
)


def error(x):
    return float(np.linalg.norm(x - q6().optimum.x))


def lose(run, client=1):
    run.clients[client] = run.new_client(client)


@RULES
@pytest.mark.parametrize("mirror", [True, False])
def test_re_entry_ends_at_the_optimum(rule, form, mirror):
    problem = FederatedProblem(q6_objectives(), x0=np.full(8, 3.0))
    run = OpenRun(DualFL(participation=rule, form=form, mirror=mirror), problem).play(40)
    lose(run)
    lose(run, 4)
    run.play(10)
    assert run.server.counts["lost"] == 2
    lose(run)
    for _ in range(950 if form == "block" else 600):
        run.play()
        means(run)
    assert run.server.counts["lost"] == 3
    assert error(run.x) <= 2e-14


def means(run):
    """The server's vectors are the means of the clients', also after a reset."""
    z, e = zip(*pairs(run), strict=True)
    state = run.state
    if run.server.strategy.constants.accelerated:
        drift, left = state.drift[:, None], state.left[:, None]
        assert state.z == pytest.approx((z + drift * e).mean(axis=0), abs=1e-12)
        assert state.e == pytest.approx((left * e).mean(axis=0), abs=1e-12)
    else:
        assert state.theta == pytest.approx(np.mean(z, axis=0), abs=1e-12)


@RULES
def test_mirror_returns_the_very_state(rule, form):
    strategy = DualFL(participation=rule, form=form)
    calm, run = (OpenRun(strategy, q6()).play(40) for _ in range(2))
    lose(run)
    calm.play(20)
    run.play(20)
    if form == "accelerated":  # its local solves start at theta
        assert np.array_equal(run.x, calm.x)
    else:  # only the local solver's start differs
        assert run.x == pytest.approx(calm.x, abs=1e-13)
    assert np.array_equal(states(run), run.state.mirror.rows["z"])
    assert run.server.counts["lost"] == 1


def test_collective_reset_is_a_new_start():
    run = OpenRun(DualFL(mirror=False), q6()).play(40)
    before = run.x
    lose(run)
    fresh = OpenRun(DualFL(mirror=False), FederatedProblem(q6_objectives(), x0=before)).play(30)
    assert run.play(30).x == pytest.approx(fresh.x, abs=1e-13)
    assert error(run.x) > 100 * error(OpenRun(DualFL(), q6()).play(70).x)  # what the reset costs


def test_server_keeps_no_mirror_without_being_asked():
    assert OpenRun(DualFL(mirror=False), q6()).state.mirror is None
    for form, names in (("block", {"z"}), ("accelerated", {"z", "e"})):
        sampled = OpenRun(DualFL(participation=HALF, form=form), q6()).state.mirror.rows
        assert {name: rows.shape for name, rows in sampled.items()} == dict.fromkeys(names, (6, 8))
