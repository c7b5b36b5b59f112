"""Six quadratics in eight dimensions, small enough for exact counts of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.reference import Reference
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1
from flower_fedcon.validation import Array, count, nonnegative

CLIENTS, COLUMNS = 6, 8


class WalledQuadratic(Quadratic):
    """f with the client's own constraint c(x) = <normal, x> - level <= 0."""

    def __init__(self, Q: Array, b: Array, normal: Array, level: float) -> None:
        super().__init__(Q, b)
        self.normal, self.level = normal, level

    def constraint_value(self, x: Array) -> float:
        """Return c(x)."""
        return float(self.normal @ x) - self.level

    def constraint_gradient(self, x: Array) -> Array:
        """Return the normal."""
        return self.normal


@stated
def six_quadratics(
    *, shared: bool = False, walls: bool = False, l1: float = 0.0, seed: int = 1
) -> FederatedProblem:
    """Return f_j = x'Q_j x/2 - <b_j, x> for six clients that differ much, from 0.

    Each Q_j has its own eigenbasis, and the eigenvalues 1, 20 and six between: mu = 1, L = 20.

    Metric: "error", ||x - x*||, with x* to rounding (with `l1` by the independent solver).

    Parameters
    ----------
    shared : bool
        Replace b_j by Q_j x*, so that the clients share the minimiser x*.
    walls : bool
        Add client j's constraint <a_j, x> <= <a_j, x*> - ||a_j||/20, with a_j ~ N(0, I) and the x*
        without walls.
    l1 : float
        Weight of an l1 regularizer.
    seed : int
        Draws the eigenbases, the eigenvalues, the b_j and the walls.

    Raises
    ------
    ConfigError
        If more than one of `shared`, `walls` and `l1` is given, or `l1` or `seed` is negative.

    >>> problem = six_quadratics()
    >>> round(problem.optimum.value, 12), problem.metrics["error"](problem.optimum.x)
    (-0.544424697381, 0.0)
    """
    if shared + walls + (nonnegative("l1", l1) > 0) > 1:
        raise ConfigError(f"give one of shared, walls and l1: got {shared!r}, {walls!r}, {l1!r}")
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    pairs = []
    for _ in range(CLIENTS):
        basis = np.linalg.qr(rng.standard_normal((COLUMNS, COLUMNS)))[0]
        spectrum = np.array([1.0, 20.0, *rng.uniform(1, 20, COLUMNS - 2)])
        Q = basis @ np.diag(spectrum) @ basis.T
        pairs.append(((Q + Q.T) / 2, 5 * rng.standard_normal(COLUMNS)))
    free = _minimum(pairs, np.zeros((0, COLUMNS)), np.zeros(0))
    objectives: list[Quadratic] = [Quadratic(Q, Q @ free if shared else b) for Q, b in pairs]
    normals, levels = np.zeros((0, COLUMNS)), np.zeros(0)
    if walls:
        rngs = [np.random.default_rng(20 * seed + j) for j in range(CLIENTS)]
        normals = np.array([each.standard_normal(COLUMNS) for each in rngs])
        levels = normals @ free - np.linalg.norm(normals, axis=1) / 20
        parts = zip(pairs, normals, levels, strict=True)
        objectives = [WalledQuadratic(*pair, normal, float(level)) for pair, normal, level in parts]
    problem = FederatedProblem(
        objectives,
        regularizer=L1(l1) if l1 else None,
        optimum=None if l1 else _reference(objectives, normals, levels),
        constraints="each" if walls else "mean",
    )
    problem.metrics["error"] = lambda x: float(np.linalg.norm(x - problem.optimum.x))
    return problem


def _reference(objectives: Sequence[Quadratic], normals: Array, levels: Array) -> Reference:
    pairs = [(f.Q, f.b) for f in objectives]
    x = _minimum(pairs, normals, levels)
    value = float(np.mean([f.value(x) for f in objectives]))
    return Reference(x, value, 0.0, "linear system")


def _minimum(pairs: Sequence[tuple[Array, Array]], normals: Array, levels: Array) -> Array:
    """Return the minimiser of the mean with normals x <= levels, from all sets of active walls."""
    Q, b = (np.mean(parts, axis=0) for parts in zip(*pairs, strict=True))
    for touched in product((False, True), repeat=len(levels)):
        walls, n = normals[list(touched)], sum(touched)
        matrix = np.block([[Q, walls.T], [walls, np.zeros((n, n))]])
        solution: Array = np.linalg.solve(matrix, np.r_[b, levels[list(touched)]])
        x, multipliers = solution[:COLUMNS], solution[COLUMNS:]
        if (multipliers >= 0).all() and (normals @ x <= levels + 1e-12).all():
            return x
    raise AssertionError("a strongly convex problem with a feasible point has a minimum")
