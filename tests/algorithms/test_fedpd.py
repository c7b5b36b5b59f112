"""FedPD: what it keeps true, and the rounds that it skips."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun, client_states, wire_exchange
from problems import q6
from q6_runs import distance, first_below, lose, prox

from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FedPD

SKIPPING = {"step_size": 0.1, "skip_probability": 0.5}


def test_rounds_to_a_distance_of_1e_10():
    """Measured elsewhere: one round of counting."""
    assert abs(first_below(1e-10, FedPD(step_size=0.1), q6()) - 45) <= 1


def test_inexact_solves():
    strategy = FedPD(step_size=0.1, local_solver=GradientDescent(tolerance=1e-8))
    assert distance(OpenRun(strategy, q6()).play(200)) < 1e-9


def test_what_holds_at_the_optimum():
    problem = q6()
    optimum, objectives = problem.optimum.x, problem.objectives
    gradients = np.array([f.gradient(optimum) for f in objectives])

    run = OpenRun(FedPD(step_size=0.1), problem).play(300)
    duals = np.array([s.dual for s in client_states(run)])
    assert duals == pytest.approx(-gradients, abs=1e-12)
    assert np.abs(duals.sum(axis=0)).max() < 1e-12


# --- skipped rounds --------------------------------------------------------------------------


@pytest.mark.parametrize(("skip", "low", "high"), [(0.3, 0.12, 0.3), (0.7, 0.45, 0.85)])
def test_skipped_rounds_throw_fedpd_off(skip, low, high):
    """There is no fixed point: the mean error over the rounds is 0.19 and 0.63."""
    run = OpenRun(FedPD(step_size=0.1, skip_probability=skip), q6())
    errors = [distance(run.play()) for _ in range(2000)]
    assert low < np.mean(errors[100:]) < high


def test_skipped_rounds_carry_a_coin_alone():
    run = OpenRun(FedPD(**SKIPPING), q6())
    aggregated, before = True, (0, 0)
    skipped = 0
    for _ in range(30):
        x, skip = run.x, run.state.skip
        run.play()
        after = (run.server.uplink_bytes, run.server.downlink_bytes)
        vector = 6 * (128 + 8 * 8)
        assert after[0] - before[0] == (0 if skip else vector)
        assert after[1] - before[1] == 6 * 8 + (vector if aggregated else 0)
        assert (run.x is x) == skip
        aggregated, before = not skip, after
        skipped += skip
    assert 5 < skipped < 25


def test_skipped_rounds_through_messages():
    run, direct = (OpenRun(FedPD(**SKIPPING), q6()) for _ in range(2))
    exchange, _ = wire_exchange(run)
    for _ in range(20):
        run.round(exchange)
        assert run.x.tobytes() == direct.play().x.tobytes()
    assert run.server.downlink_bytes == direct.server.downlink_bytes


def test_everyone_moves_in_a_skipped_round():
    """A reply that is lost there is asked for again, and moves the client once."""
    lost = np.random.default_rng(2)
    calm, run = (OpenRun(FedPD(**SKIPPING), q6()) for _ in range(2))
    run.alter = lambda request, reply: [] if lost.random() < 0.3 else [reply]
    run.server.max_retries = 100
    assert run.play(30).x.tobytes() == calm.play(30).x.tobytes()
    assert run.server.counts["retries"] > 10


def test_coins_depend_on_the_seed_alone():
    def coins(seed):
        strategy = OpenRun(FedPD(**SKIPPING), q6(), seed=seed).server.strategy
        return [strategy.skips(t) for t in range(1, 1001)]

    assert coins(1) == coins(1) != coins(2)
    assert 430 < sum(coins(1)) < 570


# --- lost state ------------------------------------------------------------------------------


def test_fedpd_heals_in_a_round():
    """At the optimum a client starts again, and lambda_i is right after one step."""
    problem = q6()
    run = OpenRun(FedPD(step_size=0.1), problem).play(200)
    lose(run, 1)
    run.play()
    state = client_states(run)[1]
    assert state.dual == pytest.approx(-problem.objectives[1].gradient(state.x), abs=1e-13)
    off = distance(run)
    assert 1e-3 < off < 1
    assert distance(run.play(80)) < 1e-13


def test_fedpd_reenters_in_a_skipped_round_from_the_last_mean():
    run = OpenRun(FedPD(**SKIPPING), q6())
    while run.state.fresh or not run.state.skip:  # two skipped rounds in a row
        run.play()
    lose(run, 1)
    x_0 = run.x
    run.play()
    assert run.server.counts["lost"] == 1
    state = client_states(run)[1]
    assert state.x == pytest.approx(prox(q6().objectives[1], x_0, 0.1), abs=1e-14)
    assert state.dual == pytest.approx((state.x - x_0) / 0.1, abs=1e-12)


# --- refusals --------------------------------------------------------------------------------
