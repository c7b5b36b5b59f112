"""Methods that are another one, where something is left out of them or everyone is alike."""

from __future__ import annotations

import math

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.cfedda import ball_problem
from harness import OpenRun
from problems import HALF, q6, q6_l1, q6_limited
from q6_runs import PSI, STEPS, prox

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.objectives import LossBound, Quadratic
from flower_fedcon.regularizers import L1, Zero
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import (
    CFedDA,
    FastFedDA,
    FedAvg,
    FedDR,
    FedDualAvg,
    FedDyn,
    FedExProx,
    FedFW,
    FedFWPlus,
    FedLin,
    FedMiD,
    FedPD,
    FedProx,
    FedSGM,
    MCFedDA,
    Scaffnew,
    Scaffold,
)

LONG = {"client_lr": 1 / 200, "local_steps": 3, "server_lr": 1.5, **HALF}
FALLING = {"client_lr": InverseSqrt(1 / 40), "local_steps": 3}
ONE = {"client_lr": 1 / 40, "local_steps": 1}
DA = {"strong_convexity": 1.0, "damping": 100.0, "local_steps": 5}
SGM = {**STEPS, "tolerance": 0.1}
BITS = {"rel": 0, "abs": 0}
NEAR = {"rel": 0, "abs": 1e-14}


def one_client():
    return FederatedProblem([Quadratic([[2.0]], [4.0])])


def alike():
    return FederatedProblem([q6().objectives[0]] * 5, regularizer=PSI)


def idle():
    """Q6 with bounds of each client that never bind."""
    clients = q6().objectives
    return FederatedProblem([LossBound(f, 1e6) for f in clients], constraints="each")


@pytest.mark.parametrize(
    ("one", "rounds", "other", "others", "near", "problems"),
    [
        *((kind(Zero(), **LONG, server_prox_only=only), 40, FedAvg(**LONG), 40, NEAR, [q6])
          for kind in (FedMiD, FedDualAvg) for only in (False, True)),
        (FedDualAvg(PSI, **ONE, server_prox_only=True), 50, FedDualAvg(PSI, **ONE), 50, NEAR,
         [q6_l1]),
        (FedDualAvg(Zero(), **FALLING, server_lr=0.5), 5, FedAvg(**FALLING, server_lr=0.5), 5,
         {"rel": 1e-12}, [q6]),
        (FedLin(client_lr=0.02, local_steps=1), 20, FedAvg(client_lr=0.02, local_steps=1), 10,
         {"rel": 1e-13}, [q6]),  # gradient descent in pairs of rounds
        (Scaffold(client_lr=0.1, local_steps=3), 5, FedAvg(client_lr=0.1, local_steps=3), 5,
         {"rel": 0, "abs": 1e-15}, [one_client]),
        (Scaffold(**STEPS), 1, FedAvg(**STEPS), 1, BITS, [q6]),
        (FedExProx(step_size=0.25, extrapolation=1.0), 5, FedProx(proximal=4.0), 5,
         {"rel": 1e-14}, [q6]),
        *((FedSGM(**SGM, **rule), 100, FedAvg(**STEPS, **rule), 100, NEAR, [q6_limited, q6])
          for rule in ({}, {"participation": Sample(count=2)})),
        (FedSGM(**SGM, constraints="each"), 50, FedAvg(**STEPS), 50, NEAR, [idle, q6]),
        *((kind(PSI, **DA, participation=Sample(count=2)), 40, kind(PSI, **DA), 40, NEAR, [alike])
          for kind in (FastFedDA, CFedDA, MCFedDA)),
        *((MCFedDA(PSI, **DA, **HALF, stages=[(1, radius, 20)]), 50,
           CFedDA(PSI, **DA, **HALF, radius=radius), 50, BITS, [ball_problem])
          for radius in (None, 0.2)),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "title") else "",
)  # fmt: skip
def test_one_method_is_another(one, rounds, other, others, near, problems):
    first = simulate(one, problems[0](), rounds, on_mismatch="warn")
    second = simulate(other, problems[-1](), others, on_mismatch="warn")
    assert first.x == pytest.approx(second.x, **near)
    if "average" in first.outputs and "average" in second.outputs and near is BITS:
        assert first.outputs["average"].tobytes() == second.outputs["average"].tobytes()
    if isinstance(one, FedSGM):
        assert set(first["sigma"]) == {0.0}


# --- written out ----------------------------------------------------------------------------------


def walks(strategy, problem, models, near=1e-14):
    """Assert that a run has these models, one after another."""
    run = OpenRun(strategy, problem)
    for x in models:
        assert run.play().x == pytest.approx(x, rel=0, abs=near)


def test_one_client_is_the_proximal_point_method():
    f, x, models = q6().objectives[0], np.zeros(8), []
    for _ in range(20):
        models.append(x := prox(f, x, 1 / 5.0))
    walks(FedProx(proximal=5.0), FederatedProblem([f]), models)


