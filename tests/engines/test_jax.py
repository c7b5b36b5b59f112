"""The compiled engine: the local engine's iterates, bytes and errors."""

from __future__ import annotations

import builtins
import logging
import multiprocessing
import re
from typing import Any

import numpy as np
import pytest
from agreement import agree, near, squares
from nightly import at_night, nightly
from own_algorithm import PAIR
from test_contract import rules
from test_stacked import KINDS, STACKS, made, objectives

from flower_fedcon import Bernoulli, FederatedProblem, Full, Sample, register, registry, simulate
from flower_fedcon.arrays import Traced
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.jax.program import JaxEngine
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.regularizers import L1, ElasticNet, Indicator, L2Squared
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.sets import Box, L1Ball, L2Ball, LInfBall, Simplex
from flower_fedcon.strategies import (
    MIFA,
    CompositeFL,
    FastFedDA,
    FedAvg,
    FedDualAvg,
    FedFW,
    FedMiD,
    Scaffold,
)

jax = pytest.importorskip("jax")
from flower_fedcon.engines.jax.parts import shared  # noqa: E402
from flower_fedcon.engines.jax.traceable import why_not_traceable  # noqa: E402

pytestmark = pytest.mark.usefixtures("done")
COMPILED = [
    "averagedfw", "cfedda", "compositefl", "fastfedda", "fedavg", "feddualavg", "fedfw",
    "fedfwplus", "fedmid", "scaffold",
]  # fmt: skip
MAIN = ("scaffold", "fedfw", "feddualavg")
STEPS: dict[str, Any] = {"client_lr": 0.05, "local_steps": 2}


def same(strategy: Any, problem: Any, rounds: int = 30, tolerance: float = 1e-10) -> Any:
    return agree(strategy, problem, rounds, tolerance, engine="jax")


def taken(name: str) -> list[Any]:
    return [rule for rule in rules(name) if not isinstance(rule, Bernoulli)]


def batches(name: str, size: int) -> dict[str, Any]:
    return {"batch_size": size} | ({"gradient": "stochastic"} if name.startswith("fedfw") else {})


@pytest.mark.parametrize("name", COMPILED)
def test_the_same_iterates_as_local(name, done):
    """Everyone, and cohorts: then a client that keeps state is met once before."""
    for rule in taken(name):
        done.clear()
        same(*made(name, objectives("least squares"), participation=rule))
        assert sum(done) == 29 if rule == Full() else sum(done) > 15


@pytest.mark.parametrize("name", at_night(COMPILED, but=MAIN))
def test_the_same_minibatches_as_local(name, done):
    """Five rows of twelve: a permutation is drawn anew within a round."""
    for rule in taken(name):
        done.clear()
        more = {"participation": rule, **batches(name, 5)}
        same(*made(name, objectives("least squares"), **more))
        assert sum(done) > 15


@pytest.mark.parametrize("name", COMPILED)
def test_single_precision(name, done):
    strategy, problem = made(name, objectives("least squares", dtype=np.float32))
    assert same(strategy, problem, 20, 1e-4).x.dtype == np.float32
    assert sum(done) == 19


@pytest.mark.parametrize("name", at_night(COMPILED, but=MAIN))
@pytest.mark.parametrize("batch_size", [None, 6])
def test_clients_that_differ(name, batch_size, done, caplog):
    """In rows and in kind, some of them alone of theirs: too many kinds for the stacked engine."""
    rng = np.random.default_rng(5)
    rows = (9, 5, 12, 9, 7)
    parts = [LeastSquares(rng.standard_normal((m, 6)), 3 * rng.standard_normal(m)) for m in rows]
    if batch_size is None:
        parts.insert(2, Quadratic(np.eye(6), rng.standard_normal(6)))
    same(*made(name, parts, **({} if batch_size is None else batches(name, batch_size))))
    assert sum(done) == 29
    biased = "AveragedFW: the objective ends at"  # above its start: so is the limit
    said = "compiling loops", "batch_size=6 is more than the rows of 1 of 5 clients", biased
    assert not [r.message for r in caplog.records if not r.message.startswith(said)]


def within(constraint: Any, rule: Any = None) -> tuple[Any, FederatedProblem]:
    """Return FedFW with this rule, or FedMiD, whose prox is the projection."""
    start, psi = constraint.project(np.full(6, 0.1)), Indicator(constraint)
    parts = objectives("least squares")
    if rule is None:
        problem = FederatedProblem(parts, regularizer=psi, x0=start)
        return FedMiD(psi, client_lr=0.2, local_steps=2), problem
    problem = FederatedProblem(parts, constraint=constraint, x0=start)
    return FedFW(constraint, penalty=0.5, participation=rule), problem


