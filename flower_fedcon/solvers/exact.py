"""The exact minimiser: in closed form if one exists, else to rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from flower_fedcon.arrays import keep, known, larger, length, no, nobody, over, pick, some
from flower_fedcon.errors import FedConError
from flower_fedcon.solvers.descent import TIGHT, Rules, descend, finish
from flower_fedcon.solvers.factors import Inverses, inverses
from flower_fedcon.solvers.local_units import AlikeProblem, units_apart
from flower_fedcon.solvers.loop import put
from flower_fedcon.solvers.newton import newton
from flower_fedcon.solvers.problem import (
    ClientsError,
    LocalProblem,
    LocalSolver,
    Solution,
    Stop,
    remaining,
    target,
)
from flower_fedcon.validation import Array

RULES = Rules(max_iterations=100_000)
REFINEMENTS = 4


@dataclass(frozen=True)
class Exact(LocalSolver):
    """The minimiser to rounding.

    Without a regularizer, `Quadratic` and `LeastSquares` (also `Scaled`) are solved by their
    Cholesky factor. It is kept for the next call with the same shift, so their data must not
    change. Objectives with `hessian_products` (logistic and softmax regression) are minimised by
    Newton's method with conjugate gradients, all others by `AOGM` (FISTA with a regularizer). These
    stop when the gradient's norm is at most 1e-12 of its norm at the start, or of a usual one if
    that is larger (`LocalProblem.usual`), or when the gradient is only rounding error. If the units
    of entries are far apart, the problem is solved in units that make them alike.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic(np.diag([1.0, 3.0]), np.array([4.0, 8.0]))
    >>> Exact().solve(LocalProblem(f, np.zeros(2), shift=1.0)).x
    array([2., 2.])
    """

    @property
    def most_iterations(self) -> int:
        """The largest number of iterations in a call."""
        return int(RULES.max_iterations)

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return the minimiser; see `LocalSolver.solve`."""
        if problem.regularizer is None:
            inverse = _inverse_hessian(problem)
            if inverse is not None and nobody(no(inverse.known)):
                return _refined(problem, inverse)
            if inverse is not None and problem.many:
                return _apart(problem, inverse, stop)
        apart = {} if stop is not None else _units_apart(problem)
        if not problem.many:
            return _alike(problem, apart[0]) if apart else _steps(problem, stop)
        return _each_alike(problem, apart) if apart else _steps(problem, stop)


def _steps(problem: LocalProblem, stop: Stop | None) -> Solution:
    """Solve a problem by Newton's steps, or by gradient steps."""
    if problem.regularizer is None and problem.has_hessian:
        return _by_products(problem, stop)
    return descend(problem, RULES, stop)


def _units_apart(problem: LocalProblem) -> dict[int, Array]:
    """Return the sizes of units, by place, for the clients whose units are far apart."""
    if not known(problem.start):
        return {}
    shape = problem.start.shape[problem.many :]
    objectives = problem.objective.objectives if problem.many else [problem.objective]
    shifts = np.broadcast_to(problem.shift, len(objectives)).tolist()
    units = (units_apart(f, shift, shape) for f, shift in zip(objectives, shifts, strict=True))
    return {place: sizes for place, sizes in enumerate(units) if sizes is not None}


def _alike(problem: LocalProblem, sizes: Array) -> Solution:
    """Solve one client's problem in units in which its entries are alike."""
    alike = AlikeProblem(problem, sizes)
    solution = _steps(alike, None)
    return solution._replace(x=(alike.sizes * solution.x).astype(problem.start.dtype, copy=False))


def _each_alike(problem: LocalProblem, apart: dict[int, Array]) -> Solution:
    """Solve one by one the problems of a cohort whose entries are in units far apart."""
    solution = Solution.begun(problem)
    others = np.array([j for j in range(len(problem.start)) if j not in apart], dtype=int)
    if others.size:
        solution = over(partial(put, others), solution, _steps(problem.only(others), None))
    errors = {}
    for place, sizes in apart.items():
        try:
            one = over(lambda value: np.asarray(value)[None], _alike(problem.one(place), sizes))
        except FedConError as error:
            errors[place] = error
            continue
        solution = over(partial(put, np.array([place])), solution, one)
    if errors:
        raise ClientsError(errors)
    return solution


def _inverse_hessian(problem: LocalProblem) -> Inverses | None:
    """Return (Hessian of h)^-1; None if it varies with the model."""
    if problem.many:
        return problem.objective.inverse_hessian(problem.shift)  # type: ignore[no-any-return]
    return inverses(problem.objective, problem.shift)


def _refined(problem: LocalProblem, inverse: Inverses) -> Solution:
    """Solve a quadratic problem by one Newton step and a few refining ones."""
    x, axes, eps = problem.start, problem.axes, problem.eps
    gradient = problem.gradient(x)
    norm = first = length(gradient, axes)
    each = problem.each
    going, rounded, iterations = each(True), each(False), each(0)
    for _ in range(REFINEMENTS):
        iterations = iterations + going
        step = inverse.solve(gradient)
        x = keep(going, (x - step).astype(x.dtype, copy=False), x)
        gradient = problem.gradient(x)
        norm = pick(going, length(gradient, axes), norm)
        going = going & no(norm <= 50 * eps * larger(problem.usual[0], first))
        if not some(going):
            break
        rounded = rounded | (going & (length(step, axes) <= 4 * eps * length(x, axes)))
        going = going & no(rounded)
        if not some(going):
            break
    converged = rounded | (norm <= target(problem, TIGHT, first))
    if some(no(converged)):
        converged = converged | (norm <= problem.rounding(x))
    return Solution(x, norm, iterations, iterations + 1, converged, *(each(0),) * 3)


def _apart(problem: LocalProblem, inverse: Inverses, stop: Stop | None) -> Solution:
    """Solve a cohort's problems in closed form if they have one, the others by steps."""
    solution = Solution.begun(problem)
    closed = np.flatnonzero(inverse.known)
    if closed.size:
        part = _refined(problem.only(closed), inverse.only(closed))
        solution = over(partial(put, closed), solution, part)
    return finish(problem, RULES, stop, solution, no(inverse.known))


def _by_products(problem: LocalProblem, stop: Stop | None) -> Solution:
    """Solve a problem by Newton's method, and by `AOGM` from its last point if it fails."""
    solution, unsolved = newton(problem, TIGHT, stop)
    if nobody(unsolved):
        return solution
    with np.errstate(over="ignore", invalid="ignore"):  # `finish` reports it
        first = length(problem.gradient(problem.start), problem.axes)
    goal = target(problem, TIGHT, first)
    tolerance = remaining(problem, goal, solution.x, solution.gradient_norm)
    rest = replace(RULES, tolerance=tolerance)
    solution = solution._replace(evaluations=solution.evaluations + unsolved)
    return finish(problem, rest, stop, solution, unsolved)
