"""The stacked engine: the local engine's iterates, for all clients in one pass."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import CONTRACTS, build
from harness import OpenRun
from test_contract import rules

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate
from flower_fedcon import compiled as door
from flower_fedcon.engines import stacked
from flower_fedcon.engines.base import InProcess
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.engines.stacked import StackedEngine
from flower_fedcon.objectives import (
    LeastSquares,
    LogisticRegression,
    Quadratic,
    QuadraticAssignment,
    Scaled,
    SoftmaxRegression,
)
from flower_fedcon.objectives.client_axis import Stack, together
from flower_fedcon.objectives.cohorts import alike, key, stack
from flower_fedcon.problems import chr12a
from flower_fedcon.registry import algorithms, client_class
from flower_fedcon.regularizers import L1, GroupLasso, L2Norm
from flower_fedcon.sets import Birkhoff, Box, L1Ball, L2Ball, NuclearNormBall, Simplex
from flower_fedcon.strategies import CFedDA, FastFedDA, FedAvg, FedFW, FedFWPlus, FedMiD, Scaffold

COUNTED = ["uplink_bytes", "downlink_bytes", "cohort", "replies", "dropped", "retries", "lost"]
STACKS = [
    name
    for name, kind in algorithms().items()
    if not kind.queries and not client_class(name).one_at_a_time
]


def objectives(kind: str, n: int = 7, dtype: Any = np.float64, *, rows: int = 12) -> list[Any]:
    """Well-conditioned objectives of six unknowns, all different."""
    rng = np.random.default_rng(8)
    found: list[Any] = []
    for j in range(n):
        A = rng.standard_normal((rows, 6)).astype(dtype)
        b = rng.standard_normal(rows).astype(dtype)
        if kind == "quadratic":
            found.append(Quadratic(A.T @ A / rows + np.eye(6, dtype=dtype), 2 * b[:6]))
        elif kind == "least squares":
            found.append(LeastSquares(A, b, scale=1.0 + j % 3))
        elif kind == "scaled":
            found.append(Scaled(LeastSquares(A, b), 0.5 + j))
        elif kind == "logistic":
            found.append(LogisticRegression(A, np.where(b > 0, 1, -1), l2=0.1 * (j % 2)))
        elif kind == "softmax":
            labels = rng.integers(0, 3, rows)
            found.append(SoftmaxRegression(A[:, :2], labels, 3, l2=0.1))
        else:  # matrices
            found.append(LeastSquares(A.reshape(rows, 2, 3), b))
    return found


KINDS = ["quadratic", "least squares", "scaled", "logistic", "softmax", "matrix"]


def made(name: str, clients: list[Any], **settings: Any) -> tuple[Any, FederatedProblem]:
    contract = CONTRACTS[name]
    oracle = {"constraint": L1Ball(2.0), "regularizer": L1(0.1)}
    if name == "dualfl":  # for clients that are not strongly convex
        settings = {"regularization": 1.0, **settings}
    own = {contract.oracle: oracle[contract.oracle]} if contract.oracle else {}
    problem = FederatedProblem([contract.wrap(c) for c in clients], **own)
    return build(name, problem, **{**contract.small, **settings}), problem


def same(strategy: Any, problem: FederatedProblem, rounds: int = 40, tolerance: float = 1e-10):
    """Assert that both engines agree, and that this one was not the local one."""
    assert stacked.why_not_stackable(strategy, problem) is None
    runs = [simulate(strategy, problem, rounds, engine=e, seed=3) for e in ("local", "stacked")]
    expected, found = runs
    assert found.x.dtype == expected.x.dtype
    scale = max(1.0, float(np.abs(expected.x).max()))
    assert np.abs(found.x - expected.x).max() <= tolerance * scale
    for row, other in zip(expected.rows, found.rows, strict=True):
        assert {k: row[k] for k in COUNTED} == {k: other[k] for k in COUNTED}
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_same_iterates_as_local(name, kind, compiled, monkeypatch):
    if compiled:
        monkeypatch.setattr(door, "WORTHWHILE", 0)
    for rule in rules(name):
        strategy, problem = made(name, objectives(kind), participation=rule)
        same(strategy, problem)


@pytest.mark.parametrize("kind", ["least squares", "logistic", "softmax"])
@pytest.mark.parametrize("name", [n for n in STACKS if "batch_size" in client_class(n).fields])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_same_minibatches_as_local(name, kind, compiled, monkeypatch):
    if compiled:
        monkeypatch.setattr(door, "WORTHWHILE", 0)
    more = {"gradient": "stochastic"} if name.startswith("fedfw") else {}
    for rule in rules(name):
        settings = {"batch_size": 5, "participation": rule, **more}
        same(*made(name, objectives(kind), **settings))


@pytest.mark.parametrize("name", STACKS)
def test_single_precision(name):
    strategy, problem = made(name, objectives("quadratic", dtype=np.float32))
    assert same(strategy, problem, 20, 1e-4).x.dtype == np.float32


@pytest.mark.parametrize("name", [n for n in algorithms() if n not in STACKS])
def test_what_cannot_be_stacked_runs_on_the_local_engine(name, caplog):
    strategy, problem = made(name, objectives("quadratic"))
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = simulate(strategy, problem, 5, engine="stacked").x
    lines = [r.message for r in caplog.records if "running on the local engine" in r.message]
    assert len(lines) == 1
    assert strategy.title in lines[0]
    assert found.tobytes() == simulate(strategy, problem, 5).x.tobytes()


def test_what_can_be_stacked_follows_from_what_a_pair_declares():
    assert {"fedavg", "fedfw", "scaffold", "dualfl", "feddr", "fivegcs"} <= set(STACKS)
    assert not {"fedproxal", "fedsgm", "tamuna"} & set(STACKS)


class Own(Quadratic):
    """An objective of one's own."""


