"""Clients whose data lie in one array: the same problem, iterates and runs as a list of them."""

from __future__ import annotations

import zipfile
from typing import Any

import numpy as np
import pytest
from nightly import nightly

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.core.dispatch import Dispatch
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.server import Server
from flower_fedcon.core.state_columns import StateColumns
from flower_fedcon.core.summed import Summed
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.engines.stacked import StackedEngine
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    ManyClients,
    PoissonRegression,
    Quadratic,
    SoftmaxRegression,
)
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.regularizers import L1
from flower_fedcon.runs import checkpoint
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import DualFL, FedAvg, FedDualAvg, FedFW, Scaffold
from flower_fedcon.wire import state_files

N, M, D = 7, 5, 4
SETTINGS: dict[Any, dict[str, Any]] = {
    LeastSquares: {"scale": 2.0},
    LogisticRegression: {"l2": 0.1},
    HuberRegression: {"delta": 0.5, "l2": 0.1},
    PoissonRegression: {"l2": 0.1},
    SoftmaxRegression: {"num_classes": 3, "l2": 0.1},
}
RULES = {"full": Full(), "sampled": Sample(count=3)}
STEPS: dict[str, Any] = {"client_lr": 0.05, "local_steps": 3}
METHODS = {
    "fedavg": lambda p, **more: FedAvg(**STEPS, **more),
    "minibatches": lambda p, **more: FedAvg(**STEPS, batch_size=2, **more),
    "feddualavg": lambda p, **more: FedDualAvg(p.regularizer, **STEPS, **more),
    "fedfw": lambda p, **more: FedFW(p.constraint, penalty=1.0, **more),
    "scaffold": lambda p, **more: Scaffold(**{**STEPS, "local_steps": 2}, **more),
    "dualfl": lambda p, **more: DualFL(strong_convexity=1e-3, **more),
}
TERMS = {"feddualavg": {"regularizer": L1(0.01)}, "fedfw": {"constraint": L1Ball(1.0)}}


