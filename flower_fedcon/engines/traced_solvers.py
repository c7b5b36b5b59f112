"""Local solvers in a traced round: the loops for many clients, as loops of JAX.

A solve that the loops for NumPy would report, or hand to another solver, makes the round one that
does not hold: the stacked engine does it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from flower_fedcon.engines.traced import NotTraceableError, TracedArray, conditions, plain
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.solvers.clients import LocalProblems, Solutions, StackedFunctions, wide
from flower_fedcon.solvers.descent import TIGHT, Rules
from flower_fedcon.solvers.exact import RULES, Exact
from flower_fedcon.solvers.gradient import GradientDescent
from flower_fedcon.solvers.lbfgs import LBFGS, expect_smooth
from flower_fedcon.solvers.newton import ConjugateGradients, Newton
from flower_fedcon.solvers.problem import Correction, LocalProblem, LocalSolver, Solution, Stop
from flower_fedcon.solvers.stacked import one_clients
from flower_fedcon.solvers.stacked_descent import Descents, first_steps, rules_of
from flower_fedcon.solvers.stacked_exact import Inverses, inverses, refined
from flower_fedcon.solvers.stacked_lbfgs import QuasiNewton
from flower_fedcon.validation import Array

_ENDLESS = 2**62


def traced(solver: Any, stack: Stack, objectives: Sequence[Any]) -> LocalSolver:
    """Return the form of a local solver for traced rounds; the arguments are `GivenSolver`'s."""
    fixed = type(solver) is GradientDescent and solver.tolerance is None and solver.lr is not None
    return GivenSteps(solver) if fixed else GivenSolver(solver, stack, objectives)


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
        self._solver, self._stack, self._objectives = solver, stack, objectives
        self.data: dict[str, Any] = {}
        self.given: Mapping[str, Any] = {}

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Any:
        """Return the solutions of all clients of the cohort."""
        served = getattr(problem.objective, "served", None)
        if served is None:
            raise NotTraceableError("its step minimises another function than its client's")
        stack, which, count = served
        psi = one_clients(problem.regularizer)
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
                return _Newton(problems, TIGHT, stop).run()[0]
            rules = RULES
        elif isinstance(solver, LBFGS):
            expect_smooth(psi)
            return _QuasiNewton(problems, solver, stop).run()[0]
        else:
            rules = rules_of(solver, self._objectives)
        first = _traced(first_steps(rules, self._objectives, problem.shift))[which]
        return _Descents(problems, rules, stop, first).run()

    def _inverse(self, shift: Any) -> Inverses | None:
        """Return the inverse Hessians of all clients, as traced arrays; None without them."""
        if type(shift) is TracedArray:
            raise NotTraceableError("the curvature of its local problems varies")
        found = inverses(self._stack, shift)
        if found is None:
            return None
        if not found.known.all():
            raise NotTraceableError("a local problem is not convex")
        parts: dict[str, Any] = {"known": _traced(found.known)}
        for name in ("factors", "rows"):
            if (own := getattr(found, name)) is not None:
                key = f"inverse {shift} {name}"
                self.data[key] = own
                parts[name] = TracedArray(jnp.asarray(self.given.get(key, own)))
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
        added = Correction(x, problem.linear, problem.shift, problem.center)
        for _ in range(self._steps):
            g = added.add_to(problem.objective.gradient(x), x)
            new = x - self._length * g
            if psi is not None:
                new = psi.prox(new, self._length)
                g = (x - new) / self._length
            np.isfinite((g * g).reshape(len(g), -1).sum(axis=1)).assume()  # else a solve diverges
            x = new
        return Solution(x, 0.0, self._steps, self._steps, True)


class _Loops:
    """What repeats a body, which changes this object's arrays, as a loop of JAX."""

    NAMES: ClassVar[tuple[str, ...]]
    """The arrays."""
    found: Any = None  # `Solutions`, where there are such

    def _trace(self) -> None:
        """Take traced arrays in place of NumPy's."""
        for name in self.NAMES:
            if hasattr(self, name):
                setattr(self, name, _traced(getattr(self, name)))
        if self.found is not None:
            self.found = Solutions._make([*map(_traced, self.found[:-1]), {}])

    def _repeat(self, body: Callable[[Any], Any], going: str, most: int, first: int = 0) -> None:
        """Call body(k) for k = first, first + 1, ..., most - 1, while it is to go on for anyone.

        `going` names the array that says for whom.
        """
        before = conditions()

        def hold(carry: Any) -> Any:
            k, arrays, found, _ = carry
            for name, value in arrays.items():
                setattr(self, name, TracedArray(value))
            self.found = found and Solutions._make([*map(TracedArray, found), {}])
            return k

        def carry(k: Any, holds: Any) -> Any:
            arrays = {n: plain(getattr(self, n)) for n in self.NAMES if hasattr(self, n)}
            return k, arrays, self.found and [plain(v) for v in self.found[:-1]], holds

        def once(given: Any) -> Any:
            k = hold(given)
            body(TracedArray(k))
            return carry(k + 1, jnp.stack([given[3], *conditions()]).all())

        end = lax.while_loop(
            lambda given: (given[0] < most) & given[1][going].any() & given[3],
            once,
            carry(jnp.asarray(first), jnp.asarray(True)),
        )
        hold(end)
        for condition in (*before, end[3]):
            TracedArray(condition).assume()


