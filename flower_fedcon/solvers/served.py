"""A cohort of clients whose problems a local solver minimises together, along a leading axis.

Sums over a client's entries are taken client by client, so that a client's numbers depend on the
others by rounding at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from flower_fedcon.arrays import as_column, known, over
from flower_fedcon.errors import AlgorithmError, FedConError
from flower_fedcon.objectives.client_axis import Stack, Which, places
from flower_fedcon.objectives.curvatures import usual_sizes
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.regularizers.base import soft
from flower_fedcon.regularizers.elementwise import Penalty
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.factors import Inverses, inverses, unscaled
from flower_fedcon.solvers.gradient import AOGM, GradientDescent
from flower_fedcon.solvers.lbfgs import LBFGS
from flower_fedcon.solvers.loop import some_of
from flower_fedcon.solvers.problem import ClientsError, LocalProblem, Solution, Stop
from flower_fedcon.solvers.stochastic import SGD
from flower_fedcon.validation import Array

_SOLVERS = Exact, AOGM, GradientDescent, LBFGS, SGD
_TOGETHER = 2**20  # entries of the data that are processed together


class ServedClients:
    """The functions f_i of n clients, each at its own point: x has shape (n, *shape).

    Parameters
    ----------
    stack : Stack
        The objectives of all clients.
    objectives : sequence
        The objectives of the n clients, one by one.
    which : slice, or array of int, shape (n,)
        Their places in the stack.
    """

    def __init__(self, stack: Stack, objectives: Sequence[Any], which: Which) -> None:
        if isinstance(which, np.ndarray) and which.size and known(which) and _in_a_row(which):
            which = slice(int(which[0]), int(which[-1]) + 1)  # a slice copies no data
        self.stack, self.objectives, self.which = stack, objectives, which
        self.shape = stack.shape
        self.failures: dict[int, FedConError] = {}
        """The error that the prox of a client has raised, by its place in the stack."""
        self._own: Stack | None = None  # the clients' part of the stack
        self._usual: tuple[Any, Any] | None = None

    def __len__(self) -> int:
        return len(self.objectives)

    @property
    def served(self) -> Self:
        """Itself, so that it stands for an engine's objective."""
        return self

    @property
    def own(self) -> Stack:
        """The clients' part of the stack."""
        if self._own is None:
            self._own = self.stack.only(self.which)
        return self._own

    def value(self, x: Array) -> Array:
        """Return f_i(x_i), shape (n,)."""
        return self.own.own_values(x)

    def gradient(self, x: Array) -> Array:
        """Return the gradients, shape of x."""
        return self.own.gradient(x, slice(0, len(self)))

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both."""
        return self.own.value_and_gradient(x)

    def hessian_products(self, x: Array) -> Callable[[Array], Array] | None:
        """Return the map v -> H_i v_i, for v in the shape of x; None if it is missing."""
        return self.own.hessian_products(x)

    def gradient_steps(self, steps: LocalPass) -> Array | None:
        """Return the end points of gradient steps; None if they must be taken one by one."""
        taken = self.own.takes(steps)
        return self.own.gradient_steps(steps, slice(0, len(self)), None) if taken else None

    def inverse_hessian(self, shift: float) -> Inverses | None:
        """Return (H_i + shift I)^-1, if the H_i are constant; it is kept for the whole stack."""
        whole = inverses(self.stack, shift)
        return None if whole is None else whole.only(self.which)

    @property
    def smoothness(self) -> Array:
        """The Lipschitz constants of the gradients, shape (n,); NaN where one is unknown."""
        constants = (getattr(one, "smoothness", None) for one in self.objectives)
        return np.array([np.nan if one is None else float(one) for one in constants])

    @property
    def usual(self) -> tuple[Any, Any]:
        """The sizes of usual gradients and curvatures: see `LocalProblem.usual`.

        A number if all clients share it, else an array of shape (n,).
        """
        if self._usual is None:
            whole, _ = unscaled(self.stack)
            if hasattr(whole, "usual_sizes"):
                sizes = [np.ravel(one) for one in usual_sizes(whole)]
                each = [one[self.which] if one.size > 1 else one for one in sizes]
            else:
                each = list(np.array([usual_sizes(one) for one in self.objectives]).T)
            gradient, curvature = (float(v[0]) if (v == v[0]).all() else v for v in each)
            self._usual = gradient, curvature
        return self._usual

    @property
    def states_smoothness(self) -> bool:
        """Whether all of these are known."""
        return not bool(np.isnan(self.smoothness).any())

    def prox(self, psi: Any, v: Array, steps: Array, going: Array) -> Array:
        """Return the prox of psi at v_i with each client's own step, for the clients in `going`.

        If psi raises for a client, its prox is NaN and the error is in `failures`.
        """
        if isinstance(psi, Penalty) and type(psi).prox is Penalty.prox:
            l1, l2 = (weights.astype(v.dtype) for weights in psi.entrywise(self.shape))
            column = as_column(steps, v.ndim - 1, v.dtype)
            return soft(v, column * l1) / (1 + column * l2)  # type: ignore[no-any-return]
        new = []
        for place, one in enumerate(v):
            point = one
            try:
                if going[place]:
                    point = psi.prox(one, float(steps[place]))
            except FedConError as error:
                self.failures[int(places(self.which)[place])] = error
                point = np.full_like(one, np.nan)
            new.append(point)
        return np.stack(new)

    def failure(self, place: int) -> FedConError | None:
        """Return the error that the prox of a client has raised."""
        return self.failures.get(int(places(self.which)[place]))

    def only(self, chosen: Any) -> ServedClients:
        """Return some of the clients, by their places in this cohort."""
        if isinstance(chosen, slice):
            objectives = self.objectives[chosen]
        else:
            objectives = [self.objectives[place] for place in chosen.tolist()]
        other = ServedClients(self.stack, objectives, places(self.which)[chosen])
        other.failures = self.failures
        if self._own is not None:
            other._own = self._own.only(chosen)
        return other


def _in_a_row(which: Array) -> bool:
    return int(which[-1]) - int(which[0]) + 1 == len(which)


def why_one_at_a_time(solver: object) -> str | None:
    """Return why a local solver serves one client at a time; None if it serves many.

    >>> why_one_at_a_time(Exact())
    """
    if type(solver) in _SOLVERS:
        return None
    return f"its local solver {solver!r} works on one client at a time"


class CohortSolver:
    """A local solver for cohorts of any size, solved part by part.

    Parameters
    ----------
    solver : LocalSolver
    """

    def __init__(self, solver: Any) -> None:
        self.solver = solver

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return the solutions of all clients.

        Parameters
        ----------
        problem : LocalProblem
            Of a cohort.
        stop : callable, optional
            As for `LocalSolver.solve`, with the arrays of all clients; `stop.only(places)` returns
            the rule of some clients.

        Raises
        ------
        ClientsError
            If the solves of some clients fail; the others' are then lost.
        AlgorithmError
            If the problem is not that of a cohort, or the stopping rule not for one.
        """
        if not problem.many:
            raise AlgorithmError(
                "a step that minimises another function than its client's serves one client at a "
                "time: say so in the client's `one_at_a_time`"
            )
        if stop is not None and not hasattr(stop, "only"):
            raise AlgorithmError(
                "a stopping rule for many clients needs only(places), which returns that of some: "
                "define it, or say in the client's `one_at_a_time` that it has none"
            )
        cohort = problem.objective
        n = len(cohort)
        parts = -(-n // max(1, _TOGETHER // max(1, cohort.stack.entries)))
        if parts == 1:
            return self.solver.solve(problem, stop=stop)  # type: ignore[no-any-return]
        solutions: list[Solution] = []
        errors: dict[int, FedConError] = {}
        for number in range(parts):
            here = slice(n * number // parts, n * (number + 1) // parts)
            rule = some_of(stop, np.arange(here.start, here.stop))
            try:
                solutions.append(self.solver.solve(problem.only(here), stop=rule))
            except ClientsError as failed:
                errors |= {here.start + place: error for place, error in failed.errors.items()}
        if errors:
            raise ClientsError(errors)
        return over(lambda *columns: np.concatenate(columns), *solutions)  # type: ignore[no-any-return]
