"""Random runs of every method give the same model in the local, stacked and compiled engines."""

from __future__ import annotations

import numpy as np
import pytest
from random_runs import METHODS, draw

from flower_fedcon import simulate

FEW, MANY = 4, 40  # runs of a method, and in the nightly tests: a thousand in all
COMPILED = ["FedAvg", "FedDR"]  # those that the compiled engine plays in each run of the tests


def difference(method: str, number: int, engine: str) -> float:
    """Return how far an engine's model is from the local one, relative to its greatest entry."""
    run = draw(method, number)

    def model(engine: str) -> np.ndarray:
        history = simulate(
            run.strategy, run.problem, run.rounds, engine=engine, seed=run.seed, evaluate_every=0
        )
        x = history.x if isinstance(history.x, list) else [history.x]
        return np.concatenate([np.ravel(layer) for layer in x])

    local, other = model("local"), model(engine)
    allowed = 1e-4 if local.dtype == np.float32 else 1e-9
    scale = float(np.abs(local).max()) or 1.0  # a strong psi holds the model at zero
    found = float(np.abs(other - local).max()) / scale
    assert found <= allowed, f"{engine}: {found:.1e} of {run.words}"
    return found


@pytest.mark.parametrize("method", METHODS)
def test_stacked(method):
    for number in range(FEW):
        difference(method, number, "stacked")


@pytest.mark.parametrize("method", COMPILED)
def test_compiled(method):
    for number in range(0, FEW, 2):
        difference(method, number, "jax")


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
def test_many(method):
    for number in range(FEW, MANY):
        difference(method, number, "stacked")
        if number % 4 == 0 or method not in COMPILED:
            difference(method, number, "jax")
