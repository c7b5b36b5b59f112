"""Losses of rows, on one small table each; `LOSSES` is what all their tests go through."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon import objectives as losses
from flower_fedcon.objectives import CoxRegression, LinearModel

RNG = np.random.default_rng(0)
M = 11
A = np.maximum(RNG.normal(size=(M, 4)), 0)
B = RNG.normal(size=M)
W = np.r_[0.0, RNG.integers(1, 4, M - 1)]  # whole numbers: a weight is as many copies
COUNTS, CLASSES = RNG.poisson(2, M), RNG.integers(0, 3, M)
TIMES, EVENTS = np.round(RNG.exponential(3, M)), np.r_[1, 1, 1, RNG.integers(0, 2, M - 3)]


class PseudoHuber(LinearModel):
    """delta^2 (sqrt(1 + (r / delta)^2) - 1), for the residuals r: a loss of a user's own."""

    curvatures = (0.0, 1.0)

    def __init__(self, A: Any, b: Any, l2: float = 0.0, delta: float = 0.7, **more: Any) -> None:
        super().__init__(A, b, l2, **more)
        self.delta = delta

    def loss(self, scores: Any, targets: Any) -> Any:
        return self.delta**2 * (self._root(scores - targets) - 1)

    def slope(self, scores: Any, targets: Any) -> Any:
        return (scores - targets) / self._root(scores - targets)

    def curvature(self, scores: Any, targets: Any) -> Any:
        return self._root(scores - targets) ** -3

    def _root(self, residuals: Any) -> Any:
        return np.sqrt(1 + (residuals / self.delta) ** 2)


# Of some of the rows, given as an array or as a sparse matrix.
LOSSES = {
    "squares": lambda A, rows, **more: losses.LeastSquares(A, B[rows], 1.7, **more),
    "logistic": lambda A, rows, **more: losses.LogisticRegression(A, np.sign(B[rows]), 0.3, **more),
    "softmax": lambda A, rows, **more: losses.SoftmaxRegression(A, CLASSES[rows], 3, 0.3, **more),
    "huber": lambda A, rows, **more: losses.HuberRegression(A, B[rows], 0.7, 0.3, **more),
    "poisson": lambda A, rows, **more: losses.PoissonRegression(A, COUNTS[rows], 0.3, **more),
    "gamma": lambda A, rows, **more: losses.GammaRegression(A, 0.5 + COUNTS[rows], 0.3, **more),
    "negative_binomial": lambda A, rows, **more: losses.NegativeBinomialRegression(
        A, COUNTS[rows], 0.7, 0.3, **more
    ),
    "absolute": lambda A, rows, **more: losses.LeastAbsoluteDeviations(A, B[rows], 0.3, **more),
    "hinge": lambda A, rows, **more: losses.SupportVectorMachine(A, np.sign(B[rows]), 0.3, **more),
    "pseudo_huber": lambda A, rows, **more: PseudoHuber(A, B[rows], 0.3, **more),
}
SURVIVAL = {
    "efron": lambda A, r, **k: CoxRegression(A, TIMES[r], EVENTS[r], 0.3, ties="efron", **k),
    "breslow": lambda A, r, **k: CoxRegression(A, TIMES[r], EVENTS[r], 0.3, **k),
}
