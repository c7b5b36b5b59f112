"""The compiled engine: the local engine's iterates, bytes and errors."""

from __future__ import annotations

import builtins
import logging
from typing import Any

import numpy as np
import pytest
from nightly import at_night
from test_contract import rules
from test_stacked import COUNTED, KINDS, STACKS, made, objectives

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, simulate
from flower_fedcon.arrays import Traced
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.regularizers import L1, ElasticNet, Indicator, L2Squared
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.sets import Box, L1Ball, L2Ball, LInfBall, Simplex
from flower_fedcon.strategies import (
    CompositeFL,
    FastFedDA,
    FedAvg,
    FedDualAvg,
    FedFW,
    FedMiD,
    Scaffold,
)

jax = pytest.importorskip("jax")
from flower_fedcon.engines.jax.program import JaxEngine  # noqa: E402
from flower_fedcon.engines.jax.traceable import why_not_traceable  # noqa: E402

COMPILED = [
    "averagedfw", "cfedda", "compositefl", "fastfedda", "fedavg", "feddualavg", "fedfw",
    "fedfwplus", "fedmid", "scaffold",
]  # fmt: skip


@pytest.fixture(autouse=True)
def done(monkeypatch) -> list[int]:
    """The numbers of rounds that were compiled."""
    found: list[int] = []
    advance = JaxEngine.advance

    def counted(self, server, rounds):
        found.append(advance(self, server, rounds))
        return found[-1]

    monkeypatch.setattr(JaxEngine, "advance", counted)
    return found


def same(
    strategy: Any, problem: FederatedProblem, rounds: int = 30, tolerance: float = 1e-10
) -> Any:
    """Assert that it agrees with the local engine, and return the history."""
    expected, found = (
        simulate(strategy, problem, rounds, engine=e, seed=3, evaluate_every=10)
        for e in ("local", "jax")
    )
    assert found.x.dtype == expected.x.dtype
    scale = max(1.0, float(np.abs(expected.x).max()))
    assert np.abs(expected.x).max() > 1e-3
    assert np.abs(found.x - expected.x).max() <= tolerance * scale
    for row, other in zip(expected.rows, found.rows, strict=True):
        assert {k: row[k] for k in COUNTED} == {k: other[k] for k in COUNTED}
    return found


def taken(name: str) -> list[Any]:
    return [rule for rule in rules(name) if not isinstance(rule, Bernoulli)]


@pytest.mark.parametrize("name", COMPILED)
def test_the_same_iterates_as_local(name, done):
    """Everyone, and cohorts: then a client that keeps state is met once before."""
    for rule in taken(name):
        done.clear()
        same(*made(name, objectives("least squares"), participation=rule))
        assert sum(done) == 29 if rule == Full() else sum(done) > 15


@pytest.mark.parametrize("kind", KINDS)
def test_every_objective(kind, done):
    same(*made("scaffold", objectives(kind)))
    assert sum(done) == 29


@pytest.mark.parametrize("name", at_night(COMPILED, but=("scaffold", "fedfw", "feddualavg")))
def test_the_same_minibatches_as_local(name, done):
    """Five rows of twelve: a permutation is drawn anew within a round."""
    more = {"gradient": "stochastic"} if name.startswith("fedfw") else {}
    for rule in taken(name):
        done.clear()
        same(*made(name, objectives("least squares"), batch_size=5, participation=rule, **more))
        assert sum(done) > 15


@pytest.mark.parametrize("name", COMPILED)
def test_single_precision(name, done):
    strategy, problem = made(name, objectives("least squares", dtype=np.float32))
    assert same(strategy, problem, 20, 1e-4).x.dtype == np.float32
    assert sum(done) == 19


@pytest.mark.parametrize("name", [name for name in STACKS if name not in COMPILED])
def test_any_other_is_compiled_or_says_why_and_runs_stacked(name, caplog, done):
    strategy, problem = made(name, objectives("least squares"))
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = simulate(strategy, problem, 6, engine="jax").x
    lines = [r.message for r in caplog.records if "running on the stacked engine" in r.message]
    if sum(done):  # a method that is new, and can be traced
        assert not lines
        there = simulate(strategy, problem, 6, engine="stacked").x
        assert found == pytest.approx(there, abs=1e-10)
        return
    assert len(lines) == 1
    assert lines[0].startswith(f'engine="jax": {strategy.title}')
    assert sum(done) == 0
    assert found.tobytes() == simulate(strategy, problem, 6, engine="stacked").x.tobytes()


