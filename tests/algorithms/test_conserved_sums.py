"""What a lost state does to a sum over all clients: it is mirrored, or all start again.

Scaffold, CompositeFL, FedDyn and FiveGCS.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from harness import OpenRun, client_states
from problems import q6, q6_l1
from q6_runs import PSI, STEPS, after, cohort, distance, error, lose

from flower_fedcon import FederatedProblem, Sample
from flower_fedcon.strategies import CompositeFL, FedDyn, FiveGCS, Scaffold

ROUNDING = 1e-14  # that of a BLAS: 1e-15 to 4e-15 by its kernels, and a wrong end is 0.17 away

VARIATES = [partial(FedDyn, proximal=10.0), FiveGCS]


@pytest.mark.parametrize(
    ("strategy", "problem", "rounds"),
    [
        (Scaffold(**STEPS, mirror=False), q6, 1200),
        (Scaffold(**STEPS, mirror=False, option="I"), q6, 1200),
        (Scaffold(**cohort(2), mirror=False), q6, 1200),
        (CompositeFL(PSI, **STEPS, mirror=False), q6_l1, 1200),
        (CompositeFL(PSI, **STEPS, server_lr=2.0, mirror=False), q6_l1, 1200),
        *((make(mirror=False, participation=Sample(count=size)), q6, rounds)
          for make in VARIATES for size, rounds in ((6, 400), (3, 800), (1, 2400))),
    ],
    ids=lambda value: getattr(value, "title", ""),
)  # fmt: skip
def test_without_mirror_all_start_again(strategy, problem, rounds):
    """Also who was not in that round's cohort: the sum is whole, and the run ends right."""
    run = after(lose, strategy, rounds, problem)
    assert run.state.resets == run.server.counts["lost"] == 1
    assert error(run) < ROUNDING
    states = client_states(run)
    if hasattr(states[0], "c"):
        assert {state.resets for state in states} == {1}
        assert np.sum([state.c for state in states], axis=0) == pytest.approx(0, abs=1e-12)
    else:
        assert variates(run) == pytest.approx(total(run), abs=5 * ROUNDING)


def total(run):
    """Return what the server takes for the sum of all variates."""
    return run.state.h * 6 if isinstance(run.server.strategy, FedDyn) else run.state.v


def variates(run):
    """Return the sum of those who have heard of the reset; the others count as 0."""
    return np.sum([s.variate for s in client_states(run) if s.resets == 1], axis=0)


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [(Scaffold(**STEPS, mirror=False), q6), (CompositeFL(PSI, **STEPS, mirror=False), q6_l1)],
    ids=["scaffold", "compositefl"],
)
def test_after_a_reset_the_run_is_a_new_one_from_its_model(strategy, problem):
    run = OpenRun(strategy, problem()).play(20)
    x = run.state.x if strategy.name == "scaffold" else run.state.x_bar
    lose(run, 2)
    start = FederatedProblem(run.problem.objectives, regularizer=run.problem.regularizer, x0=x)
    fresh = OpenRun(strategy, start)
    for _ in range(10):
        assert run.play().x.tobytes() == fresh.play().x.tobytes()


@pytest.mark.parametrize("make", VARIATES)
def test_a_reset_keeps_the_model_and_reaches_clients_that_were_away(make):
    run = OpenRun(make(mirror=False, participation=Sample(count=2)), q6()).play(40)
    before = run.x
    after = run.server.strategy.reset(run.state)
    assert run.server.strategy.model(after) == pytest.approx(before, abs=1e-15)
    lose(run, 0)
    while not run.server.counts["lost"]:
        run.play()
    old = {s.resets for s in client_states(run)}
    assert old == {0, 1}  # four of six have not heard of it
    # From now on the sum holds after every round, those who are still to reset counting as 0.
    for _ in range(20):
        run.play()
        assert variates(run) == pytest.approx(total(run), abs=1e-13)
    # and a second loss resets once more
    lose(run, 3)
    run.play(500)
    assert run.state.resets == 2
    assert {s.resets for s in client_states(run)} == {2}
    assert distance(run) < 1e-15
