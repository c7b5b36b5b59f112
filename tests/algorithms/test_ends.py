"""How many rounds methods need, what their states are in the end, and the constants of rules."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.dualfl import states
from harness import OpenRun, client_states, settled
from problems import q6, q6_l1
from q6_runs import PSI, STEPS, cohort, error, first_below, gradients, played, unknown

from flower_fedcon import Bernoulli, FederatedProblem, Sample, simulate
from flower_fedcon.objectives import LogisticRegression, Quadratic
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import (
    APDAInexact,
    CFedDA,
    CompositeFL,
    DualFL,
    FastFedDA,
    FedDR,
    FedDyn,
    FedPD,
    FiveGCS,
    Scaffnew,
    Scaffold,
)

TIGHT = GradientDescent(tolerance=1e-8)
THREE, TWO, ONE = ({"participation": Sample(count=count)} for count in (3, 2, 1))


@pytest.mark.parametrize(
    ("strategy", "problem", "first"),
    [
        # Measured elsewhere, with other cohorts: one round of counting, a fifth under sampling.
        # Where the contract has a case "on the way", that says it of everyone.
        (Scaffold(**cohort(2)), q6, (208, 314)),
        (CompositeFL(PSI, **cohort(3)), q6_l1, (177, 267)),
        (CompositeFL(PSI, **cohort(2)), q6_l1, (176, 266)),
        (Scaffnew(), q6, (59, 89)),
        (Scaffnew(regularizer=PSI), q6_l1, (59, 89)),
        (FedDyn(proximal=10.0), q6, (44, 46)),
        (FedDyn(proximal=10.0, **THREE), q6, (86, 128)),
        (FedDyn(proximal=10.0, **ONE), q6, (328, 490)),
        (FedPD(step_size=0.1), q6, (44, 46)),
        (FedDR(None, step_size=0.1), q6, (43, 45)),
        (FedDR(PSI, step_size=0.1), q6_l1, (43, 45)),
        (FedDR(PSI, step_size=0.1, **TWO), q6_l1, (132, 198)),
        (FiveGCS(), q6, (62, 64)),
        (FiveGCS(**THREE), q6, (74, 110)),
        (FiveGCS(**ONE), q6, (180, 270)),
        (DualFL(), q6, (88, 88)),
        (DualFL(momentum=0.0), q6, (445, 445)),
        (DualFL(momentum=0.1), q6, (153, 159)),
        (DualFL(form="block"), q6, (356, 360)),
        (DualFL(form="block", **THREE), q6, (337, 505)),
        (DualFL(form="block", **ONE), q6, (423, 635)),
        (DualFL(form="accelerated"), q6, (78, 78)),
        (DualFL(**THREE), q6, (130, 185)),
        (DualFL(**ONE), q6, (300, 430)),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_rounds_to_ten_digits(strategy, problem, first):
    """Ten digits: an error below 1e-10."""
    low, high = first
    assert low <= first_below(1e-10, strategy, problem(), 1200) <= high


@pytest.mark.parametrize(
    ("strategy", "problem", "rounds", "most"),
    [
        (Scaffnew(), q6, 300, 3e-16),
        (Scaffnew(regularizer=PSI), q6_l1, 300, 3e-16),
        (CompositeFL(PSI, **STEPS), q6_l1, 600, 2e-14),
        (CompositeFL(PSI, **cohort(2)), q6_l1, 600, 2e-14),
        *((kind(PSI, strong_convexity=1.0, damping=100.0, local_steps=1), q6_l1, 2000, 3e-14)
          for kind in (FastFedDA, CFedDA)),
        (FastFedDA(PSI, strong_convexity=1.0, local_steps=1, weight_power=2), q6_l1, 300, 1e-14),
        (FedDyn(local_solver=TIGHT), q6, 200, 1e-9),
        (FedPD(step_size=0.1, local_solver=TIGHT), q6, 200, 1e-9),
    ],
    ids=lambda value: getattr(value, "title", ""),
)  # fmt: skip
def test_ends_within_rounding_or_the_solver_s_tolerance(strategy, problem, rounds, most):
    """Of the optimum in all its digits: the independent solver's has with L1 1.4e-11 less."""
    assert error(played(strategy, rounds, problem)) < most


def mirrored(run):
    return run.state.mirror.rows["c"]


