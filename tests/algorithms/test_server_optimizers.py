"""Server optimizers and schedules: iterates by hand, engines, fixed points, refusals."""

import numpy as np
import pytest
from everywhere import agrees_everywhere
from harness import OpenRun, client_states
from problems import random_quadratics

from flower_fedcon import Bernoulli, FederatedProblem, Sample, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.optimizers import Adagrad, Adam, Momentum, Yogi
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import L1, MCP
from flower_fedcon.schedules import Constant, Cosine, Inverse, InverseSqrt, StepDecay
from flower_fedcon.strategies import CompositeFL, FedAvg, FedMiD, Scaffold
from flower_fedcon.strategies.families.local_steps import LocalSteps
from flower_fedcon.validation import parameters

OPTIMIZERS = [Momentum(0.5), Adagrad(tau=0.1), Adagrad(0.3), Adam(tau=0.1), Yogi(0.5, 0.1, 0.9)]
SCHEDULES = [Constant(0.1), InverseSqrt(0.1), Inverse(0.1, 0.3), Cosine(0.1, 6, 0.02),
             StepDecay(0.1, 2, 0.5)]  # fmt: skip
EACH = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
EACH_SCHEDULE = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
LOCAL = [n for n, kind in algorithms().items() if issubclass(kind, LocalSteps)]


def problem(psi=None):
    return FederatedProblem(random_quadratics(3), regularizer=psi)


def reddi(optimizer, deltas, eta):
    """Return the server's steps for these mean changes: Algorithm 2, entry by entry."""
    b1 = getattr(optimizer, "beta_1", getattr(optimizer, "beta", None))
    m, v, steps = 0.0, None, []
    for delta in deltas:
        m = b1 * m + (1 - b1) * delta
        if isinstance(optimizer, Momentum):
            steps.append(eta * m)
            continue
        v = optimizer.tau**2 if v is None else v
        if isinstance(optimizer, Adagrad):
            v = v + delta**2
        elif isinstance(optimizer, Adam):
            v = optimizer.beta_2 * v + (1 - optimizer.beta_2) * delta**2
        else:
            v = v - (1 - optimizer.beta_2) * delta**2 * np.sign(v - delta**2)
        steps.append(eta * m / (np.sqrt(v) + optimizer.tau))
    return steps


def mean_change(x, lr, steps, psi=None):
    """Return the mean over the clients of K (proximal) gradient steps' change."""
    changes = []
    for f in random_quadratics(3):
        v = x
        for _ in range(steps):
            v = v - lr * (f.Q @ v - f.b)
            v = v if psi is None else np.sign(v) * np.maximum(np.abs(v) - lr * psi.weight, 0)
        changes.append(v - x)
    return sum(changes) / len(changes)


@EACH
def test_fedavg_by_hand(optimizer):
    x, deltas, rounds = np.zeros(3), [], 7
    for _ in range(rounds):
        deltas.append(mean_change(x, 0.1, 2))
        x = x + reddi(optimizer, deltas, 0.3)[-1]
    made = FedAvg(client_lr=0.1, local_steps=2, server_lr=0.3, server_optimizer=optimizer)
    np.testing.assert_allclose(simulate(made, problem(), rounds).x, x, rtol=0, atol=1e-14)