def with_psi(kind: Any, psi: Any, dtype: Any = np.float64, **more: Any) -> tuple[Any, Any]:
    problem = FederatedProblem(objectives("least squares", dtype=dtype), regularizer=psi)
    return kind(*([] if psi is None else [psi]), **{**STEPS, "local_steps": 3, **more}), problem


def long() -> tuple[Any, FederatedProblem]:
    """Return models of many entries, for which a check takes another way than for few."""
    rng, psi = np.random.default_rng(0), L1(1e-3)
    rows = (rng.standard_normal((2, 12_000)) / 100 for _ in range(2))
    problem = FederatedProblem([LeastSquares(A, np.ones(2)) for A in rows], regularizer=psi)
    return FedDualAvg(psi, client_lr=0.1, local_steps=2), problem


SETS = [L1Ball(1.5), Box(-0.3, 0.4), Box(np.zeros(6), np.ones(6)), Simplex(2.0), L2Ball(1.0),
        LInfBall(0.5)]  # fmt: skip
PSIS = [L2Squared(0.2), ElasticNet(0.1, 0.2), L1(np.linspace(0, 0.3, 6))]
RATE = {"client_lr": InverseSqrt(0.1), "local_steps": 2}
FEATURES: dict[str, Any] = {
    **{f"loss {k}": lambda k=k: made("scaffold", objectives(k)) for k in KINDS},
    **{f"FedFW in {c}": lambda c=c: within(c, Full()) for c in SETS},
    **{f"FedFW, sampled, in {c}": lambda c=c: within(c, Sample(count=3)) for c in SETS},
    **{f"FedMiD in {c}": lambda c=c: within(c) for c in SETS},
    **{f"FedDualAvg with {p}": lambda p=p: with_psi(FedDualAvg, p) for p in PSIS},
    **{f"CompositeFL with {p}": lambda p=p: with_psi(CompositeFL, p) for p in PSIS},
    "long models": long,
    "momentum": lambda: with_psi(FedAvg, None, server_momentum=0.5),
    "schedule": lambda: with_psi(Scaffold, None, **RATE),
    "schedule with psi": lambda: with_psi(FedMiD, L1(0.1), **RATE),
    "schedule, single": lambda: with_psi(Scaffold, None, np.float32, **RATE),
    "schedule with psi, single": lambda: with_psi(FedMiD, L1(0.1), np.float32, **RATE),
}


def is_again(name: str) -> bool:
    """Return whether a run puts together what others of the suite have, one by one."""
    each = ("FedFW, sampled", SETS[0]), ("CompositeFL", PSIS[0])
    return name.endswith(", single") or any(
        name.startswith(method) and not name.endswith(str(first)) for method, first in each
    )


@pytest.mark.parametrize("name", [nightly(n) if is_again(n) else n for n in FEATURES])
def test_what_is_compiled(name, done):
    """Each set and regularizer by one method at least; by others it is nightly."""
    rounds = 12 if name.startswith("FedFW") else 30
    same(*FEATURES[name](), rounds, 1e-5 if "single" in name else 1e-10)
    if "sampled" in name:
        assert sum(done) > 3  # a client is met once before
    else:
        assert sum(done) >= (21 if name == "long models" else rounds - 1)


@pytest.mark.parametrize("kind", [MIFA, Scaffold])
def test_rounds_of_a_sample_are_compiled_before_all_clients_are_met(kind, done):
    """A client that is met in one of them begins as with the local engine."""
    same(kind(**STEPS, participation=Sample(count=2)), squares((9,) * 40, 6), 15)
    assert sum(done) == 14


def test_data_that_are_kept_are_shared_with_jax():
    data = LeastSquares(np.ones((3, 50_000)), np.ones(3)).rows
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
        assert shared(data).unsafe_buffer_pointer() == data.ctypes.data


# --- what is not compiled -------------------------------------------------------------------------


OTHERS = [name for name in STACKS if name not in COMPILED]
SOLVING = {"dualfl", "feddr", "feddyn", "fedexprox", "fedpd", "fedprox", "fivegcs"}


@pytest.mark.parametrize("name", at_night(OTHERS, but={*OTHERS} - SOLVING))
def test_any_other_is_compiled_or_says_why_and_runs_stacked(name, log, done):
    """At night those, too, whose compiled rounds are in test_jax_solvers.py."""
    strategy, problem = made(name, objectives("least squares"))
    found, there = (simulate(strategy, problem, 6, engine=e).x for e in ("jax", "stacked"))
    lines = [r.message for r in log.records if "running on the stacked engine" in r.message]
    if sum(done):  # a method that is new, and can be traced
        assert not lines
        assert found == pytest.approx(there, abs=1e-10)
        return
    assert len(lines) == 1
    assert lines[0].startswith(f'engine="jax": {strategy.title}')
    assert found.tobytes() == there.tobytes()


