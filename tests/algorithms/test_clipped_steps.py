"""Local gradient steps that are clipped, or whose length follows a schedule."""

from __future__ import annotations

import numpy as np
import pytest
from everywhere import agrees_everywhere
from loops import by_loops
from problems import HALF, q6

from flower_fedcon import Sample, simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.registry import algorithms, client_class
from flower_fedcon.regularizers import L1, Zero
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.solvers import SGD
from flower_fedcon.strategies import (
    AREA,
    MIFA,
    TAMUNA,
    CompositeFL,
    FedAvg,
    FedDualAvg,
    FedDyn,
    FedLin,
    FedMiD,
    FedVARP,
    Scaffnew,
    Scaffold,
)

STEPS = {"client_lr": 1 / 64, "local_steps": 3}
PSI = L1(0.1)
EXACT = {
    "area": lambda clip: AREA(client_lr=1 / 20, local_steps=1, clip=clip),
    "mifa": lambda clip: MIFA(client_lr=1 / 20, local_steps=1, clip=clip),
    "fedvarp": lambda clip: FedVARP(client_lr=1 / 20, local_steps=1, clip=clip),
    "scaffold": lambda clip: Scaffold(**STEPS, clip=clip),
    "scaffold I": lambda clip: Scaffold(**STEPS, option="I", clip=clip),
    "compositefl": lambda clip: CompositeFL(Zero(), **STEPS, clip=clip),
    "fedlin": lambda clip: FedLin(**STEPS, clip=clip),
    "scaffnew": lambda clip: Scaffnew(client_lr=1 / 40, clip=clip),
    "tamuna": lambda clip: TAMUNA(client_lr=1 / 40, clip=clip, participation=Sample(count=4)),
}
METHODS = {
    **EXACT,
    "fedavg": lambda clip: FedAvg(**STEPS, clip=clip, regularizer=PSI, **HALF),
    "fedmid": lambda clip: FedMiD(PSI, **STEPS, clip=clip),
    "feddualavg": lambda clip: FedDualAvg(PSI, **STEPS, clip=clip),
    "feddualavg server": lambda clip: FedDualAvg(PSI, **STEPS, clip=clip, server_prox_only=True),
}


def cut(g, clip):
    return g * min(1.0, clip / np.linalg.norm(g))


def for_psi(strategy):
    return q6(getattr(strategy.regularizer, "weight", 0.0))


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_end_where_the_clipped_gradients_balance(name):
    """At the optimum if all gradients there, 10 to 15 long, are shorter; else elsewhere."""
    problem = q6()
    longest = max(np.linalg.norm(f.gradient(problem.optimum.x)) for f in problem.objectives)
    rounds = 700 if name in ("area", "mifa", "fedvarp", "tamuna") else 300
    for clip in (16.0, 12.0):
        x = simulate(EXACT[name](clip), problem, rounds, evaluate_every=0, engine="stacked").x
        balance = sum(cut(f.gradient(x), clip) for f in problem.objectives)
        assert np.linalg.norm(balance) < 1e-6
        far = np.linalg.norm(x - problem.optimum.x)
        assert far < 1e-7 if clip > longest else 0.05 < far < 0.1


@pytest.mark.parametrize("name", METHODS)
def test_every_engine_clips_alike(name):
    pytest.importorskip("jax")
    problem = for_psi(made := METHODS[name](4.0))
    near = {"rel": 1e-13, "abs": 1e-15}
    local = agrees_everywhere(made, problem, rounds=6, engines=("stacked", "jax"), near=near)
    assert np.linalg.norm(local.x - simulate(METHODS[name](None), problem, 6).x) > 1e-3


def test_the_steps_are_those_of_clipped_gradients():
    problem, w = q6(), q6().x0
    for _ in range(2):
        ends = []
        for f in problem.objectives:
            v = w
            for _ in range(3):
                v = v - cut(f.gradient(v), 4.0) / 64
            ends.append(v)
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(simulate(FedAvg(**STEPS, clip=4.0), problem, 2).x, w, rtol=1e-12)


