"""The loop of gradient steps that `AOGM` and `GradientDescent` share.

It follows Kim and Fessler, "Adaptive restart of the optimized gradient method for convex
optimization", J. Optim. Theory Appl. 178 (2018), with the full backtracking of Calatroni and
Chambolle, SIAM J. Optim. 29 (2019). With a regularizer every gradient step is followed by its
proximal operator, and the loop is FISTA with restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from flower_fedcon.arrays import (
    dot,
    keep,
    larger,
    length,
    no,
    nobody,
    over,
    pick,
    repeat,
    root,
    some,
    wide,
)
from flower_fedcon.errors import ConfigError, FedConError, NotFiniteError
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.solvers.loop import ended, holds, is_good, play, put, some_of, taken, told
from flower_fedcon.solvers.problem import ClientsError, LocalProblem, Solution, Stop, target
from flower_fedcon.validation import Array

Restart = Literal["gradient", "function"] | None

TIGHT = 1e-12
PATIENCE = 1000
SHRINK, GROW = 0.8, 0.9
# A decrease of values counts only if it exceeds their rounding errors by this factor.
CLEAR = 1e4
# Growth of steps until one has been too long, if the units are not known.
_FAR, _MOST_FAR = 4.0, 100
_SHORT = 1e4  # curvature shortens steps by up to this factor; noise by its square
CONSTANT_STEP = (
    "a constant step size needs an objective that states its smoothness: use backtracking=True"
)


@dataclass(frozen=True)
class Rules:
    """How to step, and when to stop.

    With `tolerance` None exactly `max_iterations` steps are taken. With `energy` a relative change
    of the value below the tolerance ends the solve. With `step` None the first step size is 1/L_h,
    or 1 if L_h is unknown. In a cohort the number of iterations and the tolerance may differ
    between clients.
    """

    max_iterations: Any
    tolerance: Any = TIGHT
    energy: float | None = None
    step: float | None = None
    backtracking: bool = True
    momentum: bool = True
    over_step: bool = True
    restart: Restart = "gradient"

    @property
    def need_values(self) -> bool:
        """Whether the values of all iterates are needed."""
        return self.energy is not None or self.restart == "function"


class Descent(NamedTuple):
    """The state of the solves after k iterations.

    Attributes
    ----------
    x, y : array
        The point of the next gradient, and the end of the last step.
    k : int
        Shared by all clients; the fields below have one number for each client.
    a, last : float
        The next step size to try, and the last one.
    longest : float
        The longest step so far.
    t : float
        The momentum.
    goal : float
        The norm to reach, of the gradient or of the proximal step divided by its size.
    best, best_at : float
        The smallest one so far, and its iteration.
    energy : float
        h + psi at y.
    most : int
        The number of iterations to do.
    going, lost : bool
        Whether a solve continues, and whether it has diverged.
    evaluations, trials : int
    found : Solution
        The solutions of the solves that have ended.
    """

    x: Any
    y: Any
    k: Any
    a: Any
    last: Any
    longest: Any
    t: Any
    goal: Any
    best: Any
    best_at: Any
    energy: Any
    most: Any
    going: Any
    lost: Any
    evaluations: Any
    trials: Any
    found: Solution


class Search(NamedTuple):
    """The state of backtracking: the accepted steps, and the clients without one.

    `value` is h at `new`, or NaN if it was not computed.
    """

    new: Any
    a: Any
    value: Any
    going: Any
    evaluations: Any
    trials: Any


def descend(problem: LocalProblem, rules: Rules, stop: Stop | None = None) -> Solution:
    """Minimise h + psi by (accelerated, proximal) gradient steps.

    Paper symbols: gradients are taken at the x_k, and plain steps from there lead to the y_k.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # reported at the end
        end = play(partial(_advance, rules), problem, stop, _begin(problem, rules, stop))
    told(problem, end.lost, end.found.iterations, diverged)
    x, proxes = end.found.x, end.found.proxes
    if problem.regularizer is not None:
        proxes = end.trials if rules.backtracking else end.found.iterations
    return end.found._replace(
        x=x.copy() if x is problem.start else x,
        evaluations=end.evaluations,
        trials=end.trials,
        proxes=proxes,
    )


def finish(
    problem: LocalProblem, rules: Rules, stop: Stop | None, found: Solution, who: Any
) -> Solution:
    """Continue with gradient steps, for clients whose solves another solver has given up.

    Returns
    -------
    Solution
        With the iterations and evaluations of both solvers.

    Raises
    ------
    FedConError
        If a solve diverges.
    """
    problem, part = problem.started_at(found.x), found
    places: Any = None
    if problem.many:
        places = np.flatnonzero(who)
        problem, stop = problem.only(places), some_of(stop, places)
        part = over(partial(taken, places), found)
        most, tolerance = taken(places, rules.max_iterations), taken(places, rules.tolerance)
        rules = replace(rules, max_iterations=most, tolerance=tolerance)
    try:
        end = descend(problem, rules, stop)
    except ClientsError as failed:
        errors = {int(places[place]): error for place, error in failed.errors.items()}
        raise ClientsError(errors) from None
    end = end._replace(
        iterations=part.iterations + end.iterations,
        evaluations=part.evaluations + end.evaluations,
        products=part.products + end.products,
    )
    return end if places is None else over(partial(put, places), found, end)


