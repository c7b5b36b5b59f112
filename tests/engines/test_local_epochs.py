"""SGD as the local solver: the steps by hand, the same in every engine, and who takes none."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.core.rng import BATCH, stream
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares, LogisticRegression, LossBound, Quadratic
from flower_fedcon.regularizers import L1
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.solvers import SGD, LocalProblem
from flower_fedcon.strategies import (
    APDAInexact,
    DualFL,
    FedDR,
    FedDyn,
    FedExProx,
    FedPD,
    FedProx,
    FedProxAL,
    FiveGCS,
)

EPOCHS = SGD(epochs=2, batch_size=3, lr=0.05)


def _problem(rows=(8, 8, 8, 8), **parts):
    rng = np.random.default_rng(3)
    return FederatedProblem(
        [LeastSquares(rng.normal(size=(m, 3)), rng.normal(size=m)) for m in rows], **parts
    )


def _bounded():
    return FederatedProblem([LossBound(f, 9.0) for f in _problem().objectives], constraints="each")


def test_steps_are_those_of_the_paper():
    """FedProx's inexact solution: epochs in new orders, without replacement, plus the pull."""
    problem, mu = _problem(), 0.7
    x = simulate(FedProx(proximal=mu, local_solver=EPOCHS), problem, 1, seed=5).x
    ends = []
    for j, f in enumerate(problem.objectives):
        rng, v = stream(5, BATCH, 1, j), np.zeros(3)
        for _ in range(2):
            order = rng.permutation(8)
            for rows in (order[:3], order[3:6]):  # two rows are left, and wait
                g = f.A[rows].T @ (f.A[rows] @ v - f.b[rows]) / 3
                v = v - 0.05 * (g + mu * v)
        ends.append(v)
    np.testing.assert_allclose(x, np.mean(ends, axis=0), rtol=1e-12)


TAKERS = [
    FedProx(proximal=1.0, local_solver=EPOCHS),
    FedProx(proximal=1.0, local_solver=EPOCHS, participation=Sample(count=2)),
    FedDyn(proximal=1.0, local_solver=EPOCHS),
    FedDR(L1(0.05), step_size=1.0, local_solver=EPOCHS),
    FedPD(step_size=1.0, local_solver=EPOCHS),
    DualFL(strong_convexity=0.05, regularization=0.05, local_solver=EPOCHS),
    DualFL(
        regularizer=L1(0.05),
        form="paper",
        strong_convexity=0.05,
        regularization=0.05,
        local_solver=EPOCHS,
    ),
    FedExProx(step_size=1.0, local_solver=EPOCHS),
    APDAInexact(primal_lr=0.5, local_solver=EPOCHS),
    FiveGCS(smoothness=9.0, strong_convexity=0.01, local_solver=EPOCHS),
]


@pytest.mark.parametrize("made", TAKERS, ids=lambda made: made.title)
def test_engines_take_the_same_steps(made):
    psi = {"regularizer": made.regularizer} if made.regularizer is not None else {}
    problem = _problem(**psi)
    here = simulate(made, problem, 4, seed=1)
    there = simulate(made, problem, 4, seed=1, engine="stacked")
    np.testing.assert_allclose(there.x, here.x, rtol=1e-9, atol=1e-12)
    for name in ("gradients", "examples_seen"):
        assert there[name].tolist() == here[name].tolist()


@pytest.mark.parametrize("made", [TAKERS[1], TAKERS[6]], ids=["sampled", "with psi"])
def test_compiled_rounds_take_them_too(made, caplog):
    pytest.importorskip("jax")
    psi = {"regularizer": made.regularizer} if made.regularizer is not None else {}
    here, there = (
        simulate(made, _problem(**psi), 4, seed=1, evaluate_every=4, engine=engine)
        for engine in ("local", "jax")
    )
    assert not caplog.records
    np.testing.assert_allclose(there.x, here.x, rtol=1e-9, atol=1e-12)
    assert there["examples_seen"].tolist() == here["examples_seen"].tolist()


