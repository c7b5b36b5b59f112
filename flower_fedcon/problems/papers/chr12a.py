"""The quadratic assignment problem chr12a of QAPLIB, relaxed to doubly stochastic matrices."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import QuadraticAssignment
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.sets import Birkhoff
from flower_fedcon.validation import Array, count

SIZE = 12


@stated
def chr12a(*, clients: int = 72) -> FederatedProblem:
    """Return min trace(A X B' X') over the 12 x 12 doubly stochastic matrices, from their centre.

    Client c holds a block of consecutive entries (i, j) of X, row by row, and f_c is the sum over
    them of X_ij (A X B')_ij: two entries each for 72 clients. F is the mean of the f_c. It is not
    convex. Metrics: "total", the trace (N F); "permutation_cost", the trace at the permutation
    nearest to X, at best 9552.

    Parameters
    ----------
    clients : int
        N, 1 to 144.

    Source: Christofides and Benavent 1989, by way of QAPLIB (Burkard, Karisch, Rendl 1997).

    >>> problem = chr12a()
    >>> problem.num_clients, round(problem.metrics["total"](problem.x0))
    (72, 41361)
    """
    if count("clients", clients) > SIZE * SIZE:
        raise ConfigError(f"clients must be at most {SIZE * SIZE}, one for each entry")
    A, B = instance()
    whole = QuadraticAssignment(A, B)
    blocks = np.array_split(np.argwhere(np.ones((SIZE, SIZE))), clients)
    nearest = Birkhoff(SIZE)
    return FederatedProblem(
        [QuadraticAssignment(A, B, block) for block in blocks],
        constraint=Birkhoff(SIZE),
        x0=np.full((SIZE, SIZE), 1.0 / SIZE),
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