def diverged(k: int) -> FedConError:
    """Return the error of a solve that diverges in iteration k."""
    return NotFiniteError(
        f"the local solver diverged in iteration {k}: is the objective convex and bounded "
        "below, with a correct smoothness? If not, pass a smaller lr, or backtracking=True"
    )


def _begin(problem: LocalProblem, rules: Rules, stop: Stop | None) -> Descent:
    each, x, done, a = problem.each, problem.start, 0, _first_step(problem, rules)
    ahead = _ahead(problem, rules, stop)
    if ahead is not None:
        x, done = ahead, rules.max_iterations - 1
    return Descent(
        x=x,
        y=x,
        k=done,
        a=a,
        last=a,
        longest=each(0.0),
        t=each(1.0),
        goal=each(-math.inf),
        best=each(math.inf),
        best_at=each(0),
        energy=each(math.nan),
        most=each(rules.max_iterations),
        going=each(True),
        lost=each(False),
        evaluations=each(done),
        trials=each(0),
        found=Solution.begun(problem),
    )


def _first_step(problem: LocalProblem, rules: Rules) -> Any:
    if rules.step is not None:
        return problem.each(rules.step)
    if not rules.backtracking and not problem.states_smoothness:
        raise ConfigError(CONSTANT_STEP)
    L = problem.smoothness
    usual = 1.0 / problem.usual[1]
    if L is None:
        return usual
    usable = (L > 0) & (math.inf > L)
    return pick(usable, 1 / pick(usable, L, 1.0), usual)


def _searching(problem: LocalProblem, rules: Rules, s: Descent) -> Any:
    """Return whether every step so far may have been far too short.

    This is possible as long as no step had to be shortened and only one bound is known: steps
    longer than 1/shift are too long.
    """
    if rules.step is not None or not rules.backtracking or nobody(untold := no(problem.tells)):
        return problem.each(False)
    L = problem.smoothness
    unknown = untold if L is None else untold & no((L > 0) & (math.inf > L))
    return unknown & (s.trials <= s.k) & (s.k < _MOST_FAR) & (s.a * problem.shift < 1)


def _ahead(problem: LocalProblem, rules: Rules, stop: Stop | None) -> Array | None:
    """Return the point after all steps but the last, if no step in between is observed."""
    counted = rules.tolerance is None and stop is None and problem.regularizer is None
    plain = not (rules.backtracking or rules.momentum or rules.need_values)
    if not (counted and plain) or rules.step is None or rules.max_iterations < 2:
        return None
    most = {"start": problem.start, "steps": rules.max_iterations - 1, "rate": rules.step}
    if problem.many:
        point: Array | None = problem.objective.gradient_steps(problem.added._replace(**most))
    else:
        point = LocalPass(**most).play(problem.gradient)
    if point is None or not np.isfinite(point).all():
        return None  # one by one, to report the step that diverges
    return point


