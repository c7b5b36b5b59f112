"""What every registered algorithm must do; a pair is tested here by being registered.

`cases/` says for each algorithm on which problem, with which settings, how far it gets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contract import CONTRACTS, Case, build
from harness import OpenRun, wire_exchange

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate
from flower_fedcon.core.participation import Participation
from flower_fedcon.core.protocol import TRAIN, Reply
from flower_fedcon.errors import FedConError, ParticipationError, RoundError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball

FIGURES = [
    pytest.param(name, case, id=f"{name}-{case.id}")
    for name, contract in CONTRACTS.items()
    for case in contract.cases + contract.sampled
]
FIRST = {name: contract.cases[0] for name, contract in CONTRACTS.items()}


def strategy(name: str, case: Case, **more: Any) -> Any:
    return build(name, case.problem(), **{**case.settings, **more})


@pytest.mark.parametrize(("name", "case"), FIGURES)
def test_reaches_what_its_sheet_says(name, case):
    history = simulate(strategy(name, case), case.problem(), case.rounds, evaluate_every=0)
    assert case.low <= case.error(history.x) <= case.high


each = pytest.mark.parametrize("name", algorithms())


def rules(name: str) -> list[Participation]:
    refused = {repr(rule) for rule in CONTRACTS[name].refuses}
    return [r for r in (Full(), Sample(fraction=0.5), Bernoulli(0.5)) if repr(r) not in refused]


each = pytest.mark.parametrize("name", algorithms())
EACH_RULE = pytest.mark.parametrize(
    ("name", "participation"),
    [
        pytest.param(name, rule, id=f"{name}-{rule}")
        for name in algorithms()
        for rule in rules(name)
    ],
)
REFUSED = [
    pytest.param(name, rule, id=f"{name}-{rule}")
    for name, contract in CONTRACTS.items()
    for rule in contract.refuses
]


def losing(share: float, seed: int = 5):
    """Return an exchange's `alter` that loses replies."""
    lost = np.random.default_rng(seed)
    return lambda request, reply: [] if lost.random() < share else [reply]


@pytest.mark.parametrize(("name", "participation"), REFUSED)
def test_cohorts_it_cannot_work_with_are_refused(name, participation):
    case = FIRST[name]
    with pytest.raises(ParticipationError, match=r"got (Sample|Bernoulli).*use "):
        simulate(strategy(name, case, participation=participation), case.problem(), 1)


@EACH_RULE
def test_records_carry_the_same_iterates(name, participation):
    """Through Flower's records and contexts, with a new client object for every message."""
    case = FIRST[name]
    made = strategy(name, case, participation=participation)
    run, direct = (OpenRun(made, case.problem()) for _ in range(2))
    exchange, _ = wire_exchange(run)
    for _ in range(12):
        run.round(exchange)
        direct.play()
        assert run.x.tobytes() == direct.x.tobytes()
    assert run.server.uplink_bytes == direct.server.uplink_bytes
    assert run.server.counts == direct.server.counts


@EACH_RULE
def test_invariants_hold_after_each_round(name, participation):
    check, case = CONTRACTS[name].invariant, FIRST[name]
    run = OpenRun(strategy(name, case, participation=participation), case.problem())
    for _ in range(40):
        run.play()
        assert run.x.shape == case.problem().x0.shape
        assert np.isfinite(run.x).all()
        if check is not None:
            check(run)


@EACH_RULE
def test_lost_replies_are_asked_for_again(name, participation):
    """Replies that are lost at first move nothing: state waits for the server's word."""
    case = FIRST[name]
    n = case.problem().num_clients
    calm = OpenRun(strategy(name, case, participation=participation), case.problem())
    faulty = OpenRun(
        strategy(name, case, participation=participation, min_replies=n),
        case.problem(),
        alter=losing(0.3),
    )
    faulty.server.max_retries = 100  # one client in two can be unlucky often
    calm.play(30)
    faulty.play(30)
    assert faulty.x.tobytes() == calm.x.tobytes()
    assert faulty.server.counts["retries"] > 0


@pytest.mark.parametrize("name", [n for n, c in CONTRACTS.items() if c.sampled])
def test_goes_on_without_a_missing_client(name):
    """Sampled forms apply what arrives, and end where the sheet says they do."""
    case = CONTRACTS[name].sampled[0]
    calm, run = (OpenRun(strategy(name, case), case.problem(), case.rounds) for _ in range(2))
    run.alter = losing(0.2)
    run.server.max_retries = 20
    calm.play(case.rounds)
    run.play(case.rounds)
    assert run.server.counts["dropped"] == 0
    assert case.error(run.x) <= 1.3 * max(case.high, case.error(calm.x))


