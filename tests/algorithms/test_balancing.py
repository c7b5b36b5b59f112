"""Penalties that balance residuals: when they change, and what clients make of that."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from everywhere import agrees_everywhere
from harness import OpenRun, client_states
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import q6
from q6_runs import distance, lose

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.clients import FedDRClient
from flower_fedcon.clients.feddr import FedDRClientState
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems.papers.quadratics import quadratics
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedDR, FedDyn, FedPD
from flower_fedcon.strategies.families.balancing import Balance

ALL = [
    lambda **more: FedDyn(proximal="balanced", **more),
    lambda **more: FedDR(L1(0.0), step_size="balanced", **more),
    lambda **more: FedPD(step_size="balanced", **more),
]
SAMPLED = ALL[:2]
HALF, ONE = Sample(count=3), Sample(count=1)


def ill(seed=1, condition=1e5, **more):
    return quadratics(clients=6, columns=8, condition=condition, seed=seed, **more)


def aligned():
    """Where the rules' penalties are too large by far."""
    return ill(directions="aligned")


def penalties(strategy, problem, rounds):
    """Return the penalty of each round."""
    run, found = OpenRun(strategy, problem), []
    for _ in range(rounds):
        found.append(run.state.balance.penalty)
        run.play()
    return found


def test_when_a_penalty_changes():
    # Windows of 2 from x0 = 0. Means 1.5, then 2: x - x' = .5; a = sqrt(gap pull), b = rho .5 2.
    def decided(gap, pull, penalty=3.0):
        balance = Balance.start(penalty, np.zeros(1))
        for x in (1.0, 2.0, 2.0, 2.0):
            balance = balance.after(np.array([x]), gap, pull, 2)
        return balance.penalty / penalty

    assert decided(100.0, 10.0) == 2.0  # a = 31.6 > 10 b = 30
    assert decided(100.0, 8.9) == 1.0
    assert decided(0.3, 0.29) == 0.5  # 10 a = 2.95 < b = 3
    assert decided(0.3, 0.31) == 1.0
    assert decided(0.0, 0.0) == 1.0  # nothing is known of a problem that is solved
    for gap, move in ((1.0, 1e-15), (1e-31, 1e-3)):  # one of the two is a rounding error
        balance = Balance.start(1.0, np.zeros(1))
        for k in range(9):
            balance = balance.after(np.array([2.0 + move * (k % 2)]), gap, 1.0, 1)
        assert balance.changes == 0
    balance = Balance.start(1.0, np.zeros(1))
    for k in range(100):
        balance = balance.after(np.array([2.0 + 1e-9 * k]), 1.0, 1.0, 1)
    assert (balance.changes, balance.penalty) == (20, 2.0**20)


@pytest.mark.parametrize(
    ("make", "participation"),
    [*((make, None) for make in ALL), *((make, part) for make in SAMPLED for part in (HALF, ONE))],
)
def test_the_optimum_is_reached(make, participation):
    problem, rounds = ill(condition=100.0, shared=False), 150 if participation is None else 600
    history = simulate(make(participation=participation), problem, rounds, engine="stacked")
    best = problem.optimum.value
    assert history["objective"][-1] - best < 1e-5 * -best


def test_fewer_rounds_than_the_rule():
    problem = quadratics(clients=10, columns=12, condition=1e5, shared=False, seed=1)
    runs = [
        simulate(FedDyn(proximal=value), problem, 60, engine="stacked")
        for value in (None, "balanced")
    ]
    rule, balanced = (run["objective"][-1] - problem.optimum.value for run in runs)
    assert balanced < 1e-3 * rule
    assert runs[1]["penalty"][-1] > 8 * runs[1]["penalty"][0]


def test_multipliers_keep_their_meaning_when_the_penalty_changes():
    """FedPD keeps lambda_i itself, FedDR its product with eta: with everyone they are one."""
    problem = aligned()
    known = penalties(FedDR(None, step_size="balanced"), problem, 30)
    assert len(set(known)) > 2
    dr = simulate(FedDR(None, step_size="balanced"), problem, 30)
    pd = simulate(FedPD(step_size="balanced"), problem, 30)
    assert pd["objective"] == pytest.approx(dr["objective"], rel=1e-9)


def test_a_client_that_was_away_rescales_once():
    client = FedDRClient(Quadratic(np.eye(1), np.zeros(1)))
    client.relaxation, client.step_size, client.local_solver = 1.0, 9.0, None
    x, y = np.array([2.0]), np.array([5.0])  # g = rho (y - x) = 12 with rho = 4
    state, down = FedDRClientState(y, x, 2 * x - y, 4.0), {"xbar": np.array([3.0]), "penalty": 16.0}
    for _ in range(2):  # a step whose reply was not used is done again
        steps = client.local_pass(state, down)
        assert (steps.center.item(), steps.shift) == (3.0 + 12.0 / 16.0, 16.0)
    after = state._replace(penalty=16.0, y=x + 0.75)
    assert client.local_pass(after, down).center.item() == 3.75  # not a second time


@pytest.mark.parametrize("make", SAMPLED)
def test_who_was_away_hears_of_it(make):
    problem = aligned()
    run = OpenRun(make(participation=HALF), problem).play(60)
    path = penalties(make(participation=HALF), problem, 60)
    assert len(set(path)) > 1
    states = client_states(run)
    if make is SAMPLED[1]:
        assert {state.penalty for state in states} <= {*path}
        rows = run.state.mirror.rows["xhat"]
        for row, state, f in zip(rows, states, problem.objectives, strict=True):
            assert row.tobytes() == state.xhat.tobytes()
            multiplier = state.penalty * (state.y - state.x)
            assert multiplier == pytest.approx(f.gradient(state.x), rel=1e-6, abs=1e-6)
    else:
        for row, state in zip(run.state.mirror.rows["variate"], states, strict=True):
            assert row.tobytes() == state.variate.tobytes()


@pytest.mark.parametrize("make", SAMPLED)
@pytest.mark.parametrize("seed", range(3))
def test_a_solved_problem_changes_no_penalty(make, seed):
    """FedDR's model moved by 1e-2 when rounding errors changed eta, which absent clients missed."""
    run = OpenRun(make(participation=HALF), q6(), seed=seed).play(200)
    for _ in range(20):
        assert distance(run.play(10)) < 1e-11


@pytest.mark.parametrize("make", SAMPLED)
def test_a_lost_state_heals(make):
    problem = q6()
    run = OpenRun(make(participation=HALF), problem).play(30)
    lose(run, 2)
    assert distance(run.play(400)) < 1e-7


@pytest.mark.parametrize("make", ALL)
def test_engines_wires_and_resumed_runs_agree(make, tmp_path):
    more = {} if make is ALL[2] else {"participation": HALF}
    agrees_everywhere(make(**more), aligned(), tmp_path, rounds=30, near={"rel": 1e-7}, work=False)


@settings(max_examples=10, deadline=None)
@given(power=st.integers(-6, 6), height=st.integers(-6, 6), seed=st.integers(0, 99))
def test_units_do_not_matter(power, height, seed):
    problem = ill(seed, shared=False)
    unit, factor = 2.0 ** (3 * power), 2.0 ** (3 * height)
    other = FederatedProblem(
        [Quadratic(factor * unit**2 * f.Q, factor * unit * f.b) for f in problem.objectives]
    )
    plain, scaled = (penalties(ALL[0](), p, 15) for p in (problem, other))
    assert scaled == pytest.approx([factor * unit**2 * rho for rho in plain], rel=1e-9)
    assert all(b / a in (0.5, 1.0, 2.0) for a, b in pairwise(plain))