@EACH_SCHEDULE
def test_fedmid_with_a_schedule_and_momentum_by_hand(schedule):
    psi, x, deltas = L1(0.2), np.zeros(3), []
    by_hand = {
        Constant: lambda t: 0.1,
        InverseSqrt: lambda t: 0.1 * t**-0.5,
        Inverse: lambda t: 0.1 / (0.7 + 0.3 * t),
        Cosine: lambda t: 0.06 + 0.04 * np.cos(np.pi * min(t - 1, 5) / 5),
        StepDecay: lambda t: 0.1 * 0.5 ** ((t - 1) // 2),
    }[type(schedule)]
    for t in range(1, 9):
        lr = by_hand(t)
        assert schedule.at(t) == pytest.approx(lr, rel=1e-14)
        deltas.append(mean_change(x, lr, 3, psi))
        x = x + reddi(Momentum(0.5), deltas, 0.8)[-1]
        x = np.sign(x) * np.maximum(np.abs(x) - 0.8 * lr * 3 * psi.weight, 0)
    made = FedMiD(psi, client_lr=schedule, local_steps=3, server_lr=0.8,
                  server_optimizer=Momentum(0.5))  # fmt: skip
    for engine in ("local", "stacked"):
        found = simulate(made, problem(psi), 8, engine=engine)
        np.testing.assert_allclose(found.x, x, rtol=0, atol=1e-14)


MADE = [
    FedAvg(client_lr=InverseSqrt(0.1), local_steps=2, server_optimizer=Yogi(tau=0.1),
           participation=Sample(count=2)),
    FedMiD(L1(0.1), client_lr=Cosine(0.1, 5), local_steps=2, server_optimizer=Momentum()),
    Scaffold(client_lr=StepDecay(0.1, 2), local_steps=2, server_optimizer=Adam(tau=0.1),
             participation=Bernoulli(0.6)),
]  # fmt: skip


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.title)
def test_engines_wires_and_resumed_runs_agree(made, tmp_path):
    agrees_everywhere(made, problem(getattr(made, "regularizer", None)), tmp_path)


@EACH
def test_scaffold_keeps_its_optimum_and_its_sum(optimizer):
    given, exact = problem(), problem().optimum.x
    made = Scaffold(client_lr=0.05, local_steps=3, server_lr=0.1, server_optimizer=optimizer,
                    participation=Sample(count=2))  # fmt: skip
    run = OpenRun(made, given)
    for _ in range(30):
        run.play()
        server = run.state
        np.testing.assert_allclose(server.c, server.mirror.rows["c"].mean(axis=0), atol=1e-13)
    found = simulate(made, given, 6000, engine="stacked", evaluate_every=6000).x
    np.testing.assert_allclose(found, exact, atol=1e-9)


@EACH_SCHEDULE
def test_scaffold_mirrors_what_its_clients_hold_under_a_schedule(schedule):
    run = OpenRun(Scaffold(client_lr=schedule, local_steps=3), problem())
    for _ in range(6):
        run.play()
    for row, state in zip(run.state.mirror.rows["c"], client_states(run), strict=True):
        np.testing.assert_allclose(row, state.c, rtol=0, atol=1e-14)


def test_steps_that_fall_end_fedavg_at_the_optimum_of_subgradients():
    """One step, and the l1 norm's subgradient: a constant step circles, 1/t does not."""
    psi = L1(0.5)
    given = problem(psi)
    errors = [
        np.linalg.norm(
            simulate(
                FedAvg(client_lr=lr, local_steps=1, regularizer=psi), given, 4000,
                evaluate_every=4000, engine="stacked",
            ).x - given.optimum.x
        )
        for lr in (0.2, Inverse(0.2, 0.1))
    ]  # fmt: skip
    assert errors[1] < 1e-3 < 1e-2 < errors[0]


@pytest.mark.parametrize("name", LOCAL)
def test_a_card_says_who_takes_what(name):
    kind = algorithms()[name]
    made = {"client_lr": 0.1, "local_steps": 1}
    if "regularizer" in parameters(kind):
        made["regularizer"] = None
    card = kind.card().step_sizes
    for rule in (Momentum(), Adam()):
        why = kind.needs_server_lr or (kind.needs_one_length if rule.entrywise else "")
        if why:
            assert why in card
            with pytest.raises(ConfigError, match=f"takes no server_optimizer=.*{why}"):
                kind(**made, server_optimizer=rule)
        else:
            assert kind(**made, server_optimizer=rule).server_optimizer == rule
    if why := kind.needs_constant_lr:
        assert why in card
        with pytest.raises(ConfigError, match=f"takes no schedule for client_lr, .*{why}"):
            kind(**{**made, "client_lr": InverseSqrt(0.1)})
    else:
        assert kind(**{**made, "client_lr": InverseSqrt(0.1)}).client_lr == InverseSqrt(0.1)


