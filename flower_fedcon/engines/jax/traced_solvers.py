"""Local solvers in a traced round: which loops a solve takes, and with which arrays.

A solve that the loops for NumPy would report, or hand to another solver, makes the round one that
does not hold: the stacked engine does it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from flower_fedcon.engines.jax.traced import NotTraceableError, TracedArray
from flower_fedcon.engines.jax.traced_loops import (
    TracedDescents,
    TracedNewton,
    TracedQuasiNewton,
    as_traced,
    assume,
)
from flower_fedcon.engines.joined import Joined
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.solvers.clients import LocalProblems, Solutions, StackedFunctions, some
from flower_fedcon.solvers.descent import TIGHT
from flower_fedcon.solvers.exact import RULES, Exact
from flower_fedcon.solvers.gradient import GradientDescent
from flower_fedcon.solvers.lbfgs import LBFGS, expect_smooth
from flower_fedcon.solvers.problem import LocalProblem, LocalSolver, Solution, Stop
from flower_fedcon.solvers.stacked import one_clients
from flower_fedcon.solvers.stacked_descent import first_steps, rules_of
from flower_fedcon.solvers.stacked_exact import Inverses, Spectra, inverses, refined, spectra


def traced(solver: Any, stack: Stack, objectives: Sequence[Any]) -> LocalSolver:
    """Return the form of a local solver for traced rounds; the arguments are `GivenSolver`'s."""
    fixed = type(solver) is GradientDescent and solver.tolerance is None and solver.lr is not None
    return GivenSteps(solver) if fixed else GivenSolver(solver, stack, objectives)


class _Kind:
    """Clients whose objectives are alike, with their arrays."""

    def __init__(self, name: str, stack: Stack, objectives: Sequence[Any]) -> None:
        self.name, self.stack, self.objectives = name, stack, objectives

    @cached_property
    def spectra(self) -> Spectra | None:
        """The eigenvalues of their Hessians."""
        return spectra(self.stack)


class GivenSolver(LocalSolver):
    """The local solver of a traced round.

    Parameters
    ----------
    solver : Exact, AOGM, GradientDescent or LBFGS
    stack : Stack
        All clients' objectives, with their arrays.
    objectives : sequence
        The same, one by one.

    Attributes
    ----------
    data : dict of array
        What solves have asked for beside the objectives, by name; `given` takes its place in a
        compiled round.
    """

    def __init__(self, solver: Any, stack: Stack, objectives: Sequence[Any]) -> None:
        self._solver = solver
        self._whole = _Kind("", stack, objectives)
        self._kinds: list[_Kind] = []
        if isinstance(stack, Joined):
            self._kinds = [
                _Kind(f"{number} ", part, [objectives[client] for client in clients])
                for number, (part, clients) in enumerate(stack.parts)
            ]
        self.data: dict[str, Any] = {}
        self.given: Mapping[str, Any] = {}

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Any:
        """Return the solutions of all clients of the cohort."""
        served = getattr(problem.objective, "served", None)
        if served is None:
            raise NotTraceableError("its step minimises another function than its client's")
        stack, which, count = served
        start = as_traced(np.broadcast_to(problem.start, (count, *stack.shape)))
        psi = one_clients(problem.regularizer)

        def of(part: Any, linear: Any, center: Any, start: Any) -> LocalProblems:
            functions = StackedFunctions(part, [None] * len(start))
            return LocalProblems(functions, start, linear, problem.shift, center, psi)

        part = stack if isinstance(which, slice) else stack.only(which)
        whole = of(part, problem.linear, problem.center, start)
        # A loop takes seconds to compile: one goes over clients of all kinds, if it can.
        apart = isinstance(stack, Joined) and isinstance(self._solver, Exact) and psi is None
        if not apart or whole.hessian_products(start) is not None:
            return self._solve(self._whole, whole, which, stop)
        found = []
        for kind, (part, clients) in zip(self._kinds, stack.parts, strict=True):
            linear, center = (
                x if x is None or x.ndim == len(stack.shape) else x[clients]
                for x in (problem.linear, problem.center)
            )
            own = of(part, linear, center, start[clients])
            all_of_it = slice(0, len(clients))
            found.append(self._solve(kind, own, all_of_it, some(stop, clients))[:-1])
        columns = [np.concatenate(parts)[stack.order] for parts in zip(*found, strict=True)]
        return Solutions._make([*columns, {}])

    def _solve(
        self, kind: _Kind, problems: LocalProblems, which: Any, stop: Stop | None
    ) -> Solutions:
        """Return the solutions of clients whose objectives are alike."""
        solver, psi = self._solver, problems.regularizer
        if isinstance(solver, Exact):
            if psi is None and (inverse := self._inverse(kind, problems.shift)) is not None:
                return refined(problems, inverse.only(which))
            if psi is None and problems.hessian_products(problems.start) is not None:
                return TracedNewton(problems, TIGHT, stop).run()[0]
            rules = RULES
        elif isinstance(solver, LBFGS):
            expect_smooth(psi)
            return TracedQuasiNewton(problems, solver, stop).run()[0]
        else:
            rules = rules_of(solver, kind.objectives)
        first = as_traced(first_steps(rules, kind.objectives, problems.shift))[which]
        return TracedDescents(problems, rules, stop, first).run()

    def _inverse(self, kind: _Kind, shift: Any) -> Inverses | None:
        """Return the inverse Hessians of all clients of a kind; None without them."""
        varies = type(shift) is TracedArray
        found: Any = kind.spectra if varies else inverses(kind.stack, shift)
        if found is None:
            return None
        if varies:
            found = self._asked(f"{kind.name}spectra", found).inverses(shift)
            assume(found.known)
            return found  # type: ignore[no-any-return]
        if not found.known.all():
            raise NotTraceableError("a local problem is not convex")
        return self._asked(f"{kind.name}inverse {shift}", found)  # type: ignore[no-any-return]

    def _asked(self, what: str, found: Any) -> Any:
        """Return a NamedTuple with its arrays traced, and note that they are asked for."""
        parts = {}
        for name, own in found._asdict().items():
            if isinstance(own, np.ndarray):
                self.data[f"{what} {name}"] = own
                parts[name] = as_traced(self.given.get(f"{what} {name}", own))
        return found._replace(**parts)


class GivenSteps(LocalSolver):
    """The local solver of a traced round: so many steps of one length, with a prox after each.

    Parameters
    ----------
    solver : GradientDescent
        With `steps` and `lr` alone.
    """

    def __init__(self, solver: GradientDescent) -> None:
        self._steps, self._length = solver.steps or 0, solver.lr or 0.0

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return where the steps lead."""
        if stop is not None:
            raise NotTraceableError("its local solver is stopped by a rule")
        x, psi = problem.start, problem.regularizer
        added = LocalPass(x, problem.linear, problem.shift, problem.center)
        for _ in range(self._steps):
            g = added.add_to(problem.objective.gradient(x), x)
            new = x - self._length * g
            if psi is not None:
                new = psi.prox(new, self._length)
                g = (x - new) / self._length
            np.isfinite((g * g).reshape(len(g), -1).sum(axis=1)).assume()  # else a solve diverges
            x = new
        return Solution(x, 0.0, self._steps, self._steps, True)
