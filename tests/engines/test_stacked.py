"""The stacked engine: the local engine's iterates, for all clients in one pass."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from agreement import agree, flat, squares
from contract import CONTRACTS, build
from harness import OpenRun
from nightly import nightly
from random_runs import METHODS, draw
from test_contract import rules

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate
from flower_fedcon import compiled as door
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.uploads import Uploads
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
from flower_fedcon.objectives.cohorts import alike, key, stack, stacks
from flower_fedcon.problems import chr12a
from flower_fedcon.registry import algorithms, client_class
from flower_fedcon.regularizers import L1, GroupLasso, L2Norm
from flower_fedcon.sets import Birkhoff, Box, L1Ball, L2Ball, NuclearNormBall, Simplex
from flower_fedcon.solvers import AOGM, LBFGS
from flower_fedcon.strategies import (
    CFedDA,
    DualFL,
    FedAvg,
    FedExProx,
    FedFW,
    FedFWPlus,
    FedMiD,
    FedProx,
    FedProxAL,
)

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
    oracle = {"constraint": L1Ball(2.0), "regularizer": L1(0.01)}  # with 0.1 logistic models stay 0
    if name == "dualfl":  # for clients that are not strongly convex
        settings = {"regularization": 1.0, **settings}
    own = {contract.oracle: oracle[contract.oracle]} if contract.oracle else {}
    problem = FederatedProblem([contract.wrap(c) for c in clients], **own)
    return build(name, problem, **{**contract.small, **settings}), problem


CERTIFIED = ["fedfw", "fedfwplus", "scaffold", "fedavg"]
BATCHED = [name for name in STACKS if "batch_size" in client_class(name).fields]
ROWS = ("least squares", "logistic", "softmax")  # kinds that have minibatches


def covered(names: list[str], kinds: Any, size: int | None) -> list[Any]:
    """Return runs of each method: compiled on one half of the kinds, by NumPy on the other.

    Methods next to each other have other halves, so that each kind is played both ways, too. What
    is left of the product is nightly.
    """
    return [
        (pytest.param if (i + k + compiled) % 2 else nightly)(name, kind, size, bool(compiled))
        for i, name in enumerate(names)
        for k, kind in enumerate(kinds)
        for compiled in (0, 1)
    ]


PLAY = [*covered(STACKS, KINDS, None), *covered(BATCHED, ROWS, 5)]


def batches(name: str, size: int | None) -> dict[str, Any]:
    if size is None:
        return {}
    return {"batch_size": size} | ({"gradient": "stochastic"} if name.startswith("fedfw") else {})


@pytest.mark.parametrize(("name", "kind", "size", "compiled"), PLAY)
def test_the_same_iterates_as_local(name, kind, size, compiled, monkeypatch):
    if compiled:
        monkeypatch.setattr(door, "WORTHWHILE", 0)
    for rule in rules(name):
        more = {"participation": rule, **batches(name, size)}
        certified = {"certificates": name in CERTIFIED and kind == "least squares"}
        agree(*made(name, objectives(kind), **more), 30, **certified)


@pytest.mark.parametrize("name", STACKS)
def test_single_precision(name):
    strategy, problem = made(name, objectives("quadratic", dtype=np.float32))
    assert agree(strategy, problem, 20, 1e-4).x.dtype == np.float32


# --- features -------------------------------------------------------------------------------------


def with_psi(kind: Any, psi: Any, parts: str = "least squares", **more: Any) -> tuple[Any, Any]:
    settings = {"client_lr": 0.05, "local_steps": 3, **more}
    problem = FederatedProblem(objectives(parts), regularizer=psi)
    return kind(regularizer=psi, **settings), problem


def within(constraint: Any) -> Any:
    """Return FedFW's runs: dense points, corners, coordinates, rank one and moved."""
    start = constraint.project(np.full((2, 3), 0.1))
    problem = FederatedProblem(objectives("matrix"), constraint=constraint, x0=start)
    for rule in (Full(), Sample(count=3)):
        yield FedFW(constraint, penalty=0.5, participation=rule), problem, 12


