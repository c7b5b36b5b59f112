"""Problems and solvers that the tests of local solvers share."""

import numpy as np

from flower_fedcon.objectives import (
    LogisticRegression,
    SoftmaxRegression,
)
from flower_fedcon.solvers import (
    AOGM,
    LBFGS,
    Exact,
    GradientDescent,
)

SMOOTH = [
    Exact(),
    AOGM(),
    AOGM(restart="function"),
    AOGM(restart=None),
    AOGM(backtracking=False),
    AOGM(over_step=False),
    GradientDescent(tolerance=1e-11),
    GradientDescent(tolerance=1e-11, steps=5000, lr=0.03),
    LBFGS(),
]
PROXIMAL = [s for s in SMOOTH if not isinstance(s, LBFGS)]


class Plain:
    """An objective with nothing but what is required, and no constants."""

    def __init__(self, objective):
        self.objective = objective
        self.values = self.gradients = 0

    def value(self, x):
        self.values += 1
        return self.objective.value(x)

    def gradient(self, x):
        self.gradients += 1
        return self.objective.gradient(x)


def logistic(m=500, d=60):
    """The problem whose counts are known."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m, d)) * np.logspace(0, -1.5, d)
    y = np.sign(X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(m))
    return LogisticRegression(X, y, l2=1e-2)


def softmax(dtype=np.float64, l2=0.05):
    rng = np.random.default_rng(3)
    A = rng.normal(size=(30, 6)).astype(dtype)
    return SoftmaxRegression(A, rng.integers(0, 3, 30), 3, l2=l2)
