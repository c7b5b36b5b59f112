"""FedSGM with compressed messages: what they change, who gets what, and what may be lost."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.fedsgm import BOTH, FIVE, LONG, STEPS, TENTH, WORKSHOP, cancer, constraint
from harness import OpenRun, complete, values, wire_exchange
from problems import Limited, q6_limited

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.compressors import QSGD, RandK, TopK
from flower_fedcon.core.protocol import TRAIN
from flower_fedcon.core.round import Round
from flower_fedcon.errors import RoundError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedSGM

# --- forms that agree, and rounds by hand --------------------------------------------------------


@pytest.mark.parametrize("switching", ["hard", "soft"])
def test_with_exact_compressors_error_feedback_changes_nothing(switching):
    """Identity down, and all entries up or down, as biased compressors."""
    everything, problem = TopK(fraction=1.0), cancer()
    plain = simulate(FedSGM(**WORKSHOP, switching=switching), problem, 60)
    for more in (
        {"uplink": everything},
        {"downlink": everything},
        {"uplink": everything, "downlink": everything},
    ):
        strategy = FedSGM(**WORKSHOP, switching=switching, **more)
        run = OpenRun(strategy, problem).play(60)
        assert run.server.strategy.constants.feedback
        assert run.x == pytest.approx(plain.x, abs=1e-12)
        for client in run.clients:
            assert not client.versions.pending.e.any()


def one_client(**settings):
    """f = ||x||^2/2 - 4 x_1 - 2 x_2, from 0, unit steps."""
    problem = FederatedProblem([Limited(Quadratic(np.eye(2), np.array([4.0, 2.0])))])
    return OpenRun(FedSGM(client_lr=0.5, local_steps=1, tolerance=1.0, **settings), problem)


def test_what_is_held_back_by_hand():
    # Gradients x - (4, 2); one entry goes up.  e after the round; x moves by half of what came.
    # 1: (-4, -2): sends -4, e = (0, -2): x = (2, 0).   2: (-2, -2) + e = (-2, -4): sends -4 for the
    # second, e = (-2, 0): x = (2, 2).   3: (-2, 0) + e = (-4, 0): sends all: x = (4, 2)
    run = one_client(uplink=TopK(count=1))
    for x, e in (([2, 0], [0, -2]), ([2, 2], [-2, 0]), ([4, 2], [0, 0])):
        run.play()
        assert run.x.tolist() == x
        assert run.clients[0].versions.pending.e.tolist() == e


def test_what_the_server_holds_back_by_hand():
    # 1: x = (2, 1), the larger entry goes down: w = (2, 0).   2: from w: gradient (-2, -2), x =
    # (3, 2), x - w = (1, 2): w = (2, 2).   3: gradient (-2, 0), x = (4, 2): w = (4, 2)
    run = one_client(downlink=TopK(count=1))
    for x, w in (([2, 1], [2, 0]), ([3, 2], [2, 2]), ([4, 2], [4, 2])):
        run.play()
        assert run.state.x.tolist() == x
        assert run.x.tolist() == w


def test_randk_is_scaled_only_without_error_feedback():
    half = RandK(fraction=0.5)
    for more, scaled in (({}, True), (BOTH, False), ({"downlink": TopK(count=1)}, False)):
        run = OpenRun(FedSGM(**FIVE, **{**more, "uplink": half}), q6_limited()).play()
        assert run.server.strategy.constants.uplink_compressor.scaled is scaled
        assert run.clients[0].uplink_compressor.scaled is scaled
        assert run.server.strategy.constants.feedback is not scaled
    both = OpenRun(FedSGM(**FIVE, downlink=half), q6_limited())
    assert both.server.strategy.constants.downlink_compressor == RandK(fraction=0.5, scaled=False)


# --- messages and state --------------------------------------------------------------------------


class Lossy:
    """An engine that loses a tenth of another one's replies."""

    def __init__(self, engine, draws):
        self.engine, self.draws, self.lost = engine, draws, []

    def answer(self, request):
        arrived = []
        for reply in self.engine.answer(request):
            if self.draws.random() > 0.1:
                arrived.append(reply)
            else:
                self.lost += reply.clients
        return arrived


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"uplink": RandK(fraction=0.1)},
        {"uplink": QSGD(levels=100)},
        {"uplink": TopK(fraction=0.1)},
        {"downlink": TopK(fraction=0.1)},
        {"uplink": RandK(count=3), "downlink": QSGD(levels=100)},
    ],
    ids=str,
)
@pytest.mark.parametrize("participation", [None, Sample(count=4)])
def test_messages_carry_every_form(more, participation):
    """Also where clients forget between the query and the step, and replies are lost."""
    strategy = FedSGM(**WORKSHOP, **more, participation=participation, min_replies=3)
    faults = np.random.default_rng(1)
    run, direct = OpenRun(strategy, cancer()), OpenRun(strategy, cancer())
    wire, contexts = wire_exchange(run)
    lossy = Lossy(wire, faults)
    again = np.random.default_rng(1)
    direct.alter = lambda request, reply: [reply] if again.random() > 0.1 else []
    for _ in range(25):
        run.round(lossy)
        direct.play()
        assert run.x.tobytes() == direct.x.tobytes()
    assert lossy.lost
    assert run.server.counts == direct.server.counts
    assert run.server.downlink_bytes == direct.server.downlink_bytes
    under_way = Round.begin(run.server)
    under_way.take(wire.answer(under_way.next_request()))
    step = under_way.next_request()
    assert (step.phase, step.clients) == (TRAIN, run.server.cohort)
    for client in run.server.cohort:
        contexts[client].state.clear()
    forgotten = wire.answer(step)
    assert [reply.lost for reply in forgotten] == [True] * len(run.server.cohort)
    under_way.take(forgotten)
    complete(under_way, wire)
    assert run.server.counts["lost"] == len(run.server.cohort)