def mixed(name: str, rule: Any) -> Any:
    """Return runs of three groups, whose members alternate."""
    groups = objectives("least squares", 6), objectives("least squares", 6, rows=9)
    parts = [o for three in zip(*groups, objectives("quadratic", 6), strict=True) for o in three]
    for size in (None, 4):
        yield made(name, parts, participation=rule, **batches(name, size))


def permutations(entries: int) -> Any:
    """Return runs on matrices without near-ties, which rounding would decide."""
    rng = np.random.default_rng(3)
    A, B, pairs = rng.random((6, 6)), rng.random((6, 6)), np.argwhere(np.ones((6, 6)))
    blocks = np.array_split(pairs, len(pairs) // entries)
    clients = [QuadraticAssignment(A, B, block) for block in blocks]
    problem = FederatedProblem(clients, constraint=Birkhoff(6), x0=np.full((6, 6), 1 / 6))
    few, x = [c for c in clients if c.num_examples == entries], rng.random((6, 6))
    np.testing.assert_allclose(stack(few).values(x), [c.value(x) for c in few], 1e-13)
    for kind in (FedFW, FedFWPlus):
        for rule in (Full(), Sample(count=4)):
            yield kind(problem.constraint, penalty=0.1, participation=rule), problem


def dual(psi: Any = None, parts: str = "softmax", **settings: Any) -> tuple[Any, Any]:
    problem = FederatedProblem(objectives(parts), regularizer=psi)
    return DualFL(regularizer=psi, **settings), problem


SETS = [Box(-1.0, 1.0), L2Ball(1.5), Simplex(2.0), NuclearNormBall(1.0), L1Ball(1.0).scaled(2.0)]
PAPER: dict[str, Any] = {"form": "paper", "momentum": 0.0}
FEATURES: dict[str, Any] = {
    **{f"in {c}": lambda c=c: within(c) for c in SETS},
    **{f"{name} in groups, {rule}": lambda name=name, rule=rule: mixed(name, rule)
       for name in ("fedfw", "fedavg", "scaffold")
       for rule in (Full(), Sample(count=5), Bernoulli(0.4))},
    "a norm": lambda: [with_psi(FedMiD, L2Norm(0.2))],
    "groups": lambda: [with_psi(FedMiD, GroupLasso(0.2, (0, 0, 1, 1, 2, 2)))],
    "fedavg with psi": lambda: [with_psi(FedAvg, L1(0.1))],
    "steps within a radius": lambda: [radius()],
    "permutations of 4": lambda: permutations(4),
    "permutations of 5 and 6": lambda: permutations(5),
    "the gap rule": lambda: [(*dual(form=form, stopping="gap", local_solver=solver), 30, 1e-8)
                             for form in ("paper", "accelerated") for solver in ("exact", "aogm")],
    "dual with psi": lambda: [(*dual(L1(0.01), **PAPER), 20)],
    "L-BFGS": lambda: [(*dual(local_solver=LBFGS(tolerance=1e-12), **PAPER), 20)],
}  # fmt: skip


def radius() -> tuple[Any, Any]:
    psi = L1(0.1)
    problem = FederatedProblem(objectives("quadratic"), regularizer=psi)
    settings = {"strong_convexity": 1.0, "damping": 30.0, "local_steps": 3}
    return CFedDA(psi, radius=0.02, **settings), problem


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_those_of_the_local_engine(name):
    for run in FEATURES[name]():
        agree(*run)


@pytest.mark.parametrize("name", ["fedfw", "scaffold"])
def test_more_clients_than_one_pass_takes(name, monkeypatch):
    monkeypatch.setattr(Stack, "models_at_once", 20)
    place = "flower_fedcon.objectives.stacked_objective."
    monkeypatch.setattr(f"{place}_CACHED", 100)
    for rule, copied in ((Full(), None), (Sample(count=5), None), (Sample(count=5), 1)):
        if copied is not None:
            monkeypatch.setattr(f"{place}_COPIED", copied)
        agree(*made(name, objectives("least squares"), participation=rule))


UNEQUAL = [
    # To the compiled engine weights are more data: each method has one kind there in the suite.
    (nightly if engine == "jax" and (weighted or (i + k) % 3) else pytest.param)(
        name, kind, weighted, engine
    )
    for i, name in enumerate(["fedavg", "feddualavg", "feddr", "scaffold"])
    for k, kind in enumerate(ROWS)
    for weighted in (False, True)
    for engine in ("stacked", "jax")
]


@pytest.mark.parametrize(("name", "kind", "weighted", "engine"), UNEQUAL)
def test_clients_of_unequal_sizes_are_padded(name, kind, weighted, engine, log):
    """Rows of weight 0 change no sum over all rows: the iterates are those one by one."""
    if engine == "jax":
        pytest.importorskip("jax")
    rng, sizes = np.random.default_rng(0), [3, 5, 8, 13, 21, 4, 6, 9, 14, 20, 7, 19]
    clients: list[Any] = []
    for m in sizes:
        A, marks = rng.normal(size=(m, 4)), rng.integers(2, size=m)
        weights = {"sample_weight": rng.uniform(0.1, 2.0, m)} if weighted else {}
        if kind == "least squares":
            clients.append(LeastSquares(A, rng.normal(size=m), **weights))
        elif kind == "logistic":
            clients.append(LogisticRegression(A, 2 * marks - 1, 0.1, **weights, intercept=True))
        else:
            clients.append(SoftmaxRegression(A, marks, 2, 0.1, **weights))
    groups = alike(clients, pad=True)
    assert sorted(place for own in groups.values() for place in own) == list(range(12))
    assert [sorted(sizes[c] for c in own) for own in groups.values()] == [
        [13, 14, 19, 20, 21], [5, 6, 7, 8, 9], [3, 4]
    ]  # fmt: skip
    for rule in (Full(), Sample(count=5)) if engine == "stacked" else (Full(),):
        strategy, problem = made(name, clients, participation=rule)
        one_by_one, together = (
            simulate(strategy, problem, 12, engine=e) for e in ("local", engine)
        )
        exact = 1e-12 if engine == "stacked" else 1e-11
        assert together.x == pytest.approx(one_by_one.x, rel=exact, abs=1e-13)
        if engine == "stacked":
            assert together["objective"] == pytest.approx(one_by_one["objective"], rel=1e-13)
            assert log.text == ""
    equal = [LeastSquares(np.eye(3)[:m], np.ones(m)) for m in (1, 2, 1, 2, 1, 2, 1, 2, 1, 2)]
    assert len(alike(equal, pad=True)) == 2  # five of a size are worth a stack of their own


# --- what runs on the local engine ----------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in algorithms() if n not in STACKS])
def test_what_cannot_be_stacked_runs_on_the_local_engine(name, log):
    strategy, problem = made(name, objectives("quadratic"))
    found = simulate(strategy, problem, 5, engine="stacked").x
    (line,) = [r.message for r in log.records if "running on the local engine" in r.message]
    assert strategy.title in line
    assert found.tobytes() == simulate(strategy, problem, 5).x.tobytes()


def test_what_can_be_stacked_follows_from_what_a_pair_declares():
    assert {"fedavg", "fedfw", "scaffold", "dualfl", "feddr", "fivegcs"} <= set(STACKS)
    assert not {"fedproxal", "fedsgm", "tamuna"} & set(STACKS)


class Own(Quadratic):
    """An objective of one's own."""


class OwnSolver(AOGM):
    """A solver of one's own."""


def of(*parts: Any, **terms: Any) -> FederatedProblem:
    return FederatedProblem(list(parts), **terms)


ONE = {"client_lr": 0.1, "local_steps": 1}
OWN = FedProx(proximal=1.0, local_solver=OwnSolver())
LABELS = FederatedProblem(objectives("logistic"))
QAP = chr12a(clients=4)
WHY = [
    (FedAvg(**ONE), of(*[Own(np.eye(2), np.ones(2))] * 3),
     "an objective is a Own, which has no stacked form"),
    (FedAvg(**ONE, batch_size=1), squares((1, 2)), "the 2 clients differ: 2 types and shapes"),
    (FedFW(QAP.constraint, penalty=10.0), QAP,
     "an objective is a QuadraticAssignment, which has no stacked form"),
    (OWN, LABELS, "FedProx has its local solver"),
    (OWN, LABELS, "one client at a time"),
    (FedExProx(step_size=1.0, extrapolation="polyak"), LABELS, "envelope"),
    (FedExProx(step_size=1.0), LABELS, None),
    (FedProxAL(penalty=1.0, coupling=1.0), LABELS, "multiplier"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "problem", "said"), WHY)
def test_reasons(strategy, problem, said, log):
    reason = stacked.why_not_stackable(strategy, problem)
    assert reason is None if said is None else said in reason
    if problem.num_clients < 4:
        simulate(strategy, problem, 2, engine="stacked")
        assert reason in log.text


# --- checkpoints ----------------------------------------------------------------------------------


def opened(kind: type[InProcess], run: OpenRun) -> Any:
    engine = kind(run.problem)
    engine.open(run.server.info)
    return engine


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


# --- random runs, also of the compiled engine -----------------------------------------------------


FEW, MANY = range(4), range(4, 40)  # runs of a method, and at night: a thousand in all
TRACED = ["FedAvg", "FedDR"]  # those that the compiled engine plays in each run of the tests
RANDOM = [
    *((m, "stacked", FEW) for m in METHODS),
    *((m, "jax", FEW[::2]) for m in TRACED),
    *(nightly(m, "stacked", MANY) for m in METHODS),
    *(nightly(m, "jax", MANY[:: 4 if m in TRACED else 1]) for m in METHODS),
]


def test_every_method_has_random_runs():
    assert {*METHODS} == {method.__name__ for method in algorithms().values()}


@pytest.mark.parametrize(("method", "engine", "numbers"), RANDOM)
def test_random_runs(method, engine, numbers):
    """Give the local engine's model, relative to its greatest entry."""
    if engine == "jax":
        pytest.importorskip("jax")
    for number in numbers:
        run = draw(method, number)
        options = {"seed": run.seed, "evaluate_every": 0}
        local, other = (
            flat(simulate(run.strategy, run.problem, run.rounds, engine=e, **options).x)
            for e in ("local", engine)
        )
        allowed = 1e-4 if local.dtype == np.float32 else 1e-9
        scale = float(np.abs(local).max()) or 1.0  # a strong psi holds the model at zero
        found = float(np.abs(other - local).max()) / scale
        assert found <= allowed, f"{engine}: {found:.1e} of {run.words}"


def test_clients_with_large_models_keep_their_data_where_they_are():
    """A pass serves each alone, so that one array of all would only double the memory."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((16, 150_000)) for _ in range(2)]
    for A in rows:
        A.flags.writeable = False
    clients = [LeastSquares(A, np.ones(16)) for A in rows]
    apart = stacks(clients, apart=True)
    assert [places.tolist() for _, places in apart] == [[0], [1]]
    for (part, _), A in zip(apart, rows, strict=True):
        assert np.shares_memory(part.objective.rows, A)
    problem = FederatedProblem(clients)
    found = [
        simulate(FedAvg(client_lr=1e-6, local_steps=2), problem, 2, engine=engine).x
        for engine in ("local", "stacked")
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-12)


def test_the_mean_of_replies_of_one_client_each_holds_one_more_model():
    size = 300_000
    columns = [np.full((1, size), float(j)) for j in range(4)]
    uploads = Uploads([Reply([j], 1, {"delta": c}) for j, c in enumerate(columns)], 4)
    tracemalloc.start()
    mean = uploads.mean("delta")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mean.tolist() == [1.5] * size
    assert peak < 2.2 * mean.nbytes
    assert [c[0, 0] for c in columns] == [0.0, 1.0, 2.0, 3.0]
