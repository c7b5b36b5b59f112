"""What clients draw: batches whose epochs go on, SGD as a local solver, noise in gradients."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import agree, squares

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.core.rng import BATCH, EPOCH, NOISE, stream
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import LogisticRegression, LossBound, Noisy, Quadratic, Scaled
from flower_fedcon.objectives.noisy import noise_of
from flower_fedcon.problems import quadratics
from flower_fedcon.regularizers import L1
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.sets import L1Ball
from flower_fedcon.solvers import SGD, GradientDescent, LocalProblem
from flower_fedcon.strategies import (
    APDAInexact,
    DualFL,
    FedAvg,
    FedDR,
    FedDyn,
    FedExProx,
    FedFW,
    FedLin,
    FedMiD,
    FedNewton,
    FedPD,
    FedProx,
    FedProxAL,
    FiveGCS,
    Scaffnew,
    Scaffold,
)  # fmt: skip

STEPS = {"client_lr": 0.1, "local_steps": 2}
ORDERED = {"batch_size": 2, "batch_order": "epoch"}
EPOCHS = SGD(epochs=2, batch_size=3, lr=0.05)
PSI, BALL = L1(0.05), L1Ball(1.0)
EIGHTS, SEVENS, SIXES = (8,) * 4, (7,) * 3, (6,) * 4


def noisy(std=0.3, **terms):
    exact = squares(SIXES, seed=2, **terms)
    own = squares(SIXES, seed=2).objectives
    return exact if std is None else FederatedProblem([Noisy(f, std) for f in own], **terms)


def labelled():
    rng = np.random.default_rng(0)
    return FederatedProblem(
        [LogisticRegression(rng.normal(size=(12, 4)), np.sign(rng.normal(size=12))) for _ in "abc"]
    )


# --- by hand --------------------------------------------------------------------------------------


def by_hand(problem, rounds, client):
    """Average where `client(round, j, f, w)` ends, from the origin."""
    w = np.zeros(3)
    for t in range(1, rounds + 1):
        w = np.mean([client(t, j, f, w) for j, f in enumerate(problem.objectives)], axis=0)
    return w


def test_each_row_once_in_an_epoch():
    """Seven rows in batches of two: three batches an epoch, two of them in each round."""
    problem = squares(SEVENS)
    orders = [[stream(4, EPOCH, e, j).permutation(7) for e in (0, 1)] for j in range(3)]
    batches = [[order[i : i + 2] for order in own for i in (0, 2, 4)] for own in orders]

    def client(t, j, f, v):
        for rows in batches[j][2 * t - 2 : 2 * t]:
            v = v - 0.1 * f.batch_gradient(v, rows)
        return v

    x = simulate(FedAvg(**STEPS, **ORDERED), problem, 3, seed=4).x
    np.testing.assert_allclose(x, by_hand(problem, 3, client), rtol=1e-12)


def test_steps_of_epochs_are_those_of_the_paper():
    """FedProx's inexact solution: epochs in new orders, without replacement, plus the pull."""

    def client(t, j, f, v):
        rng = stream(5, BATCH, t, j)
        for _ in range(2):
            order = rng.permutation(8)
            for rows in (order[:3], order[3:6]):  # two rows are left, and wait
                v = v - 0.05 * (f.A[rows].T @ (f.A[rows] @ v - f.b[rows]) / 3 + 0.7 * v)
        return v

    x = simulate(FedProx(proximal=0.7, local_solver=EPOCHS), squares(EIGHTS), 1, seed=5).x
    np.testing.assert_allclose(x, by_hand(squares(EIGHTS), 1, client), rtol=1e-12)


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_steps_of_epochs_follow_a_schedule_and_are_clipped(engine):
    clipped = []

    def client(t, j, f, w):
        order, v = stream(5, BATCH, t, j).permutation(8), w
        for rows in (order[:4], order[4:]):
            g = f.batch_gradient(v, rows)
            clipped.append(np.linalg.norm(g) > 0.5)
            g = g * min(1.0, 0.5 / np.linalg.norm(g))
            v = v - 0.2 / np.sqrt(t) * (g + 0.7 * (v - w))
        return v

    solver = SGD(epochs=1, batch_size=4, lr=InverseSqrt(0.2), clip=0.5)
    made = FedProx(proximal=0.7, local_solver=solver)
    x = simulate(made, squares(EIGHTS), 2, seed=5, engine=engine).x
    np.testing.assert_allclose(x, by_hand(squares(EIGHTS), 2, client), rtol=1e-12)
    assert any(clipped)


