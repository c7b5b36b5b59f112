"""Two clients on an interval, where averaging of Frank-Wolfe models never moves."""

from __future__ import annotations

import numpy as np

from flower_fedcon.objectives import LeastSquares
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.sets import Box


@stated
def counterexample() -> FederatedProblem:
    """Return f_1 = (x - 3)^2 and f_2 = (x + 1)^2 on [-1, 1], from 0.

    The minimiser is x = 1, with F = 4. Metric "x": the model itself.

    Source: Dadras, Prakhya, Yurtsever, "Federated Frank-Wolfe Algorithm", 2022, Appendix A.

    >>> problem = counterexample()
    >>> problem.objective(np.zeros(1)), problem.optimum.value
    (5.0, 4.0)
    """
    one = np.ones((1, 1))
    return FederatedProblem(
        [LeastSquares(one, np.array([3.0]), scale=2.0), LeastSquares(one, -np.ones(1), scale=2.0)],
        constraint=Box(-1.0, 1.0),
        metrics={"x": lambda x: float(x[0])},
    )
