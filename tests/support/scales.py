"""One problem in many units: columns and target multiplied, and the penalty carried along."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from flower_fedcon import FederatedProblem
from flower_fedcon.objectives import (
    CoxRegression,
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from flower_fedcon.regularizers import L1

RNG = np.random.default_rng(5)
ROWS = RNG.normal([0.5, 0.0, -1.0], size=(48, 3))
SCORE = ROWS @ [1.0, 0.5, 0.0] + 0.6 * RNG.normal(size=48)
LABELS = np.where(SCORE + RNG.logistic(size=48) > 0, 1, -1)
COUNTS = RNG.poisson(np.exp(0.5 * SCORE)).astype(float)
CLASSES = np.arange(48) % 3
TIMES, EVENTS = RNG.exponential(np.exp(-SCORE)), (RNG.random(48) < 0.8).astype(float)
PARTS = np.array_split(RNG.permutation(48), 3)

LOSSES = {
    "squares": lambda A, r, c: LeastSquares(A, c * SCORE[r]),
    "huber": lambda A, r, c: HuberRegression(A, c * SCORE[r], delta=0.7 * c),
    "logistic": lambda A, r, c: LogisticRegression(A, LABELS[r]),
    "softmax": lambda A, r, c: SoftmaxRegression(A, CLASSES[r], 3),
    "poisson": lambda A, r, c: PoissonRegression(A, COUNTS[r]),
    "cox": lambda A, r, c: CoxRegression(A, TIMES[r], EVENTS[r]),
}
TARGETS = {"squares", "huber"}  # losses whose target has a unit

units = st.tuples(
    st.lists(st.tuples(st.floats(-9, 9), st.sampled_from([-1, 1])), min_size=3, max_size=3),
    st.floats(-9, 9),
)
"""Exponents and signs of the columns' units, and the exponent of the target's."""


def factors(kind: str, drawn: Any) -> tuple[Any, float]:
    """Return what the columns and the target are multiplied by."""
    columns, target = drawn
    u = np.array([sign * 10.0**exponent for exponent, sign in columns])
    return u, 10.0**target if kind in TARGETS else 1.0


def problem(kind: str, u: Any, c: float, l1: float) -> FederatedProblem:
    """Return the problem in these units; a weight of 0 is none."""
    clients = [LOSSES[kind](ROWS[r] * u, r, c) for r in PARTS]
    weights = l1 * c * np.abs(u)
    if kind == "softmax":
        weights = np.repeat(weights[:, None], 3, axis=1)
    return FederatedProblem(clients, regularizer=L1(weights) if l1 else None)


def back(x: Any, u: Any, c: float) -> Any:
    """Return a model in the first units."""
    x = np.asarray(x)
    return x * (u if x.ndim == 1 else u[:, None]) / c