def test_noise_by_hand():
    def client(t, j, f, v):
        rng = stream(7, NOISE, t, j)
        for _ in range(2):
            v = v - 0.1 * (f.gradient(v) + 0.3 * rng.standard_normal(3))
        return v

    x = simulate(FedAvg(**STEPS), noisy(), 2, seed=7).x
    np.testing.assert_allclose(x, by_hand(noisy(None), 2, client), rtol=1e-12)


def test_many_epochs_of_all_rows_are_the_minimiser():
    made = FedPD(step_size=1.0, local_solver=SGD(epochs=300, batch_size=8, lr=0.2))
    exact = simulate(FedPD(step_size=1.0), squares(EIGHTS), 5)
    np.testing.assert_allclose(simulate(made, squares(EIGHTS), 5).x, exact.x, rtol=1e-8)


# --- in every engine ------------------------------------------------------------------------------

SOLVE = {"local_solver": EPOCHS}
DUAL = {"strong_convexity": 0.05, "regularization": 0.05, **SOLVE}
CLIPPED = FedDyn(proximal=1.0, local_solver=SGD(epochs=1, batch_size=4, lr=0.1, clip=0.5))
LABELS = FedDyn(proximal=0.5, local_solver=SGD(epochs=3, batch_size=4, lr=0.1))
THIRDS = {"client_lr": 0.1, "local_steps": 3}
STOCHASTIC = FedFW(BALL, penalty=1.0, gradient="stochastic", **ORDERED)
TWO = {"participation": Sample(count=2)}

ROWS = {  # the strategy, its problem, and the engines beside the local one
    "batches": (FedAvg(**STEPS, **ORDERED), squares(SEVENS), "stacked jax"),
    "batches, state": (Scaffold(**THIRDS, batch_size=3, batch_order="epoch", **TWO),
                       squares(SEVENS), "stacked"),
    "batches, vertices": (STOCHASTIC, squares(SEVENS, constraint=BALL), "stacked"),
    "fedprox": (FedProx(proximal=1.0, **SOLVE), squares(EIGHTS), "stacked"),
    "fedprox, sampled": (FedProx(proximal=1.0, **SOLVE, **TWO), squares(EIGHTS), "stacked jax"),
    "feddyn": (FedDyn(proximal=1.0, **SOLVE), squares(EIGHTS), "stacked"),
    "feddr": (FedDR(PSI, step_size=1.0, **SOLVE), squares(EIGHTS, regularizer=PSI), "stacked"),
    "fedpd": (FedPD(step_size=1.0, **SOLVE), squares(EIGHTS), "stacked"),
    "dualfl": (DualFL(**DUAL), squares(EIGHTS), "stacked"),
    "dualfl with psi": (DualFL(regularizer=PSI, form="paper", **DUAL),
                        squares(EIGHTS, regularizer=PSI), "stacked jax"),
    "fedexprox": (FedExProx(step_size=1.0, **SOLVE), squares(EIGHTS), "stacked"),
    "apdainexact": (APDAInexact(primal_lr=0.5, **SOLVE), squares(EIGHTS), "stacked"),
    "fivegcs": (FiveGCS(smoothness=9.0, strong_convexity=0.01, **SOLVE),
                squares(EIGHTS), "stacked"),
    "clipped": (CLIPPED, squares(EIGHTS), "stacked jax"),
    "logistic": (LABELS, labelled(), "stacked"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "engine"), [(name, e) for name, row in ROWS.items() for e in row[2].split()]
)
def test_engines_take_the_same_steps(name, engine, caplog):
    made, problem, _ = ROWS[name]
    columns = ["gradients", "examples_seen"]
    found = agree(made, problem, 6, engine=engine, columns=columns, evaluate_every=6)
    assert not caplog.records
    if name == "clipped":
        assert found["gradients"].tolist() == [6 * 4 * 2]