def test_who_that_is():
    kinds = [algorithms()[name] for name in LOCAL]
    assert {k for k in kinds if not k.needs_server_lr} == {FedAvg, FedMiD, Scaffold}
    assert {k for k in kinds if k.needs_one_length} == {FedMiD}
    assert {k for k in kinds if k.needs_constant_lr} == {CompositeFL}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: FedAvg(client_lr=0.1, local_steps=1, server_optimizer="adam"), "must be Momentum"),
        (lambda: FedAvg(client_lr=0.1, local_steps=1, server_momentum=0.5, server_optimizer=Adam()),
         "either server_momentum or server_optimizer"),
        (lambda: FedAvg(client_lr="fast", local_steps=1), "client_lr must be a number"),
        (lambda: FedMiD(MCP(1.0, 0.5), client_lr=InverseSqrt(0.3), local_steps=2),
         "steps of up to 0.6"),
        (lambda: Momentum(1.0), r"Momentum\(beta\) must be in \[0, 1\)"),
        (lambda: Adam(tau=0.0), r"Adam\(tau\) must be"),
        (lambda: Yogi(beta_2=-0.1), r"Yogi\(beta_2\) must be"),
        (lambda: Constant(0.0), r"Constant\(initial\) must be"),
        (lambda: Inverse(0.1, 0.0), r"Inverse\(decay\) must be"),
        (lambda: Cosine(0.1, 1), r"Cosine\(rounds\) must be a whole number >= 2"),
        (lambda: Cosine(0.1, 5, 0.2), r"Cosine\(final\) must be at most initial = 0.1"),
        (lambda: StepDecay(0.1, 0), r"StepDecay\(every\) must be"),
        (lambda: StepDecay(0.1, 1, 2.0), r"StepDecay\(factor\) must be in \(0, 1\]"),
        (lambda: StepDecay(0.1, 1, 0.5, 0.2), r"StepDecay\(smallest\) must be at most"),
    ],
)  # fmt: skip
def test_refusals(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_steps_stay_above_zero():
    assert StepDecay(0.1, 1).at(10**6) > 0
    assert StepDecay(0.1, 1, smallest=0.01).at(10**6) == 0.01
    assert Cosine(0.1, 5).at(100) == pytest.approx(1e-3)


FILE = """
[problem]
name = "quadratics"
[algorithm]
name = "FedAvg"
client_lr = {type = "Cosine", initial = 0.01, rounds = 4}
local_steps = 2
server_optimizer = {type = "Adam", tau = 1e-2}
[run]
rounds = 4
"""


def test_files_and_overrides_reach_them(tmp_path):
    path = tmp_path / "it.toml"
    path.write_text(FILE)
    made = Experiment.load(path).strategy()
    assert made.client_lr == Cosine(0.01, 4)
    assert made.server_optimizer == Adam(tau=1e-2)
    changes = ['algorithm.client_lr={type = "Inverse", initial = 0.1}',
               'algorithm.server_optimizer={type = "Yogi"}']  # fmt: skip
    experiment = Experiment.load(path, changes)
    assert experiment.strategy().client_lr == Inverse(0.1)
    assert experiment.strategy().server_optimizer == Yogi()
    again = tmp_path / "again.toml"
    again.write_text(experiment.to_toml())
    assert Experiment.load(again).strategy().server_optimizer == Yogi()


@pytest.mark.parametrize("made", [MADE[0], MADE[2]], ids=lambda made: made.title)
def test_steps_that_a_kernel_takes_at_once_follow_the_schedule(made):
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(20, 3)) for _ in range(4)]
    given = FederatedProblem([LeastSquares(A, A @ np.ones(3) + rng.normal(size=20)) for A in rows])
    direct = simulate(made, given, 8).x
    assert simulate(made, given, 8, engine="stacked").x == pytest.approx(direct, abs=1e-13)
    assert direct != pytest.approx(simulate(made, given, 7).x, abs=1e-3)
