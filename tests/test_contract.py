"""What every registered algorithm must do; a pair is tested here by being registered.

`CASES` says for each algorithm on which problem, with which settings, how far it gets (bounds on
the distance to the independent solver's optimum; a floor is asserted from both sides).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from harness import OpenRun, wire_exchange
from problems import l1ls, q6, toy

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate
from flower_fedcon.errors import FedConError, RoundError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.protocol import Reply
from flower_fedcon.registry import CLASSES, strategy_class
from flower_fedcon.regularizers import L1


@dataclass(frozen=True)
class Case:
    """One figure of an algorithm's sheet."""

    algorithm: str
    problem: Any
    settings: dict[str, Any]
    rounds: int
    low: float
    high: float
    measure: str = "distance"
    id: str = field(default="")

    def strategy(self, **more: Any) -> Any:
        return build(self.algorithm, self.problem(), **{**self.settings, **more})

    def error(self, x: Any) -> float:
        problem = self.problem()
        if self.measure == "residual":
            return problem.objective(x) - problem.optimum.value
        return float(np.linalg.norm(x - problem.optimum.x))


def build(algorithm: str, problem: FederatedProblem, **settings: Any) -> Any:
    """Return a strategy with the problem's own set or regularizer, where it takes one."""
    kind = strategy_class(algorithm)
    oracle = problem.constraint or problem.regularizer
    if algorithm == "fedavg":
        return kind(regularizer=oracle, **settings)
    return kind(oracle, **settings)


def about(value: float, tolerance: float = 0.05) -> dict[str, float]:
    """Bounds around a floor."""
    return {"low": value * (1 - tolerance), "high": value * (1 + tolerance)}


def q6_l1():
    return q6(0.6)


ONE, FIVE = {"client_lr": 1 / 40, "local_steps": 1}, {"client_lr": 1 / 400, "local_steps": 5}
SLOW = {"client_lr": 1 / 400, "local_steps": 1}
ONLY = {"server_prox_only": True}
CASES = [
    Case("fedavg", q6, SLOW, 16000, 0, 1e-13, id="gradient descent"),
    Case("fedavg", q6, FIVE, 4000, **about(2.56e-2), id="drift floor"),
    Case("fedavg", q6_l1, SLOW, 6000, 1e-4, 4e-3, id="oscillates"),
    Case("fedavg", q6_l1, FIVE, 6000, **about(3.46e-2), id="subgradient floor"),
    Case("fedmid", q6_l1, ONE, 4000, **about(4.90e-2), id="biased at one step"),
    Case("fedmid", q6_l1, {**ONE, **ONLY}, 6000, 0, 1e-10, id="proximal gradient"),
    Case("fedmid", q6_l1, FIVE, 4000, **about(1.024e-1), id="five steps"),
    Case("fedmid", q6_l1, {**FIVE, **ONLY}, 4000, **about(1.78e-2), id="server prox only"),
    Case("feddualavg", q6_l1, ONE, 6000, 0, 1e-10, id="dual averaging"),
    Case("feddualavg", q6_l1, FIVE, 6000, **about(1.46e-2), id="five steps"),
    Case("fedfw", toy, {"penalty": 1.0}, 1000, **about(1 - 0.940066, 1e-4), id="toy"),
    Case("fedfwplus", toy, {"penalty": 1.0}, 1000, **about(1 - 0.999816, 1e-2), id="toy"),
    Case("fedfw", l1ls, {"penalty": 0.01}, 5000, **about(1.09e-1), measure="residual", id="lasso"),
    Case("fedfw", l1ls, {"penalty": 0.1}, 5000, **about(2.05e-2), measure="residual", id="tight"),
    Case(
        "fedfwplus", l1ls, {"penalty": 0.01}, 5000, **about(1.17e-2), measure="residual", id="lasso"
    ),
    Case(
        "fedfwplus", l1ls, {"penalty": 0.1}, 5000, **about(5.1e-2), measure="residual", id="tight"
    ),
]
HALF = {"participation": Sample(fraction=0.5)}
SAMPLED = [
    Case(
        "fedfw",
        l1ls,
        {"penalty": 0.01, **HALF},
        5000,
        **about(1.46e-1, 0.1),
        measure="residual",
        id="half",
    ),
    Case(
        "fedfwplus",
        l1ls,
        {"penalty": 0.01, **HALF},
        5000,
        **about(2.2e-2, 0.1),
        measure="residual",
        id="half, centred",
    ),
    Case("fedfw", toy, {"penalty": 1.0, "participation": Bernoulli(0.5)}, 4000, 0, 0.2, id="coin"),
    Case("fedmid", q6_l1, {**ONE, **HALF}, 2000, 0, 0.3, id="half"),
    Case("feddualavg", q6_l1, {**ONE, **HALF}, 4000, 0, 0.2, id="half"),
    Case("fedavg", q6, {**SLOW, **HALF}, 4000, 0, 0.1, id="half"),
]
# One small case for each algorithm, for what does not depend on how far it gets.
FIRST = {case.algorithm: case for case in reversed(CASES)}
STATEFUL = ["fedfw", "fedfwplus"]


