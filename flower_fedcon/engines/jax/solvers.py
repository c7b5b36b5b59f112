"""Local solvers in a traced round: their clients, and what is known of them in advance.

If a solve would be reported, or handed to a different solver, a condition of the round fails, and
the stacked engine does the round again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from flower_fedcon.arrays import over
from flower_fedcon.engines.jax.traced import NotTraceableError, TracedArray
from flower_fedcon.engines.joined import Joined
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.factors import Inverses, Spectra, inverses, spectra
from flower_fedcon.solvers.loop import some_of
from flower_fedcon.solvers.problem import LocalProblem, LocalSolver, Solution, Stop
from flower_fedcon.solvers.served import ServedClients


def as_traced(value: Any) -> Any:
    """Return an array as a traced one."""
    return value if type(value) is TracedArray else TracedArray(jnp.asarray(value))


class Known:
    """Clients of a run with their arrays: facts that are known before a round is traced.

    Parameters
    ----------
    name : str
        The name of their kind of objective, if there are several.
    stack : Stack
    objectives : sequence
        The same objectives, one by one.
    """

    def __init__(self, name: str, stack: Stack, objectives: Sequence[Any]) -> None:
        self.name, self.stack = name, stack
        self.cohort = ServedClients(stack, objectives, slice(0, len(objectives)))

    @cached_property
    def spectra(self) -> Spectra | None:
        """The eigenvalues of their Hessians."""
        return spectra(self.stack)


class TracedClients(ServedClients):
    """The functions of a traced round's clients.

    Parameters
    ----------
    stack : Stack
        A stack with traced arrays.
    which : slice, or traced array
        The clients; a slice stands for all.
    count : int
        Their number.
    """

    known: Known
    solver: GivenSolver

    def __init__(self, stack: Stack, which: Any, count: int) -> None:
        super().__init__(stack, (), which)
        self._count = count

    def __len__(self) -> int:
        return self._count

    @property
    def own(self) -> Stack:
        """The part of the stack."""
        return self.stack if isinstance(self.which, slice) else self.stack.only(self.which)

    @property
    def smoothness(self) -> Any:
        """As in `ServedClients`."""
        return as_traced(self.known.cohort.smoothness)[self.which]

    @property
    def usual(self) -> tuple[Any, Any]:
        """As in `ServedClients`."""
        gradient, curvature = (
            one if isinstance(one, float) else as_traced(one)[self.which]
            for one in self.known.cohort.usual
        )
        return gradient, curvature

    @property
    def states_smoothness(self) -> bool:
        """As in `ServedClients`."""
        return self.known.cohort.states_smoothness

    def gradient_steps(self, steps: LocalPass) -> None:
        """Return None, since steps are taken one by one."""

    def inverse_hessian(self, shift: Any) -> Inverses | None:
        """Return (H_i + shift I)^-1, from known factors or eigenvalues."""
        known, solver = self.known, self.solver
        if type(shift) is TracedArray:
            if known.spectra is None:
                return None
            values = solver.asked(f"{known.name}spectra", known.spectra)
            return values.inverses(shift).only(self.which)  # type: ignore[no-any-return]
        inverse = inverses(known.stack, shift)
        if inverse is None:
            return None
        if not inverse.known.all():
            raise NotTraceableError("a local problem is not convex")
        asked = solver.asked(f"{known.name}inverse {shift}", inverse)
        return asked.only(self.which)  # type: ignore[no-any-return]


class GivenSolver(LocalSolver):
    """The local solver of a traced round.

    Parameters
    ----------
    solver : Exact, AOGM, GradientDescent or LBFGS
    stack : Stack
        All clients' objectives, with their arrays.
    objectives : sequence
        The same objectives, one by one.

    Attributes
    ----------
    data : dict of array
        Arrays that solves have used besides the objectives, by name; `given` replaces them in a
        compiled round.
    """

    def __init__(self, solver: Any, stack: Stack, objectives: Sequence[Any]) -> None:
        self._solver = solver
        self._whole = Known("", stack, objectives)
        self._kinds: list[Known] = []
        if isinstance(stack, Joined):
            self._kinds = [
                Known(f"{number} ", part, [objectives[client] for client in clients])
                for number, (part, clients) in enumerate(stack.parts)
            ]
        self.data: dict[str, Any] = {}
        self.given: Mapping[str, Any] = {}

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return the solutions of all clients of the cohort."""
        if not problem.many:
            raise NotTraceableError("its step minimises another function than its client's")
        problem = problem.started_at(as_traced(problem.start))
        stack = problem.objective.stack
        # A loop takes seconds to compile, so one loop goes over clients of all kinds if possible.
        apart = isinstance(stack, Joined) and isinstance(self._solver, Exact)
        if not apart or problem.regularizer is not None or problem.has_hessian:
            return self._solve(self._whole, problem, stop)
        solutions = []
        for kind, (part, clients) in zip(self._kinds, stack.parts, strict=True):
            cohort = TracedClients(part, slice(0, len(clients)), len(clients))
            _, linear, shift, center, *_ = problem.added.only(clients)
            subproblem = LocalProblem(
                cohort, problem.start[clients], linear=linear, shift=shift, center=center
            )
            solutions.append(self._solve(kind, subproblem, some_of(stop, clients)))
        return over(lambda *parts: np.concatenate(parts)[stack.order], *solutions)  # type: ignore[no-any-return]

    def _solve(self, known: Known, problem: LocalProblem, stop: Stop | None) -> Solution:
        """Return the solutions of clients with objectives of one kind."""
        problem.objective.known, problem.objective.solver = known, self
        return self._solver.solve(problem, stop=stop)  # type: ignore[no-any-return]

    def asked(self, what: str, found: Any) -> Any:
        """Return a NamedTuple with traced arrays, and note that they are used."""
        parts = {}
        for name, value in found._asdict().items():
            if isinstance(value, np.ndarray):
                self.data[f"{what} {name}"] = value
                parts[name] = as_traced(self.given.get(f"{what} {name}", value))
        return found._replace(**parts)
