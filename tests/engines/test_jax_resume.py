"""Checkpoints of the compiled engine are those of the others."""

from __future__ import annotations

import logging
import multiprocessing
from typing import Any

import numpy as np
import pytest
from test_stacked import COUNTED, made, objectives

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.regularizers import L2Squared
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.strategies import FedMiD

pytest.importorskip("jax")
from flower_fedcon.engines.jax.program import JaxEngine


@pytest.mark.parametrize(("first", "then"), [("jax", "local"), ("local", "jax"), ("jax", "jax")])
@pytest.mark.parametrize("name", ["fedfw", "compositefl"])
def test_one_engine_goes_on_with_the_run_of_another(name, first, then, tmp_path):
    for rule in (Full(), Sample(fraction=0.5)) if first != then else (Full(),):
        strategy, problem = made(name, objectives("least squares"), participation=rule)
        whole = simulate(strategy, problem, 30)
        folder = tmp_path / type(rule).__name__
        options: dict[str, Any] = {"run_dir": folder, "checkpoint_every": 7, "evaluate_every": 10}
        simulate(strategy, problem, 19, engine=first, **options)
        rest = simulate(strategy, problem, 30, engine=then, resume=True, **options)
        assert rest.x == pytest.approx(whole.x, abs=1e-10)
        for column in COUNTED:
            assert rest.rows[-1][column] == whole.rows[-1][column]


def test_a_run_is_resumed_to_the_same_bytes(tmp_path):
    """A block may be cut anywhere."""
    strategy, problem = made("scaffold", objectives("logistic"), batch_size=5)
    whole = simulate(strategy, problem, 40, engine="jax", evaluate_every=0)
    simulate(strategy, problem, 17, engine="jax", evaluate_every=0, run_dir=tmp_path / "a")
    rest = simulate(strategy, problem, 40, engine="jax", run_dir=tmp_path / "a", resume=True)
    assert rest.x.tobytes() == whole.x.tobytes()


def test_the_last_round_may_be_resumed_alone(tmp_path):
    """Or recorded alone: XLA would make other code for a loop that can only turn once."""
    rng = np.random.default_rng(0)
    clients = [LeastSquares(rng.normal(size=(12, 40)), rng.normal(size=12)) for _ in range(6)]
    problem = FederatedProblem(clients, regularizer=L2Squared(0.1))
    strategy = FedMiD(regularizer=L2Squared(0.1), client_lr=InverseSqrt(0.01), local_steps=3)
    whole = simulate(strategy, problem, 12, engine="jax", evaluate_every=0)
    every = simulate(strategy, problem, 12, engine="jax", evaluate_every=1)
    simulate(strategy, problem, 11, engine="jax", evaluate_every=0, run_dir=tmp_path / "a")
    rest = simulate(strategy, problem, 12, engine="jax", run_dir=tmp_path / "a", resume=True)
    assert whole.x.tobytes() == every.x.tobytes() == rest.x.tobytes()


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
    assert x == pytest.approx(whole.x, abs=1e-10)
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
        states = [known.at(r) for known, r in zip(engine.save(), rounds, strict=True)]
        mirror = server.state.mirror.rows
        held.append((rounds, server.round, server.cohort, server.replies, states, mirror))
    *expected, states, mirror = held[0]
    *found, others, mirrored = held[1]
    assert found == expected
    for state, other in zip(states, others, strict=True):
        assert np.allclose(state[0], other[0], rtol=0, atol=1e-12)
    for field, rows in mirror.items():
        assert np.allclose(rows, mirrored[field], rtol=0, atol=1e-12)
