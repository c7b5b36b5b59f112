"""Newton's method with conjugate gradients.

It follows Nocedal and Wright, "Numerical optimization" (2006), algorithm 7.1: the directions need
products with the Hessian only, to a tolerance that falls with the gradient as in Eisenstat and
Walker, SIAM J. Sci. Comput. 17 (1996), (2.6). Steps are halved until values decrease enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.arrays import (
    dot,
    keep,
    larger,
    no,
    nobody,
    pick,
    repeat,
    root,
    smaller,
    wide,
)
from flower_fedcon.solvers.factors import inverse_factors
from flower_fedcon.solvers.loop import Point, ended, is_good, play
from flower_fedcon.solvers.problem import LocalProblem, Solution, Stop, target
from flower_fedcon.validation import Array

_MOST = 60  # directions; a convex problem with a minimiser takes about ten
_PRODUCTS = 1000  # products for one direction
_DENSE = 512  # entries of a model up to which the Hessian is factored if products do not suffice
_LOOSEST = 0.3
_HALVINGS = 40
_UNCLEAR = 3  # halvings if values differ by rounding only
_DECREASE = 1e-4
_CLEAR = 1e4  # as in `descent`


class Newton(NamedTuple):
    """The state of the solves after k directions.

    Attributes
    ----------
    at : Point
    k : int
        Shared by all clients.
    goal : float
        The norm to reach.
    forcing : float
        The next direction's residual, relative to the gradient's norm.
    going, unsolved : bool
        Whether a solve continues, and whether it has failed.
    evaluations, products : int
        Products with the Hessian count as both.
    found : Solution
        The solutions of the solves that have ended.
    """

    at: Point
    k: Any
    goal: Any
    forcing: Any
    going: Any
    unsolved: Any
    evaluations: Any
    products: Any
    found: Solution


class Directions(NamedTuple):
    """The state of conjugate gradients for H d = -g.

    Attributes
    ----------
    d, r, p : array
        The solution so far, its residual, and the next search direction.
    rr : float
        ||r||^2.
    flattest : float
        The largest curvature seen.
    k : int
        Shared by all clients.
    going, short : bool
        Whether a system is still unsolved, and whether its products are used up.
    products : int
    """

    d: Any
    r: Any
    p: Any
    rr: Any
    flattest: Any
    k: Any
    going: Any
    short: Any
    products: Any


class LineSearch(NamedTuple):
    """The state of a line search: its point, and the clients without a step.

    `share` is the length of the next step to try, relative to the direction.
    """

    at: Point
    forcing: Any
    share: Any
    halvings: Any
    going: Any
    moved: Any
    evaluations: Any


def newton(
    problem: LocalProblem, tolerance: float, stop: Stop | None = None
) -> tuple[Solution, Any]:
    """Minimise h until its gradient's norm is small; see `flower_fedcon.solvers.problem.target`.

    Returns
    -------
    solution : Solution
        An iteration is a direction; products with the Hessian count as evaluations.
    unsolved : bool
        Whether another solver must continue from x: the Hessian does not help, values are not
        finite, or the tolerance is below rounding.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        end = play(_advance, problem, stop, _begin(problem, tolerance, stop))
    solution = end.found._replace(evaluations=end.evaluations, products=end.products)
    return solution, end.unsolved


def _begin(problem: LocalProblem, tolerance: float, stop: Stop | None) -> Newton:
    each, at = problem.each, Point.of(problem, problem.start)
    begun = Newton(
        at=at,
        k=0,
        goal=target(problem, tolerance, at.norm),
        forcing=each(_LOOSEST),
        going=each(True),
        unsolved=each(False),
        evaluations=each(1),
        products=each(0),
        found=Solution.begun(problem),
    )
    return _look(problem, stop, begun)


def _look(problem: LocalProblem, stop: Stop | None, s: Newton) -> Newton:
    """End the solves that have converged, and those that have failed."""
    x, norm, finite = s.at.x, s.at.norm, s.going & (s.at.norm < math.inf)
    good = is_good(problem, stop, finite, x, s.at.g, norm, s.goal)
    found, going = ended(s.found, s.going, good, x, norm, s.k, True)
    lost = going & (no(finite) | (s.k >= _MOST))
    found, going = ended(found, going, lost, x, norm, s.k, False)
    return s._replace(going=going, unsolved=s.unsolved | lost, found=found)


def _advance(problem: LocalProblem, stop: Stop | None, s: Newton) -> Newton:
    """Find a direction, and take a step along it."""
    g, product = s.at.g, problem.hessian_products(s.at.x)
    assert product is not None  # noqa: S101  (see `Exact`)
    residual = larger(s.forcing * s.at.norm, 0.1 * s.goal)
    directions = conjugate_gradients(product, g, residual, s.going, problem.axes)
    direction = directions.d if nobody(directions.short) else _densely(problem, s, directions)
    slope = dot(g, direction, problem.axes)
    uphill = s.going & no(slope < 0)
    going = s.going & no(uphill)
    begun = LineSearch(
        at=s.at,
        forcing=s.forcing,
        share=problem.each(1.0),
        halvings=0,
        going=going,
        moved=problem.each(False),
        evaluations=s.evaluations + directions.products,
    )
    end = repeat(partial(_attempt, problem, s.at, direction, slope), begun)
    stuck = uphill | (going & no(end.moved))
    noted, going = ended(s.found, s.going, stuck, end.at.x, end.at.norm, s.k, False)
    there = Newton(
        at=end.at,
        k=s.k + 1,
        goal=s.goal,
        forcing=end.forcing,
        going=going,
        unsolved=s.unsolved | stuck,
        evaluations=end.evaluations,
        products=s.products + directions.products,
        found=noted,
    )
    return _look(problem, stop, there)


