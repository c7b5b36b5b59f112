"""The loops of local solvers for many clients, as loops of JAX.

All clients stay in their arrays until the last solve has ended. What the loops for NumPy would
report, or hand to another solver, is assumed not to be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from flower_fedcon.engines.jax.traced import NotTraceableError, TracedArray, conditions, plain
from flower_fedcon.solvers.clients import LocalProblems, Solutions, wide
from flower_fedcon.solvers.descent import Rules
from flower_fedcon.solvers.newton import ConjugateGradients, Newton
from flower_fedcon.solvers.problem import Stop
from flower_fedcon.solvers.stacked_descent import Descents
from flower_fedcon.solvers.stacked_lbfgs import QuasiNewton
from flower_fedcon.validation import Array

_ENDLESS = 2**62


def assume(flags: Any) -> None:
    """Note that these conditions have to be true."""
    flags.assume()


def as_traced(value: Any) -> Any:
    """Return an array as one that is traced."""
    return value if type(value) is TracedArray else TracedArray(jnp.asarray(value))


class _Loops:
    """What repeats a body, which changes this object's arrays, as a loop of JAX."""

    NAMES: ClassVar[tuple[str, ...]]
    """The arrays."""
    found: Any = None  # `Solutions`, where there are such

    def _trace(self) -> None:
        """Take traced arrays in place of NumPy's."""
        for name in self.NAMES:
            if hasattr(self, name):
                setattr(self, name, as_traced(getattr(self, name)))
        if self.found is not None:
            self.found = Solutions._make([*map(as_traced, self.found[:-1]), {}])

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


class TracedDescents(_Solve, Descents):
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
        assume(~self.going | finite)
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
        assume(~who)


class TracedNewton(_NewtonSolve, Newton):
    """Newton steps until each client's solve has ended."""

    NAMES = (*Newton.ARRAYS[1:], "going", "left", "moved", "share")

    def _directions(self, product: Any, residual: Array) -> ConjugateGradients:
        found = _Directions(product, self.g, residual, self.going)
        found.run()
        return found

    def _rescue(self, short: Array, direction: Array) -> None:
        assume(~short)


class TracedQuasiNewton(_NewtonSolve, QuasiNewton):
    """L-BFGS until each client's solve has ended."""

    NAMES = (*QuasiNewton.ARRAYS[1:], "going", "left", "share", "low", "high")

    def _slots(self, k: Any) -> list[Any]:
        pairs = self.weights.shape[1]
        return [(k + j) % pairs for j in range(pairs)]  # those without a pair yet count nothing

    def _diverge(self, who: Array) -> None:
        assume(~who)


class _Directions(_Loops, ConjugateGradients):
    """Conjugate gradients until each client has its direction."""

    NAMES = ("d", "r", "rr", "p", "going", "products", "flattest")

    def run(self) -> None:
        """Find them."""
        self._trace()
        self._repeat(lambda _: self.advance(), "going", self.most)
