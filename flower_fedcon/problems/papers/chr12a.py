"""The quadratic assignment problem chr12a of QAPLIB, relaxed to doubly stochastic matrices."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import QuadraticAssignment
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.sets import Birkhoff
from flower_fedcon.validation import Array, count, nonnegative

SIZE = 12


@stated
def chr12a(*, clients: int = 72, spread: float = 0.0, seed: int | None = None) -> FederatedProblem:
    """Return min trace(A X B' X') over the 12 x 12 doubly stochastic matrices.

    Client c holds a block of consecutive entries (i, j) of X, row by row, and f_c is the sum over
    them of X_ij (A X B')_ij: two entries each for 72 clients. F is the mean of the f_c. It is not
    convex. Metrics: "total", the trace (N F); "permutation_cost", the trace at the permutation
    nearest to X, at best 9552.

    Parameters
    ----------
    clients : int
        N, 1 to 144.
    spread : float
        How far the start is from the centre, the matrix of equal entries: its share of another
        doubly stochastic matrix, which is random. At the centre many permutations tie, and 1e-9
        decides between them at random.
    seed : int, optional
        Of that matrix; needed if `spread` is not 0.

    Source: Christofides and Benavent 1989, by way of QAPLIB (Burkard, Karisch, Rendl 1997).

    >>> problem = chr12a()
    >>> problem.num_clients, round(problem.metrics["total"](problem.x0))
    (72, 41361)
    """
    if count("clients", clients) > SIZE * SIZE:
        raise ConfigError(f"clients must be at most {SIZE * SIZE}, one for each entry")
    if nonnegative("spread", spread) > 1:
        raise ConfigError(f"spread must be at most 1, got {spread!r}")
    if (spread > 0) != (seed is not None):
        raise ConfigError(f"spread={spread!r} with seed={seed!r}: give both, or neither")
    A, B = instance()
    start = np.full((SIZE, SIZE), 1.0 / SIZE)
    if seed is not None:
        rng = np.random.default_rng(seed)
        others = [np.eye(SIZE)[rng.permutation(SIZE)] for _ in range(SIZE)]
        start = (1.0 - spread) * start + spread * np.average(others, 0, rng.random(SIZE))
    whole = QuadraticAssignment(A, B)
    blocks = np.array_split(np.argwhere(np.ones((SIZE, SIZE))), clients)
    nearest = Birkhoff(SIZE)
    return FederatedProblem(
        [QuadraticAssignment(A, B, block) for block in blocks],
        constraint=Birkhoff(SIZE),
        x0=start,
        metrics={
            "total": whole.value,
            "permutation_cost": lambda x: whole.value(nearest.lmo(-x).dense()),
        },
    )


def instance() -> tuple[Array, Array]:
    """Return the two matrices of the file, each of shape (12, 12)."""
    text = (files("flower_fedcon.problems.papers") / "chr12a.dat").read_text(encoding="ascii")
    size, *numbers = (float(word) for word in text.split())
    both = np.array(numbers).reshape(2, int(size), int(size))
    return both[0], both[1]
