"""What the compiled engine and its clients hold is what the others hold."""

from __future__ import annotations

import logging
import multiprocessing

import numpy as np
import pytest
from agreement import near, squares
from test_stacked import made, objectives

from flower_fedcon import Sample, simulate
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.regularizers import L2Squared
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.strategies import FedMiD

pytest.importorskip("jax")
from flower_fedcon.engines.jax.program import JaxEngine


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
