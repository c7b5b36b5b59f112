"""DualFL's accelerated form: the figures of its card, absent clients, and its rate."""

from __future__ import annotations

import runpy
from pathlib import Path

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.dualfl import Replay, invariant, pairs
from harness import OpenRun, values
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import q6, q6_objectives
from q6_runs import error, optimum
from scipy.stats import binom

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.core.participation import Full
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.solvers.extrapolation import move
from flower_fedcon.strategies import DualFL
from flower_fedcon.strategies.families.dual_states import next_t, round_numbers
from flower_fedcon.testing import check_algorithm
from flower_fedcon.wire.payloads import payload_bytes

HALF = Sample(count=3)


BEST = optimum(composite=False)


# --- absent clients -------------------------------------------------------------------------------


def lossy(rate, seed=0):
    """Return what drops a share of the replies, never all of a round."""
    rng = np.random.default_rng(seed)
    last = {}

    def alter(request, reply):
        first = last.get("round") != request.round
        last["round"] = request.round
        return [] if not first and rng.random() < rate else [reply]

    return alter


@pytest.mark.parametrize("rule", [Full(), HALF], ids=repr)
@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_lost_replies(rule, rate):
    strategy = DualFL(form="accelerated", participation=rule, reply_rate=1 - rate)
    run = OpenRun(strategy, q6(), alter=lossy(rate))
    for _ in range(12):
        run.play(50)
        invariant(run)
    assert error(run) <= 2e-15


def test_lost_reply_leaves_its_client_as_one_that_was_not_sampled():
    run = OpenRun(DualFL(form="accelerated"), q6()).play(5)
    before, state = pairs(run)[2], run.state
    known = run.server.strategy.constants
    run.alter = lambda request, reply: [] if request.client == 2 else [reply]
    now = [round_numbers(state.t, known.p, known.q, known.ratio)]
    run.play()
    now.append(round_numbers(run.state.t, known.p, known.q, known.ratio))
    run.play()
    after, state = pairs(run)[2], run.state
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    assert state.drift.tolist() == [0, 0, now[0].a + now[1].a * now[0].b, 0, 0, 0]
    assert state.left.tolist() == [1, 1, now[1].b * now[0].b, 1, 1, 1]
    invariant(run)


def test_round_without_a_reply_changes_nothing():
    run = OpenRun(DualFL(participation=HALF), q6()).play(5)
    state = run.state
    lost = []

    def alter(request, reply):
        lost.append(reply)
        return [] if len(lost) <= 3 else [reply]

    run.alter = alter
    calm = OpenRun(DualFL(participation=HALF), q6()).play(6)
    assert run.play().state.t == calm.state.t > state.t
    assert len(lost) == 6
    assert np.array_equal(run.x, calm.x)


def test_absent_clients_cost_two_numbers_each():
    """7 numbers down beside the vector, the origin at first contact; one vector up."""
    asked, got = [], []

    def alter(request, reply):
        asked.append(request.down)
        got.append(values(reply))
        return [reply]

    run = OpenRun(DualFL(participation=HALF), q6(), alter=alter).play(30)
    common = {"theta", "r", "chi", "a", "b", "k"}
    firsts = [down for down in asked if "origin" in down]
    assert len(firsts) == 6
    assert all(set(down) == common | {"origin"} for down in firsts)
    assert all(set(d) == common | {"drift", "left"} for d in asked if "origin" not in d)
    assert all(set(payload) == {"delta"} for payload in got)
    vector, number = payload_bytes({"": np.zeros(8)}), payload_bytes({"": 0.0})
    assert run.server.uplink_bytes == 90 * vector
    assert run.server.downlink_bytes == 96 * vector + (90 * 5 + 84 * 2) * number


@pytest.mark.parametrize(
    "settings",
    [
        {"form": "accelerated", "regularizer": L1(0.05)},
        {"participation": HALF, "reply_rate": 0.9},
        {"participation": Sample(count=2), "stopping": "gap", "mirror": False},
        {"participation": Sample(count=2), "form": "block"},
    ],
    ids=repr,
)
def test_every_form_is_sound(settings):
    check_algorithm(DualFL(strong_convexity=0.01, **settings))


def test_fixed_point_stays():
    """From z_j = theta* - grad f_j(theta*)/nu, e_j = 0 nothing moves."""
    run = OpenRun(DualFL(participation=HALF), q6()).play(600)
    before = run.x
    z, e = (np.array(vectors) for vectors in zip(*pairs(run), strict=True))
    expected = [BEST - f.gradient(BEST) for f in q6_objectives()]
    assert z == pytest.approx(np.array(expected), abs=1e-13)
    assert e == pytest.approx(np.zeros_like(e), abs=1e-13)
    assert run.play(20).x == pytest.approx(before, abs=1e-15)


