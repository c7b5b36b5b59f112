"""The exact minimiser: in closed form where there is one, else to rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from flower_fedcon.objectives import LeastSquares, Quadratic, Scaled
from flower_fedcon.solvers.clients import LocalProblems
from flower_fedcon.solvers.descent import TIGHT, Rules, descend
from flower_fedcon.solvers.newton import newton
from flower_fedcon.solvers.problem import LocalProblem, LocalSolver, Solution, Stop, norm, target
from flower_fedcon.validation import Array

Solve: TypeAlias = Callable[[Array], Array]

RULES = Rules(max_iterations=100_000)
REFINEMENTS = 4
KEPT = 4
# An objective meets few shifts in a run. Its factors are dropped when it is.
_factors: WeakKeyDictionary[Any, dict[tuple[float, float], Solve | None]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Exact(LocalSolver):
    """The minimiser to rounding.

    Without a regularizer, `Quadratic` and `LeastSquares` (also `Scaled`) are solved by their
    Cholesky factor, which is kept for the next call with the same shift; their data must not
    change. Objectives with `hessian_products` (logistic and softmax regression) are minimised by
    Newton's method with conjugate gradients, all others by `AOGM` (FISTA with a regularizer),
    until the gradient's norm is at most 1e-12 max(1, its norm at the start), or steps no longer
    change x.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic(np.diag([1.0, 3.0]), np.array([4.0, 8.0]))
    >>> Exact().solve(LocalProblem(f, np.zeros(2), shift=1.0)).x
    array([2., 2.])
    """

    @property
    def most_iterations(self) -> int:
        """The most iterations of a call."""
        return RULES.max_iterations

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return the minimiser; see `LocalSolver.solve`."""
        if problem.regularizer is not None:
            return descend(problem, RULES, stop)
        inverse = _inverse_hessian(problem)
        if inverse is not None:
            return _refined(problem, inverse)
        if hasattr(problem.objective, "hessian_products"):
            return _by_products(problem, stop)
        return descend(problem, RULES, stop)


def _by_products(problem: LocalProblem, stop: Stop | None) -> Solution:
    """Solve a problem by Newton's method, and by `AOGM` from there if that does not get there."""
    first = None if stop is None else lambda x, g: stop(x[0], g[0])
    found, unsolved = newton(LocalProblems.of_one(problem), TIGHT, first)
    x, length = found.x[0], float(found.gradient_norm[0])
    done = Solution(x, length, int(found.iterations[0]), int(found.evaluations[0]), True)
    if not unsolved.size:
        return done
    goal = target(TIGHT, norm(problem.gradient(problem.start)), problem.start)
    rest = replace(RULES, tolerance=goal / max(1.0, length))
    end = descend(problem.started_at(x), rest, stop)
    return end._replace(
        iterations=done.iterations + end.iterations,
        evaluations=done.evaluations + 1 + end.evaluations,
    )


def _refined(problem: LocalProblem, inverse: Solve) -> Solution:
    """Solve a quadratic problem by one Newton step, and a few more that refine it."""
    x = problem.start
    gradient = problem.gradient(x)
    length = first = norm(gradient)
    eps = float(np.finfo(x.dtype).eps)
    iterations, rounded = 0, False
    while iterations < REFINEMENTS and not rounded:
        iterations += 1
        step = inverse(gradient)
        x = (x - step).astype(x.dtype, copy=False)
        gradient = problem.gradient(x)
        length = norm(gradient)
        if length <= 50 * eps * max(1.0, first):
            break
        rounded = norm(step) <= 4 * eps * norm(x)
    converged = rounded or length <= target(TIGHT, first, x) or length <= problem.rounding(x)
    return Solution(x, length, iterations, iterations + 1, converged)


def _inverse_hessian(problem: LocalProblem) -> Solve | None:
    """Return the map g -> (Hessian of h)^-1 g, or None where there is no closed form."""
    f, factor = problem.objective, 1.0
    while type(f) is Scaled:
        f, factor = f.objective, factor * f.factor
    if type(f) not in (Quadratic, LeastSquares):
        return None
    known = _factors.setdefault(f, {})
    key = (factor, problem.shift)
    if key not in known:
        if len(known) >= KEPT:
            del known[next(iter(known))]
        build = _quadratic if type(f) is Quadratic else _least_squares
        try:
            known[key] = build(f, factor, problem.shift)
        except np.linalg.LinAlgError:  # not positive definite
            known[key] = None
    return known[key]


def _quadratic(f: Quadratic, factor: float, shift: float) -> Solve:
    return _cholesky(factor * f.Q.astype(np.float64), shift)


def _least_squares(f: LeastSquares, factor: float, shift: float) -> Solve | None:
    if f.sparse:
        return None
    rows: Array = f.rows.astype(np.float64, copy=False)
    if f.weights is not None:
        rows = rows * np.sqrt(f.weights.astype(np.float64))[:, None]
    m, d = rows.shape
    weight = factor * f.scale / m
    if m >= d:
        flat = _cholesky(weight * (rows.T @ rows), shift)
    elif weight and shift:
        small = _cholesky(rows @ rows.T, shift / weight)

        def flat(g: Array) -> Array:
            # Woodbury: (s I + w A'A)^-1 = (I - A' (s/w I + A A')^-1 A) / s.
            solution: Array = (g - small(rows @ g) @ rows) / shift
            return solution
    else:
        return None

    return lambda g: flat(g.reshape(-1)).reshape(g.shape)


def _cholesky(matrix: Array, shift: float) -> Solve:
    matrix = matrix + shift * np.eye(len(matrix))
    # NumPy has no triangular solver; with the factor's inverse, two products solve.
    inverse = np.linalg.inv(np.linalg.cholesky(matrix))
    return lambda g: inverse.T @ (inverse @ g)
