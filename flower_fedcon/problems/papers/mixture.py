"""Sparse mixtures: least squares over a simplex of many dimensions."""

from __future__ import annotations

import numpy as np

from flower_fedcon.objectives import LeastSquares
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.papers.sizes import check_sizes
from flower_fedcon.problems.stated import stated
from flower_fedcon.sets import Simplex
from flower_fedcon.validation import count, nonnegative


@stated
def mixture(
    *,
    clients: int = 10,
    rows: int = 40,
    columns: int = 1000,
    nonzeros: int = 5,
    noise: float = 0.05,
    seed: int = 0,
) -> FederatedProblem:
    """Return least squares over the probability simplex, with a truth of a few equal shares.

    Rows have entries 1 or -1, and y = <a, truth> + noise N(0, 1). Start: equal shares. Metric
    "distance": ||w - truth||_1.

    Parameters
    ----------
    clients : int
        N >= 1.
    rows : int
        Rows of each client.
    columns : int
        d.
    nonzeros : int
        Entries of the truth that are not 0, from 1 to `columns`.
    noise : float
        >= 0.
    seed : int
        Seeds the data.

    >>> problem = mixture(clients=2, rows=5, columns=4, nonzeros=2)
    >>> problem.x0, problem.metrics["distance"](problem.x0)
    (array([0.25, 0.25, 0.25, 0.25]), 1.0)
    """
    check_sizes(clients=clients, rows=rows, columns=columns, nonzeros=nonzeros)
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    truth = np.zeros(columns)
    truth[rng.choice(columns, nonzeros, replace=False)] = 1.0 / nonzeros
    objectives = []
    for _ in range(clients):
        A = rng.choice([-1.0, 1.0], (rows, columns))
        errors = nonnegative("noise", noise) * rng.standard_normal(rows)
        objectives.append(LeastSquares(A, A @ truth + errors))
    return FederatedProblem(
        objectives,
        constraint=Simplex(),
        metrics={"distance": lambda x: float(np.abs(x - truth).sum())},
    )
