"""Runs on the six quadratics: how far they are from the optimum, and what befalls a client."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from harness import OpenRun
from problems import Q6_L1_X, plain, q6

from flower_fedcon import FederatedProblem, Sample
from flower_fedcon.regularizers import L1

STEPS = {"client_lr": 1 / 400, "local_steps": 5}
PSI = L1(0.6)


def cohort(count: int) -> dict[str, Any]:
    """Return `STEPS` for cohorts of one size."""
    return {**STEPS, "participation": Sample(count=count)}


def played(strategy: Any, rounds: int, problem: Callable[[], FederatedProblem] = q6) -> OpenRun:
    return OpenRun(strategy, problem(), rounds).play(rounds)


# --- how far a run is ------------------------------------------------------------------------


@cache
def optimum(composite: bool) -> np.ndarray:
    """Return the optimum to rounding: with L1(0.6) from its signs, which are known."""
    problem = q6()
    matrix = np.mean([f.Q for f in problem.objectives], axis=0)
    b = np.mean([f.b for f in problem.objectives], axis=0)
    if not composite:
        return np.linalg.solve(matrix, b)
    x, signs = np.zeros(8), np.sign(Q6_L1_X)
    kept = signs != 0
    x[kept] = np.linalg.solve(matrix[np.ix_(kept, kept)], (b - 0.6 * signs)[kept])
    assert PSI.subdifferential_distance(x, matrix @ x - b) < 1e-14
    return x


def error(run: OpenRun) -> float:
    """Return the distance to the optimum to rounding."""
    return float(np.linalg.norm(run.x - optimum(run.problem.regularizer is not None)))


def distance(run: OpenRun) -> float:
    """Return the distance to the optimum that the independent solver finds."""
    return float(np.linalg.norm(run.x - run.problem.optimum.x))


def first_below(level: float, strategy: Any, problem: FederatedProblem, limit: int) -> int:
    """Return the first round after which the error is below `level`."""
    run = OpenRun(strategy, problem, limit)
    while error(run.play()) >= level:
        assert run.server.round < limit
    return run.server.round


def gradients(run: OpenRun) -> np.ndarray:
    """Return each client's gradient at the model."""
    return np.stack([f.gradient(run.x) for f in run.problem.objectives])


def prox(f: Any, v: np.ndarray, eta: float) -> np.ndarray:
    """Return argmin_x f(x) + ||x - v||^2 / (2 eta)."""
    return np.linalg.solve(f.Q + np.eye(len(v)) / eta, f.b + v / eta)


# --- what befalls a client -------------------------------------------------------------------


def lose(run: OpenRun, j: int) -> None:
    """Restart client j without its state."""
    run.clients[j] = run.new_client(j)


def after(
    what: Callable[[OpenRun, int], None],
    strategy: Any,
    rounds: int,
    problem: Callable[[], FederatedProblem] = q6,
    client: int = 0,
) -> OpenRun:
    """Return the run in which something happens to a client half-way."""
    run = OpenRun(strategy, problem(), rounds).play(rounds // 2)
    what(run, client)
    return run.play(rounds - rounds // 2)


# --- clients that say little -----------------------------------------------------------------


def unknown() -> FederatedProblem:
    """Return Q6 without its constants."""
    return FederatedProblem([plain(f.value, f.gradient, shape=(8,)) for f in q6().objectives])
