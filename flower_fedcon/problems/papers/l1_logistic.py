"""Synthetic sparse logistic regression over heterogeneous clients."""

from __future__ import annotations

import numpy as np

from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.papers.sizes import check_sizes
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1
from flower_fedcon.validation import count, nonnegative


@stated
def l1_logistic(
    *,
    clients: int = 50,
    rows: int = 40,
    columns: int = 100,
    nonzeros: int = 10,
    shift: float = 0.5,
    l1: float = 1e-2,
    l2: float = 1e-2,
    seed: int = 0,
) -> FederatedProblem:
    """Return logistic regression with an l1 regularizer, each client's rows around its own mean.

    The truth has `nonzeros` entries 1 or -1. A row of client j is a = m_j + delta, with
    m_j ~ N(0, shift^2 I) and delta ~ N(0, I); its label is the sign of <a, truth + u_j> + noise,
    with u_j ~ N(0, shift^2 / columns I) and the noise N(0, 1). Start 0. Metric "nonzeros": the
    number of entries with |x| > 1e-8.

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
    shift : float
        >= 0; with 0 the clients have the same distribution.
    l1 : float
        Weight of the regularizer.
    l2 : float
        Each client's f_j has l2/2 ||x||^2.
    seed : int
        Seeds the data.

    >>> problem = l1_logistic(clients=3, rows=5, columns=8, nonzeros=2)
    >>> problem.num_clients, problem.x0.shape, problem.metrics["nonzeros"](problem.x0)
    (3, (8,), 0.0)
    """
    check_sizes(clients=clients, rows=rows, columns=columns, nonzeros=nonzeros)
    nonnegative("shift", shift)
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    truth = np.zeros(columns)
    truth[rng.choice(columns, nonzeros, replace=False)] = rng.choice([-1.0, 1.0], nonzeros)
    objectives = []
    for _ in range(clients):
        A = shift * rng.standard_normal(columns) + rng.standard_normal((rows, columns))
        model = truth + shift / np.sqrt(columns) * rng.standard_normal(columns)
        y = np.where(A @ model + rng.standard_normal(rows) >= 0, 1.0, -1.0)
        objectives.append(LogisticRegression(A, y, nonnegative("l2", l2)))
    return FederatedProblem(
        objectives,
        regularizer=L1(nonnegative("l1", l1)),
        metrics={"nonzeros": lambda x: float(np.sum(np.abs(x) > 1e-8))},
    )