def test_clients_of_unequal_sizes_take_their_own_numbers_of_steps():
    made = FedProx(proximal=1.0, local_solver=EPOCHS)
    for engine in ("local", "stacked", "jax"):
        row = simulate(made, _problem((3, 9, 9, 3, 2)), 2, engine=engine).rows[-1]
        assert row["gradients"] == 2 * 2 * (1 + 3 + 3 + 1 + 1)
        assert row["examples_seen"] == 2 * 2 * (3 + 9 + 9 + 3 + 2)


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_steps_follow_a_schedule_and_are_clipped(engine):
    solver = SGD(epochs=1, batch_size=4, lr=InverseSqrt(0.2), clip=0.5)
    problem, w = _problem(), np.zeros(3)
    x = simulate(FedProx(proximal=0.7, local_solver=solver), problem, 2, seed=5, engine=engine).x
    clipped = 0
    for server_round in (1, 2):
        ends = []
        for j, f in enumerate(problem.objectives):
            order, v = stream(5, BATCH, server_round, j).permutation(8), w
            for rows in (order[:4], order[4:]):
                g = f.batch_gradient(v, rows)
                clipped += np.linalg.norm(g) > 0.5
                g = g * min(1.0, 0.5 / np.linalg.norm(g))
                v = v - 0.2 / np.sqrt(server_round) * (g + 0.7 * (v - w))
            ends.append(v)
        w = np.mean(ends, axis=0)
    assert clipped
    np.testing.assert_allclose(x, w, rtol=1e-12)


def test_clipped_steps_are_compiled_and_counted(caplog):
    pytest.importorskip("jax")
    made = FedDyn(proximal=1.0, local_solver=SGD(epochs=1, batch_size=4, lr=0.1, clip=0.5))
    here, there = (
        simulate(made, _problem(), 4, seed=1, evaluate_every=4, engine=engine)
        for engine in ("local", "jax")
    )
    assert not caplog.records
    np.testing.assert_allclose(there.x, here.x, rtol=1e-9, atol=1e-12)
    assert there["gradients"].tolist() == here["gradients"].tolist() == [32]


def test_many_epochs_of_all_rows_are_the_minimiser():
    made = FedPD(step_size=1.0, local_solver=SGD(epochs=300, batch_size=8, lr=0.2))
    exact = simulate(FedPD(step_size=1.0), _problem(), 5)
    np.testing.assert_allclose(simulate(made, _problem(), 5).x, exact.x, rtol=1e-8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(epochs=0, batch_size=3, lr=0.1), r"SGD\(epochs\) must be .* got 0"),
        (lambda: SGD(epochs=1, batch_size=0, lr=0.1), r"SGD\(batch_size\) must be .* got 0"),
        (lambda: SGD(epochs=1, batch_size=3, lr=0.1, clip=0.0), r"SGD\(clip\) must be .* got 0"),
        (lambda: SGD(epochs=1, batch_size=3, lr=-1.0), r"SGD\(lr\) must be .*got -1"),
        (
            lambda: simulate(
                DualFL(strong_convexity=0.05, stopping="gap", local_solver=EPOCHS), _problem(), 1
            ),
            'DualFL takes no local_solver=SGD.*stopping="gap".*"exact"',
        ),
        (
            lambda: simulate(FedProxAL(local_solver=EPOCHS), _bounded(), 1),
            "FedProxAL takes no local_solver=SGD.*augmented Lagrangian",
        ),
        (
            lambda: simulate(
                FedExProx(step_size=1.0, extrapolation="polyak", local_solver=EPOCHS), _problem(), 1
            ),
            "FedExProx takes no local_solver=SGD.*polyak",
        ),
        (
            lambda: EPOCHS.solve(LocalProblem(Quadratic(np.eye(2), np.ones(2)), np.zeros(2))),
            "only within a client's step",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_logistic_losses_take_the_compiled_steps_as_well():
    rng = np.random.default_rng(0)
    problem = FederatedProblem(
        [LogisticRegression(rng.normal(size=(12, 4)), np.sign(rng.normal(size=12))) for _ in "abc"]
    )
    made = FedDyn(proximal=0.5, local_solver=SGD(epochs=3, batch_size=4, lr=0.1))
    runs = [simulate(made, problem, 5, engine=engine).x for engine in ("local", "stacked")]
    np.testing.assert_allclose(*runs, rtol=1e-10)
