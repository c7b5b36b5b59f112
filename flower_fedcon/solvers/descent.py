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
    is_finite,
    keep,
    larger,
    length,
    no,
    over,
    pick,
    repeat,
    root,
    some,
    wide,
)
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives.client_axis import Steps, Z
from flower_fedcon.solvers.loop import ended, holds, is_good, play, put, some_of, taken, told
from flower_fedcon.solvers.problem import ClientsError, LocalProblem, Solution, Stop, target
from flower_fedcon.validation import Array

Restart = Literal["gradient", "function"] | None

TIGHT = 1e-12
PATIENCE = 1000
SHRINK, GROW = 0.8, 0.9
# Values show a decrease only if it exceeds their rounding errors by this factor.
CLEAR = 1e4
CONSTANT_STEP = (
    "a constant step size needs an objective that states its smoothness: use backtracking=True"
)


@dataclass(frozen=True)
class Rules:
    """How to step, and when to stop.

    With `tolerance` None exactly `max_iterations` steps are made. `energy` stops at a relative
    change of the value below it. With `step` None the first step size is 1/L_h, or 1 where L_h is
    unknown. Of a cohort, each client may have a number of iterations and a tolerance of its own.
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
        """Whether the values of all iterates are asked for."""
        return self.energy is not None or self.restart == "function"


class Descent(NamedTuple):
    """Where the solves stand after k iterations.

    Attributes
    ----------
    x, y : array
        Where the next gradient is taken, and where the last step led.
    k : int
        Shared by all clients; what follows is a number of each.
    a, t : float
        The last step size, and the momentum.
    goal : float
        The norm of the gradient, or of the proximal step divided by its size, to be reached.
    best, best_at : float
        The smallest one so far, and its iteration.
    energy : float
        h + psi at y.
    most : int
        How many iterations there are to be.
    going, lost : bool
        Who goes on, and who has diverged.
    evaluations, trials : int
    found : Solution
        Of those whose solves have ended.
    """

    x: Any
    y: Any
    k: Any
    a: Any
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
    """Where backtracking stands: the steps that it has accepted, and who has none yet.

    `value` is that of h at `new`, or NaN where it was not asked for.
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
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # told at the end
        end = play(partial(_advance, rules), problem, stop, _begin(problem, rules, stop))
    told(problem, end.lost, end.found.iterations, diverged)
    x = end.found.x
    return end.found._replace(
        x=x.copy() if x is problem.start else x, evaluations=end.evaluations, trials=end.trials
    )


def finish(
    problem: LocalProblem, rules: Rules, stop: Stop | None, found: Solution, who: Any
) -> Solution:
    """Go on by gradient steps for those whom another solver has left, from where they are.

    Returns
    -------
    Solution
        With the iterations and evaluations of both.

    Raises
    ------
    FedConError
        If a solve diverges.
    """
    problem, part, places = problem.started_at(found.x), found, None
    if problem.many:
        places = np.flatnonzero(who)
        problem, stop = problem.only(places), some_of(stop, places)
        part = over(partial(taken, places), found)
        most, tolerance = taken(places, rules.max_iterations), taken(places, rules.tolerance)
        rules = replace(rules, max_iterations=most, tolerance=tolerance)
    try:
        end = descend(problem, rules, stop)
    except ClientsError as failed:
        own = {int(places[place]): error for place, error in failed.errors.items()}
        raise ClientsError(own) from None
    end = end._replace(
        iterations=part.iterations + end.iterations, evaluations=part.evaluations + end.evaluations
    )
    return end if places is None else over(partial(put, places), found, end)


def diverged(k: int) -> FedConError:
    """Return the error of a solve that diverges in iteration k."""
    return FedConError(
        f"the local solver diverged in iteration {k}: is the objective convex and bounded "
        "below, with a correct smoothness? If not, pass a smaller lr, or backtracking=True"
    )


