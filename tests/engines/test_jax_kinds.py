"""The compiled engine and clients whose objectives differ in rows or in kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nightly import at_night
from test_stacked import made

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.strategies import Scaffold

pytest.importorskip("jax")
from test_jax import COMPILED, done, same

__all__ = ["done"]  # a fixture


@pytest.mark.parametrize("name", at_night(COMPILED, but=("scaffold", "fedfw", "feddualavg")))
@pytest.mark.parametrize("batch_size", [None, 6])
def test_clients_that_differ(name, batch_size, done, caplog):
    """In rows and in kind, some of them alone of theirs: too many kinds for the stacked engine."""
    rng = np.random.default_rng(5)
    rows = (9, 5, 12, 9, 7)
    parts = [LeastSquares(rng.standard_normal((m, 6)), 3 * rng.standard_normal(m)) for m in rows]
    more: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    if name.startswith("fedfw") and more:
        more["gradient"] = "stochastic"
    if not more:
        parts.insert(2, Quadratic(np.eye(6), rng.standard_normal(6)))
    same(*made(name, parts, **more))
    assert sum(done) == 29
    said = "compiling loops", "batch_size=6 is more than the rows of 1 of 5 clients"
    assert not [r.message for r in caplog.records if not r.message.startswith(said)]


def test_another_engine_goes_on(tmp_path, done):
    """Clients' states are each one's own, in whatever stacks they were."""
    rng = np.random.default_rng(2)
    parts = [
        LeastSquares(rng.standard_normal((m, 4)), rng.standard_normal(m)) for m in (7, 3, 7, 5)
    ]
    problem, strategy = FederatedProblem(parts), Scaffold(client_lr=0.05, local_steps=3)
    expected = simulate(strategy, problem, 30).x
    for first, then in (("local", "jax"), ("jax", "local")):
        folder = tmp_path / first
        simulate(strategy, problem, 12, engine=first, run_dir=folder)
        found = simulate(strategy, problem, 30, engine=then, run_dir=folder, resume=True).x
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert sum(done) > 25
