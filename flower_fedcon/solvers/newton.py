"""Newton's method with conjugate gradients, for many clients along a leading axis, or for one.

It follows Nocedal and Wright, "Numerical optimization" (2006), algorithm 7.1: the directions come
from products with the Hessian alone, to a tolerance that falls with the gradient as in Eisenstat
and Walker, SIAM J. Sci. Comput. 17 (1996), (2.6); steps are halved until values decrease enough.
Clients whose solve has ended wait under a mask, and leave the arrays once they are half of them.
"""

from __future__ import annotations

import numpy as np

from flower_fedcon.solvers.clients import (
    LocalProblems,
    Products,
    Solutions,
    along,
    dots,
    norms,
    wide,
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
        return _Newton(problems, tolerance, stop).run()


class _Newton(NewtonLike):
    ARRAYS = (*NewtonLike.ARRAYS, "forcing")

    def __init__(self, problems: LocalProblems, tolerance: float, stop: Stop | None) -> None:
        super().__init__(problems, stop, tolerance)
        self.forcing = np.full(len(self.x), _LOOSEST)

    def run(self) -> tuple[Solutions, Array]:
        for k in range(_MOST + 1):
            good = self.going & self._good()
            self._end(good, self.x, k, converged=True)
            if k == _MOST:
                break
            lost = self.going & ~np.isfinite(self.length)
            self._give_up(lost, k)
            self._compact()
            if not self.going.any():
                break
            self._step(k)
        self._give_up(self.going.copy(), _MOST)
        return self.found, np.array(sorted(self.unsolved), np.intp)

    def _step(self, k: int) -> None:
        """Move those that are still going, or give them up."""
        product = self.problems.hessian_products(self.x)
        assert product is not None  # noqa: S101  (see `Exact`)
        residual = np.maximum(self.forcing * self.length, 0.1 * self.goal)
        direction, products, short = conjugate_gradients(product, self.g, residual, self.going)
        self.found.evaluations[self.here] += products
        for place in np.flatnonzero(short & self.going).tolist():
            self._solve_densely(place, direction)
        slope = dots(self.g, direction)
        self._give_up(self.going & ~(slope < 0), k)
        moved = self._search(direction, slope)
        self._give_up(self.going & ~moved, k)

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
        x, left = self.x, self.going.copy()
        share = np.where(left, 1.0, 0.0)
        moved, before, rounding = ~left, self.length, 4.5 * self.problems.eps * self.size
        for halvings in range(_HALVINGS):
            new = np.where(wide(left, x), x + along(share, x) * direction, self.x)
            value, g, size = self.problems.evaluate(new)
            self.found.evaluations[self.here] += left
            length = norms(g)
            # Where a difference of values is mere rounding error, the gradients tell.
            clear = -share * slope > _CLEAR * self.problems.eps * self.size
            lower = value <= self.value + _DECREASE * share * slope + rounding
            good = left & np.where(clear, lower, length <= before) & np.isfinite(length)
            if good.any():
                keep = wide(good, x)
                self.x, self.g = np.where(keep, new, self.x), np.where(keep, g, self.g)
                self.value = np.where(good, value, self.value)
                self.size = np.where(good, size, self.size)
                self.length = np.where(good, length, self.length)
                ratio = 0.9 * (length / before) ** 2
                self.forcing = np.where(good, np.minimum(_LOOSEST, ratio), self.forcing)
                left, moved = left & ~good, moved | good
            left &= clear | (halvings < _UNCLEAR)
            if not left.any():
                break
            share = np.where(left, 0.5 * share, share)
        return moved


def conjugate_gradients(
    product: Products, g: Array, residual: Array, going: Array
) -> tuple[Array, Array, Array]:
    """Solve H_i d_i = -g_i to a norm of the residual; stop where H_i shows no curvature.

    Parameters
    ----------
    product : callable
        v -> H_i v_i.
    g : array, shape (n, *shape)
    residual : array, shape (n,)
    going : array of bool, shape (n,)
        Whose system counts; the others' d_i is 0.

    Returns
    -------
    d : array, shape of g
    products : array of int, shape (n,)
        How many each took.
    short : array of bool, shape (n,)
        Who did not get there within some products more than there are unknowns.
    """
    eps = float(np.finfo(g.dtype).eps)
    d, r = np.zeros_like(g), -g
    rr, goal = dots(r, r), np.maximum(residual, np.sqrt(eps) * norms(g)) ** 2
    p, counts, going = r.copy(), np.zeros(len(g), np.int64), going & (rr > 0)
    flattest = np.zeros(len(g))
    for _ in range(min(_PRODUCTS, 2 * g[0].size + 20)):
        if not going.any():
            break
        Hp = product(p)
        counts += going
        curvature = dots(p, Hp)
        relative = curvature / dots(p, p)
        flattest = np.maximum(flattest, relative)
        going &= relative > eps * flattest
        step = np.where(going, rr / curvature, 0.0)
        d += along(step, d) * p
        r -= along(step, r) * Hp
        new = dots(r, r)
        going &= new > goal
        p = r + along(np.where(going, new / rr, 0.0), r) * p
        rr = new
    return d, counts, going