def _attempt(
    problem: LocalProblem, before: Point, direction: Array, slope: Any, s: LineSearch
) -> LineSearch:
    """Try steps for clients without one, and halve those that fail."""
    ahead = before.x + wide(s.share, direction) * direction
    new = Point.of(problem, keep(s.going, ahead, s.at.x))
    # If a difference of values is only rounding error, the gradients decide.
    clear = -s.share * slope > _CLEAR * problem.eps * before.size
    rounding = 4.5 * problem.eps * before.size
    lower = new.value <= before.value + _DECREASE * s.share * slope + rounding
    good = s.going & pick(clear, lower, new.norm <= before.norm) & (new.norm < math.inf)
    ratio = new.norm / before.norm
    forcing = smaller(_LOOSEST, 0.9 * (ratio * ratio))
    left = s.going & no(good) & (clear | (s.halvings < _UNCLEAR)) & (s.halvings + 1 < _HALVINGS)
    return LineSearch(
        at=s.at.moved(good, new),
        forcing=pick(good, forcing, s.forcing),
        share=0.5 * s.share,
        halvings=s.halvings + 1,
        going=left,
        moved=s.moved | good,
        evaluations=s.evaluations + s.going,
    )


def conjugate_gradients(
    product: Callable[[Array], Array], g: Array, residual: Any, going: Any, axes: int
) -> Directions:
    """Solve H d = -g to a norm of the residual; stop if H shows no curvature.

    Parameters
    ----------
    product : callable
        v -> H v.
    g : array
        A gradient; for a cohort, with a leading axis of clients.
    residual : float
        One for each client, as is `going`.
    going : bool
        Whether to solve a client's system; otherwise its d is 0.
    axes : int
        The number of axes of one model.
    """
    eps, size = float(np.finfo(g.dtype).eps), g.size if g.ndim == axes else g[0].size
    r = -g
    rr = dot(r, r, axes)
    goal = larger(residual, root(eps) * root(rr))
    begun = Directions(
        d=np.zeros_like(g),
        r=r,
        p=r,
        rr=rr,
        flattest=0.0 * rr,
        k=0,
        going=going & (rr > 0),
        short=going & False,
        products=0 * going,
    )
    # A few times the number of unknowns.
    most = min(_PRODUCTS, 2 * size + 20)
    return repeat(partial(_multiply, product, goal * goal, most, eps, axes), begun)


def _multiply(
    product: Callable[[Array], Array], goal: Any, most: int, eps: float, axes: int, s: Directions
) -> Directions:
    p, Hp = s.p, product(s.p)
    curvature = dot(p, Hp, axes)
    relative = curvature / dot(p, p, axes)
    flattest = larger(s.flattest, relative)
    going = s.going & (relative > eps * flattest)
    step = pick(going, s.rr / pick(going, curvature, 1.0), 0.0)
    r = s.r - wide(step, p) * Hp
    rr = dot(r, r, axes)
    going = going & (rr > goal)
    short = going & (s.k + 1 >= most)
    return Directions(
        d=s.d + wide(step, p) * p,
        r=r,
        p=r + wide(pick(going, rr / s.rr, 0.0), p) * p,
        rr=rr,
        flattest=flattest,
        k=s.k + 1,
        going=going & no(short),
        short=s.short | short,
        products=s.products + s.going,
    )


def _densely(problem: LocalProblem, s: Newton, found: Directions) -> Array:
    """Return the directions, by factors of the Hessian where products do not suffice."""
    if not problem.many:
        exact = _by_factor(problem, problem.objective, s.at.x, s.at.g)
        return found.d if exact is None else exact
    directions = np.array(found.d)
    for place in np.flatnonzero(found.short & s.going).tolist():
        one = problem.objective.objectives[place]
        exact = _by_factor(problem, one, s.at.x[place], s.at.g[place])
        if exact is not None:
            directions[place] = exact
    return directions


def _by_factor(problem: LocalProblem, objective: Any, x: Array, g: Array) -> Array | None:
    """Return one client's direction by the Cholesky factor of its Hessian, if that exists."""
    if getattr(objective, "hessian", None) is None or x.size > _DENSE:
        return None
    inverse, definite = inverse_factors(problem.hessian_of(objective, x))
    if not definite:
        return None
    direction: Array = -(inverse.T @ (inverse @ g.reshape(-1))).reshape(x.shape)
    return direction.astype(x.dtype, copy=False)
