"""The low-rank matrix estimation of the Fast-FedDA paper."""

from __future__ import annotations

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import NuclearNorm
from flower_fedcon.validation import Array, count, nonnegative


@stated
def low_rank(
    *,
    clients: int = 64,
    rows: int = 128,
    size: int = 32,
    rank: int = 16,
    weight: float = 0.1,
    start: float = 1.0,
    seed: int = 0,
) -> FederatedProblem:
    """Return trace regression with a nuclear norm, each client's matrices around its own mean.

    The truth is diag(1, ..., 1, 0, ..., 0) with `rank` ones. A covariate of client m is
    X = M_m + D, entries of M_m and D ~ N(0, 1); y = trace(X' truth) + N(0, 1). f_m is half the
    mean squared residual.

    Metrics: "error", ||W - truth||_F; "error_operator", the largest singular value of W - truth;
    "rank", the singular values above 1e-6; "mse", the mean
    squared residual over all rows.

    Parameters
    ----------
    clients : int
        N >= 1.
    rows : int
        Rows of each client.
    size : int
        The model is size x size.
    rank : int
        Rank of the truth, from 1 to `size`.
    weight : float
        Weight of the nuclear norm.
    start : float
        Standard deviation of the start's entries; 0 starts at 0.
    seed : int
        Seeds the data and the start.

    Source: Bao, Crawshaw, Luo, Liu, "Fast Composite Optimization and Statistical Recovery in
    Federated Learning", ICML 2022, Figure 2; Yuan, Zaheer, Reddi, "Federated Composite
    Optimization", ICML 2021, Section 5.2, has the same data.

    >>> problem = low_rank(clients=3, rows=5, size=4, rank=2)
    >>> problem.num_clients, problem.x0.shape, problem.metrics["rank"](np.eye(4))
    (3, (4, 4), 4.0)
    """
    count("clients", clients)
    for name, number in (("rows", rows), ("size", size), ("rank", rank)):
        count(name, number)
    if rank > size:
        raise ConfigError(f"rank must be at most size = {size}, got {rank}")
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    truth = np.diag((np.arange(size) < rank).astype(float))
    means = rng.standard_normal((clients, size, size))
    A = rng.standard_normal((clients, rows, size, size))
    A += means[:, None]
    y = np.tensordot(A, truth, axes=2) + rng.standard_normal((clients, rows))
    x0 = nonnegative("start", start) * rng.standard_normal((size, size))
    objectives = [LeastSquares(*data) for data in zip(A, y, strict=True)]

    def spectrum(x: Array) -> float:
        return float(np.sum(np.linalg.svd(x, compute_uv=False) > 1e-6))

    return FederatedProblem(
        objectives,
        regularizer=NuclearNorm(nonnegative("weight", weight)),
        x0=x0,
        metrics={
            "error": lambda x: float(np.linalg.norm(x - truth)),
            "error_operator": lambda x: float(np.linalg.norm(x - truth, 2)),
            "rank": spectrum,
            "mse": lambda x: 2 * float(np.mean([f.value(x) for f in objectives])),
        },
    )
