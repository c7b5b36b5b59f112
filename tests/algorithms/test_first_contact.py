"""Clients that come first in a late round: each method does what its card says, digit for digit."""

from __future__ import annotations

import numpy as np
import pytest
from contract import CONTRACTS, EACH, Loop, build
from harness import OpenRun

from flower_fedcon import simulate
from flower_fedcon.core.method import Method
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.registry import client_class, strategy_class

ROUNDS, SEED = 12, 0
LOOPS = [
    pytest.param(name, loop, id=f"{name}-{loop.id}")
    for name, contract in CONTRACTS.items()
    for loop in contract.loops
]


def engines(name: str) -> list[str]:
    """Return the engines; jax where the server sends something to late clients alone."""
    sent = strategy_class(name).first_contact is not Method.first_contact
    return ["local", "stacked", "jax"] if sent else ["local", "stacked"]


RUNS = [
    pytest.param(name, loop, engine, id=f"{name}-{loop.id}-{engine}")
    for name, contract in CONTRACTS.items()
    for loop in contract.loops
    for engine in engines(name)
]


def cohorts(loop: Loop) -> list[list[int]]:
    """Return a run's cohorts of the six clients."""
    return [loop.rule.draw(6, stream(SEED, COHORT, r)) for r in range(1, ROUNDS + 1)]


def keeps_something(name: str) -> bool:
    """Return whether a late client differs from others: if anything is kept of them."""
    kind, contract = strategy_class(name), CONTRACTS[name]
    if kind.needs_everyone:
        return False
    if client_class(name).state_type is not None:
        return True
    case = (contract.sampled or contract.cases)[0]
    server = OpenRun(build(name, case.problem(), **case.settings), case.problem()).state
    return any(isinstance(part, Mirror) for part in server)


@EACH
def test_what_is_kept_of_clients_has_a_loop(name):
    kept, loops = keeps_something(name), CONTRACTS[name].loops
    assert kept == bool(loops), (
        f"tests/algorithms/cases/{name}.py: write loops=[Loop(...)], its card's steps in NumPy "
        f"(cases/area.py shows how)"
        if kept
        else f"{name} keeps nothing of a client between rounds: no client differs in a late round"
    )


@pytest.mark.parametrize(("name", "loop"), LOOPS)
def test_clients_come_late(name, loop):
    """Not one alone, nor all in one round, and each of them in the end."""
    seen = cohorts(loop)
    first = {i: r for r, cohort in reversed([*enumerate(seen, 1)]) for i in cohort}
    assert first.keys() == {*range(6)}
    assert len({r for r in first.values() if r > 1}) > 1


@pytest.mark.parametrize(("name", "loop", "engine"), RUNS)
def test_a_loop_from_the_card_plays_the_run(name, loop, engine):
    if engine == "jax":
        pytest.importorskip("jax")
    problem = loop.problem()
    made = build(name, problem, **loop.settings, participation=loop.rule)
    x = simulate(made, problem, ROUNDS, seed=SEED, engine=engine, evaluate_every=0).x
    expected = loop.play(problem, cohorts(loop), **loop.settings)
    assert np.abs(expected - problem.start).max() > 1e-3
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12)