def test_reasons_that_are_known_before():
    problem = FederatedProblem(objectives("least squares"))
    steps: dict[str, Any] = {"client_lr": 0.1, "local_steps": 1}
    assert why_not_traceable(FedAvg(**steps), problem) is None
    drawn = why_not_traceable(FedAvg(participation=Bernoulli(0.5), **steps), problem)
    assert drawn == "cohorts of Bernoulli(p=0.5) differ in size from round to round"
    mixed = FederatedProblem([*objectives("least squares"), *objectives("quadratic")])
    assert why_not_traceable(FedAvg(**steps), mixed) is None
    reason = why_not_traceable(FedAvg(participation=Sample(count=2), **steps), mixed)
    assert reason == (
        "the clients' objectives differ in type or shape, and each round samples other clients"
    )
    many = FederatedProblem([LeastSquares(np.ones((m, 2)), np.ones(m)) for m in range(1, 18)])
    assert why_not_traceable(FedAvg(**steps), many) is None  # rows of weight 0 make five lengths
    reason = why_not_traceable(FedAvg(batch_size=1, **steps), many)
    assert reason == "the clients' objectives are of 17 types and shapes, more than 16"


SETS = [L1Ball(1.5), Box(-0.3, 0.4), Box(np.zeros(6), np.ones(6)), Simplex(2.0), L2Ball(1.0),
        LInfBall(0.5)]  # fmt: skip


@pytest.mark.parametrize("constraint", SETS, ids=repr)
def test_sets(constraint, done):
    """Their oracles in FedFW, their projections as the prox of FedMiD."""
    start = constraint.project(np.full(6, 0.1))
    problem = FederatedProblem(objectives("least squares"), constraint=constraint, x0=start)
    for rule in (Full(), Sample(count=3)):
        same(FedFW(constraint, penalty=0.5, participation=rule), problem, 12)
    psi = Indicator(constraint)
    problem = FederatedProblem(objectives("least squares"), regularizer=psi, x0=start)
    same(FedMiD(psi, client_lr=0.2, local_steps=2), problem)
    assert 0 not in done[1:2]


@pytest.mark.parametrize(
    "psi", [L2Squared(0.2), ElasticNet(0.1, 0.2), L1(np.linspace(0, 0.3, 6))], ids=repr
)
def test_regularizers(psi, done):
    problem = FederatedProblem(objectives("least squares"), regularizer=psi)
    same(FedDualAvg(psi, client_lr=0.05, local_steps=3), problem)
    same(CompositeFL(psi, client_lr=0.05, local_steps=3), problem)
    assert sum(done) > 50


def test_models_of_many_entries(done):
    """For which a check takes another way than for few."""
    rng, psi = np.random.default_rng(0), L1(1e-3)
    rows = (rng.standard_normal((2, 12_000)) / 100 for _ in range(2))
    problem = FederatedProblem([LeastSquares(A, np.ones(2)) for A in rows], regularizer=psi)
    same(FedDualAvg(psi, client_lr=0.1, local_steps=2), problem)
    assert sum(done) > 20


def test_schedules(done):
    """In single precision, too."""
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-5)):
        given = objectives("least squares", dtype=dtype)
        rate = InverseSqrt(0.1)
        problem = FederatedProblem(given)
        same(Scaffold(client_lr=rate, local_steps=2), problem, tolerance=tolerance)
        problem = FederatedProblem(given, regularizer=L1(0.1))
        same(FedMiD(L1(0.1), client_lr=rate, local_steps=2), problem, tolerance=tolerance)
    assert sum(done) == 4 * 29


def test_a_state_that_jax_cannot_carry_is_told_of(monkeypatch, caplog, done):
    """Here w changes its type, which the loop alone finds out."""
    problem = FederatedProblem(objectives("least squares"))
    plain = FedAvg.aggregate

    def narrow(self, state, uploads):
        after = plain(self, state, uploads)
        if isinstance(after.w, Traced):
            return after._replace(w=after.w.astype(np.float32))
        return after

    monkeypatch.setattr(FedAvg, "aggregate", narrow)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        simulate(FedAvg(client_lr=0.05, local_steps=2), problem, 2, engine="jax", evaluate_every=0)
    assert caplog.text.count("running on the stacked engine") == 1
    assert sum(done) == 0


def test_server_momentum(done):
    problem = FederatedProblem(objectives("least squares"))
    same(FedAvg(client_lr=0.05, local_steps=3, server_momentum=0.5), problem)
    assert sum(done) == 29


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_diverges_ends_as_with_local(done):
    """In the same round, by the same error."""
    problem = FederatedProblem([Quadratic(np.eye(2) * 4.0, np.ones(2)) for _ in range(3)])
    strategy = FedAvg(client_lr=50.0, local_steps=5)
    told = []
    for engine in ("local", "jax"):
        with pytest.raises(FedConError) as caught:
            simulate(strategy, problem, 400, engine=engine, evaluate_every=0)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "round " in told[0]
    assert sum(done) > 10


