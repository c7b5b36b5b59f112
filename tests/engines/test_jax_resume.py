"""Checkpoints of the compiled engine are those of the others."""

from __future__ import annotations

import logging
import multiprocessing

import numpy as np
import pytest
from agreement import COUNTED, near, squares
from test_stacked import made, objectives

from flower_fedcon import Full, Sample, simulate
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.regularizers import L2Squared
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.strategies import FedMiD, Scaffold

pytest.importorskip("jax")
from flower_fedcon.engines.jax.program import JaxEngine


def resumed(strategy, problem, cut, rounds, folder, first="jax", then="jax", **options):
    simulate(strategy, problem, cut, engine=first, run_dir=folder, **options)
    options |= {"run_dir": folder, "resume": True}
    return simulate(strategy, problem, rounds, engine=then, **options)


@pytest.mark.parametrize(("first", "then"), [("jax", "local"), ("local", "jax"), ("jax", "jax")])
@pytest.mark.parametrize("name", ["fedfw", "compositefl", "unequal"])
def test_one_engine_goes_on_with_the_run_of_another(name, first, then, tmp_path, done):
    """Clients' states are each one's own, in whatever stacks they were."""
    for rule in (
        (Full(), Sample(fraction=0.5)) if first != then and name != "unequal" else (Full(),)
    ):
        if name == "unequal":
            strategy, problem = Scaffold(client_lr=0.05, local_steps=3), squares((7, 3, 7, 5), 4)
        else:
            strategy, problem = made(name, objectives("least squares"), participation=rule)
        whole, folder = simulate(strategy, problem, 30), tmp_path / type(rule).__name__
        options = {"checkpoint_every": 7, "evaluate_every": 10}
        rest = resumed(strategy, problem, 19, 30, folder, first, then, **options)
        near(rest.x, whole.x)
        assert sum(done) > 5
        for column in COUNTED:
            assert rest.rows[-1][column] == whole.rows[-1][column]


def test_a_run_is_resumed_to_the_same_bytes(tmp_path):
    """A block may be cut anywhere."""
    strategy, problem = made("scaffold", objectives("logistic"), batch_size=5)
    whole = simulate(strategy, problem, 40, engine="jax", evaluate_every=0)
    assert resumed(strategy, problem, 17, 40, tmp_path).x.tobytes() == whole.x.tobytes()


def test_the_last_round_may_be_resumed_alone(tmp_path):
    """Or recorded alone: XLA would make other code for a loop that can only turn once."""
    psi = L2Squared(0.1)
    problem = squares((12,) * 6, 40, regularizer=psi)
    strategy = FedMiD(psi, client_lr=InverseSqrt(0.01), local_steps=3)
    whole, every = (
        simulate(strategy, problem, 12, engine="jax", evaluate_every=k).x.tobytes() for k in (0, 1)
    )
    rest = resumed(strategy, problem, 11, 12, tmp_path, evaluate_every=0)
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