def _advance(rules: Rules, problem: LocalProblem, stop: Stop | None, s: Descent) -> Descent:
    """Do one iteration."""
    axes, eps, psi, tolerance = problem.axes, problem.eps, problem.regularizer, rules.tolerance
    x, k, a, t, goal, energy, going, found = s.x, s.k, s.a, s.t, s.goal, s.energy, s.going, s.found
    need_values, first, lost = rules.need_values, k == 0, s.lost
    untold = no(problem.tells)
    evaluations, trials = s.evaluations + going, s.trials
    value: Any = math.nan
    size: Any = math.nan
    if rules.backtracking or need_values:
        value, g, size = problem.evaluate(x)
    else:
        g = problem.gradient(x)
    if psi is None:
        norm = length(g, axes)
        if tolerance is not None and some(first):
            goal = pick(first, target(problem, tolerance, norm), goal)
        finite = going & (norm < math.inf)
        good = is_good(problem, stop, finite, x, g, norm, goal)
        if tolerance is not None and some(untold):
            # If f does not state its sizes, such a small gradient is rounding error. With noisy
            # gradients steps are short for that reason.
            small = larger(a, s.longest / _SHORT) * norm <= 50 * eps * length(x, axes)
            good = good | (finite & untold & small & no(_searching(problem, rules, s)))
        end = good | (going ^ finite)
        if some(end):
            lost = lost | (going ^ finite)
            found, going = ended(found, going, end, x, norm, k, good)
            if not some(going):
                return s._replace(going=going, lost=lost, evaluations=evaluations, found=found)
    if need_values and some(first):
        energy = pick(first, value + problem.penalty(x), energy)

    new_value = a * math.nan
    if rules.backtracking:
        attempt = partial(_attempt, problem, x, value, g, size)
        search = repeat(attempt, Search(x, a, new_value, going, evaluations, trials))
        new, a, new_value, _, evaluations, trials = search
    else:
        new = _moved(problem, x, g, a, going)
    searching = _searching(problem, rules, s._replace(k=k + 1, a=a, trials=trials))
    blind: Any = False

    if psi is not None:
        step = (x - new) / wide(a, x)
        norm = length(step, axes)
        blind = searching & (a * norm < CLEAR * eps * length(x, axes))  # no move to measure yet
        if tolerance is not None and some(first | blind):
            goal = pick(first | blind, target(problem, tolerance, norm), goal)
        finite = going & (norm < math.inf)
        good = finite & (norm <= goal) & no(blind)
        if tolerance is not None:
            small = a * norm <= 50 * eps * length(new, axes)
            good = good | (finite & small & no(searching))
        maybe = holds(stop, finite ^ good, new, step)
        if some(maybe):
            evaluations = evaluations + maybe
            subgradient = step + (problem.gradient(new) - g)
            good = good | holds(stop, maybe, new, subgradient)
        end = good | (going ^ finite)
        if some(end):
            lost = lost | (going ^ finite)
            found, going = ended(found, going, end, new, norm, pick(good, k + 1, k), good)
    best, best_at = s.best, s.best_at
    if tolerance is not None:
        better = norm < best
        best, best_at = pick(better, norm, best), pick(better | blind, k, best_at)
        best = pick(blind, math.inf, best)
        # Steps are below the rounding of x, or the gradient no longer shrinks.
        stuck = (a * norm <= 0.5 * eps * length(x, axes)) & no(searching)
        stuck = stuck | (k - best_at > PATIENCE)
        unclear = a * norm * norm <= 2 * CLEAR * eps * size
        stuck = stuck | (untold & unclear & (a * _SHORT * _SHORT < s.longest))
        if some(stuck):
            at = x if psi is None else new
            found, going = ended(found, going, stuck, at, norm, k + 1, False)
    before = energy
    if need_values and some(going):
        unknown = new_value != new_value  # NaN
        if some(unknown):
            new_value = pick(unknown, problem.value(new), new_value)
        energy = new_value + problem.penalty(new)
    if rules.energy is not None:
        change = abs(energy - before) / larger(abs(energy), 1e-300)
        settled = going & (change < rules.energy)
        if some(settled):
            if psi is None:
                evaluations = evaluations + settled
                norm = pick(settled, length(problem.gradient(new), axes), norm)
            found, going = ended(found, going, settled, new, norm, k + 1, True)
    over = k + 1 >= s.most
    if some(over):
        found, going = ended(found, going, over, new, norm, k + 1, tolerance is None)

    following = new
    if rules.momentum:
        move, moved = new - s.y, new - x
        if rules.restart == "function":
            t = pick(energy > before, 1.0, t)
        elif rules.restart:
            t = pick(dot(moved, move, axes) < 0, 1.0, t)
        # a_k / a_{k+1} keeps the bound of the accelerated method when step sizes vary.
        t_new = (1 + root(1 + 4 * (s.last / a) * t * t)) / 2
        following = new + wide((t - 1) / t_new, x) * move
        if rules.over_step and psi is None:
            following = following + wide(t / t_new, x) * moved
        t = t_new
    longer = pick(searching, a * _FAR, a / GROW) if rules.backtracking else a
    return Descent(
        following, new, k + 1, longer, a, larger(s.longest, a), t, goal, best, best_at, energy,
        s.most, going, lost, evaluations, trials, found,
    )  # fmt: skip


def _moved(problem: LocalProblem, x: Array, g: Array, a: Any, going: Any) -> Array:
    """Return x - a g, or its prox."""
    new = x - wide(a, x) * g
    return new if problem.regularizer is None else problem.prox(new, a, going)


def _attempt(problem: LocalProblem, x: Array, value: Any, g: Array, size: Any, s: Search) -> Search:
    """Try steps of size a, and shorten those that are too long."""
    a, new_value, going, evaluations = s.a, s.value, s.going, s.evaluations
    axes, eps = problem.axes, problem.eps
    trial = _moved(problem, x, g, a, going)
    move = trial - x
    square = dot(move, move, axes)
    left = going & (square > 0)
    by_value = left & (square / (2 * a) > CLEAR * eps * size)
    by_gradient = left ^ by_value
    # h has to lie below its quadratic model of curvature 1/a.
    if some(by_value):
        reached = problem.value(trial)
        model = value + dot(g, move, axes) + square / (2 * a)
        below = by_value & (reached <= model + 4.5 * eps * size)
        left, new_value = left ^ below, pick(below, reached, new_value)
    if some(by_gradient):
        # Near the minimiser differences of values are rounding error only. This test of the
        # gradients is equivalent for a quadratic.
        evaluations = evaluations + by_gradient
        change = problem.gradient(trial) - g
        left = left ^ (by_gradient & (dot(change, move, axes) <= square / a))
    new, a = keep(going ^ left, trial, s.new), pick(left, a * SHRINK, a)
    return Search(new, a, new_value, left, evaluations, s.trials + going)