def test_an_upload_that_is_too_long_is_dropped_as_with_local(done, caplog):
    """In the rounds in which it is; the others are compiled."""
    problem = FederatedProblem(
        [Quadratic(np.eye(1), np.array([b])) for b in (1.0, 2.0, 30.0)], x0=np.array([20.0])
    )
    strategy = FedAvg(client_lr=0.1, local_steps=1, norm_bound=1.85)
    expected, found = (
        simulate(strategy, problem, 40, engine=e, evaluate_every=8) for e in ("local", "jax")
    )
    assert expected["dropped"][-1] > 0
    assert expected["dropped"][-1] == found["dropped"][-1]
    assert found.x == pytest.approx(expected.x, abs=1e-12)
    assert 0 < sum(done) < 40


def test_conditions_that_never_hold_are_not_tried_forever(done, caplog):
    problem = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (1.0, 2.0, 90.0)])
    strategy = FedAvg(client_lr=0.1, local_steps=1, norm_bound=2.0)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = simulate(strategy, problem, 40, engine="jax").x
    assert found.tobytes() == simulate(strategy, problem, 40, engine="stacked").x.tobytes()
    assert "what a compiled round assumes" in caplog.text
    assert sum(done) == 0
    assert len(done) == 40


def test_without_jax_the_extra_is_named(monkeypatch):
    plain = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "jax":
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    problem = FederatedProblem(objectives("quadratic"))
    with pytest.raises(ConfigError, match=r"pip install 'flower-fedcon\[jax\]'"):
        simulate(FedAvg(client_lr=0.1, local_steps=1), problem, 2, engine="jax")


# --- what surrounds it ----------------------------------------------------------------------------


def test_the_user_s_jax_stays_as_it_is():
    before = jax.numpy.ones(2).dtype
    simulate(*made("fedavg", objectives("quadratic")), 5, engine="jax", evaluate_every=0)
    assert jax.numpy.ones(2).dtype == before == np.float32


def test_callbacks_and_certificates_see_the_same(done):
    strategy, problem = made("scaffold", objectives("least squares"))
    runs = [
        simulate(strategy, problem, 20, engine=e, evaluate_every=5, certificates=True)
        for e in ("local", "jax")
    ]
    for name in ("objective", "kkt", "consensus"):
        if name in runs[0].rows[-1]:
            assert runs[1][name] == pytest.approx(runs[0][name], rel=1e-9, abs=1e-12)
    assert sum(done) == 19
    found = simulate(
        strategy, problem, 20, engine="jax", evaluate_every=3, callbacks=[lambda r: r["round"] == 6]
    )
    assert found.rows[-1]["round"] == 6
    found.x += 1.0  # it is the caller's


def test_an_audit_log_notes_every_exchange(tmp_path, caplog, done):
    strategy, problem = made("fedavg", objectives("quadratic"))
    with caplog.at_level(logging.WARNING, logger="flwr"):
        simulate(strategy, problem, 5, engine="jax", run_dir=tmp_path / "a", audit=True)
    assert "an audit log notes every exchange; running on the stacked engine" in caplog.text
    assert sum(done) == 0


def test_a_mirror_does_not_change_what_it_was_given_to_read():
    given = np.zeros((2, 3))
    given.flags.writeable = False
    mirror = Mirror({"c": given, "d": given})
    mirror.add([1], c=np.ones((1, 3)))
    mirror.put(0, d=np.ones(3))
    assert mirror.rows["c"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert mirror.rows["d"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert not given.any()


def test_local_and_compiled_fedfw_by_hand():
    """One client, f = (x - 3)^2 / 2 on [-1, 1]: the vertex 1 from round 1 on."""
    problem = FederatedProblem(
        [LeastSquares(np.eye(1), np.array([3.0]))], constraint=L1Ball(1.0), x0=np.zeros(1)
    )
    found = simulate(FedFW(problem.constraint, penalty=1.0), problem, 9, engine="jax").x
    assert found == pytest.approx([1.0], abs=1e-15)


def test_fastfedda_by_its_weights_of_steps_runs_stacked(caplog):
    """Its weights are numbers of the round."""
    problem = FederatedProblem(objectives("least squares"), regularizer=L1(0.1))
    strategy = FastFedDA(
        L1(0.1), strong_convexity=0.1, damping=30.0, local_steps=2, weight_power=1.0
    )
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = simulate(strategy, problem, 6, engine="jax").x
    assert "running on the stacked engine" in caplog.text
    assert found.tobytes() == simulate(strategy, problem, 6, engine="stacked").x.tobytes()
