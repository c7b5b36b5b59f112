"""Local solvers in a traced round: the loops for many clients, as loops of JAX.

A solve that the loops for NumPy would report, or hand to another solver, makes the round one that
does not hold: the stacked engine does it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from flower_fedcon.engines.traced import NotTraceableError, TracedArray, conditions, plain
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.regularizers import Zero
from flower_fedcon.regularizers.elementwise import Penalty
from flower_fedcon.solvers.clients import LocalProblems, Solutions, StackedFunctions, wide
from flower_fedcon.solvers.descent import Rules
from flower_fedcon.solvers.exact import RULES, Exact
from flower_fedcon.solvers.gradient import AOGM
from flower_fedcon.solvers.problem import LocalProblem, LocalSolver, Stop
from flower_fedcon.solvers.stacked_descent import Descents
from flower_fedcon.solvers.stacked_exact import Inverses, inverses, refined
from flower_fedcon.validation import Array


class GivenSolver(LocalSolver):
    """The local solver of a traced round.

    Parameters
    ----------
    solver : Exact, AOGM or GradientDescent
    stack : Stack
        All clients' objectives, with their arrays.
    smoothnesses : list of float or None
        All clients'.

    Attributes
    ----------
    data : dict of array
        What solves have asked for beside the objectives, by name; `given` takes its place in a
        compiled round.
    """

    def __init__(self, solver: Any, stack: Stack, smoothnesses: list[float | None]) -> None:
        self._solver, self._stack, self._smoothnesses = solver, stack, smoothnesses
        self.data: dict[str, Any] = {}
        self.given: Mapping[str, Any] = {}

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Any:
        """Return the solutions of all clients of the cohort."""
        served = getattr(problem.objective, "served", None)
        if served is None:
            raise NotTraceableError("its step minimises another function than its client's")
        stack, which, count = served
        psi = getattr(problem.regularizer, "inner", problem.regularizer)
        psi = None if isinstance(psi, Zero) else psi
        if psi is not None and not (isinstance(psi, Penalty) and type(psi).prox is Penalty.prox):
            raise NotTraceableError(f"the prox of {psi!r} serves one client at a time")
        start = _traced(np.broadcast_to(problem.start, (count, *stack.shape)))
        part = stack if isinstance(which, slice) else stack.only(which)
        functions = StackedFunctions(part, [None] * count)
        problems = LocalProblems(
            functions, start, problem.linear, problem.shift, problem.center, psi
        )
        solver = self._solver
        if isinstance(solver, Exact):
            if psi is None and (inverse := self._inverse(problem.shift)) is not None:
                return refined(problems, inverse.only(which))
            if psi is None and stack.hessian_products(start) is not None:
                raise NotTraceableError(f"{solver!r} solves its problems by Newton's method")
            rules = RULES
        elif isinstance(solver, AOGM):
            rules = solver.rules
        else:
            rules = solver.rules(None not in self._smoothnesses)
        first = self._first_steps(rules, problem.shift)[which]
        return _TracedDescents(problems, rules, stop, first).run()

    def _inverse(self, shift: Any) -> Inverses | None:
        """Return the inverse Hessians of all clients, as traced arrays; None without them."""
        if type(shift) is TracedArray:
            raise NotTraceableError("the curvature of its local problems varies")
        found = inverses(self._stack, shift)
        if found is None:
            return None
        if not found.known.all():
            raise NotTraceableError("a local problem is not convex")
        parts = {
            f"inverse {shift} {name}": value
            for name, value in (("factors", found.factors), ("rows", found.rows))
            if value is not None
        }
        self.data.update(parts)
        factors, *rows = (
            TracedArray(jnp.asarray(self.given.get(name, value))) for name, value in parts.items()
        )
        return Inverses(factors, found.known, *(rows or [None]), found.shift)  # type: ignore[arg-type]

    def _first_steps(self, rules: Rules, shift: Any) -> Any:
        """Return the step size that each client's solve begins with."""
        known = [
            rules.step or (1.0 if L is None or not L + shift else 1 / (L + shift))
            for L in self._smoothnesses
        ]
        return TracedArray(jnp.asarray(known))


class _TracedDescents(Descents):
    """Iterations of all clients until each one's solve has ended, as a loop of JAX."""

    def __init__(
        self, problems: LocalProblems, rules: Rules, stop: Stop | None, first: Array
    ) -> None:
        self._first = first
        super().__init__(problems, rules, stop, None)
        self.here: Any = slice(None)
        for name in self._names:
            setattr(self, name, _traced(getattr(self, name)))
        self.found = Solutions(*map(_traced, self.found[:-1]), {})

    @property
    def _names(self) -> list[str]:
        return [name for name in (*self.ARRAYS, "going") if name != "here"]

    def run(self) -> Solutions:
        """Return the solutions."""
        self._iterate(0, begins=True)

        def once(k: Any) -> Any:
            self._iterate(TracedArray(k), begins=False)
            return k + 1

        most = self.rules.max_iterations
        self._loop(once, lambda k: (k < most) & self.going.value.any(), jnp.asarray(1))
        return self._out_of_iterations()

    def _try_until_all_are_short_enough(self) -> None:
        def once(none: Any) -> Any:
            self._try()
            return none

        # Outside of the loop first, so that the arrays have the types that it leaves.
        self._try()
        self._loop(once, lambda _: self.pending.value.any(), ())

    def _loop(self, body: Callable[[Any], Any], going: Callable[[Any], Any], start: Any) -> None:
        """Repeat a body, which changes this object's arrays, while a condition holds."""
        before = conditions()

        def hold(carry: Any) -> Any:
            number, arrays, found, _ = carry
            for name, value in arrays.items():
                setattr(self, name, TracedArray(value))
            self.found = Solutions(*map(TracedArray, found), {})
            return number

        def once(carry: Any) -> Any:
            number, holds = body(hold(carry)), carry[3]
            return self._carry(number, jnp.stack([holds, *conditions()]).all())

        end = lax.while_loop(
            lambda carry: going(hold(carry)) & carry[3],
            once,
            self._carry(start, jnp.asarray(True)),
        )
        hold(end)
        for condition in (*before, end[3]):
            TracedArray(condition).assume()

    def _carry(self, number: Any, holds: Any) -> Any:
        names = [*self._names, "pending"]
        arrays = {name: plain(getattr(self, name)) for name in names if hasattr(self, name)}
        return number, arrays, [plain(value) for value in self.found[:-1]], holds

    def _first_steps(self, n: int) -> Array:
        return self._first

    def _ahead(self) -> int:
        return 0

    def _end(self, who: Array, x: Array, iterations: Any, converged: bool) -> None:
        who, found = who & self.going, self.found
        self.found = found._replace(
            x=np.where(wide(who, x), x, found.x),
            gradient_norm=np.where(who, self.length, found.gradient_norm),
            iterations=np.where(who, iterations, found.iterations),
            converged=np.where(who, converged, found.converged),
        )
        self.going = self.going & ~who

    def _expect_finite(self, k: Any) -> None:
        (~self.going | np.isfinite(self.length)).assume()  # type: ignore[attr-defined]


def _traced(value: Any) -> Any:
    return value if type(value) is TracedArray else TracedArray(jnp.asarray(value))