STATES = {name: contract for name, contract in CONTRACTS.items() if contract.lost is not None}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("sampled", [False, True])
def test_a_client_that_lost_its_state_comes_back(name, sampled):
    contract = CONTRACTS[name]
    if sampled and not contract.sampled:
        pytest.skip("refuses cohorts")
    case = contract.sampled[0] if sampled else contract.cases[0]
    made = strategy(name, case)
    calm, run = (OpenRun(made, case.problem(), case.rounds) for _ in range(2))
    half = case.rounds // 2
    run.play(half)
    run.clients[1] = run.new_client(1)
    if contract.lost == "exact":
        calm.play(half + 20)
        run.play(20)
        assert run.x.tobytes() == calm.x.tobytes()
    else:
        run.play(case.rounds)
        assert case.low <= case.error(run.x) <= case.high
    assert run.server.counts["lost"] == 1


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
        if request.phase != TRAIN or waiting.get(request.round) != request.client:
            return [reply]
        if not reply.payload:  # a round in which nothing is uploaded
            return [reply]
        del waiting[request.round]
        return corrupt(reply, fault)

    waiting = dict(bad)
    full = strategy(name, case, min_replies=problem.num_clients)
    run = OpenRun(full, problem, alter=alter).play(8)
    calm = OpenRun(strategy(name, case), problem).play(8)
    assert run.x.tobytes() == calm.x.tobytes()
    assert run.server.counts["dropped"] == len(bad)
    assert run.server.counts["retries"] == (0 if fault == "twice" else len(bad))


def corrupt(reply: Reply, fault: str) -> list[Reply]:
    name, (value,) = next(iter(reply.payload.items()))
    dense = value if isinstance(value, np.ndarray) else value.dense()
    changed = replace(reply, payload=dict(reply.payload))
    if fault == "nan":
        changed.payload[name] = [np.full_like(dense, np.nan)]
    elif fault == "shape":
        changed.payload[name] = [np.zeros((*dense.shape, 1))]
    elif fault == "dtype":
        changed.payload[name] = [dense.astype(np.float16)]
    elif fault == "extra key":
        changed.payload["more"] = [dense]
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

    run = OpenRun(strategy(name, case), case.problem(), alter=alter).play(3)
    before = run.x.copy()
    with pytest.raises(RoundError, match=r"round 4: 0 usable replies .*clients 0, 1.*: no reply"):
        run.play()
    assert run.x.tobytes() == before.tobytes()


def small_problem(name: str, objectives: list[Any]) -> FederatedProblem:
    oracle, objectives = CONTRACTS[name].oracle, [CONTRACTS[name].wrap(o) for o in objectives]
    given = {"constraint": L1Ball(2.0), "regularizer": L1(0.1)}
    return FederatedProblem(objectives, **({oracle: given[oracle]} if oracle else {}))


def run_small(name: str, objectives: list[Any]) -> Any:
    problem = small_problem(name, objectives)
    return simulate(build(name, problem, **CONTRACTS[name].small), problem, 20).x


@each
def test_matrices_and_layers_are_vectors(name):
    """A model's shape is the user's affair: the iterates are those of the flat model."""
    rng = np.random.default_rng(3)
    flat = [Quadratic(np.eye(6) * (1 + j), rng.standard_normal(6)) for j in range(3)]
    expected = run_small(name, [Reshaped(o, [(6,)]) for o in flat])
    found = run_small(name, [Reshaped(o, [(2, 3)]) for o in flat])
    assert found.shape == (2, 3)
    assert found.ravel() == pytest.approx(expected, abs=1e-12)
    found = run_small(name, [Reshaped(o, [(2, 2), (2,)], layered=True) for o in flat])
    assert [layer.shape for layer in found] == [(2, 2), (2,)]
    assert np.concatenate([layer.ravel() for layer in found]) == pytest.approx(expected, abs=1e-12)


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
    double = run_small(name, [Quadratic(*d) for d in data])
    single = run_small(name, [Quadratic(*(a.astype(np.float32) for a in d)) for d in data])
    assert single.dtype == np.float32
    assert single == pytest.approx(double, abs=1e-4)


@each
def test_a_seed_fixes_every_byte_and_another_does_not(name):
    contract = CONTRACTS[name]
    case = contract.sampled[0] if contract.sampled else contract.cases[0]
    made = strategy(name, case)
    first, same, other = (
        simulate(made, case.problem(), 10, seed=s, evaluate_every=0).x for s in (1, 1, 2)
    )
    assert first.tobytes() == same.tobytes()
    if contract.sampled:
        assert first.tobytes() != other.tobytes()


@each
def test_arguments_out_of_range_are_refused(name):
    case = FIRST[name]
    for key, value in case.settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for wrong in (-1, float("nan"), "many"):
            with pytest.raises(FedConError, match=key):
                strategy(name, case, **{key: wrong})
    with pytest.raises(FedConError, match="participation must be"):
        strategy(name, case, participation=0.5)
    with pytest.raises(FedConError, match="min_replies is 99, but there are"):
        simulate(strategy(name, case, min_replies=99), case.problem(), 1)