def data(kind: type[Any], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    A, targets = rng.standard_normal((N, M, D)), rng.standard_normal((N, M))
    if kind is LogisticRegression:
        targets = np.sign(targets)
    elif kind is PoissonRegression:
        targets = rng.poisson(1.0, (N, M)).astype(float)
    elif kind is SoftmaxRegression:
        targets = rng.integers(0, 3, (N, M))
    return A, targets


def both(kind: type[Any], **options: Any) -> tuple[FederatedProblem, FederatedProblem]:
    """Return a problem from one array, and the same from separate objectives."""
    A, targets = data(kind)
    each = [kind(*own, **SETTINGS[kind]) for own in zip(A, targets, strict=True)]
    many = ManyClients(kind, A, targets, **SETTINGS[kind])
    return FederatedProblem(many, **options), FederatedProblem(each, **options)


WEIGHTS, X = np.arange(N) + 0.5, np.array([1.0, -2.0, 0.5, 0.0])


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_the_problem_is_that_of_separate_objectives(kind, weights):
    many, each = both(kind, weights=weights)
    x = np.random.default_rng(1).standard_normal(each.x0.shape)
    assert many.objective(x) == pytest.approx(each.objective(x), rel=1e-13)
    assert np.allclose(many.gradient(x), each.gradient(x), rtol=0, atol=1e-13)
    for ours, theirs in zip(many.objectives, each.objectives, strict=True):
        assert np.allclose(ours.gradient(x), theirs.gradient(x), rtol=0, atol=1e-14)
    setups = [Setup.of(LocalEngine(p).describe(), 1, p.layout, Full(), 0) for p in (many, each)]
    for name in ("smoothness", "strong_convexity"):
        if kind is PoissonRegression and name == "smoothness":
            assert all(s.smoothness is s.clients[0].smoothness is None for s in setups)
            continue
        ours, theirs = ([getattr(c, name) for c in s.clients] for s in setups)
        assert ours == pytest.approx(theirs, rel=1e-10)
        assert getattr(setups[0], name) == pytest.approx(getattr(setups[1], name), rel=1e-10)
        assert getattr(setups[0].clients[3], name) == pytest.approx(theirs[3], rel=1e-10)
    assert [c.name for c in setups[0].clients] == list(setups[0].names) == list(each.names)
    assert [c.num_examples for c in setups[0].clients] == [M] * N
    if kind is LogisticRegression:
        assert many.optimum.value == pytest.approx(each.optimum.value, abs=1e-9)


OTHERS = [HuberRegression, PoissonRegression, SoftmaxRegression]
SAME = [
    *((kind, method, rule, {"engine": engine})
      for kind in (LeastSquares, LogisticRegression) for method in METHODS for rule in RULES
      for engine in ("local", "stacked")),
    # With workers, too: a process gets its share of the array.
    *((kind, "fedavg", "full", {"engine": "stacked"}) for kind in OTHERS),
    (SoftmaxRegression, "fedavg", "full", {"workers": 2}),
    *(nightly(kind, "fedavg", "full", {"workers": 2}) for kind in OTHERS[:2]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "method", "rule", "more"), SAME)
def test_the_iterates_are_those_of_separate_objectives(kind, method, rule, more):
    for weights in (None, WEIGHTS):
        ours, theirs = (
            simulate(METHODS[method](p, participation=RULES[rule]), p, 8, seed=2, **more)
            for p in both(kind, weights=weights, **TERMS.get(method, {}))
        )
        assert np.abs(ours.x - theirs.x).max() <= 1e-12
        assert ours["objective"] == pytest.approx(theirs["objective"], rel=1e-12)
        for name in ("uplink_bytes", "downlink_bytes", "cohort"):
            assert ours[name].tolist() == theirs[name].tolist()


@pytest.mark.parametrize("options", [{}, {"norm_bound": 0.25}, {"aggregation": "median"}], ids=str)
@pytest.mark.parametrize("method", ["fedavg", "feddualavg", "fedfw", "scaffold"])
def test_uploads_of_a_large_cohort_are_summed_as_they_come(method, options, monkeypatch):
    """Once they have passed the gate, and where their sum is all that is needed: the same bytes."""
    if options and method not in ("fedavg", "feddualavg"):
        pytest.skip("takes none")
    problem = both(LeastSquares, **TERMS.get(method, {}))[0]
    rule = {"aggregation": CoordinateMedian()} if "aggregation" in options else options
    strategy = METHODS[method](problem, **rule)
    monkeypatch.setattr(Stack, "models_at_once", 2 * problem.start.size)  # four passes
    held: list[set[type[Any]]] = []
    plain = Uploads.__init__

    def watched(self, replies, *more, **named):
        held.append({type(column) for reply in replies for column in reply.payload.values()})
        plain(self, replies, *more, **named)

    monkeypatch.setattr(Uploads, "__init__", watched)
    streamed = simulate(strategy, problem, 5, engine="stacked")
    assert any(Summed in kinds for kinds in held) == (
        method in ("fedavg", "feddualavg") and "aggregation" not in options
    )
    one_by_one = StackedEngine.answer
    monkeypatch.setattr(StackedEngine, "answer", lambda *given: list(one_by_one(*given)))
    monkeypatch.setattr(Dispatch, "_sum", lambda self, name, column: column)
    whole = simulate(strategy, problem, 5, engine="stacked")
    assert np.abs(streamed.x - whole.x).max() <= 1e-15  # with dropped ones, in another order
    assert options == {"norm_bound": 0.25} or streamed.x.tobytes() == whole.x.tobytes()
    for name in ("uplink_bytes", "dropped", "replies"):
        assert streamed[name].tolist() == whole[name].tolist()
    assert (whole["dropped"][-1] > 0) == ("norm_bound" in options)


def saved(folder, strategy) -> dict[str, Any]:
    return state_files.read(folder / checkpoint.NAME, checkpoint._types(strategy))


def test_a_checkpoint_has_one_array_for_all_clients(tmp_path):
    """And rows for those alone that have a state."""
    problem = both(LeastSquares, constraint=L1Ball(1.0))[0]
    strategy = METHODS["fedfw"](problem, participation=RULES["sampled"])
    simulate(strategy, problem, 1, engine="stacked", run_dir=tmp_path / "run")
    content = saved(tmp_path / "run", strategy)
    states, acknowledged = content["clients"], content["server"]["acknowledged"]
    assert isinstance(states, StateColumns)
    assert isinstance(acknowledged, np.ndarray)
    found = [array for place in states.arrays for array in place.values()]
    assert [array.shape for array in found] == [(3, D)]
    sampled = np.flatnonzero(acknowledged).tolist()
    assert [j for j, one in enumerate(states) if one.pending_round] == sampled
    with zipfile.ZipFile(tmp_path / "run" / checkpoint.NAME) as archive:
        assert len(archive.namelist()) < 12


@pytest.mark.parametrize("method", ["feddualavg", "scaffold"])
def test_checkpoints_with_the_states_one_by_one_are_read(method, tmp_path):
    """As earlier versions wrote them."""
    problem = both(LeastSquares, **TERMS.get(method, {}))[1]
    strategy = METHODS[method](problem, participation=RULES["sampled"])
    whole = simulate(strategy, problem, 12, engine="stacked")
    simulate(strategy, problem, 7, engine="stacked", run_dir=tmp_path / "run")
    content = saved(tmp_path / "run", strategy)
    content["clients"] = list(content["clients"] or [checkpoint.Versions()] * N)
    content["server"]["acknowledged"] = content["server"]["acknowledged"].tolist()
    checkpoint.save(tmp_path / "run", content)
    rest = simulate(strategy, problem, 12, engine="stacked", run_dir=tmp_path / "run", resume=True)
    assert rest.x.tobytes() == whole.x.tobytes()


def test_nothing_is_copied(tmp_path):
    """Of arrays that nobody can write to, here or in files; the engine reads the very data."""
    A, b = data(LeastSquares)
    A.flags.writeable = False
    np.save(tmp_path / "A.npy", A)
    mapped = np.load(tmp_path / "A.npy", mmap_mode="r")
    for given in (A, mapped):
        many = ManyClients(LeastSquares, given, b)
        problem = FederatedProblem(many)
        engine = StackedEngine(problem)
        setup = Setup.of(engine.describe(), 1, problem.layout, Full(), 0)
        engine.open(Server(METHODS["fedavg"](problem), setup, problem.start).info)
        for array in (many[2].rows, many[2:5][0].rows, engine._groups[0].stack.objective.rows):
            assert np.shares_memory(array, given)
        found = simulate(METHODS["fedavg"](problem), problem, 3, engine="stacked").x
    each = FederatedProblem([LeastSquares(*own) for own in zip(A, b, strict=True)])
    assert np.abs(found - simulate(METHODS["fedavg"](each), each, 3).x).max() <= 1e-12


def test_the_local_engine_makes_the_clients_that_are_sampled():
    problem = both(LeastSquares)[0]
    engine = LocalEngine(problem)
    strategy = METHODS["fedavg"](problem, participation=Sample(count=2))
    setup = Setup.of(engine.describe(), 1, problem.layout, strategy.participation, 0)
    run = Run(Plan(1), strategy, setup, problem.start, engine)
    run.play()
    assert set(engine._clients) == {0, *run.server.cohort}


def test_parts():
    A, b = data(LeastSquares)
    many = ManyClients(LeastSquares, A, b)
    for part, places in ((many[2:5], range(2, 5)), (many[1::3], range(1, N, 3)), (many[5:2], ())):
        assert len(part) == len(places)
        for ours, place in zip(part, places, strict=True):
            assert np.array_equal(ours.A, A[place])
            assert np.array_equal(ours.b, b[place])
    with pytest.raises(IndexError):
        many[N]


def made(kind: Any = LeastSquares, A: Any = (2, 3, 4), b: Any = (2, 3), **more: Any) -> Any:
    """Return clients of ones, or of these arrays."""
    return ManyClients(kind, *(np.ones(v) if isinstance(v, tuple) else v for v in (A, b)), **more)


def infinite(which: int) -> Any:
    given = [np.ones((5, 4, 3)), np.ones((5, 4))]
    given[which][3, 2] = np.inf
    return ManyClients(LeastSquares, *given)


REFUSED = [
    (lambda: made(Quadratic, (2, 3, 3)), "must be one of the losses"),
    (lambda: made(A=(2, 3), b=(2,)), r"shape \(clients, rows"),
    (lambda: made(A=(0, 3, 2), b=(0, 3)), "all >= 1"),
    (lambda: made(b=(6,)), r"A's shape \(2, 3\)"),
    (lambda: made(A=np.full((2, 3, 4), np.nan)), "not finite"),
    (lambda: made(LogisticRegression, b=np.full((2, 3), 2.0)), "-1 or"),
    (lambda: made(intercept=True), "ones"),
    (lambda: made(sample_weight=[1]), "weights="),
    (lambda: ManyClients(LeastSquares, [[[1.0], [2.0]], [[1.0]]], np.ones((2, 2))),
     "list of objectives where rows differ"),
    (lambda: infinite(0), r"not finite .* \(row 2 of client 3\)"),
    (lambda: infinite(1), r"not finite .* \(row 2 of client 3\)"),
    (lambda: FederatedProblem(made(), constraints="each"), 'constraints="each" needs'),
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_what_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# --- weights of weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("again", [None, WEIGHTS[::-1]])
def test_objectives_of_a_weighted_problem_keep_their_weights(again):
    given = both(LeastSquares, weights=np.arange(float(N)))
    many, each = (FederatedProblem(p.objectives, weights=again) for p in given)
    np.testing.assert_allclose(many.objective(X), each.objective(X), rtol=1e-13)
    own, expected = ([f.value(X) for f in p.objectives] for p in (many, each))
    np.testing.assert_allclose(own, expected, rtol=1e-13)


@pytest.mark.parametrize("part", [slice(0, 1), slice(4, 6), slice(None, None, 2)])
def test_the_mean_of_some_clients_is_the_mean_of_their_values(part):
    some = both(LeastSquares, weights=np.arange(float(N)))[0].objectives[part]
    expected = np.mean([objective.value(X) for objective in some])
    np.testing.assert_allclose(some.mean.value(X), expected, rtol=1e-13)


def test_constants_where_a_chunk_has_mean_weights(monkeypatch):
    monkeypatch.setattr("flower_fedcon.objectives.many._AT_ONCE", 1)  # each client is one
    many, each = both(LeastSquares, weights=[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0])
    smooth, _ = many.objectives.constants()
    np.testing.assert_allclose(smooth, [f.smoothness for f in each.objectives], rtol=1e-12)


def test_an_audit_log_of_many_clients(tmp_path):
    problem = both(LeastSquares)[0]
    simulate(METHODS["fedavg"](problem), problem, 3, run_dir=tmp_path / "a", audit=True)
    assert (tmp_path / "a" / "audit.jsonl").read_text().count('"start"') == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_that_was_killed_before_any_client_had_a_state_goes_on(tmp_path, which):
    problem = both(LeastSquares)[which]
    strategy, given = METHODS["scaffold"](problem), {"engine": "stacked"}
    simulate(strategy, problem, 0, run_dir=tmp_path, **given)  # its checkpoint is that of the start
    resumed = simulate(strategy, problem, 5, resume=True, run_dir=tmp_path, **given)
    np.testing.assert_array_equal(resumed.x, simulate(strategy, problem, 5, **given).x)