def proximal_gradient(gradient, rounds):
    x, models = np.zeros(8), []
    for _ in range(rounds):
        models.append(x := PSI.prox(x - gradient(x) / 40, 1 / 40))
    return models


def test_one_step_is_proximal_gradient():
    f, more = q6().objectives[0], {"regularizer": PSI, "client_lr": 1 / 40}
    alone = FederatedProblem([f], regularizer=PSI)
    walks(Scaffnew(communication_probability=1.0, **more), alone, proximal_gradient(f.gradient, 29))
    walks(FedMiD(**more, local_steps=1, server_prox_only=True), q6_l1(),
          proximal_gradient(q6_l1().gradient, 50))  # fmt: skip


def test_one_step_is_dual_averaging():
    problem, total, x, models = q6_l1(), np.zeros(8), np.zeros(8), []
    for t in range(1, 51):
        total = total + problem.gradient(x)
        models.append(x := PSI.prox(-total / 40, t / 40))
    walks(FedDualAvg(PSI, **ONE), problem, models)


@pytest.mark.parametrize("kind", [FastFedDA, CFedDA])
def test_one_step_is_dual_averaging_with_the_modulus(kind):
    """In c_t = gamma + mu t/2."""
    problem, models = q6_l1(), []
    gradients, points, w = np.zeros(8), np.zeros(8), np.zeros(8)
    for t in range(1, 101):
        gradients, points = gradients + problem.gradient(w), points + w
        c = 100 + t / 2
        models.append(w := PSI.prox((points / 2 - gradients) / c, t / c))
    walks(kind(PSI, **{**DA, "local_steps": 1}), problem, models)


def test_a_stage_is_cfedda_from_the_last_one_s_model():
    problem = q6_l1()
    stages = [(4.0, 0.1, 15), (2.0, math.inf, 10), (1.0, 0.3, 5)]
    found = simulate(MCFedDA(PSI, **DA, stages=stages), problem, 42).x
    x = problem.start
    for multiple, radius, rounds in [(4.0, 0.1, 15), (2.0, None, 10), (1.0, 0.3, 17)]:
        part = FederatedProblem(list(problem.objectives), regularizer=PSI, x0=x)
        stage = CFedDA(L1(0.6 * multiple), **DA, radius=radius)
        x = simulate(stage, part, rounds, on_mismatch="warn").x
    assert found.tobytes() == x.tobytes()


@pytest.mark.parametrize("kind", [FedFW, FedFWPlus])
def test_one_client_is_plain_frank_wolfe(kind):
    objective, ball = q6().objectives[0], L1Ball(5.0)
    x, models = np.zeros(8), []
    for t in range(1, 41):
        models.append(x := ball.lmo(objective.gradient(x)).mix(x, 2 / (t + 1)))
    walks(kind(ball, penalty=7.0), FederatedProblem([objective], constraint=ball), models)


def splitting(problem, eta, alpha, start, rounds=40):
    """Douglas-Rachford splitting over the clients, relaxed by alpha: its xbar, round by round."""
    psi = problem.regularizer or Zero()
    y, models = np.tile(start, (6, 1)), []
    xbar = x = np.zeros(8)  # the first round starts at y = x0
    for _ in range(rounds):
        y = y + alpha * (xbar - x)
        x = np.array([prox(f, v, eta) for f, v in zip(problem.objectives, y, strict=True)])
        models.append(xbar := psi.prox(np.mean(2 * x - y, axis=0), eta))
    return models


def test_all_are_douglas_rachford_when_everyone_takes_part():
    models = splitting(q6(), 0.1, 1.0, np.zeros(8))
    for strategy in (FedPD(step_size=0.1), FedDR(None, step_size=0.1), FedDyn(proximal=10.0)):
        walks(strategy, q6(), models)
    first = simulate(FedProx(proximal=10.0), q6(), 1).x
    assert models[0] == pytest.approx(2 * first, abs=1e-15)  # from x0 = 0, u_i = 2 x_i


def test_feddr_is_relaxed_splitting_of_the_composite_problem():
    problem = FederatedProblem(q6().objectives, regularizer=PSI, x0=np.ones(8))
    strategy = FedDR(PSI, step_size=0.1, relaxation=1.7)
    walks(strategy, problem, splitting(problem, 0.1, 1.7, np.ones(8)))


def test_with_relaxation_2_it_is_fedsplit():
    """z_i := z_i + 2 (prox_i(2 xbar - z_i) - xbar), with xbar the mean of the z_i."""
    objectives, eta, models = q6().objectives, 1 / np.sqrt(20), []
    # The first round has no xbar yet: z_i = 2 prox_i(0) - 0.
    z = np.array([2 * prox(f, np.zeros(8), eta) for f in objectives])
    for _ in range(40):
        models.append(xbar := z.mean(axis=0))
        stepped = [prox(f, 2 * xbar - v, eta) for f, v in zip(objectives, z, strict=True)]
        z = z + 2 * (np.array(stepped) - xbar)
    walks(FedDR(None, step_size=eta, relaxation=2.0), q6(), models)