class _Solve(_Loops):
    """What solves that are traced share: all clients stay in their arrays."""

    here: Any
    found: Solutions
    going: Array
    length: Array

    def _end(self, who: Array, x: Array, iterations: Any, converged: bool) -> None:
        who, found = who & self.going, self.found
        self.found = found._replace(
            x=np.where(wide(who, x), x, found.x),
            gradient_norm=np.where(who, self.length, found.gradient_norm),
            iterations=np.where(who, iterations, found.iterations),
            converged=np.where(who, converged, found.converged),
        )
        self.going = self.going & ~who

    def _begin(self) -> None:
        self.here = slice(None)
        self._trace()


class _Descents(_Solve, Descents):
    """Gradient steps until each client's solve has ended."""

    NAMES = (*Descents.ARRAYS[1:], "going", "pending")

    def __init__(
        self, problems: LocalProblems, rules: Rules, stop: Stop | None, first: Array
    ) -> None:
        self._first = first
        super().__init__(problems, rules, stop, None)
        self._begin()

    def run(self) -> Solutions:
        """Return the solutions."""
        # Once outside of the loop, so that the arrays have the types that it leaves.
        self._iterate(0, begins=True)
        self._repeat(partial(self._iterate, begins=False), "going", self.rules.max_iterations, 1)
        return self._out_of_iterations()

    def _try_until_all_are_short_enough(self) -> None:
        self._try()
        self._repeat(lambda _: self._try(), "pending", _ENDLESS)

    def _first_steps(self) -> Array:
        return self._first

    def _ahead(self) -> int:
        return 0

    def _prox_one_by_one(self, v: Array, pending: Array) -> Array:
        raise NotTraceableError(f"the prox of {self.psi!r} serves one client at a time")

    def _expect_finite(self, k: Any) -> None:
        finite = np.isfinite(self.length)
        _assume(~self.going | finite)
        self.going = self.going & finite  # for the others no step would ever be short enough


class _NewtonSolve(_Solve):
    """What Newton's method and L-BFGS share: nobody is left to another solver."""

    _look: Callable[[Any], None]
    _step: Callable[[Any], None]

    def _go(self, most: int) -> None:
        def once(k: Any) -> None:
            self._look(k)
            self._step(k)

        self._begin()
        once(0)  # outside of the loop, so that the arrays have the types that it leaves
        self._repeat(once, "going", most, 1)

    def _search_with(self, attempt: Callable[[Any], None], most: int) -> None:
        attempt(0)
        self._repeat(attempt, "left", most, 1)

    def _give_up(self, who: Array, iterations: Any) -> None:
        _assume(~who)


class _Newton(_NewtonSolve, Newton):
    """Newton steps until each client's solve has ended."""

    NAMES = (*Newton.ARRAYS[1:], "going", "left", "moved", "share")

    def _directions(self, product: Any, residual: Array) -> ConjugateGradients:
        found = _Directions(product, self.g, residual, self.going)
        found.run()
        return found

    def _rescue(self, short: Array, direction: Array) -> None:
        _assume(~short)


class _QuasiNewton(_NewtonSolve, QuasiNewton):
    """L-BFGS until each client's solve has ended."""

    NAMES = (*QuasiNewton.ARRAYS[1:], "going", "left", "share", "low", "high")

    def _slots(self, k: Any) -> list[Any]:
        pairs = self.weights.shape[1]
        return [(k + j) % pairs for j in range(pairs)]  # those without a pair yet count nothing

    def _diverge(self, who: Array) -> None:
        _assume(~who)


class _Directions(_Loops, ConjugateGradients):
    """Conjugate gradients until each client has its direction."""

    NAMES = ("d", "r", "rr", "p", "going", "products", "flattest")

    def run(self) -> None:
        """Find them."""
        self._trace()
        self._repeat(lambda _: self.advance(), "going", self.most)


def _assume(flags: Any) -> None:
    """Note that these conditions have to be true."""
    flags.assume()


def _traced(value: Any) -> Any:
    return value if type(value) is TracedArray else TracedArray(jnp.asarray(value))
