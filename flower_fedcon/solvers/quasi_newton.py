"""L-BFGS for the clients of a cohort, along a leading axis.

The directions are those of Nocedal and Wright, "Numerical optimization" (2006), algorithm 7.4. The
line search is the bisection of Lewis and Overton, Math. Program. 141 (2013), algorithm 2.6, for the
weak Wolfe conditions; if values differ by rounding only, the slopes decide, as in Hager and Zhang,
SIAM J. Optim. 16 (2005), (4.1). A single client uses SciPy's line search. Both end within the
tolerance after about as many steps, though not evaluations.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.arrays import dot, keep, known, length, nobody, placed, repeat, some, wide
from flower_fedcon.errors import FedConError, NotFiniteError
from flower_fedcon.solvers.descent import CLEAR, Rules, finish
from flower_fedcon.solvers.loop import Point, ended, is_good, play, told
from flower_fedcon.solvers.problem import LocalProblem, Solution, Stop, remaining, target
from flower_fedcon.validation import Array

PAIRS = 20  # of moves and changes of the gradient
_DECREASE, _CURVATURE = 1e-4, 0.9  # c1 and c2 of the Wolfe conditions
_TRIALS = 60  # of a line search, which lengthens steps or halves intervals
_DOUBLINGS = 10  # doublings of a step, before it grows faster
_IDLE = 4  # steps in a row that hardly change the value and lengthen the gradient


class Pairs(NamedTuple):
    """The last moves s and the changes y of the gradient along them.

    `moves` and `changes` have shape (n, pairs, entries of a model); each new pair replaces the
    oldest. `weights`, shape (n, pairs), are 1/<s, y>, or 0 for an unused pair.
    """

    moves: Any
    changes: Any
    weights: Any


class QuasiNewton(NamedTuple):
    """The state of the solves after k steps.

    Attributes
    ----------
    at : Point
    k : int
        Shared by all clients.
    goal : array, shape (n,)
        The norms to reach.
    pairs : Pairs
    scale : array, shape (n,)
        <s, y>/<y, y> of the last pair used; NaN without one.
    best, lowest : array, shape (n,)
        The smallest norm and the smallest value so far.
    idle : array of int, shape (n,)
        Successive steps that rounding may have chosen; they can go in circles.
    going, unsolved, lost : array of bool, shape (n,)
        Whether a solve continues, is left to `AOGM`, or has diverged.
    evaluations : array of int, shape (n,)
    found : Solution
        The solutions of the solves that have ended.
    """

    at: Point
    k: Any
    goal: Any
    pairs: Any
    scale: Any
    best: Any
    lowest: Any
    idle: Any
    going: Any
    unsolved: Any
    lost: Any
    evaluations: Any
    found: Solution


class LineSearch(NamedTuple):
    """The state of a line search.

    Attributes
    ----------
    at : Point
        Its point so far.
    share, low, high : array, shape (n,)
        The length of the next step to try, relative to the direction, and its bounds so far.
    trial : int
        Shared by all clients.
    left, going : array of bool, shape (n,)
        Whether a client has no step, and whether its search continues.
    clear : array of bool, shape (n,)
        Whether values that differ by more than rounding chose the step.
    evaluations : array of int, shape (n,)
    """

    at: Point
    share: Any
    low: Any
    high: Any
    trial: Any
    left: Any
    going: Any
    clear: Any
    evaluations: Any


def diverged(k: int = 0) -> FedConError:
    """Return the error of a solve that diverges."""
    return NotFiniteError(
        "L-BFGS diverged: is the objective convex and bounded below? If not, add a shift"
    )


def quasi_newton(
    problem: LocalProblem, tolerance: float, most: int, stop: Stop | None = None
) -> Solution:
    """Return the minimisers of a cohort; see `LBFGS`."""
    end = play(partial(_advance, most), problem, stop, _begin(problem, tolerance, most, stop))
    solution = end.found._replace(evaluations=end.evaluations)
    told(problem, end.lost, solution.iterations, diverged)
    left = end.unsolved & (solution.iterations < most)
    if nobody(left):
        return solution
    tolerances = remaining(problem, end.goal, solution.x, solution.gradient_norm)
    rest = Rules(most - solution.iterations, tolerance=tolerances)
    return finish(problem, rest, stop, solution, left)


def _begin(problem: LocalProblem, tolerance: float, most: int, stop: Stop | None) -> QuasiNewton:
    each, x = problem.each, problem.start
    at, shape = Point.of(problem, x), (len(x), min(PAIRS, most), x[0].size)
    pairs = Pairs(np.zeros(shape), np.zeros(shape), np.zeros(shape[:2]))
    begun = QuasiNewton(
        at=at,
        k=0,
        goal=target(problem, tolerance, at.norm),
        pairs=pairs,
        scale=each(np.nan),
        best=at.norm,
        lowest=at.value,
        idle=each(0),
        going=each(True),
        unsolved=each(False),
        lost=each(False),
        evaluations=each(1),
        found=Solution.begun(problem),
    )
    return _look(most, problem, stop, begun)


def _look(most: int, problem: LocalProblem, stop: Stop | None, s: QuasiNewton) -> QuasiNewton:
    """End the solves that have converged, diverge, or go in circles."""
    x, norm, finite = s.at.x, s.at.norm, s.going & (s.at.norm < np.inf)
    good = is_good(problem, stop, finite, x, s.at.g, norm, s.goal)
    found, going = ended(s.found, s.going, good, x, norm, s.k, True)
    lost = going & ~finite
    idle = going & ~lost & (s.idle > _IDLE)
    found, going = ended(found, going, lost | idle | (s.k >= most), x, norm, s.k, False)
    return s._replace(going=going, unsolved=s.unsolved | idle, lost=s.lost | lost, found=found)


def _advance(most: int, problem: LocalProblem, stop: Stop | None, s: QuasiNewton) -> QuasiNewton:
    """Take a step; solves that find none are left to `AOGM`."""
    direction, pairs, scale = _direction(s), s.pairs, s.scale
    slope = dot(s.at.g, direction, problem.axes)
    steep = ~(slope < 0)  # rounding has spoilt the pairs
    if some(steep):
        pairs = pairs._replace(weights=np.where(steep[:, None], 0.0, pairs.weights))
        scale = np.where(steep, np.nan, scale)
        direction = keep(steep, -s.at.g, direction)
        slope = np.where(steep, -np.square(s.at.norm), slope)
    first = np.isnan(scale)  # no pair yet: a step of the usual length, 1
    steep, curved = problem.usual
    far = np.where(steep > 0, steep / curved, 1.0)
    begun = LineSearch(
        at=s.at,
        share=np.where(first, far / length(direction, problem.axes), 1.0),
        low=problem.each(0.0),
        high=problem.each(np.inf),
        trial=0,
        left=s.going,
        going=s.going,
        clear=problem.each(False),
        evaluations=s.evaluations,
    )
    end = repeat(partial(_attempt, problem, s.at, direction, slope), begun)
    pairs, scale = _with_last(problem, s.k, s.at, end.at, pairs, scale)
    endless = end.left & np.isinf(end.high)
    stuck = end.left & ~endless
    found, going = ended(s.found, s.going, end.left, end.at.x, end.at.norm, s.k, False)

    # Steps that rounding may have chosen can go in circles.
    lower = end.at.value < s.lowest - problem.eps * end.at.size
    unclear = s.going & ~end.left & ~end.clear
    better = (end.at.norm < s.best) | lower
    there = QuasiNewton(
        at=end.at,
        k=s.k + 1,
        goal=s.goal,
        pairs=pairs,
        scale=scale,
        best=np.minimum(end.at.norm, s.best),
        lowest=np.where(lower, end.at.value, s.lowest),
        idle=np.where(end.clear | (unclear & better), 0, s.idle + unclear),
        going=going,
        unsolved=s.unsolved | stuck,
        lost=s.lost | endless,
        evaluations=end.evaluations,
        found=found,
    )
    return _look(most, problem, stop, there)


def _direction(s: QuasiNewton) -> Array:
    """Return -H_i g_i, with the last pairs of moves and changes of the gradient."""
    g = s.at.g
    q: Any = g.reshape(len(g), -1).astype(np.float64)
    moves, changes, weights = s.pairs
    most = weights.shape[1]
    # The oldest first; missing pairs have weight 0.
    slots = [(s.k + i) % most for i in range(max(0, most - s.k) if known(s.k) else 0, most)]
    shares = []
    for slot in reversed(slots):
        shares.append(weights[:, slot] * dot(moves[:, slot], q, 1))
        q = q - shares[-1][:, None] * changes[:, slot]
    q = q * np.where(np.isnan(s.scale), 1.0, s.scale)[:, None]
    for slot in slots:
        back = weights[:, slot] * dot(changes[:, slot], q, 1)
        q = q + (shares.pop() - back)[:, None] * moves[:, slot]
    direction: Array = (-q).astype(g.dtype).reshape(g.shape)
    return direction


def _with_last(
    problem: LocalProblem, k: Any, before: Point, now: Point, pairs: Pairs, scale: Any
) -> tuple[Pairs, Any]:
    """Return the pairs with the last step's, if it has curvature along it, and its scale.

    The arrays of pairs are changed in place if they are writable.
    """
    n, slot = len(before.x), k % pairs.weights.shape[1]
    s = (now.x - before.x).reshape(n, -1).astype(np.float64)
    y = (now.g - before.g).reshape(n, -1).astype(np.float64)
    sy, yy = dot(s, y, 1), dot(y, y, 1)
    curved = sy > problem.eps * length(s, 1) * np.sqrt(yy)
    here = (slice(None), slot)
    last = Pairs(
        placed(pairs.moves, here, np.where(curved[:, None], s, 0.0)),
        placed(pairs.changes, here, np.where(curved[:, None], y, 0.0)),
        placed(pairs.weights, here, np.where(curved, 1.0 / sy, 0.0)),
    )
    return last, np.where(curved, sy / yy, scale)


def _attempt(
    problem: LocalProblem, before: Point, direction: Array, slope: Any, s: LineSearch
) -> LineSearch:
    """Try steps for clients without one, and choose others for those that fail."""
    share, eps = s.share, problem.eps
    ahead = before.x + wide(share, direction) * direction
    new = Point.of(problem, keep(s.left, ahead, s.at.x))
    rise = dot(new.g, direction, problem.axes)
    clear = -share * slope > CLEAR * eps * before.size
    near = new.value <= before.value + CLEAR * eps * before.size
    lower = np.where(
        clear,
        new.value <= before.value + _DECREASE * share * slope,
        (rise <= (2 * _DECREASE - 1) * slope) & near,
    )
    lower = lower & np.isfinite(new.norm)
    good = s.left & lower & (rise >= _CURVATURE * slope)
    # Clients that have their step no longer use these.
    low, high = np.where(lower, share, s.low), np.where(lower, s.high, share)
    growth = np.where(s.trial < _DOUBLINGS, 2.0, 100.0)
    left = s.left & ~good
    return LineSearch(
        at=s.at.moved(good, new),
        share=np.where(np.isinf(high), growth * share, 0.5 * (low + high)),
        low=low,
        high=high,
        trial=s.trial + 1,
        left=left,
        going=left & (s.trial + 1 < _TRIALS),
        clear=s.clear | (good & clear),
        evaluations=s.evaluations + s.left,
    )
