"""Multi-task regression with features that either all tasks use or none."""

from __future__ import annotations

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import GroupLasso
from flower_fedcon.sets import GroupL2Ball
from flower_fedcon.validation import Array, count, nonnegative


@stated
def multitask(
    *,
    clients: int = 20,
    rows: int = 15,
    features: int = 100,
    tasks: int = 5,
    nonzeros: int = 10,
    weight: float | None = None,
    radius: float | None = None,
    shift: float = 1.0,
    noise: float = 0.5,
    seed: int = 0,
) -> FederatedProblem:
    """Return least squares on several tasks, with the rows of the weight matrix as groups.

    The model has shape (features, tasks): column t is the weights of task t, and a row is a group,
    one feature's weights in all tasks. A client is a site that has measured all tasks on its own
    rows; clients differ in the mean of their features. The truth has `nonzeros` rows ~ N(0, 1),
    then zeros. A row of client m is x = mu_m + delta, mu_m ~ N(0, shift^2 I) and delta ~ N(0, I); y
    = x truth + N(0, noise^2), one number for each task. f_m is half the mean squared residual over
    the client's rows and tasks. The start is 0.

    Metrics: "error", ||W - truth||_F; "f1", for the rows with a norm above 0.01; "rows", the number
    of nonzero rows.

    Parameters
    ----------
    clients : int
        N >= 1.
    rows : int
        Rows of each client.
    features, tasks : int
        Shape of the model.
    nonzeros : int
        Rows of the truth that are not 0, from 1 to `features`.
    weight : float, optional
        Weight of the group lasso.
    radius : float, optional
        Radius of a ball of the sum of the rows' norms, a constraint instead of `weight`.
    shift : float
        Standard deviation of the clients' means; with 0 all have the same distribution.
    noise : float
        Standard deviation of the noise.
    seed : int
        Seeds the data.

    Source of the model: Obozinski, Wainwright, Jordan, "Support union recovery in high-dimensional
    multivariate regression", Annals of Statistics 39, 2011.

    >>> problem = multitask(clients=3, rows=5, features=6, tasks=2, nonzeros=2, weight=0.02)
    >>> problem.x0.shape, problem.objectives[0].num_examples
    ((6, 2), 10)
    >>> problem.metrics["f1"](np.eye(6, 2)[::-1]), multitask(radius=2.0).constraint
    (0.0, GroupL2Ball(radius=2.0, groups='rows'))
    """
    for name, number in (("clients", clients), ("rows", rows), ("features", features),
                         ("tasks", tasks), ("nonzeros", nonzeros)):  # fmt: skip
        count(name, number)
    if nonzeros > features:
        raise ConfigError(f"nonzeros must be at most features = {features}, got {nonzeros}")
    if (weight is None) == (radius is None):
        raise ConfigError(
            "give either weight (a group lasso) or radius (a ball), "
            f"got weight={weight!r}, radius={radius!r}"
        )
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    truth = np.zeros((features, tasks))
    truth[:nonzeros] = rng.standard_normal((nonzeros, tasks))
    means = nonnegative("shift", shift) * rng.standard_normal((clients, 1, features))
    X = means + rng.standard_normal((clients, rows, features))
    Y = X @ truth + nonnegative("noise", noise) * rng.standard_normal((clients, rows, tasks))
    # An example is a row and a task: <x e_t', W> = (x W)_t.
    A = np.einsum("mif,ts->mitfs", X, np.eye(tasks)).reshape(clients, -1, features, tasks)
    objectives = [LeastSquares(a, y) for a, y in zip(A, Y.reshape(clients, -1), strict=True)]

    def norms(x: Array) -> Array:
        lengths: Array = np.linalg.norm(x, axis=1)
        return lengths

    def f1(x: Array) -> float:
        selected = norms(x) > 0.01
        return 2 * int(selected[:nonzeros].sum()) / (int(selected.sum()) + nonzeros)

    return FederatedProblem(
        objectives,
        regularizer=None if weight is None else GroupLasso(nonnegative("weight", weight), "rows"),
        constraint=None if radius is None else GroupL2Ball(radius, "rows"),
        metrics={
            "error": lambda x: float(np.linalg.norm(x - truth)),
            "f1": f1,
            "rows": lambda x: float(np.count_nonzero(norms(x))),
        },
    )