def _begin(problem: LocalProblem, rules: Rules, stop: Stop | None) -> Descent:
    each, x, done = problem.each, problem.start, 0
    ahead = _ahead(problem, rules, stop)
    if ahead is not None:
        x, done = ahead, rules.max_iterations - 1
    return Descent(
        x=x,
        y=x,
        k=done,
        a=_first_step(problem, rules),
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
    if L is None:
        return 1.0
    known = (L > 0) & (math.inf > L)
    return pick(known, 1 / pick(known, L, 1.0), 1.0)


def _ahead(problem: LocalProblem, rules: Rules, stop: Stop | None) -> Array | None:
    """Return where all steps but the last lead, if a cohort can take them in one go."""
    counted = rules.tolerance is None and stop is None and problem.regularizer is None
    plain = not (rules.backtracking or rules.momentum or rules.need_values)
    if not (problem.many and counted and plain) or rules.step is None or rules.max_iterations < 2:
        return None
    points = [Z] * (rules.max_iterations - 1)
    onward: dict[str, Any] = {"shift": problem.shift, "center": problem.center}
    steps = Steps(problem.start, rules.step, points, linear=problem.linear, **onward)
    found: Array | None = problem.objective.gradient_steps(steps)
    if found is None or not np.isfinite(found).all():
        return None  # one by one: so it shows when a solve diverges
    return found


def _advance(rules: Rules, problem: LocalProblem, stop: Stop | None, s: Descent) -> Descent:
    """Do an iteration."""
    axes, psi, x, k = problem.axes, problem.regularizer, s.x, s.k
    goal, going, lost, found, energy = s.goal, s.going, s.lost, s.found, s.energy
    first, evaluations = k == 0, s.evaluations + going
    value: Any = math.nan
    size: Any = math.nan
    if rules.backtracking or rules.need_values:
        value, g, size = problem.evaluate(x)
    else:
        g = problem.gradient(x)
    if psi is None:
        norm = length(g, axes)
        goal, lost = _goal(problem, rules, s, norm), lost | (going & no(is_finite(norm)))
        good = is_good(problem, stop, going, x, g, norm, goal)
        found, going = ended(found, going, good | lost, x, norm, k, good)
        if not some(going):
            return s._replace(going=going, lost=lost, evaluations=evaluations, found=found)
    if rules.need_values and some(first):
        energy = pick(first, value + problem.penalty(x), energy)

    a = pick(first, s.a, s.a / GROW) if rules.backtracking else s.a
    attempt = partial(_attempt, problem, rules, x, value, g, size)
    search = Search(x, a, problem.each(math.nan), going, evaluations, s.trials)
    search = repeat(attempt, search) if rules.backtracking else attempt(search)
    new, a, new_value, _, evaluations, trials = search

    best, best_at = s.best, s.best_at
    if psi is not None:
        step = (x - new) / wide(a, x)
        norm = length(step, axes)
        goal, lost = _goal(problem, rules, s, norm), lost | (going & no(is_finite(norm)))
        good = norm <= goal
        if rules.tolerance is not None:
            good = good | (a * norm <= 50 * problem.eps * length(new, axes))
        maybe = holds(stop, going & no(good | lost), new, step)
        if some(maybe):
            evaluations = evaluations + maybe
            good = good | holds(stop, maybe, new, step + (problem.gradient(new) - g))
        found, going = ended(found, going, good | lost, new, norm, pick(lost, k, k + 1), good)
    if rules.tolerance is not None:
        better = norm < best
        best, best_at = pick(better, norm, best), pick(better, k, best_at)
        # Steps are below the rounding of x, or the gradient no longer shrinks.
        stuck = (a * norm <= 0.5 * problem.eps * length(x, axes)) | (k - best_at > PATIENCE)
        found, going = ended(found, going, stuck, x if psi is None else new, norm, k + 1, False)

    before = energy
    if rules.need_values and some(going):
        unknown = new_value != new_value  # NaN
        if some(unknown):
            new_value = pick(unknown, problem.value(new), new_value)
        energy = new_value + problem.penalty(new)
    if rules.energy is not None:
        change = abs(energy - before) / larger(abs(energy), 1e-300)
        settled = going & (change < rules.energy)
        if psi is None and some(settled):
            evaluations = evaluations + settled
            norm = pick(settled, length(problem.gradient(new), axes), norm)
        found, going = ended(found, going, settled, new, norm, k + 1, True)
    counted = rules.tolerance is None
    found, going = ended(found, going, k + 1 >= s.most, new, norm, k + 1, counted)

    following, t = new, s.t
    if rules.momentum:
        move, back = new - s.y, going & False
        if rules.restart == "function":
            back = energy > before
        elif rules.restart:
            back = dot(new - x, move, axes) < 0
        last = pick(back, 1.0, t)
        # a_k / a_{k+1} keeps the bound of the accelerated method when step sizes vary.
        t = (1 + root(1 + 4 * (s.a / a) * last * last)) / 2
        following = new + wide((last - 1) / t, x) * move
        if rules.over_step and psi is None:
            following = following + wide(last / t, x) * (new - x)
    return Descent(
        following, new, k + 1, a, t, goal, best, best_at, energy, s.most, going, lost, evaluations,
        trials, found,
    )  # fmt: skip


def _goal(problem: LocalProblem, rules: Rules, s: Descent, norm: Any) -> Any:
    """Return the norm to reach, which follows from the first one."""
    first = s.k == 0
    if rules.tolerance is None or not some(first):
        return s.goal
    return pick(first, target(rules.tolerance, norm, problem.eps), s.goal)


def _attempt(
    problem: LocalProblem, rules: Rules, x: Array, value: Any, g: Array, size: Any, s: Search
) -> Search:
    """Try x - a g, or its prox, and shorten the steps a that lead too far."""
    axes, a = problem.axes, s.a
    trial = x - wide(a, x) * g
    if problem.regularizer is not None:
        trial = problem.prox(trial, a, s.going)
    if not rules.backtracking:
        return s._replace(new=trial)
    move, evaluations, new_value = trial - x, s.evaluations, s.value
    square = dot(move, move, axes)
    good = no(square > 0)
    clear = square / (2 * a) > CLEAR * problem.eps * size
    by_value, by_gradient = s.going & clear & no(good), s.going & no(clear | good)
    # h has to lie below its quadratic model of curvature 1/a.
    if some(by_value):
        found = problem.value(trial)
        model = value + dot(g, move, axes) + square / (2 * a)
        below = by_value & (found <= model + 4.5 * problem.eps * size)
        good, new_value = good | below, pick(below, found, new_value)
    if some(by_gradient):
        # Near the minimiser a difference of values is mere rounding error. For a quadratic this
        # test of the gradients is equivalent.
        evaluations = evaluations + by_gradient
        change = problem.gradient(trial) - g
        good = good | (by_gradient & (dot(change, move, axes) <= square / a))
    left = s.going & no(good)
    return Search(
        new=keep(s.going & good, trial, s.new),
        a=pick(left, a * SHRINK, a),
        value=new_value,
        going=left,
        evaluations=evaluations,
        trials=s.trials + s.going,
    )
