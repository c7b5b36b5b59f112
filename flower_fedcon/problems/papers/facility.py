"""A facility near its customers, in a half-space: Lipschitz, not smooth, with a known optimum."""

from __future__ import annotations

import numpy as np

from flower_fedcon.objectives import Objective
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.reference import Reference
from flower_fedcon.problems.stated import stated
from flower_fedcon.validation import Array, count, positive


class Customer(Objective):
    """The distance f(w) = ||w - place||, with the constraint g(w) = <normal, w> - offset."""

    def __init__(self, place: Array, normal: Array, offset: float) -> None:
        self.place, self.normal, self.offset = place, normal, offset
        self.shape = place.shape

    def value(self, x: Array) -> float:
        """Return f(w)."""
        return float(np.linalg.norm(x - self.place))

    def gradient(self, x: Array) -> Array:
        """Return a subgradient of f at w, 0 at the customer's place."""
        away = x - self.place
        length = float(np.linalg.norm(away))
        return away / length if length else away

    def constraint_value(self, x: Array) -> float:
        """Return g(w)."""
        return float(self.normal @ x) - self.offset

    def constraint_gradient(self, x: Array) -> Array:
        """Return the normal."""
        return self.normal


@stated
def facility(
    *, clients: int = 10, columns: int = 20, distance: float = 1.0, seed: int = 0
) -> FederatedProblem:
    """Return min (1/N) sum_j ||w - a_j|| subject to <n, w> <= b, from 0.

    All f_j and g_j are convex with the Lipschitz constant 1, and not smooth. The optimum is known
    by construction: for a point w* at a given distance from 0 and unit vectors u_j around -w*, the
    customers are beyond it, a_j = w* - r_j u_j with r_j in [1, 2]; n points against the mean u of
    the u_j, and b = <n, w*>. Then the mean gradient at w* is u = -||u|| n, and F* the mean of the
    r_j. Client j's g_j(w) = <n, w> - b_j, with b_j that differ and have the mean b. The history's
    column "constraint" is g(w).

    Metrics: "gap", |F(w) - F*|; "excess", the larger one of F(w) - F* and g(w), in absolute value.

    Parameters
    ----------
    clients : int
        N >= 1.
    columns : int
        d >= 2.
    distance : float
        D = ||w*||, the start's distance from the optimum.
    seed : int
        Seeds the places.

    >>> problem = facility(clients=3, columns=4)
    >>> x = problem.optimum.x
    >>> record = problem.evaluate(x)
    >>> abs(record["residual"]) < 1e-15, abs(record["constraint"]) < 1e-15
    (True, True)
    """
    count("clients", clients)
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    best = rng.standard_normal(count("columns", columns, minimum=2))
    best *= positive("distance", distance) / np.linalg.norm(best)
    directions = rng.standard_normal((clients, columns)) / np.sqrt(columns) - best / distance
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    lengths = rng.uniform(1.0, 2.0, clients)
    mean = directions.mean(axis=0)
    normal = -mean / np.linalg.norm(mean)
    offsets = rng.standard_normal(clients)
    offsets += float(normal @ best) - offsets.mean()
    customers = [
        Customer(best - r * u, normal, float(b))
        for r, u, b in zip(lengths, directions, offsets, strict=True)
    ]
    value = float(np.mean([c.value(best) for c in customers]))

    def gap(x: Array) -> float:
        return float(np.mean([c.value(x) for c in customers])) - value

    def excess(x: Array) -> float:
        return max(gap(x), float(np.mean([c.constraint_value(x) for c in customers])))

    return FederatedProblem(
        customers,
        metrics={"gap": lambda x: abs(gap(x)), "excess": lambda x: abs(excess(x))},
        optimum=Reference(best, value, 0.0, "construction"),
    )
