"""DualFL where clients lose their state: with a mirror, and without."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.dualfl import states
from harness import OpenRun
from problems import q6, q6_objectives

from flower_fedcon import Bernoulli, FederatedProblem, Sample
from flower_fedcon.clients.dualfl import DualFLClient, DualFLClientState
from flower_fedcon.core.participation import Full
from flower_fedcon.strategies import DualFL

HALF = Sample(count=3)
RULES = pytest.mark.parametrize("rule", [Full(), HALF, Bernoulli(0.4)], ids=repr)


def error(x):
    return float(np.linalg.norm(x - q6().optimum.x))


def lose(run, client=1):
    run.clients[client] = run.new_client(client)


@RULES
@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("x0", [0.0, 3.0])
def test_re_entry_ends_at_the_optimum(rule, mirror, x0):
    problem = FederatedProblem(q6_objectives(), x0=np.full(8, x0))
    run = OpenRun(DualFL(participation=rule, mirror=mirror), problem).play(40)
    lose(run)
    lose(run, 4)
    run.play(10)
    assert run.server.counts["lost"] == 2
    lose(run)
    for _ in range(950):
        run.play()
        assert run.x == pytest.approx(-states_after_reset(run).mean(axis=0), abs=1e-12)
    assert run.server.counts["lost"] == 3
    assert error(run.x) <= 2e-14


def states_after_reset(run):
    """Return the v_j; those of clients that have not yet heard of a reset are -origin."""
    v, state = states(run), run.state
    late = np.array(run.acknowledged) <= state.start
    v[late] = -state.origin
    return v


@RULES
def test_mirror_returns_the_very_state(rule):
    strategy = DualFL(participation=rule)
    calm, run = (OpenRun(strategy, q6()).play(40) for _ in range(2))
    lose(run)
    calm.play(20)
    run.play(20)
    # only the local solver's start differs
    assert run.x == pytest.approx(calm.x, abs=1e-13)
    assert np.array_equal(states(run), run.state.mirror["v"])
    assert run.server.counts["lost"] == 1


def test_collective_reset_is_a_new_start():
    run = OpenRun(DualFL(mirror=False), q6()).play(40)
    before = run.x
    lose(run)
    fresh = OpenRun(DualFL(mirror=False), FederatedProblem(q6_objectives(), x0=before)).play(30)
    assert run.play(30).x == pytest.approx(fresh.x, abs=1e-13)
    assert error(run.x) > 100 * error(OpenRun(DualFL(), q6()).play(70).x)  # what the reset costs


@pytest.mark.parametrize("rule", [Full(), HALF], ids=repr)
def test_client_that_alone_starts_again_spoils_the_limit(rule, monkeypatch):
    monkeypatch.setattr(
        DualFLClient,
        "restore",
        lambda self, down, given: DualFLClientState(-down["theta"], None, down["theta"]),
    )
    run = OpenRun(DualFL(participation=rule), q6()).play(400)
    lose(run)
    assert error(run.play(800).x) > 0.05


def test_server_keeps_no_mirror_without_being_asked():
    assert OpenRun(DualFL(mirror=False), q6()).state.mirror is None
    sampled = OpenRun(DualFL(participation=HALF), q6()).state.mirror.to_tree()
    assert sampled["v"].shape == (6, 8)
    assert "c" not in sampled