NOISY = {
    "fedavg": (FedAvg(**THIRDS), {}),
    "batches": (FedAvg(**THIRDS, batch_size=2), {}),
    "scaffold": (Scaffold(**STEPS, **TWO), {}),
    "fedmid": (FedMiD(L1(0.1), **STEPS), {"regularizer": L1(0.1)}),
    "fedfw": (FedFW(BALL, penalty=1.0), {"constraint": BALL}),
    "epochs": (FedProx(proximal=1.0, local_solver=SGD(epochs=2, batch_size=2, lr=0.1)), {}),
    "weights": (FedAvg(**THIRDS), {"weights": [1.0, 2.0, 3.0, 2.0]}),
    "fedlin": (FedLin(**THIRDS), {}),
    "descent": (FedProx(proximal=1.0, local_solver=GradientDescent(steps=4, lr=0.1)), {}),
}


@pytest.mark.parametrize("name", NOISY)
def test_engines_draw_the_same_noise(name):
    """And none where the deviation is 0."""
    made, terms = NOISY[name]
    if name == "descent":  # which is solved one client at a time
        found = simulate(made, noisy(), 4, seed=3)
    else:
        found = agree(made, noisy(**terms), 4, columns=())
    plain, exact = (simulate(made, noisy(std, **terms), 4, seed=3).x for std in (0.0, None))
    np.testing.assert_array_equal(plain, exact)
    if name != "fedfw":  # vertices may be the same
        assert np.abs(plain - found.x).max() > 1e-6


def test_compiled_rounds_say_that_they_take_no_noise(caplog):
    agree(FedAvg(**STEPS), noisy(), 3, 1e-12, engine="jax")
    assert "their noise comes from each client's own stream" in caplog.text


@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
def test_clients_of_unequal_sizes_take_their_own_numbers_of_steps(engine):
    if engine == "jax":
        pytest.importorskip("jax")
    made, problem = FedProx(proximal=1.0, **SOLVE), squares((3, 9, 9, 3, 2))
    row = simulate(made, problem, 2, engine=engine).rows[-1]
    assert row["gradients"] == 2 * 2 * (1 + 3 + 3 + 1 + 1)
    assert row["examples_seen"] == 2 * 2 * (3 + 9 + 9 + 3 + 2)


# --- noise and what is measured -------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_what_is_measured_is_exact(engine):
    exact, still = noisy(None), FedAvg(client_lr=1e-200, local_steps=1)
    np.testing.assert_allclose(noisy().optimum.x, exact.optimum.x, rtol=1e-9)
    given = {"certificates": True, "engine": engine}
    found, same = (simulate(still, each, 1, **given).rows[-1] for each in (noisy(), exact))
    assert found["kkt"] == pytest.approx(same["kkt"], rel=1e-12)
    assert found["objective"] == pytest.approx(exact.objective(np.zeros(3)), rel=1e-12)


def test_the_noise_is_of_its_size():
    f, made = noisy(None).objectives[0], FedAvg(client_lr=1.0, local_steps=1)
    one = FederatedProblem([Noisy(f, 0.5)])
    noise = np.array([simulate(made, one, 1, seed=s).x for s in range(60)])
    noise += f.gradient(np.zeros(3))
    assert abs(noise.mean()) < 4 * 0.5 / np.sqrt(noise.size)
    assert 0.4 < noise.std() < 0.6
    assert noise_of(Scaled(Noisy(Noisy(f, 3.0), 4.0), 2.0)) == pytest.approx(10.0)