def test_unknown_objectives_run_on_the_local_engine(caplog):
    own = [Own(np.eye(2), np.ones(2)) for _ in range(3)]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        simulate(FedAvg(client_lr=0.1, local_steps=1), FederatedProblem(own), 2, engine="stacked")
    assert "an objective is a Own, which has no stacked form" in caplog.text
    caplog.clear()
    unequal = [LeastSquares(np.eye(2)[: 1 + j], np.ones(1 + j)) for j in range(2)]
    drawing = FedAvg(client_lr=0.1, local_steps=1, batch_size=1)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        simulate(drawing, FederatedProblem(unequal), 2, engine="stacked")
    assert "the 2 clients differ: 2 types and shapes" in caplog.text


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "softmax"])
@pytest.mark.parametrize("name", ["fedavg", "feddualavg", "feddr", "scaffold"])
def test_clients_of_unequal_sizes_are_padded(name, kind, weighted, caplog):
    """Rows of weight 0 change no sum over all rows: the iterates are those one by one."""
    rng, sizes = np.random.default_rng(0), [3, 5, 8, 13, 21, 4, 6, 9, 14, 20, 7, 19]
    clients = []
    for m in sizes:
        A, marks = rng.normal(size=(m, 4)), rng.integers(2, size=m)
        weights = {"sample_weight": rng.uniform(0.1, 2.0, m)} if weighted else {}
        if kind == "least squares":
            clients.append(LeastSquares(A, rng.normal(size=m), **weights))
        elif kind == "logistic":
            intercept = {"intercept": True}
            clients.append(LogisticRegression(A, 2 * marks - 1, 0.1, **weights, **intercept))
        else:
            clients.append(SoftmaxRegression(A, marks, 2, 0.1, **weights))
    groups = alike(clients, pad=True)
    assert sorted(place for own in groups.values() for place in own) == list(range(12))
    assert [sorted(sizes[c] for c in own) for own in groups.values()] == [
        [13, 14, 19, 20, 21], [5, 6, 7, 8, 9], [3, 4]
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for rule in (Full(), Sample(count=5)):
            strategy, problem = made(name, clients, participation=rule)
            one_by_one = simulate(strategy, problem, 12)
            together = simulate(strategy, problem, 12, engine="stacked")
            assert together.x == pytest.approx(one_by_one.x, rel=1e-12, abs=1e-13)
            assert together["objective"] == pytest.approx(one_by_one["objective"], rel=1e-13)
    assert caplog.text == ""
    compiled = simulate(*made(name, clients), 12, engine="jax").x
    assert compiled == pytest.approx(simulate(*made(name, clients), 12).x, rel=1e-11, abs=1e-13)
    equal = [LeastSquares(np.eye(3)[:m], np.ones(m)) for m in (1, 2, 1, 2, 1, 2, 1, 2, 1, 2)]
    assert len(alike(equal, pad=True)) == 2  # five of a size are worth a stack of their own


@pytest.mark.parametrize("rule", [Full(), Sample(count=5), Bernoulli(0.4)])
@pytest.mark.parametrize("name", ["fedfw", "fedavg", "scaffold"])
def test_unequal_clients_are_taken_in_groups(name, rule):
    """Three groups, whose members alternate."""
    many = objectives("least squares", 6)
    few = objectives("least squares", 6, rows=9)
    other = objectives("quadratic", 6)
    mixed = [o for three in zip(many, few, other, strict=True) for o in three]
    same(*made(name, mixed, participation=rule))
    batches = {"batch_size": 4} | ({"gradient": "stochastic"} if name == "fedfw" else {})
    same(*made(name, mixed, participation=rule, **batches))


@pytest.mark.parametrize("name", ["fedfw", "scaffold"])
def test_more_clients_than_one_pass_takes(name, monkeypatch):
    monkeypatch.setattr(Stack, "models_at_once", 20)
    monkeypatch.setattr("flower_fedcon.objectives.stacked_objective._CACHED", 100)
    for rule in (Full(), Sample(count=5)):
        same(*made(name, objectives("least squares"), participation=rule))
    monkeypatch.setattr("flower_fedcon.objectives.stacked_objective._COPIED", 1)
    same(*made(name, objectives("least squares"), participation=Sample(count=5)))


SETS = [Box(-1.0, 1.0), L2Ball(1.5), Simplex(2.0), NuclearNormBall(1.0), L1Ball(1.0).scaled(2.0)]


@pytest.mark.parametrize("constraint", SETS, ids=repr)
def test_atoms_of_every_form(constraint):
    """Dense points, corners, coordinates, rank one and moved: the same bytes on the wire."""
    start = constraint.project(np.full((2, 3), 0.1))
    problem = FederatedProblem(objectives("matrix"), constraint=constraint, x0=start)
    for rule in (Full(), Sample(count=3)):
        same(FedFW(constraint, penalty=0.5, participation=rule), problem, 12)


@pytest.mark.parametrize("psi", [L2Norm(0.2), GroupLasso(0.2, (0, 0, 1, 1, 2, 2))], ids=repr)
def test_regularizers_that_are_not_elementwise(psi):
    problem = FederatedProblem(objectives("least squares"), regularizer=psi)
    same(FedMiD(psi, client_lr=0.05, local_steps=3), problem)
    problem = FederatedProblem(objectives("least squares"), regularizer=L1(0.1))
    same(FedAvg(client_lr=0.05, local_steps=3, regularizer=L1(0.1)), problem)


def test_steps_within_a_radius():
    psi = L1(0.1)
    problem = FederatedProblem(objectives("quadratic"), regularizer=psi)
    settings = {"strong_convexity": 1.0, "damping": 30.0, "local_steps": 3}
    same(CFedDA(psi, radius=0.02, **settings), problem)


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("engine", ["stacked", "local"])
def test_resumes_to_the_same_bytes(name, engine, tmp_path):
    """Also where the local engine began: the checkpoints are the same."""
    sampled = [r for r in rules(name) if isinstance(r, Sample)]
    rule = sampled[0] if sampled else Full()
    strategy, problem = made(name, objectives("least squares"), participation=rule)
    if strategy.uses_num_rounds or name == "mcfedda":
        strategy, problem = made(
            name, objectives("least squares"), stages=[(2.0, None, 9), (1.0, None, 9)]
        )
    whole = simulate(strategy, problem, 20, engine="stacked")
    folder = tmp_path / "run"
    simulate(strategy, problem, 11, engine=engine, run_dir=folder)
    rest = simulate(strategy, problem, 20, engine="stacked", run_dir=folder, resume=True)
    if engine == "stacked":
        assert rest.x.tobytes() == whole.x.tobytes()
    assert rest.x == pytest.approx(whole.x, abs=1e-12)
    assert rest.rows[-1]["uplink_bytes"] == whole.rows[-1]["uplink_bytes"]
    assert Path(folder / "model.npz").exists()


def opened(kind: type[InProcess], run: OpenRun) -> Any:
    engine = kind(run.problem)
    engine.open(run.server.info)
    return engine


@pytest.mark.parametrize("cut", [7, 11])
@pytest.mark.parametrize("name", ["scaffold", "compositefl", "fedfw", "fedfwplus"])
def test_sampled_cohorts_resume_to_the_same_bytes(name, cut, tmp_path):
    """Whatever the clients' states were stored like when the run was cut."""
    for seed in range(6):
        strategy, problem = made(name, objectives("logistic"), participation=Sample(fraction=0.5))
        whole = simulate(strategy, problem, 20, engine="stacked", seed=seed)
        folder = tmp_path / str(seed)
        options = {"engine": "stacked", "seed": seed, "run_dir": folder}
        simulate(strategy, problem, cut, **options)
        rest = simulate(strategy, problem, 20, **options, resume=True)
        assert rest.x.tobytes() == whole.x.tobytes()


def open_run(strategy: Any, problem: FederatedProblem) -> tuple[OpenRun, StackedEngine]:
    run = OpenRun(strategy, problem)
    return run, opened(StackedEngine, run)


def test_checkpoints_hold_what_the_local_clients_hold():
    strategy, problem = made("scaffold", objectives("quadratic"), participation=Sample(count=3))
    run, engine = open_run(strategy, problem)
    direct = OpenRun(strategy, problem)
    clients = opened(LocalEngine, direct)
    for _ in range(9):
        run.round(engine)
        direct.round(clients)
        for ours, theirs in zip(engine.save(), clients.save(), strict=True):
            assert ours.pending_round == theirs.pending_round
            assert ours.round == theirs.round
            if theirs.pending_round:
                assert np.allclose(ours.pending.c, theirs.pending.c, rtol=0, atol=1e-12)
            if theirs.round:
                assert np.allclose(ours.acknowledged.c, theirs.acknowledged.c, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_stacks_have_the_values_and_gradients_of_their_parts(kind):
    parts = objectives(kind)
    assert len({key(part) for part in parts}) == 1
    whole, rng = stack(parts), np.random.default_rng(2)
    x = rng.standard_normal((7, *parts[0].shape))
    np.testing.assert_allclose(whole.values(x[0]), [part.value(x[0]) for part in parts], 1e-13)
    for which in (slice(0, 7), slice(2, 5), np.array([0, 3, 6])):
        chosen, points = np.arange(7)[which], x[which]
        found = whole.gradient(points, which)
        for i, j in enumerate(chosen):
            assert np.allclose(found[i], parts[j].gradient(x[j]), rtol=0, atol=1e-12)
        common = whole.gradient(x[0], which)
        for i, j in enumerate(chosen):
            assert np.allclose(common[i], parts[j].gradient(x[0]), rtol=0, atol=1e-12)
        if kind == "quadratic":
            continue
        rows = np.stack([rng.permutation(12)[:5] for _ in chosen])
        found = whole.batch_gradient(points, which, rows)
        for i, j in enumerate(chosen):
            expected = parts[j].batch_gradient(x[j], rows[i])
            assert np.allclose(found[i], expected, rtol=0, atol=1e-12)


def test_arrays_that_follow_one_another_are_not_copied():
    data = together(list(np.random.default_rng(0).standard_normal((5, 4, 3))))
    assert np.shares_memory(together(list(data)), data)
    assert np.array_equal(together(list(data)), data)
    past_a_line = together(list(data[1:]))  # a small one is brought to the next
    assert not np.shares_memory(past_a_line, data)
    assert np.array_equal(past_a_line, data[1:])
    assert past_a_line.ctypes.data % 64 == data.ctypes.data % 64 == 0
    scattered = [data[0], data[2], data[1]]
    assert not np.shares_memory(together(scattered), data)
    assert np.array_equal(together(scattered), np.stack(scattered))


@pytest.mark.parametrize("entries", [4, 5])  # of 36; with 5 some clients have 6
def test_quadratic_assignment_as_local(entries):
    """On matrices without near-ties between permutations, which rounding would decide."""
    rng = np.random.default_rng(3)
    A, B, pairs = rng.random((6, 6)), rng.random((6, 6)), np.argwhere(np.ones((6, 6)))
    blocks = np.array_split(pairs, len(pairs) // entries)
    clients = [QuadraticAssignment(A, B, block) for block in blocks]
    problem = FederatedProblem(clients, constraint=Birkhoff(6), x0=np.full((6, 6), 1 / 6))
    few, x = [c for c in clients if c.num_examples == entries], rng.random((6, 6))
    np.testing.assert_allclose(stack(few).values(x), [c.value(x) for c in few], 1e-13)
    for kind in (FedFW, FedFWPlus):
        for rule in (Full(), Sample(count=4)):
            same(kind(problem.constraint, penalty=0.1, participation=rule), problem)


def test_whole_quadratic_assignments_are_not_stacked():
    problem = chr12a(clients=4)
    reason = stacked.why_not_stackable(FedFW(problem.constraint, penalty=10.0), problem)
    assert reason == "an objective is a QuadraticAssignment, which has no stacked form"


def test_the_strategies_of_the_tests_are_stacked():
    problem = FederatedProblem(objectives("quadratic"), regularizer=L1(0.1))
    strategy = FastFedDA(problem.regularizer, strong_convexity=1.0, local_steps=2)
    assert stacked.why_not_stackable(strategy, problem) is None
    assert stacked.why_not_stackable(Scaffold(client_lr=0.1, local_steps=1), problem) is None


@pytest.mark.parametrize("name", ["fedfw", "fedfwplus", "scaffold", "fedavg"])
def test_the_same_certificates_as_local(name):
    for rule in (Full(), Sample(count=3)):
        strategy, problem = made(name, objectives("least squares"), participation=rule)
        rows, others = (
            simulate(strategy, problem, 12, engine=engine, certificates=True).rows
            for engine in ("local", "stacked")
        )
        for row, other in zip(rows, others, strict=True):
            assert row.keys() == other.keys()
            for entry in row.keys() - {"seconds"}:
                assert other[entry] == pytest.approx(row[entry], rel=1e-9, abs=1e-9), entry
