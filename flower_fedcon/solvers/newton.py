"""Newton's method with conjugate gradients, for many clients along a leading axis, or for one.

It follows Nocedal and Wright, "Numerical optimization" (2006), algorithm 7.1: the directions come
from products with the Hessian alone, to a tolerance that falls with the gradient as in Eisenstat
and Walker, SIAM J. Sci. Comput. 17 (1996), (2.6); steps are halved until values decrease enough.
Clients whose solve has ended wait under a mask, and leave the arrays once they are half of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.arrays import anyone
from flower_fedcon.solvers.clients import (
    LocalProblems,
    Products,
    Solutions,
    along,
    dots,
    norms,
)
from flower_fedcon.solvers.masked import NewtonLike
from flower_fedcon.solvers.problem import Stop
from flower_fedcon.validation import Array

_MOST = 60  # directions; a convex problem that has a minimiser takes some ten
_PRODUCTS = 1000  # for a direction
_DENSE = 512  # entries of a model whose Hessian is factored where products do not suffice
_LOOSEST = 0.3
_HALVINGS = 40
_UNCLEAR = 3  # of them, where values differ by rounding alone
_DECREASE = 1e-4
_CLEAR = 1e4  # as in `descent`


def newton(
    problems: LocalProblems, tolerance: float, stop: Stop | None = None
) -> tuple[Solutions, Array]:
    """Minimise h_i, until its gradient's norm is at most tolerance max(1, its norm at the start).

    Returns
    -------
    solutions : Solutions
        An iteration is a direction; products with the Hessian count as evaluations.
    unsolved : array of int
        Who did not get there, and is for another solver, from its x: where the Hessian is no help,
        values are not finite, or the tolerance is below rounding.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return Newton(problems, tolerance, stop).run()


class Newton(NewtonLike):
    """A run of `newton`."""

    ARRAYS = (*NewtonLike.ARRAYS, "forcing")

    def __init__(self, problems: LocalProblems, tolerance: float, stop: Stop | None) -> None:
        super().__init__(problems, stop, tolerance)
        self.forcing = np.full(len(self.x), _LOOSEST)

    def run(self) -> tuple[Solutions, Array]:
        """Return the solutions, and who is unsolved."""
        self._go(_MOST)
        self._look(_MOST)
        self._give_up(self.going.copy(), _MOST)
        return self.found, np.array(sorted(self.unsolved), np.intp)

    def _look(self, k: Any) -> None:
        """End the solves of those that are good, and of those that are lost."""
        self._end(self.going & self._good(), self.x, k, converged=True)
        self._give_up(self.going & ~np.isfinite(self.length), k)

    def _step(self, k: Any) -> None:
        """Move those that are still going, or give them up."""
        product = self.problems.hessian_products(self.x)
        assert product is not None  # noqa: S101  (see `Exact`)
        residual = np.maximum(self.forcing * self.length, 0.1 * self.goal)
        found = self._directions(product, residual)
        direction, short = found.d, found.going
        self.found.evaluations[self.here] += found.products
        self._rescue(short & self.going, direction)
        slope = dots(self.g, direction)
        self._give_up(self.going & ~(slope < 0), k)
        moved = self._search(direction, slope)
        self._give_up(self.going & ~moved, k)

    def _directions(self, product: Products, residual: Array) -> ConjugateGradients:
        found = ConjugateGradients(product, self.g, residual, self.going)
        for _ in range(found.most):
            if not found.going.any():
                break
            found.advance()
        return found

    def _rescue(self, short: Array, direction: Array) -> None:
        """Find the directions of those for whom products do not suffice."""
        for place in np.flatnonzero(short).tolist():
            self._solve_densely(place, direction)

    def _solve_densely(self, place: int, direction: Array) -> None:
        """Find one client's direction by the Cholesky factor of its Hessian, if there is one."""
        hessian = getattr(self.problems.functions.objectives[place], "hessian", None)
        size = self.x[place].size
        if hessian is None or size > _DENSE:
            return
        matrix = hessian(self.x[place]) + self.problems.shift * np.eye(size)
        try:
            inverse = np.linalg.inv(np.linalg.cholesky(matrix))
        except np.linalg.LinAlgError:
            return
        direction[place] = -(inverse.T @ (inverse @ self.g[place].reshape(-1))).reshape(
            self.x[place].shape
        )

    def _search(self, direction: Array, slope: Array) -> Array:
        """Halve steps until they are good, and take them; return who found one."""
        self.left, self.moved = self.going.copy(), ~self.going
        self.share = np.where(self.going, 1.0, 0.0)
        rounding = 4.5 * self.problems.eps * self.size
        attempt = partial(self._try, self.x, direction, slope, self.length, rounding)
        self._search_with(attempt, _HALVINGS)
        return self.moved

    def _try(
        self,
        x: Array,
        direction: Array,
        slope: Array,
        before: Array,
        rounding: Array,
        halvings: Any,
    ) -> None:
        """Try the steps of those still without one, from x, and halve what is not good."""
        left, share = self.left, self.share
        new, value, g, size = self._tried(x, direction)
        length = norms(g)
        # Where a difference of values is mere rounding error, the gradients tell.
        clear = -share * slope > _CLEAR * self.problems.eps * self.size
        lower = value <= self.value + _DECREASE * share * slope + rounding
        good = left & np.where(clear, lower, length <= before) & np.isfinite(length)
        if anyone(good):
            self._take(good, new, value, g, size, length)
            ratio = 0.9 * (length / before) ** 2
            self.forcing = np.where(good, np.minimum(_LOOSEST, ratio), self.forcing)
            left, self.moved = left & ~good, self.moved | good
        self.left = left & (clear | (halvings < _UNCLEAR))
        self.share = np.where(self.left, 0.5 * share, share)


class ConjugateGradients:
    """Solve H_i d_i = -g_i to a norm of the residual; stop where H_i shows no curvature.

    Parameters
    ----------
    product : callable
        v -> H_i v_i.
    g : array, shape (n, *shape)
    residual : array, shape (n,)
    going : array of bool, shape (n,)
        Whose system counts; the others' d_i is 0.

    Attributes
    ----------
    d : array, shape of g
        The solutions so far.
    products : array of int, shape (n,)
        How many each took.
    going : array of bool, shape (n,)
        Who is not there yet.
    most : int
        How often to `advance`, some times more than there are unknowns: who is not there then is
        short of a direction.
    """

    def __init__(self, product: Products, g: Array, residual: Array, going: Array) -> None:
        self._product, self._eps = product, float(np.finfo(g.dtype).eps)
        self.most = min(_PRODUCTS, 2 * g[0].size + 20)
        self.d, self.r = np.zeros_like(g), -g
        self.rr = dots(self.r, self.r)
        self._goal = np.maximum(residual, np.sqrt(self._eps) * norms(g)) ** 2
        self.p, self.going = self.r.copy(), going & (self.rr > 0)
        self.products, self.flattest = np.zeros(len(g), np.int64), np.zeros(len(g))

    def advance(self) -> None:
        """Multiply by the Hessians once."""
        p, rr = self.p, self.rr
        Hp = self._product(p)
        self.products = self.products + self.going
        curvature = dots(p, Hp)
        relative = curvature / dots(p, p)
        self.flattest = np.maximum(self.flattest, relative)
        going = self.going & (relative > self._eps * self.flattest)
        step = np.where(going, rr / curvature, 0.0)
        self.d += along(step, p) * p
        self.r -= along(step, p) * Hp
        new = dots(self.r, self.r)
        self.going = going & (new > self._goal)
        self.p = self.r + along(np.where(self.going, new / rr, 0.0), p) * p
        self.rr = new