def test_a_problem_with_noise_in_python_and_in_a_file(tmp_path):
    plain = noisy(None, weights=[1.0, 2.0, 3.0, 2.0])
    made = plain.with_noise(0.2)
    assert [noise_of(f) for f in made.objectives] == pytest.approx([0.1, 0.2, 0.3, 0.2])
    assert [noise_of(f) for f in plain.objectives] == [0.0] * 4
    assert made.optimum.value == plain.optimum.value
    x = simulate(FedAvg(**STEPS), quadratics().with_noise(0.2), 3, run_dir=tmp_path / "run").x
    found = Experiment.load(tmp_path / "run" / "config.toml")
    np.testing.assert_array_equal(simulate(found.strategy(), found.problem(), 3).x, x)
    assert "gradient_noise = 0.2" in found.to_toml()
    with pytest.raises(ConfigError, match=r"gradient_noise must be .* got -1"):
        Experiment.load(tmp_path / "run" / "config.toml", ["problem.gradient_noise=-1"]).problem()


# --- what is refused ------------------------------------------------------------------------------


class OwnDraws:
    """A loss that draws its batches itself."""

    shape, num_examples = (3,), 7

    def value(self, x):
        return float(x @ x) / 2

    def gradient(self, x):
        return x

    def stochastic_gradient(self, x, rng, batch_size=None):
        return x


def sgd(**given):
    return SGD(**{"epochs": 1, "batch_size": 3, "lr": 0.1, **given})


def played(made, problem=None):
    simulate(made, squares(EIGHTS) if problem is None else problem, 1)


def bounded():
    own = squares(EIGHTS).objectives
    return FederatedProblem([LossBound(f, 9.0) for f in own], constraints="each")


COIN = {"client_lr": 0.1, "communication_probability": 0.5}
POLYAK = {"step_size": 1.0, "extrapolation": "polyak"}
REFUSED = [
    (lambda: FedAvg(**STEPS, batch_size=2, batch_order="epochs"), "batch_order must be"),
    (lambda: FedAvg(**STEPS, batch_order="epoch"), "is for minibatches: give batch_size"),
    (lambda: FedProx(proximal=1.0, batch_order="epoch"), "is for minibatches"),
    (lambda: played(Scaffnew(**COIN, **ORDERED)), "draws the number of its local steps"),
    (lambda: played(FedAvg(**STEPS, **ORDERED), FederatedProblem([OwnDraws()])),
     "needs an objective with batch_gradient"),
    (lambda: sgd(epochs=0), r"SGD\(epochs\) must be .* got 0"),
    (lambda: sgd(batch_size=0), r"SGD\(batch_size\) must be .* got 0"),
    (lambda: sgd(clip=0.0), r"SGD\(clip\) must be .* got 0"),
    (lambda: sgd(lr=-1.0), r"SGD\(lr\) must be .*got -1"),
    (lambda: played(DualFL(strong_convexity=0.05, stopping="gap", **SOLVE)),
     'DualFL takes no local_solver=SGD.*stopping="gap".*"exact"'),
    (lambda: played(FedProxAL(**SOLVE), bounded()),
     "FedProxAL takes no local_solver=SGD.*augmented Lagrangian"),
    (lambda: played(FedExProx(**POLYAK, **SOLVE)), "FedExProx takes no local_solver=SGD.*polyak"),
    (lambda: EPOCHS.solve(LocalProblem(Quadratic(np.eye(2), np.ones(2)), np.zeros(2))),
     "only within a client's step"),
    (lambda: played(FedProx(proximal=1.0), noisy()),
     r"Noisy objectives local_solver=Exact\(\).*use SGD"),
    (lambda: played(FedNewton(), noisy()), r"FedNewton needs exact .*Noisy.*CompositeFL"),
    (lambda: Noisy(noisy(None).objectives[0], -1.0), r"Noisy\(std\) must be .*got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_what_cannot_be_is_refused_by_name(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
