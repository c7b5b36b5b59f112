"""What DualFL keeps true, what its variants cost, and what a lost state does to it."""

from __future__ import annotations

import itertools
import logging
import math

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.dualfl import invariant, states
from harness import OpenRun, client_states, values
from nightly import nightly
from problems import q6, q6_objectives, two_clients
from q6_runs import lose, unknown

from flower_fedcon import Bernoulli, FederatedProblem, Sample, simulate
from flower_fedcon.core.participation import Full
from flower_fedcon.objectives import LogisticRegression, Quadratic
from flower_fedcon.problems import digits, quadratics
from flower_fedcon.solvers import AOGM, GradientDescent, gap_tolerance
from flower_fedcon.strategies import DualFL

HALF, ONE = Sample(count=3), Sample(count=1)
RULES = pytest.mark.parametrize("rule", [Full(), HALF, Bernoulli(0.4)], ids=repr)
STEPS = GradientDescent(steps=100_000)


def error(x, problem=None):
    return float(np.linalg.norm(x - (problem or q6()).optimum.x))


# --- the figures of the card ---------------------------------------------------------------------


def test_block_form_with_everyone_present_is_the_papers_without_momentum():
    full = OpenRun(DualFL(momentum=0.0), q6())
    block = OpenRun(DualFL(form="block"), q6())
    assert block.server.strategy.constants.ratio == 1.0
    for _ in range(2):  # beta_0 = 0: the same until then
        assert block.play().x == pytest.approx(full.play().x, abs=1e-14)


def test_digits():
    """Multinomial regression, 8 clients of 224 images: relative energies of the card."""
    problem = digits(clients=8, split="even", l2=1e-2, test_size=5)
    optimum = 0.740684312345
    solver = AOGM(tolerance=1e-9)
    history = simulate(DualFL(momentum=0.0, local_solver=solver), problem, 10)
    energy = np.array(history["objective"]) / optimum - 1
    found = energy[np.searchsorted(history["round"], [1, 2, 5, 10])]
    assert found == pytest.approx([2.6e-3, 8.0e-4, 1.3e-4, 6.8e-5], rel=0.03)
    # L is some 5.9: the default rho is nu/L = 1.7e-3, and changes little in 10 rounds
    history = simulate(DualFL(local_solver=solver), problem, 10, evaluate_every=0)
    assert history["objective"][-1] / optimum - 1 == pytest.approx(6.8e-5, rel=0.03)


@pytest.mark.parametrize("most", [20, nightly(100)])
def test_digits_with_few_labels_and_l1(most):
    problem = digits(l1=1e-3, l2=1e-3, test_size=0)
    solver = AOGM(tolerance=1e-4)
    strategy = DualFL(regularizer=problem.regularizer, form="paper", local_solver=solver)
    known = {10: 9.0e-1, 20: 3.9e-1, 50: 4.1e-2, 100: 1.3e-3}
    history = simulate(strategy, problem, most, evaluate_every=10)
    energy = np.array(history["objective"]) / problem.optimum.value - 1
    for number, value in known.items():
        if number <= most:
            assert energy[history["round"] == number] == pytest.approx(value, rel=0.06)


# --- the gap rule ---------------------------------------------------------------------------------


def gap_run(**settings):
    return OpenRun(DualFL(stopping="gap", local_solver=STEPS, **settings), q6(), 150)


def errors_at(run, *rounds):
    done, found = 0, []
    for r in rounds:
        found.append(error(run.play(r - done).x))
        done = r
    return found


def test_gap_rule_needs_few_inner_steps():
    run = gap_run()
    assert errors_at(run, 50, 100) == pytest.approx([1.4e-6, 5.5e-11], rel=0.05)
    assert errors_at(run, 50)[0] <= 1e-14
    assert run.server.work["iterations"] == pytest.approx(3576, rel=0.02)


def test_gap_rule_without_momentum():
    run = gap_run(momentum=0.0)
    exact = OpenRun(DualFL(momentum=0.0), q6(), 150).play(150)
    assert error(run.play(150).x) <= 2 * error(exact.x)
    broadcast = run.server.strategy.broadcast(run.state)
    assert broadcast["tolerance"] == gap_tolerance(
        150, num_clients=6, strong_convexity=run.server.strategy.constants.nu, momentum=0.0
    )


