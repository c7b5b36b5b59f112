"""The synthetic lasso of the federated Frank-Wolfe paper."""

from __future__ import annotations

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.papers.sizes import check_sizes
from flower_fedcon.problems.reference import Reference
from flower_fedcon.problems.stated import stated
from flower_fedcon.sets import L1Ball
from flower_fedcon.validation import count


@stated
def lasso(
    *, clients: int = 10, rows: int = 200, columns: int = 400, nonzeros: int = 20, seed: int = 0
) -> FederatedProblem:
    """Return min ||A x - b||^2 over the l1 ball through a sparse truth, with b = A x_true.

    A is Gaussian, its column variances uniform on [1, 2]; x_true has `nonzeros` standard normal
    entries. Client i has f_i = ||A_i x - b_i||^2 for its block of consecutive rows, and F is the
    mean of the f_i; F* = 0 at x_true. Metric "total": ||A x - b||^2 = N F.

    Parameters
    ----------
    clients : int
        N >= 1, at most `rows`.
    rows, columns : int
        Shape of A.
    nonzeros : int
        Entries of x_true that are not 0, from 1 to `columns`.
    seed : int
        Seeds A and x_true.

    Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", 2022, Figure 1(a).

    >>> problem = lasso(clients=2, rows=6, columns=8, nonzeros=2)
    >>> problem.num_clients, problem.x0.shape, problem.objective(problem.optimum.x) < 1e-20
    (2, (8,), True)
    """
    check_sizes(clients=clients, rows=rows, columns=columns, nonzeros=nonzeros)
    if clients > rows:
        raise ConfigError(f"clients must be at most rows = {rows}, got {clients}")
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    variances = rng.uniform(1.0, 2.0, columns)
    A = rng.standard_normal((rows, columns)) * np.sqrt(variances)
    truth = np.zeros(columns)
    truth[rng.choice(columns, size=nonzeros, replace=False)] = rng.standard_normal(nonzeros)
    b = A @ truth
    blocks = np.array_split(np.arange(rows), clients)
    return FederatedProblem(
        [LeastSquares(A[block], b[block], scale=2.0 * len(block)) for block in blocks],
        constraint=L1Ball(radius=float(np.abs(truth).sum())),
        metrics={"total": lambda x: float(((A @ x - b) ** 2).sum())},
        optimum=Reference(truth, 0.0, 0.0, "construction"),
    )