# --- the gap rule ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Full(), HALF], ids=repr)
def test_gap_rule(rule):
    """A fraction of the inner steps, and about as many rounds."""
    common = {"form": "accelerated", "participation": rule}
    solver = GradientDescent(steps=100_000)
    gap = OpenRun(DualFL(stopping="gap", local_solver=solver, **common), q6()).play(120)
    tight = OpenRun(DualFL(local_solver=GradientDescent(tolerance=1e-10), **common), q6())
    tight.play(120)
    assert error(gap) <= max(1e-12, 20 * error(tight))
    assert gap.server.work["iterations"] < 0.5 * tight.server.work["iterations"]
    assert error(gap.play(180)) <= 1e-13


# --- the rate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("q", [0.0, 1e-4, 0.1, 0.999])
def test_points_are_averages_of_past_ones(p, q):
    """What the proof needs: x_j = z_j + e_j has weights >= 0 on what was found before."""
    rng, t, rounds = np.random.default_rng(0), 1.0, 150
    z, e = np.zeros(rounds + 1), np.zeros(rounds + 1)
    z[0] = 1.0  # the start
    for k in range(1, rounds + 1):
        now, t = round_numbers(t, p, q, 1.0), next_t(t, p, q)
        delta = np.zeros_like(z)
        if k == 1 or rng.random() < p:
            delta = np.eye(rounds + 1)[k] - (z + now.a * e)
        z, e = move(z, e, delta, now.a, now.b, now.k)
        assert (z + e).min() >= -1e-13
        assert (z + e).sum() == pytest.approx(1, abs=1e-12)


def test_the_notes_code():
    """It is the package's method, and the bound of its theorem holds in the mean of ten runs."""
    note = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "dualfl_sampling.py"))
    Q, b = (np.array([getattr(f, name) for f in q6_objectives()]) for name in "Qb")
    for rule in (3, 1, 6):
        models = note["dualfl"](Q, b, rule, 1.0, 0.05, 30, np.random.default_rng(0))
        *_, x = models
        cohorts = np.random.default_rng(0)
        replay = Replay([note["cohort"](rule, 6, cohorts).tolist() for _ in range(30)])
        run = OpenRun(DualFL(form="accelerated", participation=replay), q6())
        assert run.play(30).x == pytest.approx(x, abs=1e-12)
    for rule in (3, 1, 0.3):
        found = [
            [np.sum((x - BEST) ** 2) for x in note["dualfl"](Q, b, rule, 1.0, 0.05, 40, rng)]
            for rng in map(np.random.default_rng, range(10))
        ]
        share = np.mean(found, axis=0) / note["bound"](Q, b, rule, 1.0, 0.05, 40)
        assert 1e-6 < share.max() < 1
    assert note["least_weight"](0.3, 0.1, 1000) >= -1e-14


def test_constants_of_the_rules():
    """Bernoulli's probability of being used counts that empty draws are repeated."""
    b, n, rho = 0.3, 6, 0.05
    run = OpenRun(DualFL(participation=Bernoulli(b), reply_rate=0.8), q6())
    known = run.server.strategy.constants
    assert known.p == pytest.approx(0.24 / (1 - (1 - 0.24) ** n), rel=1e-14)
    assert known.ratio == pytest.approx(n / (b * n + 1 - b), rel=1e-14)
    K = known.ratio
    assert known.q == pytest.approx(K * rho / (K * rho + 1 - rho), rel=1e-14)
    known = OpenRun(DualFL(participation=HALF), q6()).server.strategy.constants
    assert (known.p, known.ratio) == (0.5, 2.0)


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 6),
    answers=st.floats(0.01, 1.0),
    alike=st.booleans(),
)
def test_p_is_of_the_rounds_that_count(size, answers, alike):
    """It is the mean share of clients that are used, given that anybody is."""
    rule = Bernoulli(size / 6) if alike else Sample(count=size)
    known = OpenRun(DualFL(form="accelerated", participation=rule, reply_rate=answers), q6())
    replies = binom(6, size / 6 * answers) if alike else binom(size, answers)
    mean = replies.mean() / replies.sf(0) / 6
    assert known.server.strategy.constants.p == pytest.approx(mean, rel=1e-9)


def test_void_rounds_and_p_go_together():
    """Rounds to 1e-10, one client asked a round, four of five replies lost."""
    note = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "dualfl_sampling.py"))
    Q, b = note["quadratics"]()
    best = np.linalg.solve(Q.mean(0), b.mean(0))

    def rounds(frozen, p=None):
        rng, common = np.random.default_rng(0), {"lost": 0.8, "frozen": frozen, "p": p}
        models = note["dualfl"](Q, b, 1, 1.0, 0.05, 5000, rng, **common)
        return next(k for k, x in enumerate(models, 1) if np.linalg.norm(x - best) <= 1e-10)

    right = rounds(frozen=True)
    assert right == pytest.approx(rounds(frozen=False), rel=0.1)
    assert rounds(frozen=True, p=0.2 / 6) > 1.8 * right
    run = OpenRun(DualFL(participation=Sample(count=1), reply_rate=0.2), q6())
    assert run.server.strategy.constants.p == pytest.approx(note["constants"](1, 6, 0.05, 0.8)[0])
    assert run.server.strategy.constants.p == pytest.approx(1 / 6)