@pytest.mark.parametrize("name", [n for n in METHODS if client_class(n.split()[0]).in_loops])
def test_a_loop_of_ones_own_clips_as_well(name):
    made = METHODS[name](4.0)

    def by_corrections(method, f):
        (x,) = method.start
        correction = method.begin([x])
        for _ in range(made.local_steps):
            (g,) = correction.apply_gradients([x], [f.gradient(x)])
            x = x - method.rate * g
        return [x]

    def by_steps(method, f):
        model = method.start
        optimizer = method.optimizer(model)
        for _ in range(made.local_steps):
            model = optimizer.step([f.gradient(*model)])
        return model

    if name == "scaffold I":
        return  # its loop keeps the mean of the gradients, which is option "II"
    direct = simulate(made, for_psi(made), 4).x
    for loop in (
        (by_corrections, by_steps)
        if name in ("area", "mifa", "fedvarp", "fedavg", "scaffold")
        else (by_steps,)
    ):
        np.testing.assert_allclose(by_loops(made, for_psi(made), 4, loop).x, direct, rtol=1e-12)


def test_a_loop_that_leaves_the_clipping_out_is_refused():
    def plain(method, f):
        return [method.start[0] - f.gradient(method.start[0]) / 64]

    with pytest.raises(FedConError, match="has taken no step with it"):
        by_loops(FedAvg(clip=1.0), q6(), 1, plain)


def test_all_others_say_why_they_do_not_clip():
    takes = {
        kind.name for kind in algorithms().values() if "clip" in client_class(kind.name).fields
    }
    assert takes == {name.split()[0] for name in METHODS}
    for kind in algorithms().values():
        said = kind.card().clipping
        if kind.name in takes:
            assert said.startswith("clip shortens gradients")
        elif "local_solver" in client_class(kind.name).fields:
            assert "SGD" in said
        else:
            assert "does not declare" not in kind.needs_gradient


# --- schedules -----------------------------------------------------------------------------------

FALLING = {"client_lr": InverseSqrt(1 / 40), "local_steps": 3}
SCHEDULED = {
    "feddualavg": lambda: FedDualAvg(PSI, **FALLING),
    "feddualavg server": lambda: FedDualAvg(PSI, **FALLING, server_prox_only=True),
    "fedlin": lambda: FedLin(**FALLING),
}


def test_dual_averaging_s_prox_counts_the_steps_that_there_were():
    problem, z, elapsed = q6(PSI.weight), q6().x0, 0.0
    for t in (1, 2, 3):
        eta, ends = 1 / 40 / np.sqrt(t), []
        for f in problem.objectives:
            v = z
            for k in range(3):
                v = v - eta * f.gradient(PSI.prox(v, elapsed + eta * k))
            ends.append(v)
        z, elapsed = np.mean(ends, axis=0), elapsed + 3 * eta
    found = simulate(FedDualAvg(PSI, **FALLING), problem, 3).x
    np.testing.assert_allclose(found, PSI.prox(z, elapsed), rtol=1e-12)


def test_fedlin_by_a_schedule_is_exact():
    history = simulate(SCHEDULED["fedlin"](), q6(), 800, evaluate_every=0, engine="stacked")
    assert np.linalg.norm(history.x - q6().optimum.x) < 1e-6


@pytest.mark.parametrize("name", SCHEDULED)
def test_every_engine_follows_the_schedule(name):
    pytest.importorskip("jax")
    made = SCHEDULED[name]()
    agrees_everywhere(made, for_psi(made), rounds=6, engines=("stacked", "jax"))


def test_a_loop_of_ones_own_follows_it_by_the_method_s_rate():
    def loop(method, f):
        (x,) = method.start
        correction = method.begin([x])
        for _ in range(3):
            (g,) = correction.apply_gradients([x], [f.gradient(x)])
            x = x - method.rate * g
        return [x]

    for made in (FedAvg(**FALLING), Scaffold(**FALLING)):
        np.testing.assert_allclose(
            by_loops(made, q6(), 4, loop).x, simulate(made, q6(), 4).x, rtol=1e-12
        )


def test_steps_of_a_solver_by_a_schedule_are_not_compiled_and_that_is_said(caplog):
    pytest.importorskip("jax")
    made = FedDyn(proximal=1.0, local_solver=SGD(epochs=2, batch_size=4, lr=InverseSqrt(0.01)))
    here, there = (
        simulate(made, q6(), 4, evaluate_every=4, engine=engine) for engine in ("stacked", "jax")
    )
    assert "FedDyn has a local solver whose steps follow a schedule" in caplog.text
    np.testing.assert_allclose(there.x, here.x, rtol=1e-9, atol=1e-12)