@pytest.mark.parametrize("momentum", [None, 0.0])
@pytest.mark.parametrize("condition", [10.0, 100.0, 1000.0])
def test_local_steps_are_those_of_an_accelerated_method(condition, momentum):
    """About sqrt(kappa) log(1/tolerance) a round, with constants.

    The paper analyses the local iterations after its rates, presumably in Theorems 3.4 and 3.5,
    whose statements were not available: this is derived. h is L-smooth and nu-strongly convex.
    After k steps h - h* <= (L + nu)/2 R^2 (1 - 1/sqrt kappa)^k, R the distance of the last round's
    minimiser, and the gap is at most kappa (h - h*).
    """
    problem = quadratics(clients=6, columns=20, condition=condition, seed=0)
    given = {} if momentum is None else {"momentum": momentum}
    run = OpenRun(DualFL(stopping="gap", local_solver=AOGM(), **given), problem, 200)
    done, at = 0, [np.zeros(20)] * 6
    for _ in range(30):
        tolerance = run.server.strategy.broadcast(run.state)["tolerance"]
        run.play()
        nu, L = run.server.strategy.constants.nu, max(f.smoothness for f in problem.objectives)
        most = 0.0
        for before, state in zip(at, client_states(run), strict=True):
            far = np.linalg.norm(state.x - before) + math.sqrt(2 * tolerance / nu)
            ratio = (L / nu) * (L + nu) / 2 * far**2 / tolerance
            most += 1 + math.sqrt(L / nu) * max(0.0, math.log(ratio))
        steps, done = run.server.work["iterations"] - done, run.server.work["iterations"]
        assert steps <= most
        at = [state.x for state in client_states(run)]


# --- invariants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 0.01, 0.05])
def test_momentum_tends_to_its_limit(rho):
    run = OpenRun(DualFL(momentum=rho), q6())
    betas = [run.play().state.beta for _ in range(200)]
    assert betas[0] == 0
    assert all(a < b + 1e-15 for a, b in itertools.pairwise(betas))
    if rho:
        assert run.state.t == pytest.approx(1 / math.sqrt(rho), rel=1e-6)
        assert betas[-1] == pytest.approx((1 - math.sqrt(rho)) / (1 + math.sqrt(rho)), rel=1e-6)
    else:
        t = 1.0
        for _ in range(200):
            t = (1 + math.sqrt(1 + 4 * t * t)) / 2
        assert run.state.t == pytest.approx(t, rel=1e-12)


@pytest.mark.parametrize("form", ["paper", "accelerated"])
def test_one_client_needs_one_round(form):
    problem = FederatedProblem(q6_objectives()[:1])
    assert error(simulate(DualFL(form=form), problem, 1).x, problem) <= 1e-14


@pytest.mark.parametrize(
    ("rule", "rho", "rounds", "near"), [(None, 1.0, 2, 1e-15), (ONE, 0.999, 120, 1e-14)]
)
def test_perfectly_conditioned_clients(rule, rho, rounds, near):
    """mu = L: rho = 1, where beta is 0/0, and two rounds suffice; it is cut where q < 1."""
    objectives = [Quadratic(2 * np.eye(3), b * np.ones(3)) for b in (1.0, 5.0)]
    run = OpenRun(DualFL(participation=rule), FederatedProblem(objectives))
    assert run.server.strategy.constants.rho == rho
    for number in (rounds, 20):
        assert run.play(number).x == pytest.approx(np.full(3, 1.5), rel=0, abs=near)


def test_start_does_not_enter_the_full_form():
    elsewhere = FederatedProblem(q6_objectives(), x0=np.full(8, 3.0))
    expected = simulate(DualFL(), q6(), 30).x
    assert simulate(DualFL(), elsewhere, 30).x == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("rule", [HALF, ONE, Bernoulli(0.4)], ids=repr)
def test_sampled_start_is_a_shift(rule):
    x0 = np.linspace(-1, 3, 8)
    strategy = DualFL(participation=rule)  # accelerated
    shifted = FederatedProblem([Quadratic(f.Q, f.b - f.Q @ x0) for f in q6_objectives()])
    run = OpenRun(strategy, FederatedProblem(q6_objectives(), x0=x0)).play(60)
    assert run.x == pytest.approx(x0 + OpenRun(strategy, shifted).play(60).x, abs=1e-12)
    assert error(run.play(540).x) <= 1e-14


