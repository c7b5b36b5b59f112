"""Local solvers: they minimise a client's f plus linear and quadratic terms, plus a regularizer.

Each has `solve(problem, stop=None)`. "exact" uses a closed form if one exists, and a tight
tolerance otherwise. `Entropy`, `PNorm`, `QuadraticForm` and classes derived from `Distance` are
distances of FedMiD and FedDualAvg.
"""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.objectives.local_pass import LocalPass as Correction
from flower_fedcon.solvers.bregman import Distance
from flower_fedcon.solvers.choose import as_solver, gap_tolerance
from flower_fedcon.solvers.distances import Entropy, PNorm, QuadraticForm
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.gradient import AOGM, GradientDescent
from flower_fedcon.solvers.lbfgs import LBFGS
from flower_fedcon.solvers.problem import LocalProblem, LocalSolver, Solution
from flower_fedcon.solvers.stochastic import SGD

__all__ = [
    "AOGM",
    "LBFGS",
    "SGD",
    "Correction",
    "Distance",
    "Entropy",
    "Exact",
    "GradientDescent",
    "LocalProblem",
    "LocalSolver",
    "PNorm",
    "QuadraticForm",
    "Solution",
    "as_solver",
    "gap_tolerance",
]

point_elsewhere(__name__)