def ids(cases: list[Case]) -> list[str]:
    return [f"{case.algorithm}-{case.id}" for case in cases]


@pytest.mark.parametrize("case", CASES + SAMPLED, ids=ids(CASES + SAMPLED))
def test_reaches_what_its_sheet_says(case):
    history = simulate(case.strategy(), case.problem(), case.rounds, evaluate_every=0)
    assert case.low <= case.error(history.x) <= case.high


def test_every_algorithm_has_a_case():
    assert set(FIRST) == set(CLASSES)
    assert {case.algorithm for case in SAMPLED} == set(CLASSES)


each = pytest.mark.parametrize("name", CLASSES)


@each
@pytest.mark.parametrize("participation", [Full(), Sample(count=1), Bernoulli(0.5)], ids=repr)
def test_records_carry_the_same_iterates(name, participation):
    """Through Flower's records and contexts, with a new client object for every message."""
    case = FIRST[name]
    run = OpenRun(case.strategy(participation=participation), case.problem())
    direct = OpenRun(case.strategy(participation=participation), case.problem())
    exchange, _ = wire_exchange(run)
    for _ in range(12):
        run.coordinator.play(exchange)
        direct.play()
        assert run.x.tobytes() == direct.x.tobytes()
    assert run.coordinator.uplink_bytes == direct.coordinator.uplink_bytes
    assert run.coordinator.counts == direct.coordinator.counts


@each
@pytest.mark.parametrize("participation", [Full(), Sample(fraction=0.5)], ids=repr)
def test_lost_replies_are_asked_for_again(name, participation):
    """Replies that are lost at first move nothing: state waits for the server's word."""
    case = FIRST[name]
    lost = np.random.default_rng(5)

    def alter(request, reply):
        return [] if lost.random() < 0.3 else [reply]

    calm = OpenRun(case.strategy(participation=participation), case.problem())
    size = len(participation.draw(case.problem().num_clients, np.random.default_rng(0)))
    faulty = OpenRun(
        case.strategy(participation=participation, min_replies=size), case.problem(), alter=alter
    )
    faulty.coordinator.max_retries = 100  # one client in two can be unlucky often
    calm.play(30)
    faulty.play(30)
    assert faulty.x.tobytes() == calm.x.tobytes()
    assert faulty.coordinator.counts["retries"] > 0


@each
def test_goes_on_without_a_missing_client(name):
    """Sampled forms apply what arrives; the model stays finite, and states agree with acks."""
    case = FIRST[name]
    problem = case.problem()
    lost = np.random.default_rng(6)

    def alter(request, reply):
        return [] if lost.random() < 0.3 else [reply]

    participation = Sample(fraction=0.99 if problem.num_clients > 2 else 0.5)
    run = OpenRun(case.strategy(participation=participation), problem, alter=alter)
    run.coordinator.max_retries = 20
    run.play(200)
    assert np.isfinite(run.x).all()
    assert run.coordinator.counts["dropped"] == 0
    settled = OpenRun(case.strategy(participation=participation), problem).play(200)
    assert case.error(run.x) <= 10 * case.error(settled.x) + 0.15


@each
@pytest.mark.parametrize(
    "fault", ["nan", "shape", "dtype", "extra key", "stale", "weight", "twice"]
)
def test_the_gate(name, fault):
    """A bad reply is dropped, counted and named; the round goes on as if it had not come."""
    case = FIRST[name]
    problem = case.problem()
    bad = {2: 1, 5: 0}  # round: client

    def alter(request, reply):
        if waiting.get(request.round) != request.client:
            return [reply]
        del waiting[request.round]
        return corrupt(reply, fault)

    waiting = dict(bad)
    run = OpenRun(case.strategy(min_replies=problem.num_clients), problem, alter=alter).play(8)
    calm = OpenRun(case.strategy(), problem).play(8)
    assert run.x.tobytes() == calm.x.tobytes()
    assert run.coordinator.counts["dropped"] == len(bad)
    assert run.coordinator.counts["retries"] == (0 if fault == "twice" else len(bad))


def corrupt(reply: Reply, fault: str) -> list[Reply]:
    name, value = next(iter(reply.payload.items()))
    dense = value if isinstance(value, np.ndarray) else value.dense()
    changed = Reply(reply.client, reply.round, dict(reply.payload), reply.num_examples)
    if fault == "nan":
        changed.payload[name] = np.full_like(dense, np.nan)
    elif fault == "shape":
        changed.payload[name] = np.zeros((*dense.shape, 1))
    elif fault == "dtype":
        changed.payload[name] = dense.astype(np.float16)
    elif fault == "extra key":
        changed.payload["more"] = dense
    elif fault == "stale":
        changed.round -= 1
    elif fault == "weight":
        changed.num_examples = float("nan")
    else:
        return [reply, reply]
    return [changed]