def test_first_round_of_the_block_form():
    # r = 2, nu = 1, x0 = 1: z = 1, c = 1: f_j + x^2/2 - x.  2x - 4 + x - 1 = 0 -> 5/3 = theta;
    # x + 1 + x - 1 = 0 -> 0 = theta
    strategy = DualFL(participation=ONE, form="block")
    seen = {round(simulate(strategy, two_clients(), 1, seed=s).x.item(), 12) for s in range(20)}
    assert seen == {0.0, round(5 / 3, 12)}


def test_missing_reply_drops_its_term():
    """The dual step stays that of the cohort that was asked."""
    run = OpenRun(DualFL(participation=HALF, form="block"), q6()).play(5)
    before, asked, got = run.x, [], []

    def alter(request, reply):
        asked.append(request.client)
        if request.client == min(asked):
            return []
        got.append(values(reply)["theta"])
        return [reply]

    run.alter = alter
    run.play()
    expected = before - (2 / 6) * sum(before - theta for theta in got)
    assert len(got) == 2
    assert run.x == pytest.approx(expected, abs=1e-15)
    assert run.x == pytest.approx(states(run).mean(axis=0), abs=1e-13)


@RULES
def test_clients_that_are_not_strongly_convex(rule):
    """With alpha/2 ||x||^2 each, the optimum is that of F + alpha/2 ||x||^2."""
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((20, 4)), rng.choice([-1, 1], 20)) for _ in range(5)]
    problem = FederatedProblem([LogisticRegression(A, y) for A, y in data])
    regular = FederatedProblem([LogisticRegression(A, y, l2=0.1) for A, y in data])
    run = OpenRun(DualFL(regularization=0.1, participation=rule), problem).play(250)
    constants = run.server.strategy.constants
    assert constants.nu == 0.1
    assert constants.rho == pytest.approx(0.1 / max(f.smoothness for f in regular.objectives))
    assert error(run.x, regular) <= 1e-9


# --- lost states ----------------------------------------------------------------------------------

FORMS = pytest.mark.parametrize(
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


@FORMS
@pytest.mark.parametrize("mirror", [True, False])
def test_re_entry_ends_at_the_optimum(rule, form, mirror):
    problem = FederatedProblem(q6_objectives(), x0=np.full(8, 3.0))
    run = OpenRun(DualFL(participation=rule, form=form, mirror=mirror), problem).play(40)
    lose(run, 1)
    lose(run, 4)
    run.play(10)
    assert run.server.counts["lost"] == 2
    lose(run, 1)
    for _ in range(950 if form == "block" else 600):
        run.play()
        invariant(run)
    assert run.server.counts["lost"] == 3
    assert error(run.x) <= 2e-14


@FORMS
def test_mirror_returns_the_very_state(rule, form):
    strategy = DualFL(participation=rule, form=form)
    calm, run = (OpenRun(strategy, q6()).play(40) for _ in range(2))
    lose(run, 1)
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
    lose(run, 1)
    fresh = OpenRun(DualFL(mirror=False), FederatedProblem(q6_objectives(), x0=before)).play(30)
    assert run.play(30).x == pytest.approx(fresh.x, abs=1e-13)
    assert error(run.x) > 100 * error(OpenRun(DualFL(), q6()).play(70).x)  # what the reset costs


def test_server_keeps_no_mirror_without_being_asked():
    assert OpenRun(DualFL(mirror=False), q6()).state.mirror is None
    for form, names in (("block", {"z"}), ("accelerated", {"z", "e"})):
        sampled = OpenRun(DualFL(participation=HALF, form=form), q6()).state.mirror.rows
        assert {name: rows.shape for name, rows in sampled.items()} == dict.fromkeys(names, (6, 8))


# --- constants ------------------------------------------------------------------------------------


def test_a_momentum_beyond_the_theory_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        OpenRun(DualFL(momentum=0.05), q6())  # nu/L
        assert not caplog.records
        OpenRun(DualFL(momentum=0.1), q6())
    (record,) = caplog.records
    assert "momentum 0.1 is above nu/L = 0.05: neither a linear rate nor" in record.message


def test_unknown_constants_are_the_users_affair(caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        run = OpenRun(DualFL(strong_convexity=1.0), unknown())
        assert run.server.strategy.constants.rho == 0.0
        assert not caplog.records
        run = OpenRun(DualFL(strong_convexity=1.0, momentum=0.05), unknown())
    assert "at most nu/L, and the clients' smoothness L is unknown" in caplog.text
    assert error(run.play(100).x) == pytest.approx(3.16e-12, rel=0.5)