def test_increments_go_to_who_has_built_on_the_last_model():
    strategy = FedSGM(**FIVE, **BOTH, participation=Sample(count=3))
    seen = []

    def alter(request, reply):
        names = {name.partition(".")[0] for name in request.down}
        seen.append((request.round, request.client, names))
        return [reply]

    OpenRun(strategy, q6_limited(), alter=alter).play(40)
    cohorts: dict[int, set[int]] = {}
    for number, client, _ in seen:
        cohorts.setdefault(number, set()).add(client)
    asked = [entry for entry in seen if entry[2] != {"sigma"}]
    assert len(asked) == 3 * 40
    for number, client, names in asked:
        assert names == ({"increment"} if client in cohorts.get(number - 1, ()) else {"w"})


def test_compression_saves_bytes_both_ways():
    plain, small = (
        simulate(FedSGM(**WORKSHOP, **more), cancer(), 50, evaluate_every=0)
        for more in ({}, {"uplink": TopK(count=1), "downlink": TopK(count=1)})
    )
    # 30 numbers of 8 bytes, or an index of 4 and a value of 8, in one or two headers of 128
    assert plain["uplink_bytes"] - small["uplink_bytes"] == 10 * 50 * (240 + 128 - 12 - 256)
    assert small["downlink_bytes"] < plain["downlink_bytes"]


@pytest.mark.parametrize("more", [{}, {"uplink": RandK(fraction=0.5)}], ids=["plain", "RandK"])
@pytest.mark.parametrize("participation", [None, Sample(count=4)])
def test_without_error_feedback_there_is_nothing_to_lose(more, participation):
    strategy = FedSGM(**WORKSHOP, **more, participation=participation)
    calm, run = (OpenRun(strategy, cancer()).play(10) for _ in range(2))
    assert run.clients[1].versions.pending in (None, (None, None))
    for j in range(10):
        run.clients[j] = run.new_client(j)
    calm.play(20)
    run.play(20)
    assert run.x.tobytes() == calm.x.tobytes()


class Recorded(OpenRun):
    """A run that remembers what was asked."""

    def answer(self, request):
        vars(self).setdefault("requests", []).append(request)
        return super().answer(request)


@pytest.mark.parametrize("participation", [None, Sample(count=10)])
def test_a_lost_state_costs_a_dense_model_and_what_was_held_back(participation):
    problem = cancer(clients=20)
    strategy = FedSGM(**LONG, **TENTH, participation=participation)
    calm, run = OpenRun(strategy, problem).play(100), Recorded(strategy, problem).play(100)
    j = run.state.used[0]
    replies = []

    def alter(request, reply):
        if request.client == j:
            replies.append(reply)
        return [reply]

    assert np.linalg.norm(run.clients[j].versions.pending.e) > 0.1
    before, run.clients[j], run.alter = run.x, run.new_client(j), alter
    while run.server.counts["lost"] == 0:
        before = run.x
        run.play()
    given = next(request.restore[j] for request in run.requests if j in request.restore)
    assert given["w"].tobytes() == before.tobytes()
    kept = run.clients[j].versions.pending
    assert kept.w.tobytes() == before.tobytes()
    owed = kept.e + values(replies[-1])["delta"].dense()
    fresh = run.new_client(j)  # what it owes is this round's step alone
    v = before
    for _ in range(5):
        v = v - 0.1 * fresh.direction(v, run.state.switch.sigma)
    assert owed == pytest.approx((before - v) / 0.1, rel=1e-12)
    # no trace stays: both end where the card says
    calm.play(500 - calm.server.round)
    run.play(500 - run.server.round)
    found, expected = (r.server.strategy.outputs(r.state)["average"] for r in (run, calm))
    assert problem.objective(found) == pytest.approx(problem.objective(expected), rel=0.02)
    assert constraint(problem, found) == pytest.approx(constraint(problem, expected), rel=0.02)


def test_a_failed_round_does_not_mislead_who_holds_what():
    """The increments are counted by the rounds that were applied, not by those that began."""
    silent = {"now": False}

    def alter(request, reply):
        return [] if silent["now"] else [reply]

    run = OpenRun(FedSGM(**FIVE, **BOTH, participation=Sample(count=3)), q6_limited(), alter=alter)
    for number in range(1, 60):
        silent["now"] = number % 7 == 3
        if silent["now"]:
            with pytest.raises(RoundError):
                run.play()
            continue
        before = run.x
        run.play()
        for client in run.server.cohort:
            assert run.clients[client].versions.pending.w.tobytes() == before.tobytes()


def test_single_precision_stays_single():
    data = [(np.eye(5) * (1 + j), np.arange(5.0) - j) for j in range(3)]
    clients = [
        Limited(Quadratic(*(a.astype(np.float32) for a in d)), slope=0.5, level=0.2) for d in data
    ]
    run = OpenRun(FedSGM(**STEPS, tolerance=0.1, **BOTH), FederatedProblem(clients)).play(20)
    state, client = run.state, run.clients[0].versions.pending
    assert 0 < state.average.weight < 20
    average = run.server.strategy.outputs(state)["average"]
    for array in (state.x, state.w, state.average.total, average, client.w, client.e):
        assert array.dtype == np.float32
    assert state.increment["increment.values"].dtype == np.float32