class OwnL1(L1):
    """A regularizer of one's own, whose lines may mean something else when traced."""


def narrow(self, state, uploads, plain=FedAvg.aggregate):
    """Change the type of w, which the compiled loop alone finds out."""
    after = plain(self, state, uploads)
    if isinstance(after.w, Traced):
        return after._replace(w=after.w.astype(np.float32))
    return after


def far(*targets: float, **more: Any) -> FederatedProblem:
    return FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in targets], **more)


WEIGHTED = {"strong_convexity": 0.1, "damping": 30.0, "local_steps": 2, "weight_power": 1.0}
NOT_COMPILED = {
    "another package's method": (lambda: (registry.strategy_class("own_momentum")(**STEPS),
                                          squares((9,) * 5, 4)), "Own is from another package"),
    "another package's psi": (lambda: (FedMiD(OwnL1(0.1), **STEPS),
                                       squares((9,) * 5, 4, regularizer=OwnL1(0.1))),
                              "OwnL1 is from another package"),
    "weights of steps": (lambda: (FastFedDA(L1(0.1), **WEIGHTED),  # numbers of the round
                                  squares((9,) * 5, 4, regularizer=L1(0.1))), "FastFedDA"),
    "a state of two types": (lambda: (FedAvg(**STEPS), squares((9,) * 5, 4)), "FedAvg"),
    "an audit log": (lambda: (FedAvg(**STEPS), squares((9,) * 5, 4)),
                     "an audit log notes every exchange; running on the stacked engine"),
    "conditions that never hold": (
        lambda: (FedAvg(client_lr=0.1, local_steps=1, norm_bound=2.0), far(1.0, 2.0, 90.0)),
        "what a compiled round assumes"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_what_runs_on_the_stacked_engine_says_so(name, monkeypatch, tmp_path, log, done):
    monkeypatch.setattr(registry, "_own", {})
    register(*PAIR)
    if name == "a state of two types":
        monkeypatch.setattr(FedAvg, "aggregate", narrow)
    audit = {"run_dir": tmp_path, "audit": True} if name == "an audit log" else {}
    (make, said), rounds = NOT_COMPILED[name], 40 if name.startswith("conditions") else 6
    strategy, problem = make()
    found = simulate(strategy, problem, rounds, engine="jax", **audit).x
    assert said in log.text
    if rounds == 40:  # it is tried in each of them, and no longer
        assert len(done) == 40
    else:
        assert log.text.count("running on the stacked engine") == 1
    assert sum(done) == 0
    assert found.tobytes() == simulate(strategy, problem, rounds, engine="stacked").x.tobytes()


def test_reasons_that_are_known_before():
    alike = FederatedProblem(objectives("least squares"))
    mixed = FederatedProblem([*objectives("least squares"), *objectives("quadratic")])
    many = FederatedProblem([LeastSquares(np.ones((m, 2)), np.ones(m)) for m in range(1, 18)])
    for problem, more, reason in (
        (alike, {}, None),
        (alike, {"participation": Bernoulli(0.5)},
         "cohorts of Bernoulli(p=0.5) differ in size from round to round"),
        (mixed, {}, None),
        (mixed, {"participation": Sample(count=2)},
         "the clients' objectives differ in type or shape, and each round samples other clients"),
        (many, {}, None),  # rows of weight 0 make five lengths
        (many, {"batch_size": 1},
         "the clients' objectives are of 17 types and shapes, more than 16"),
    ):  # fmt: skip
        assert why_not_traceable(FedAvg(**STEPS, **more), problem) == reason


def test_without_jax_the_extra_is_named(monkeypatch):
    plain = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "jax":
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'flower-fedcon\[jax\]'"):
        simulate(FedAvg(**STEPS), FederatedProblem(objectives("quadratic")), 2, engine="jax")


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_diverges_ends_as_with_local(done):
    """In the same round, by the same error."""
    problem = FederatedProblem([Quadratic(np.eye(2) * 4.0, np.ones(2)) for _ in range(3)])
    strategy = FedAvg(client_lr=50.0, local_steps=5)
    with pytest.raises(FedConError, match="round ") as local:
        simulate(strategy, problem, 400, evaluate_every=0)
    with pytest.raises(FedConError, match=f"^{re.escape(str(local.value))}$"):
        simulate(strategy, problem, 400, engine="jax", evaluate_every=0)
    assert sum(done) > 10


def test_an_upload_that_is_too_long_is_dropped_as_with_local(done):
    """In the rounds in which it is; the others are compiled."""
    problem = far(1.0, 2.0, 30.0, x0=np.array([20.0]))
    strategy = FedAvg(client_lr=0.1, local_steps=1, norm_bound=1.85)
    found = agree(strategy, problem, 40, 1e-13, engine="jax", columns=["dropped"], evaluate_every=8)
    assert found["dropped"][-1] > 0
    assert 0 < sum(done) < 40


# --- what surrounds it ----------------------------------------------------------------------------


def test_the_user_s_jax_stays_as_it_is():
    before = jax.numpy.ones(2).dtype
    simulate(*made("fedavg", objectives("quadratic")), 5, engine="jax", evaluate_every=0)
    assert jax.numpy.ones(2).dtype == before == np.float32


def test_callbacks_and_certificates_see_the_same(done):
    strategy, problem = made("scaffold", objectives("least squares"))
    agree(strategy, problem, 20, engine="jax", evaluate_every=5, certificates=True)
    assert sum(done) == 19
    stop = {"evaluate_every": 3, "callbacks": [lambda r: r["round"] == 6]}
    found = simulate(strategy, problem, 20, engine="jax", **stop)
    assert found.rows[-1]["round"] == 6
    found.x += 1.0  # it is the caller's


def test_a_mirror_does_not_change_what_it_was_given_to_read():
    given = np.zeros((2, 3))
    given.flags.writeable = False
    mirror = Mirror({"c": given, "d": given})
    mirror.add([1], c=np.ones((1, 3)))
    mirror.put(0, d=np.ones(3))
    assert mirror.rows["c"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert mirror.rows["d"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert not given.any()


# --- checkpoints ----------------------------------------------------------------------------------


def test_the_last_round_may_be_resumed_alone(tmp_path):
    """Or recorded alone: XLA would make other code for a loop that can only turn once."""
    psi = L2Squared(0.1)
    problem = squares((12,) * 6, 40, regularizer=psi)
    strategy = FedMiD(psi, client_lr=InverseSqrt(0.01), local_steps=3)
    whole, every = (
        simulate(strategy, problem, 12, engine="jax", evaluate_every=k).x.tobytes() for k in (0, 1)
    )
    options = {"engine": "jax", "run_dir": tmp_path, "evaluate_every": 0}
    simulate(strategy, problem, 11, **options)
    rest = simulate(strategy, problem, 12, resume=True, **options)
    assert whole == every == rest.x.tobytes()


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent():
    strategy, problem = made("fedavg", objectives("least squares"))
    whole = simulate(strategy, problem, 30, engine="jax")
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=_in_child, args=(strategy, problem, found), daemon=True)
    child.start()
    try:
        x, said = found.get(timeout=60)
    finally:
        child.kill()
        child.join()
    near(x, whole.x)
    assert said == ["this process was forked from one that uses JAX, whose threads it lacks"]


def _in_child(strategy, problem, found):
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.args[0])  # type: ignore[method-assign]
    logging.getLogger("flwr").addHandler(handler)
    found.put((simulate(strategy, problem, 30, engine="jax").x, said))


@pytest.mark.parametrize("name", ["scaffold", "fedfw"])
def test_server_and_clients_hold_what_they_hold_with_local(name):
    """Whose reply was used when, and the state that it came with."""
    strategy, problem = made(name, objectives("least squares"), participation=Sample(count=3))
    held = []
    for kind in (LocalEngine, JaxEngine):
        engine = kind(problem)
        setup = Setup.of(engine.describe(), 30, problem.layout, strategy.participation, 3)
        run = Run(Plan(30, seed=3, evaluate_every=0), strategy, setup, problem.start, engine)
        run.play()
        server = run.server
        rounds = server.acknowledgements.rounds.tolist()
        states = [known.at(r)[0] for known, r in zip(engine.save(), rounds, strict=True)]
        rows = server.state.mirror.rows
        held.append(((rounds, server.round, server.cohort, server.replies), states, rows))
    (expected, states, mirror), (found, others, mirrored) = held
    assert found == expected
    assert mirrored.keys() == mirror.keys()
    for one, other in [
        *zip(states, others, strict=True),
        *((mirror[k], mirrored[k]) for k in mirror),
    ]:
        assert np.allclose(one, other, rtol=0, atol=1e-12)
