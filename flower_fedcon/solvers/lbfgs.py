"""SciPy's L-BFGS, with `AOGM` for the last digits, which its line search cannot reach."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flower_fedcon.arrays import length
from flower_fedcon.errors import ConfigError
from flower_fedcon.solvers.descent import Rules, finish
from flower_fedcon.solvers.problem import (
    LocalProblem,
    LocalSolver,
    Solution,
    Stop,
    remaining,
    target,
)
from flower_fedcon.solvers.quasi_newton import PAIRS, diverged, quasi_newton
from flower_fedcon.validation import Array, count, positive


class _Stopped(Exception):  # noqa: N818  (not an error: the way out of SciPy's loop)
    """The caller's test holds at the point evaluated last."""


@dataclass(frozen=True)
class LBFGS(LocalSolver):
    """SciPy's L-BFGS-B without bounds, stopped by the norm of the gradient alone.

    Its line search compares values, and fails once they differ by rounding errors only. If the
    tolerance is not met by then, `AOGM` continues from there. A problem with a regularizer is
    refused. The stacked engine runs another L-BFGS, for all clients at once. On a problem that is
    unbounded below it raises an error, where SciPy's ends far away without convergence.

    Parameters
    ----------
    tolerance : float
        > 0, for ||grad h|| relative to its norm at the start, or to a usual one if that is larger
        (`LocalProblem.usual`).
    max_iterations : int
        >= 1.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic(np.diag([1.0, 4.0]), np.array([1.0, 8.0]))
    >>> LBFGS().solve(LocalProblem(f, np.zeros(2))).x.round(9)
    array([1., 2.])
    """

    tolerance: float = 1e-10
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        positive("LBFGS(tolerance)", self.tolerance)
        count("LBFGS(max_iterations)", self.max_iterations)

    @property
    def most_iterations(self) -> int:
        """The most iterations of a call."""
        return self.max_iterations

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return a minimiser; see `LocalSolver.solve`."""
        psi = problem.regularizer
        if psi is not None:
            raise ConfigError(f"LBFGS cannot solve a problem with {psi!r}: use 'exact' or AOGM")
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # `diverged` reports it
            if problem.many:
                return quasi_newton(problem, self.tolerance, self.max_iterations, stop)
            return self._by_scipy(problem, stop)

    def _by_scipy(self, problem: LocalProblem, stop: Stop | None) -> Solution:
        from scipy.optimize import minimize  # slow to import

        start = problem.start
        x = start
        evaluations = 0
        first = length(problem.gradient(start), problem.axes)
        goal = target(problem, self.tolerance, first)
        steep, curved = problem.usual  # SciPy's stopping rules use absolute numbers
        if not problem.tells:
            steep = max(steep, first) or 1.0
            curved = problem.smoothness or problem.shift or steep
        far, high = steep / curved, steep * steep / curved

        def both(flat: Array) -> tuple[float, Array]:
            nonlocal x, evaluations
            x = far * flat.reshape(start.shape)
            evaluations += 1
            value, gradient, _ = problem.evaluate(x)
            if stop is not None and stop(x, gradient):
                raise _Stopped
            return value / high, gradient.reshape(-1) / steep

        # SciPy tests the largest entry of the gradient.
        options = {
            "gtol": goal / steep / math.sqrt(start.size),
            "ftol": 0.0,
            "maxiter": self.max_iterations,
            "maxfun": 20 * self.max_iterations,
            "maxcor": PAIRS,
        }
        iterations, stopped = 0, False

        def count_iteration(_: Array) -> None:
            nonlocal iterations
            iterations += 1

        try:
            result = minimize(
                both,
                start.astype(np.float64).reshape(-1) / far,
                jac=True,
                method="L-BFGS-B",
                callback=count_iteration,
                options=options,
            )
            x = far * np.asarray(result.x).reshape(start.shape)
        except _Stopped:
            stopped = True
        x = x.astype(start.dtype)
        norm = length(problem.gradient(x), problem.axes)
        result = Solution(x, norm, iterations, evaluations + 2, stopped or norm <= goal)
        if not stopped and goal < norm < steep and iterations < self.max_iterations:
            tolerance = remaining(problem, goal, x, norm)
            rest = Rules(self.max_iterations - iterations, tolerance=tolerance)
            return finish(problem, rest, stop, result, True)
        if not math.isfinite(norm):
            raise diverged()
        return result
