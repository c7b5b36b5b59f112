"""Local solvers: minimisers of a client's own problem, h(x) = f(x) + linear and quadratic terms.

Each has `solve(problem, stop=None)`. "exact" is the closed form or a tight tolerance.
"""

from flower_fedcon.solvers.choose import as_solver, gap_tolerance
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.gradient import AOGM, GradientDescent
from flower_fedcon.solvers.lbfgs import LBFGS
from flower_fedcon.solvers.problem import LocalProblem, LocalSolver, Solution

__all__ = [
    "AOGM",
    "LBFGS",
    "Exact",
    "GradientDescent",
    "LocalProblem",
    "LocalSolver",
    "Solution",
    "as_solver",
    "gap_tolerance",
]
