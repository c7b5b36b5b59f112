"""Synthetic least squares of any number of clients, in one array."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flower_fedcon.arrays import empty_at_a_line
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.papers.sizes import check_sizes
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.validation import choice, closed, count, nonnegative

_CHUNK = 4096  # clients whose data come from one random stream
TERMS = ("none", "l1", "l1_ball")


@stated
def many_clients(
    *,
    clients: int = 10_000,
    rows: int = 5,
    columns: int = 64,
    nonzeros: int = 8,
    noise: float = 0.1,
    term: Literal["none", "l1", "l1_ball"] = "none",
    l1: float = 0.01,
    seed: int = 0,
) -> FederatedProblem:
    """Return sparse least squares with `ManyClients`: 10^6 clients take 2.6 GB, without objects.

    Rows are standard normal, y = <row, truth> + N(0, noise^2), where the truth has `nonzeros` ones.
    The data are made in chunks of 4,096 clients, each with its own random stream, so that the first
    clients do not depend on the number of clients. Metric "error": ||x - truth||_2.

    Parameters
    ----------
    clients : int
        N >= 1.
    rows : int
        Rows of each client.
    columns : int
        d.
    nonzeros : int
        Entries of the truth that are 1, from 1 to `columns`.
    noise : float
        >= 0.
    term : {"none", "l1", "l1_ball"}
        No term; `l1` times the l1 norm; or the l1 ball through the truth.
    l1 : float
        >= 0.
    seed : int
        Seeds the data.

    >>> problem = many_clients(clients=5000, rows=2, columns=8, nonzeros=2)
    >>> first = many_clients(clients=10, rows=2, columns=8, nonzeros=2).objectives[9]
    >>> problem.num_clients, bool((problem.objectives[9].A == first.A).all())
    (5000, True)
    """
    check_sizes(clients=clients, rows=rows, columns=columns, nonzeros=nonzeros)
    nonnegative("noise", noise)
    count("seed", seed, minimum=0)
    truth = np.zeros(columns)
    truth[:nonzeros] = 1.0
    shapes = (clients, rows, columns), (clients, rows)
    A, y = (empty_at_a_line(shape, np.dtype(float)) for shape in shapes)
    for start in range(0, clients, _CHUNK):
        rng = np.random.default_rng((seed, start))
        chunk, size = slice(start, start + _CHUNK), min(_CHUNK, clients - start)
        # The noise is next to its row, so that a shorter chunk begins like a whole one.
        drawn = rng.standard_normal((size, rows, columns + 1))
        A[chunk] = drawn[:, :, :-1]
        y[chunk] = A[chunk] @ truth + noise * drawn[:, :, -1]
    added: dict[str, dict[str, Any]] = {
        "none": {},
        "l1": {"regularizer": L1(nonnegative("l1", l1))},
        "l1_ball": {"constraint": L1Ball(radius=float(nonzeros))},
    }
    return FederatedProblem(
        ManyClients(LeastSquares, closed(A), closed(y)),
        metrics={"error": lambda x: float(np.linalg.norm(x - truth))},
        **added[choice("term", term, TERMS)],
    )