@each
def test_too_few_replies_end_the_run_with_the_reasons(name):
    case = FIRST[name]

    def alter(request, reply):
        return [] if request.round > 3 else [reply]

    run = OpenRun(case.strategy(), case.problem(), alter=alter).play(3)
    before = run.x.copy()
    with pytest.raises(RoundError, match=r"round 4: 0 usable replies .*clients 0, 1.*: no reply"):
        run.play()
    assert run.x.tobytes() == before.tobytes()


@each
def test_matrices_and_layers_are_vectors(name):
    """A model's shape is the user's affair: the iterates are those of the flat model."""
    rng = np.random.default_rng(3)
    flat = [Quadratic(np.eye(6) * (1 + j), rng.standard_normal(6)) for j in range(3)]
    oracle = {"constraint": l1ls().constraint} if name in STATEFUL else {"regularizer": L1(0.1)}
    settings = {"penalty": 0.5} if name in STATEFUL else {"client_lr": 0.1, "local_steps": 2}
    expected = run_small(name, FederatedProblem(flat, **oracle), settings)
    matrix = [Reshaped(o, [(2, 3)]) for o in flat]
    layers = [Reshaped(o, [(2, 2), (2,)], layered=True) for o in flat]
    found = run_small(name, FederatedProblem(matrix, **oracle), settings)
    assert found.shape == (2, 3)
    assert found.tobytes() == expected.tobytes()
    found = run_small(name, FederatedProblem(layers, **oracle), settings)
    assert [layer.shape for layer in found] == [(2, 2), (2,)]
    assert np.concatenate([layer.ravel() for layer in found]).tobytes() == expected.tobytes()


def run_small(name: str, problem: FederatedProblem, settings: dict[str, Any]) -> Any:
    return simulate(build(name, problem, **settings), problem, 20).x


class Reshaped:
    """An objective on a matrix, or on a list of layers."""

    def __init__(self, objective: Any, shapes: list[tuple[int, ...]], *, layered: bool = False):
        self.objective, self.shapes, self.layered = objective, shapes, layered
        self.shape = shapes if layered else shapes[0]

    def _flat(self, x):
        return np.concatenate([a.ravel() for a in x]) if self.layered else x.ravel()

    def value(self, x):
        return self.objective.value(self._flat(x))

    def gradient(self, x):
        flat = self.objective.gradient(self._flat(x))
        ends = np.cumsum([np.prod(s) for s in self.shapes])[:-1]
        parts = [p.reshape(s) for p, s in zip(np.split(flat, ends), self.shapes, strict=True)]
        return parts if self.layered else parts[0]


@each
def test_single_precision_stays_single(name):
    rng = np.random.default_rng(4)
    data = [(np.eye(5) * (1 + j), rng.standard_normal(5)) for j in range(3)]
    oracle = {"constraint": l1ls().constraint} if name in STATEFUL else {"regularizer": L1(0.1)}
    settings = {"penalty": 0.5} if name in STATEFUL else {"client_lr": 0.1, "local_steps": 2}
    double = run_small(name, FederatedProblem([Quadratic(*d) for d in data], **oracle), settings)
    halves = [Quadratic(*(a.astype(np.float32) for a in d)) for d in data]
    single = run_small(name, FederatedProblem(halves, **oracle), settings)
    assert single.dtype == np.float32
    assert single == pytest.approx(double, abs=1e-5)


@each
def test_weights_are_another_mean(name):
    """Weights 2:1 are the same as the first client twice."""
    first, second = Quadratic([[2.0]], [1.0]), Quadratic([[1.0]], [2.0])
    weighted = FederatedProblem([first, second], weights=[2, 1])
    twice = FederatedProblem([first, first, second])
    x = np.array([0.3])
    assert weighted.objective(x) == pytest.approx(twice.objective(x))
    assert weighted.optimum.x == pytest.approx(twice.optimum.x)


@each
def test_a_seed_fixes_every_byte_and_another_does_not(name):
    case = FIRST[name]
    problem = l1ls(l1=0.1) if name not in STATEFUL else l1ls()
    settings = {k: v for k, v in case.settings.items() if k != "participation"}
    strategy = build(name, problem, **settings, participation=Sample(count=3))
    first, same, other = (
        simulate(strategy, problem, 10, seed=s, evaluate_every=0).x for s in (1, 1, 2)
    )
    assert first.tobytes() == same.tobytes()
    assert first.tobytes() != other.tobytes()


@each
def test_arguments_out_of_range_are_refused(name):
    case = FIRST[name]
    for key in case.settings:
        for wrong in (-1, 0, float("nan"), "many"):
            if isinstance(case.settings[key], bool):
                continue
            with pytest.raises(FedConError, match=key):
                case.strategy(**{key: wrong})
    with pytest.raises(FedConError, match="participation must be"):
        case.strategy(participation=0.5)
    with pytest.raises(FedConError, match="min_replies is 99, but there are"):
        simulate(case.strategy(min_replies=99), case.problem(), 1)
