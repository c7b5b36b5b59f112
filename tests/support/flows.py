"""Problems and methods of runs that do not wait for their slowest client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_fedcon import (
    Buffered,
    Clock,
    FederatedProblem,
)
from flower_fedcon.compressors import EF21, TopK
from flower_fedcon.objectives import LeastSquares, LogisticRegression
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import (
    AREA,
    MIFA,
    FedAvg,
    FedDR,
    FedDualAvg,
    FedDyn,
    FedMiD,
    FedNewton,
    FedProx,
    FedVARP,
    Scaffold,
)
from flower_fedcon.testing.open_run import OpenRun

N = 6


def squares(n: int = N, psi: float = 0.05, d: int = 5, seed: int = 0) -> FederatedProblem:
    """Least squares whose clients have minimisers of their own."""
    rng, objectives = np.random.default_rng(seed), []
    for j in range(n):
        A = rng.standard_normal((12, d)) * (1 + 0.5 * j / n)
        x = rng.standard_normal(d) + 1
        objectives.append(LeastSquares(A, A @ x + 0.1 * rng.standard_normal(12)))
    return FederatedProblem(objectives, regularizer=L1(psi) if psi else None)


def logistic(n: int = 8) -> FederatedProblem:
    rng, objectives = np.random.default_rng(1), []
    for j in range(n):
        A = rng.standard_normal((30, 5)) + 0.3 * j / n
        y = np.sign(A @ (rng.standard_normal(5) + 1) + 0.5 * rng.standard_normal(30))
        objectives.append(LogisticRegression(A, y, l2=0.05))
    return FederatedProblem(objectives, regularizer=L1(0.01))


PLAIN, COMPOSITE = squares(psi=0), squares()
PSI = COMPOSITE.regularizer
METHODS: dict[str, tuple[Any, FederatedProblem]] = {
    "AREA": (lambda **more: AREA(PSI, local_steps=2, batch_size=5, **more), COMPOSITE),
    "FedAvg": (lambda **more: FedAvg(local_steps=3, client_lr=0.02, batch_size=4, **more), PLAIN),
    "FedDR": (lambda **more: FedDR(PSI, **more), COMPOSITE),
    "FedDR, compressed": (
        lambda **more: FedDR(PSI, compression=EF21(TopK(fraction=0.4)), **more), COMPOSITE,
    ),
    "FedDualAvg": (lambda **more: FedDualAvg(PSI, local_steps=2, **more), COMPOSITE),
    "FedDyn": (lambda **more: FedDyn(**more), PLAIN),
    "FedMiD": (lambda **more: FedMiD(PSI, local_steps=2, **more), COMPOSITE),
    "FedNewton": (lambda **more: FedNewton(PSI, **more), COMPOSITE),
    "FedProx": (lambda **more: FedProx(**more), PLAIN),
    "FedVARP": (lambda **more: FedVARP(client_lr=0.02, batch_size=5, **more), PLAIN),
    "MIFA": (
        lambda **more: MIFA(PSI, client_lr=0.02, local_steps=2, batch_size=5, **more), COMPOSITE,
    ),
    "MIFA, no mirror": (lambda **more: MIFA(client_lr=0.02, mirror=False, **more), PLAIN),
    "Scaffold": (lambda **more: Scaffold(**more), PLAIN),
    "Scaffold, no mirror": (lambda **more: Scaffold(mirror=False, **more), PLAIN),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", METHODS)
WAITING = Buffered(buffer=N, concurrency=N, dispatch=N)


def columns_apart(one: Any, other: Any) -> list[str]:
    """Return the columns of a history that another has otherwise."""
    return [c for c in one.columns if c != "seconds" and not np.array_equal(one[c], other[c])]


def retimed(run: OpenRun, compute: Any) -> None:
    """Give the clients of an open run other times, of all waves or of each."""
    run.server.clock._clock = Clock(compute=np.array(compute, dtype=float))
    run.server.clock._known = (None, {})
