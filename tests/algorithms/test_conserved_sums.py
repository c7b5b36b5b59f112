"""What a lost state does to a sum over all clients: it is mirrored, or all start again.

Scaffold, CompositeFL, FedDyn and FiveGCS; alone, a client that starts again ruins the run.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from harness import OpenRun, client_states, latest
from problems import q6, q6_l1
from q6_runs import PSI, STEPS, after, cohort, distance, error, lose, losing_client_0

from flower_fedcon import FederatedProblem, Sample
from flower_fedcon.strategies import CompositeFL, FedDyn, FiveGCS, Scaffold

ROUNDING = 1e-14  # that of a BLAS: 1e-15 to 4e-15 by its kernels, and a wrong end is 0.17 away

# --- Scaffold and CompositeFL ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (Scaffold(**STEPS, mirror=False), q6),
        (Scaffold(**STEPS, mirror=False, option="I"), q6),
        (Scaffold(**cohort(2), mirror=False), q6),
        (CompositeFL(PSI, **STEPS, mirror=False), q6_l1),
        (CompositeFL(PSI, **STEPS, server_lr=2.0, mirror=False), q6_l1),
    ],
)
def test_without_mirror_all_start_again(strategy, problem):
    """Also who was not in that round's cohort: the sum is whole, and the run ends right."""
    run = after(lose, strategy, 1200, problem)
    assert run.state.resets == run.server.counts["lost"] == 1
    assert {latest(run, j).resets for j in range(6)} == {1}
    assert error(run) < ROUNDING
    states = [latest(run, j).c for j in range(6)]
    assert np.sum(states, axis=0) == pytest.approx(np.zeros(8), abs=1e-12)


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


# --- FedDyn and FiveGCS ----------------------------------------------------------------------


VARIATES = pytest.mark.parametrize(
    ("make", "wrong"),
    [(partial(FedDyn, proximal=10.0), 0.186), (FiveGCS, 0.191)],
    ids=["FedDyn", "FiveGCS"],
)
COHORTS = pytest.mark.parametrize("size", [6, 3, 1])


@VARIATES
@COHORTS
def test_control_variates_are_mirrored_or_reset(make, wrong, size):
    rounds = {6: 400, 3: 800, 1: 2400}[size]
    some = Sample(count=size)
    for mirror in (True, False):
        run = losing_client_0(make(mirror=mirror, participation=some), q6, rounds)
        assert distance(run) < 1e-15
    assert run.state.resets == 1
    total = run.state.h * 6 if isinstance(run.server.strategy, FedDyn) else run.state.v
    variates = [s.variate for s in client_states(run) if s.resets == 1]
    assert np.sum(variates, axis=0) == pytest.approx(total, abs=5 * ROUNDING)


@VARIATES
def test_a_reset_keeps_the_model_and_reaches_clients_that_were_away(make, wrong):
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
        total = run.state.h * 6 if isinstance(run.server.strategy, FedDyn) else run.state.v
        variates = [s.variate for s in client_states(run) if s.resets == 1]
        assert np.sum(variates, axis=0) == pytest.approx(total, abs=1e-13)
    # and a second loss resets once more
    lose(run, 3)
    run.play(500)
    assert run.state.resets == 2
    assert {s.resets for s in client_states(run)} == {2}
    assert distance(run) < 1e-15
