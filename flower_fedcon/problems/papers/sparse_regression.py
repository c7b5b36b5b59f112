"""The sparse linear regression of the Fast-FedDA paper."""

from __future__ import annotations

import numpy as np

from flower_fedcon.objectives import LeastSquares
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.papers.sizes import check_sizes
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1
from flower_fedcon.validation import Array, count, nonnegative


@stated
def sparse_regression(
    *,
    clients: int = 64,
    rows: int = 128,
    columns: int = 1024,
    nonzeros: int = 512,
    l1: float = 2.0**-5,
    shift: float = 1.0,
    apart: float = 0.0,
    start: float = 1.0,
    seed: int = 0,
) -> FederatedProblem:
    """Return least squares with an l1 regularizer, each client's rows around its own mean.

    The truth is `nonzeros` ones, then zeros. A row of client m is x = mu_m + delta with
    mu_m ~ N(0, shift^2 I) and delta ~ N(0, 0.5^|j-k|); y = <x, truth> + N(0, 1). f_m is half the
    mean squared residual.

    Metrics: "error" and "error_l1", ||x - truth||_2 and ||x - truth||_1; "f1", of the support
    |x_j| > 0.01, and "f1_exact", of x_j != 0; "density", the fraction of x_j != 0; "mse", the mean
    squared residual over all rows.

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
    l1 : float
        Weight of the regularizer.
    shift : float
        >= 0; the papers' is 1. With 0 the clients have the same distribution.
    apart : float
        Standard deviation of each client's own truth around the truth; the papers' is 0.
    start : float
        Standard deviation of the start's entries: 1 is far from the truth; 0 means a start at 0.
    seed : int
        Seeds the data and the start.

    Source: Bao, Crawshaw, Luo, Liu, "Fast Composite Optimization and Statistical Recovery in
    Federated Learning", ICML 2022, Figure 1; Yuan, Zaheer, Reddi, "Federated Composite
    Optimization", ICML 2021, Section 5.1, has the same data.

    >>> problem = sparse_regression(clients=3, rows=5, columns=8, nonzeros=2)
    >>> problem.num_clients, problem.x0.shape, problem.metrics["f1"](np.eye(1, 8)[0])
    (3, (8,), 0.6666666666666666)
    """
    check_sizes(clients=clients, rows=rows, columns=columns, nonzeros=nonzeros)
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    truth = np.zeros(columns)
    truth[:nonzeros] = 1.0
    means = nonnegative("shift", shift) * rng.standard_normal((clients, 1, columns))
    deltas = rng.standard_normal((clients * rows, columns))
    for j in range(1, columns):  # autoregressive along the row
        deltas[:, j] = 0.5 * deltas[:, j - 1] + np.sqrt(0.75) * deltas[:, j]
    A = deltas.reshape(clients, rows, columns)
    A += means
    y = A @ truth + rng.standard_normal((clients, rows))
    x0 = nonnegative("start", start) * rng.standard_normal(columns)
    if nonnegative("apart", apart):
        own = apart * rng.standard_normal((clients, columns))
        y += np.einsum("mrj,mj->mr", A, own)
    objectives = [LeastSquares(*data) for data in zip(A, y, strict=True)]

    def f1(x: Array, above: float = 0.01) -> float:
        selected = np.abs(x) > above
        hits = int(selected[:nonzeros].sum())
        return 2 * hits / (int(selected.sum()) + nonzeros)

    return FederatedProblem(
        objectives,
        regularizer=L1(nonnegative("l1", l1)),
        x0=x0,
        metrics={
            "error": lambda x: float(np.linalg.norm(x - truth)),
            "error_l1": lambda x: float(np.abs(x - truth).sum()),
            "f1": f1,
            "f1_exact": lambda x: f1(x, above=0.0),
            "density": lambda x: float(np.count_nonzero(x)) / columns,
            "mse": lambda x: 2 * float(np.mean([f.value(x) for f in objectives])),
        },
    )
