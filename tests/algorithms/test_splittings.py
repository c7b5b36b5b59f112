"""FedDR, FedPD, FedDyn and 5GCS: what the contract test does not say."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun, client_states, values, wire_exchange
from problems import q6, q6_l1, two_clients
from q6_runs import PSI, distance, lose, prox

from flower_fedcon import Buffered, FederatedProblem, Sample, simulate
from flower_fedcon.errors import StateLostError
from flower_fedcon.problems.papers.quadratics import quadratics
from flower_fedcon.sets import L2Ball
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FedDR, FedDyn, FedPD, FiveGCS

# --- FedDR ----------------------------------------------------------------------------------------


def test_composite_optimum_of_feddr_by_its_subdifferential():
    """The independent solver stops at 1.4e-11; FedDR goes on to rounding."""
    problem = q6_l1()
    for settings in ({}, {"relaxation": 1.5}, {"participation": Sample(count=2)}):
        strategy = FedDR(PSI, step_size=0.1, **settings)
        x = simulate(strategy, problem, 500, evaluate_every=0).x
        assert PSI.subdifferential_distance(x, problem.gradient(x)) < 5e-14
        assert np.count_nonzero(x) == 6


def test_feddr_with_a_set_stays_in_it():
    problem, ball = q6(), L2Ball(0.2)
    run = OpenRun(FedDR(ball, step_size=0.1, participation=Sample(count=3)), problem)
    assert all(ball.contains(run.play().x) for _ in range(300))
    constrained = FederatedProblem(problem.objectives, constraint=ball)
    assert run.x == pytest.approx(constrained.optimum.x, abs=1e-9)


def test_feddr_reply_after_reentry_is_lost():
    """The client is then asked in a later round, with what it holds, and xtilde stays right."""

    class Watched(OpenRun):
        def answer(self, request):
            self.handed_back = request.restore
            return super().answer(request)

    run = Watched(FedDR(None, step_size=0.1, participation=Sample(count=3)), q6()).play(30)
    lose(run, 2)
    gone = []

    def alter(asked, reply):
        if asked.client == 2 and 2 in run.handed_back and not reply.lost:
            gone.append(asked.round)
        return [] if gone == [asked.round] and asked.client == 2 else [reply]

    run.alter = alter
    run.play(400)
    assert len(gone) == run.server.counts["lost"] == 1
    assert run.state.xtilde == pytest.approx(run.state.mirror.rows["xhat"].mean(axis=0), abs=1e-14)
    assert distance(run) < 2e-15


def test_feddr_without_a_mirror_refuses():
    some = {"step_size": 0.1, "participation": Sample(count=5)}
    run, calm = (OpenRun(FedDR(None, mirror=m, **some), q6()).play(10) for m in (False, True))
    assert run.x.tobytes() == calm.x.tobytes()
    lose(run, 0)
    with pytest.raises(StateLostError, match=r"FedDR cannot re-admit a client that has lost its"):
        run.play(30)


@pytest.mark.parametrize("rule", [Sample(count=1), Buffered(buffer=1, concurrency=2)], ids=repr)
def test_late_clients_of_feddr_start_at_the_model_that_they_are_sent(rule):
    """Also in AsyncFedDR, where not all are asked in the first step."""
    problem, sent = FederatedProblem(q6().objectives, x0=np.ones(8)), {}

    def alter(asked, reply):
        if asked.client not in sent:
            xbar = sent[asked.client] = asked.down["xbar"]
            x = prox(problem.objectives[asked.client], xbar, 0.1)
            assert values(reply)["delta"] == pytest.approx(2 * x - xbar - 1, abs=1e-13)
        return [reply]

    run = OpenRun(FedDR(None, step_size=0.1, participation=rule), problem, alter=alter).play(30)
    assert sent.keys() == {*range(6)}
    assert len({xbar.tobytes() for xbar in sent.values()}) > 3
    assert np.abs(run.state.xtilde - run.state.mirror.rows["xhat"].mean(axis=0)).max() < 1e-13


SKIPPING = {"step_size": 0.1, "skip_probability": 0.5}


# --- FedPD: skipped rounds ------------------------------------------------------------------------


def test_skipped_rounds_of_fedpd_carry_a_coin_alone():
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


def test_skipped_rounds_of_fedpd_through_messages():
    run, direct = (OpenRun(FedPD(**SKIPPING), q6()) for _ in range(2))
    exchange, _ = wire_exchange(run)
    for _ in range(20):
        run.round(exchange)
        assert run.x.tobytes() == direct.play().x.tobytes()
    assert run.server.downlink_bytes == direct.server.downlink_bytes


def test_everyone_moves_in_a_skipped_round_of_fedpd():
    """A reply that is lost there is asked for again, and moves the client once."""
    lost = np.random.default_rng(2)
    calm, run = (OpenRun(FedPD(**SKIPPING), q6()) for _ in range(2))
    run.alter = lambda request, reply: [] if lost.random() < 0.3 else [reply]
    run.server.max_retries = 100
    assert run.play(30).x.tobytes() == calm.play(30).x.tobytes()
    assert run.server.counts["retries"] > 10


def test_coins_of_fedpd_depend_on_the_seed_alone():
    def coins(seed):
        strategy = OpenRun(FedPD(**SKIPPING), q6(), seed=seed).server.strategy
        return [strategy.skips(t) for t in range(1, 1001)]

    assert coins(1) == coins(1) != coins(2)
    assert 430 < sum(coins(1)) < 570


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


# --- FedDyn and 5GCS ------------------------------------------------------------------------------


def test_the_rule_of_feddyn_is_larger_where_few_take_part():
    # By sqrt(mu L), whoever takes part, 1 of 20 rose to 600 times F(x0) - F* here.
    problem = quadratics(clients=20, columns=24, condition=1e3, shared=False)
    history = simulate(FedDyn(participation=Sample(count=1)), problem, 500, engine="stacked")
    share = (history["objective"] - problem.optimum.value) / -problem.optimum.value
    assert share.max() < 100
    assert share[-1] < 1e-3


def test_resets_of_feddyn_travel_through_messages():
    strategy = FedDyn(proximal=10.0, mirror=False, participation=Sample(count=3))
    run, direct = (OpenRun(strategy, q6()) for _ in range(2))
    exchange, contexts = wire_exchange(run)
    for t in range(30):
        if t == 12:
            contexts[2].state.clear()
            lose(direct, 2)
        run.round(exchange)
        assert run.x.tobytes() == direct.play().x.tobytes()
    assert run.state.resets == direct.state.resets == 1


@pytest.mark.parametrize("count", [6, 3, 1])
def test_fivegcs_with_thirty_gradient_steps(count):
    solver = GradientDescent(steps=30)
    strategy = FiveGCS(participation=Sample(count=count), local_solver=solver)
    run = OpenRun(strategy, q6()).play(500)
    assert distance(run) < 1e-15
    assert run.server.work["evaluations"] == 500 * count * 30


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
