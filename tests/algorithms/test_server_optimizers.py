"""Server optimizers and schedules: iterates by hand, engines, fixed points, refusals."""

import numpy as np
import pytest
from everywhere import agrees_everywhere
from harness import OpenRun, client_states
from nightly import at_night
from problems import random_quadratics

from flower_fedcon import Bernoulli, FederatedProblem, Sample, simulate
from flower_fedcon.compressors import EF21, TopK
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.optimizers import Adagrad, Adam, Momentum, Yogi
from flower_fedcon.regularizers import L1
from flower_fedcon.schedules import Constant, Cosine, Inverse, InverseSqrt, StepDecay
from flower_fedcon.strategies import FedAvg, FedMiD, Scaffold

OPTIMIZERS = [Momentum(0.5), Adagrad(tau=0.1), Adagrad(0.3), Adam(tau=0.1), Yogi(0.5, 0.1, 0.9)]
SCHEDULES = [Constant(0.1), InverseSqrt(0.1), Inverse(0.1, 0.3), Cosine(0.1, 6, 0.02),
             StepDecay(0.1, 2, 0.5)]  # fmt: skip
EACH = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
EACH_SCHEDULE = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)


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


def largest(x):
    """Return x with its largest entry alone: TopK(count=1)."""
    return np.where(np.arange(x.size) == np.argmax(np.abs(x)), x, 0.0)


def by_hand(rounds, sent, weights=(1, 1, 1, 1), lr=lambda t: 0.1, psi=0.0, eta=1.0, optimizer=None):
    """Return x after so many rounds of two (proximal) steps, of which error feedback sends a part.

    `sent` of what is sent: EF21's memories move by it.
    """

    def prox(v, step):
        return np.sign(v) * np.maximum(np.abs(v) - step * psi, 0)

    x, memory, read = np.zeros(3), [np.zeros(3) for _ in weights], []
    for t in range(1, rounds + 1):
        for j, f in enumerate(random_quadratics(3)):
            v, share = x, len(weights) * weights[j] / sum(weights)
            for _ in range(2):
                v = prox(v - lr(t) * share * (f.Q @ v - f.b), lr(t))
            memory[j] = memory[j] + sent(v - x - memory[j])
        read.append(np.mean(memory, axis=0))
        x = x + (eta * read[-1] if optimizer is None else reddi(optimizer, read, eta)[-1])
        x = prox(x, eta * 2 * lr(t))
    return x


COMPRESSED = pytest.mark.parametrize(
    ("compression", "sent"), [(None, lambda x: x), (EF21(TopK(count=1)), largest)]
)


@COMPRESSED
@EACH
def test_fedavg_by_hand(optimizer, compression, sent):
    made = FedAvg(client_lr=0.1, local_steps=2, server_lr=0.3, server_optimizer=optimizer,
                  compression=compression)  # fmt: skip
    expected = by_hand(8, sent, eta=0.3, optimizer=optimizer)
    np.testing.assert_allclose(simulate(made, problem(), 8).x, expected, rtol=0, atol=1e-14)


@COMPRESSED
@EACH_SCHEDULE
def test_fedmid_with_a_schedule_and_momentum_by_hand(schedule, compression, sent):
    lr = {
        Constant: lambda t: 0.1,
        InverseSqrt: lambda t: 0.1 * t**-0.5,
        Inverse: lambda t: 0.1 / (0.7 + 0.3 * t),
        Cosine: lambda t: 0.06 + 0.04 * np.cos(np.pi * min(t - 1, 5) / 5),
        StepDecay: lambda t: 0.1 * 0.5 ** ((t - 1) // 2),
    }[type(schedule)]
    assert [schedule.at(t) for t in range(1, 9)] == pytest.approx(
        [*map(lr, range(1, 9))], rel=1e-14
    )
    made = FedMiD(L1(0.2), client_lr=schedule, local_steps=2, server_lr=0.8,
                  server_optimizer=Momentum(0.5), compression=compression)  # fmt: skip
    expected = by_hand(8, sent, lr=lr, psi=0.2, eta=0.8, optimizer=Momentum(0.5))
    for engine in ("local", "stacked"):
        found = simulate(made, problem(L1(0.2)), 8, engine=engine)
        np.testing.assert_allclose(found.x, expected, rtol=0, atol=1e-14)


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


FEW = OPTIMIZERS[0], OPTIMIZERS[3]


@pytest.mark.parametrize("optimizer", at_night(OPTIMIZERS, but=FEW), ids=repr)
def test_scaffold_keeps_its_optimum_and_its_sum(optimizer):
    """With momentum and by both moments; rules that leave out a part of these are nightly."""
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


def test_steps_stay_above_zero():
    assert StepDecay(0.1, 1).at(10**6) > 0
    assert StepDecay(0.1, 1, smallest=0.01).at(10**6) == 0.01
    assert Cosine(0.1, 5).at(100) == pytest.approx(1e-3)


@pytest.mark.parametrize("made", [MADE[0], MADE[2]], ids=lambda made: made.title)
def test_steps_that_a_kernel_takes_at_once_follow_the_schedule(made):
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(20, 3)) for _ in range(4)]
    given = FederatedProblem([LeastSquares(A, A @ np.ones(3) + rng.normal(size=20)) for A in rows])
    direct = simulate(made, given, 8).x
    assert simulate(made, given, 8, engine="stacked").x == pytest.approx(direct, abs=1e-13)
    assert direct != pytest.approx(simulate(made, given, 7).x, abs=1e-3)