@pytest.mark.parametrize(
    ("strategy", "problem", "rounds", "found", "expected"),
    [
        *((Scaffold(**cohort(3), option=option), q6, 600, mirrored, lambda g, x: g)
          for option in ("I", "II")),
        (CompositeFL(PSI, **cohort(2), server_lr=2.0), q6_l1, 600, mirrored,
         lambda g, x: g.mean(0) - g),
        (APDAInexact(primal_lr=0.1), q6, 2500, lambda run: settled(run, "y"), lambda g, x: -g),
        (FedDyn(**THREE), q6, 800,
         lambda run: [state.variate for state in client_states(run)], lambda g, x: g),
        (FedPD(step_size=0.1), q6, 300,
         lambda run: [state.dual for state in client_states(run)], lambda g, x: -g),
        (FedDR(None, step_size=0.1, **THREE), q6, 600,
         lambda run: [(s.y - run.x) / 0.1 for s in client_states(run)], lambda g, x: g),
        (FiveGCS(**THREE), q6, 600,
         lambda run: [state.variate for state in client_states(run)], lambda g, x: (g - x) / 6),
        *((DualFL(**rule, form=form), q6, rounds, states, lambda g, x: x - g)  # nu = 1
          for form, rounds in ((None, 500), ("block", 1000))
          for rule in ({}, THREE, {"participation": Bernoulli(0.4)})),
    ],
    ids=lambda value: getattr(value, "title", ""),
)  # fmt: skip
def test_states_are_the_gradients_at_the_optimum(strategy, problem, rounds, found, expected):
    run = played(strategy, rounds, problem)
    near = 1e-11 if strategy.name == "compositefl" else 1e-12
    assert np.array(found(run)) == pytest.approx(expected(gradients(run), run.x), abs=near)


# --- constants by rule: mu = 1 and L = 20 on the six quadratics ---------------------------------


@pytest.mark.parametrize(
    ("strategy", "constants"),
    [
        (APDAInexact(primal_lr=0.1),
         {"dual_lr": 1 / 3.2, "dual_damping": 1 / 20, "theta": max(2 / 2.1, 1 - 1 / 64)}),
        (Scaffnew(), {"client_lr": 1 / 20, "communication_probability": 20**-0.5}),
        (FedDyn(), {"alpha": 20**0.5}),
        (FiveGCS(**THREE), {"mu": 1, "gamma": 3 / 16 * (3 / (20 * 6)) ** 0.5,
                            "tau": 8 / 3 * (20 / (6 * 3)) ** 0.5}),
        (FiveGCS(primal_lr=0.1, strong_convexity=0.5), {"mu": 0.5, "gamma": 0.1, "tau": 1 / 1.2}),
        (DualFL(), {"nu": 1.0, "rho": 1 / 20}),
        (DualFL(**THREE), {"p": 0.5, "ratio": 2.0}),
    ],
    ids=lambda value: getattr(value, "title", ""),
)  # fmt: skip
def test_constants_follow_from_the_clients(strategy, constants, caplog):
    server = OpenRun(strategy, q6()).server
    known = {**server.info.settings, **server.strategy.constants._asdict()}
    assert {name: known[name] for name in constants} == pytest.approx(constants)
    assert not caplog.records


def test_constants_that_no_client_states_are_given(caplog):
    run = OpenRun(APDAInexact(primal_lr=0.1, dual_damping=1 / 20), unknown()).play(3)
    assert run.server.info.settings["theta"] == 1.0
    assert [r.message for r in caplog.records if "theta is 1" in r.message] == [
        "APDAInexact: the clients' strong convexity is unknown, so theta is 1, which may be slow. "
        "State `strong_convexity` in the objectives"
    ]
    assert OpenRun(Scaffnew(client_lr=0.01), unknown()).server.info.settings == {
        "client_lr": 0.01, "communication_probability": 0.1, "batch_size": None, "clip": None,
        "refresh_probability": None,
    }  # fmt: skip
    one = FederatedProblem([Quadratic([[1]], [1])])
    simulate(FiveGCS(strong_convexity=0.1, primal_lr=0.1), one, 1)
    flat = LogisticRegression(np.array([[1.0, 2.0]]), np.array([1.0]))  # mu = 0
    problem = FederatedProblem([flat, flat])
    tenth = simulate(FedDyn(proximal=flat.smoothness / 10), problem, 3).x
    assert simulate(FedDyn(), problem, 3).x == pytest.approx(tenth, rel=1e-12)
