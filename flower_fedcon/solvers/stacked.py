"""A local solver for all clients of a stack at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.errors import AlgorithmError
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.regularizers import Zero
from flower_fedcon.solvers.clients import (
    ClientsError,
    LocalProblems,
    Solutions,
    StackedFunctions,
    some,
)
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.gradient import AOGM, GradientDescent
from flower_fedcon.solvers.lbfgs import LBFGS
from flower_fedcon.solvers.problem import LocalProblem, Stop
from flower_fedcon.solvers.stacked_descent import descend_all, rules_of
from flower_fedcon.solvers.stacked_exact import exact_all, inverses, put
from flower_fedcon.solvers.stacked_lbfgs import lbfgs_all
from flower_fedcon.validation import Array

_SOLVERS = Exact, AOGM, GradientDescent, LBFGS
_TOGETHER = 2**20  # entries of the data that are gone over together


def why_one_at_a_time(solver: object) -> str | None:
    """Return why a local solver serves one client at a time; None if it serves many.

    >>> why_one_at_a_time(Exact())
    """
    if type(solver) in _SOLVERS:
        return None
    return f"its local solver {solver!r} works on one client at a time"


def one_clients(regularizer: Any) -> Any:
    """Return one client's psi of a regularizer for many; None for 0."""
    one = getattr(regularizer, "inner", regularizer)
    return None if isinstance(one, Zero) else one


class Clients:
    """The clients that are being served, as `StackedSolver` is given them: an objective's place.

    Parameters
    ----------
    stack : Stack
    objectives : list
        Of those that are served.
    places : array of int, shape (n,)
        Where they are in the stack.
    """

    def __init__(self, stack: Stack, objectives: list[Any], places: Array) -> None:
        self.stack, self.objectives, self.places = stack, objectives, places


class StackedSolver:
    """A local solver that minimises the problems of many clients along a leading axis.

    Parameters
    ----------
    solver : LocalSolver
        The solver of one client.
    """

    def __init__(self, solver: Any) -> None:
        self.solver = solver

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solutions:
        """Return the solutions of all clients.

        Parameters
        ----------
        problem : LocalProblem
            Its `objective.stacked_clients` are `Clients`. Its arrays have a leading axis, or the
            shape of one model where all clients have the same.
        stop : callable, optional
            As for `LocalSolver.solve`, of all clients' x and gradients; `stop.only(places)` is that
            of some clients.

        Raises
        ------
        ClientsError
            If the solves of some clients fail; the others' are then lost.
        AlgorithmError
            If the problem is not that of many clients, or the stopping rule not theirs.
        """
        clients: Clients | None = getattr(problem.objective, "stacked_clients", None)
        if clients is None:
            raise AlgorithmError(
                "a step that minimises another function than its client's serves one client at a "
                "time: say so in the client's `one_at_a_time`"
            )
        if stop is not None and not hasattr(stop, "only"):
            raise AlgorithmError(
                "a stopping rule for many clients needs only(places), which returns that of some: "
                "define it, or say in the client's `one_at_a_time` that it has none"
            )
        stack, n = clients.stack, len(clients.places)
        start = np.broadcast_to(problem.start, (n, *stack.shape))
        regularizer = one_clients(problem.regularizer)
        found = Solutions.begun(start)
        size = max(1, _TOGETHER // max(1, stack.entries))
        parts = -(-n // size)
        for number in range(parts):
            here = np.arange(n * number // parts, n * (number + 1) // parts)
            places = clients.places[here]
            own = clients.objectives[int(here[0]) : int(here[-1]) + 1]
            which: Any = places
            if int(places[-1]) - int(places[0]) + 1 == len(places):
                which = slice(int(places[0]), int(places[-1]) + 1)
            functions = StackedFunctions(stack.only(which), own)
            arrays = [
                array[here] if array is not None and array.ndim == start.ndim else array
                for array in (problem.linear, problem.center)
            ]
            problems = LocalProblems(
                functions, start[here], arrays[0], problem.shift, arrays[1], regularizer
            )
            rule = stop if parts == 1 else some(stop, here)
            put(found, here, self._solve(problems, rule, stack, which))
        if found.errors:
            raise ClientsError(found.errors)
        return found

    def _solve(
        self, problems: LocalProblems, stop: Stop | None, stack: Stack, which: Any
    ) -> Solutions:
        solver = self.solver
        if isinstance(solver, AOGM | GradientDescent):
            rules = rules_of(solver, problems.functions.objectives)
            return descend_all(problems, rules, stop)
        if isinstance(solver, LBFGS):
            return lbfgs_all(problems, solver, stop)
        inverse = None
        if problems.regularizer is None:
            inverse = inverses(stack, problems.shift)
        return exact_all(problems, None if inverse is None else inverse.only(which), stop)
