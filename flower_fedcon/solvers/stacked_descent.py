"""The loop of gradient steps for many clients at once: `descent` along a leading axis.

It repeats `descent._Descent` statement by statement, with an array of one number a client in place
of each number, since arrays of length 1 would make the loop for one client several times slower;
`tests/math/test_stacked_solvers.py` holds the two together. Clients whose solve has ended wait
under a mask, and leave the arrays once they are half of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.arrays import anyone
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.regularizers.base import soft
from flower_fedcon.regularizers.elementwise import Penalty
from flower_fedcon.solvers.clients import (
    LocalProblems,
    Solutions,
    along,
    dots,
    ends,
    norms,
    wide,
)
from flower_fedcon.solvers.descent import (
    CLEAR,
    CONSTANT_STEP,
    GROW,
    PATIENCE,
    SHRINK,
    Rules,
    diverged,
)
from flower_fedcon.solvers.gradient import AOGM, GradientDescent
from flower_fedcon.solvers.masked import Masked
from flower_fedcon.solvers.problem import Stop, targets
from flower_fedcon.validation import Array


def descend_all(
    problems: LocalProblems,
    rules: Rules,
    stop: Stop | None = None,
    tolerances: Array | None = None,
) -> Solutions:
    """Minimise h_i + psi for all clients by (accelerated, proximal) gradient steps.

    Parameters
    ----------
    problems : LocalProblems
    rules : Rules
    stop : callable, optional
        Of all clients' x and gradients; it returns for whom it holds.
    tolerances : array, shape (n,), optional
        In place of the rules' own.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # `_check` reports them
        return Descents(problems, rules, stop, tolerances).run()


def rules_of(solver: AOGM | GradientDescent, objectives: Sequence[Any]) -> Rules:
    """Return how a solver of these objectives steps, and when it stops."""
    if isinstance(solver, AOGM):
        return solver.rules
    known = (getattr(one, "smoothness", None) is not None for one in objectives)
    return solver.rules(all(known))


def first_steps(rules: Rules, objectives: Sequence[Any], shift: float) -> Array:
    """Return the step size that each client's solve begins with, shape (n,).

    Raises
    ------
    ConfigError
        If it is to stay, and hangs on a smoothness that is not known.
    """
    if rules.step is not None:
        return np.full(len(objectives), rules.step)
    smoothnesses = [getattr(one, "smoothness", None) for one in objectives]
    if None in smoothnesses and not rules.backtracking:
        raise ConfigError(CONSTANT_STEP)
    bounds = np.array([np.inf if known is None else float(known) for known in smoothnesses]) + shift
    known = (bounds > 0) & (bounds < np.inf)
    found: Array = 1 / np.where(known, bounds, 1.0)
    return found


class Descents(Masked):
    """A run of `descend_all`."""

    ARRAYS = (
        *Masked.ARRAYS, "a", "t", "goal", "best", "best_at", "energy", "tolerances",
        "y", "new", "new_value",
    )  # fmt: skip

    def __init__(
        self, problems: LocalProblems, rules: Rules, stop: Stop | None, tolerances: Array | None
    ) -> None:
        super().__init__(problems, stop)
        self.rules, self.psi, self.eps = rules, problems.regularizer, problems.eps
        n = len(problems.start)
        self.a = self._first_steps()
        self.t, self.goal, self.best = np.ones(n), np.full(n, np.inf), np.full(n, np.inf)
        self.best_at, self.energy = np.zeros(n, np.int64), np.full(n, np.nan)
        self.length = self.value = self.size = self.new_value = np.full(n, np.nan)
        self.tolerances = np.full(n, rules.tolerance or 0.0) if tolerances is None else tolerances
        self.x = self.y = self.new = self.g = problems.start
        self.needs_values = rules.energy is not None or rules.restart == "function"

    def run(self) -> Solutions:
        """Return the solutions."""
        rules, first = self.rules, self._ahead()
        for k in range(first, rules.max_iterations):
            self._compact()
            if not self.going.any():
                return self.found
            self._iterate(k, begins=k == 0)
        return self._out_of_iterations()

    def _out_of_iterations(self) -> Solutions:
        rules = self.rules
        self._end(self.going.copy(), self.y, rules.max_iterations, rules.tolerance is None)
        return self.found

    def _iterate(self, k: Any, begins: bool) -> None:
        """Do iteration k, which may be the first."""
        rules = self.rules
        self._look(self.x)
        if self.psi is None:
            self.length = norms(self.g)
            self._check(k, begins)
            self._end(self._good(self.x, self.g), self.x, k, converged=True)
        if begins and self.needs_values:
            self.energy = self.value + self._penalties(self.x)
        previous = self.a
        if rules.backtracking and not begins:
            self.a = self.a / GROW
        self._step()
        x, new = self.x, self.new
        if self.psi is not None:
            step = (x - new) / along(self.a, x)
            self.length = norms(step)
            self._check(k, begins)
            self._end(self._good_proximal(new, step), new, k + 1, converged=True)
        if rules.tolerance is not None:
            self._end(self._stuck(k), x if self.psi is None else new, k + 1, converged=False)
        before, self.energy = self.energy, self._energies(new)
        if rules.energy is not None:
            change = np.abs(self.energy - before) / np.maximum(np.abs(self.energy), 1e-300)
            self._end_by_energy(change < rules.energy, k)
        self._move(previous, before)

    def _ahead(self) -> int:
        """Take all steps but the last in one go, where that can be; return how many."""
        rules, problems, count = self.rules, self.problems, self.rules.max_iterations - 1
        counted = rules.tolerance is None and self.stop is None and self.psi is None
        plain = not (rules.backtracking or rules.momentum or self.needs_values)
        if not counted or not plain or rules.step is None or not count:
            return 0
        terms = problems.start, problems.linear, problems.shift, problems.center
        steps = LocalPass(*terms, steps=count, rate=rules.step)
        found = problems.functions.gradient_steps(steps)
        if found is None or not np.isfinite(found).all():
            return 0  # one by one: so it shows when a solve diverges
        self.found.evaluations[:] += count
        self.x = self.y = found
        return count

    def _move(self, previous: Array, before: Array) -> None:
        """Go on from `new`, with momentum."""
        rules, x, new = self.rules, self.x, self.new
        if rules.momentum:
            move = new - self.y
            if rules.restart == "function":
                back = self.energy > before
            elif rules.restart:
                back = dots(new - x, move) < 0
            else:
                back = np.zeros(len(x), bool)
            t = np.where(back, 1.0, self.t)
            # a_k / a_{k+1} keeps the bound of the accelerated method when step sizes vary.
            t_new = (1 + np.sqrt(1 + 4 * (previous / self.a) * t * t)) / 2
            following = new + along((t - 1) / t_new, x) * move
            if rules.over_step and self.psi is None:
                following += along(t / t_new, x) * (new - x)
            self.x, self.t = following, t_new
        else:
            self.x = new
        self.y = new

    def _first_steps(self) -> Array:
        return first_steps(self.rules, self.problems.functions.objectives, self.problems.shift)

    def _look(self, x: Array) -> None:
        self.found.evaluations[self.here] += self.going
        if self.rules.backtracking or self.needs_values:
            self.value, self.g, self.size = self.problems.evaluate(x)
        else:
            self.g = self.problems.gradient(x)

    def _step(self) -> None:
        """Find x - a g, or its prox, at the step sizes a that backtracking accepts."""
        self.pending, self.new_value = self.going.copy(), np.full(len(self.x), np.nan)
        if not self.rules.backtracking:
            self.new = self._trial()
            return
        self.new = self.x
        self._try_until_all_are_short_enough()

    def _try_until_all_are_short_enough(self) -> None:
        while self.pending.any():
            self._try()

    def _try(self) -> None:
        """Try the step sizes of those still without one, and shorten what is too long."""
        trial = self._trial()
        self.found.trials[self.here] += self.pending
        good = self.pending & self._short_enough(trial, self.pending)
        self.new = np.where(wide(good, trial), trial, self.new)
        self.pending = self.pending & ~good
        self.a = np.where(self.pending, self.a * SHRINK, self.a)

    def _trial(self) -> Array:
        trial: Array = self.x - along(self.a, self.x) * self.g
        if self.psi is not None:
            trial = self._prox(trial, self.pending)
            self.pending = self.pending & self.going
        return trial

    def _short_enough(self, new: Array, pending: Array) -> Array:
        """Return whether h_i lies below its quadratic model of curvature 1/a at `new`."""
        move = new - self.x
        squares = dots(move, move)
        good: Array = squares == 0
        clear = squares / (2 * self.a) > CLEAR * self.eps * self.size
        by_value, by_gradient = pending & clear & ~good, pending & ~clear & ~good
        if anyone(by_value):
            value = self.problems.values(new)
            model = self.value + dots(self.g, move) + squares / (2 * self.a)
            lower = value <= model + 4.5 * self.eps * self.size
            good = good | (by_value & lower)
            self.new_value = np.where(by_value & lower, value, self.new_value)
        if anyone(by_gradient):
            # Near the minimiser a difference of values is mere rounding error. For a quadratic
            # this test of the gradients is equivalent.
            self.found.evaluations[self.here] += by_gradient
            change = self.problems.gradient(new) - self.g
            good = good | (by_gradient & (dots(change, move) <= squares / self.a))
        return good

    def _prox(self, v: Array, pending: Array) -> Array:
        psi: Any = self.psi
        if isinstance(psi, Penalty) and type(psi).prox is Penalty.prox:
            l1, l2 = psi.entrywise(v.shape[1:])
            steps = along(self.a, v)
            level, shrink = steps * l1.astype(v.dtype), 1 + steps * l2.astype(v.dtype)
            new: Array = soft(v, level) / shrink
            return new
        return self._prox_one_by_one(v, pending)

    def _prox_one_by_one(self, v: Array, pending: Array) -> Array:
        new, psi = v.copy(), self.psi
        for place in np.flatnonzero(pending).tolist():
            try:
                new[place] = psi.prox(v[place], float(self.a[place]))
            except FedConError as error:
                self._fail(place, error)
        return new

    def _penalties(self, x: Array) -> Array | float:
        if self.psi is None:
            return 0.0
        return np.array([float(self.psi.value(one)) for one in x])

    def _energies(self, new: Array) -> Array:
        if not self.needs_values:
            return self.energy
        value, unknown = self.new_value, np.isnan(self.new_value)
        if anyone(unknown):
            value = np.where(unknown, self.problems.values(new), value)
        return value + self._penalties(new)

    def _check(self, k: Any, begins: bool) -> None:
        self._expect_finite(k)
        if begins and self.rules.tolerance is not None:
            self.goal = targets(self.tolerances, self.length, self.x)

    def _expect_finite(self, k: Any) -> None:
        for place in np.flatnonzero(self.going & ~np.isfinite(self.length)).tolist():
            self._fail(place, diverged(k))

    def _good(self, x: Array, gradient: Array) -> Array:
        good = ends(self.stop, x, gradient)
        if self.rules.tolerance is not None:
            good = good | (self.length <= self.goal)
            small = self.length <= 1e6 * self.eps
            if anyone(small):
                good = good | (small & (self.length <= self.problems.rounding(x)))
        return good

    def _good_proximal(self, new: Array, step: Array) -> Array:
        good = np.zeros(len(new), bool)
        if self.rules.tolerance is not None:
            good = good | (self.length <= self.goal)
            good = good | (self.a * self.length <= 50 * self.eps * norms(new))
        maybe = self.going & ~good & ends(self.stop, new, step)
        if anyone(maybe):
            self.found.evaluations[self.here] += maybe
            subgradient = step + (self.problems.gradient(new) - self.g)
            good = good | (maybe & ends(self.stop, new, subgradient))
        return good

    def _stuck(self, k: int) -> Array:
        """Return whose steps are below the rounding of x, or whose gradient shrinks no longer."""
        better = self.length < self.best
        self.best = np.where(better, self.length, self.best)
        self.best_at = np.where(better, k, self.best_at)
        stuck: Array = self.a * self.length <= 0.5 * self.eps * norms(self.x)
        return stuck | (k - self.best_at > PATIENCE)

    def _end_by_energy(self, who: Array, k: int) -> None:
        who = who & self.going
        if not anyone(who):
            return
        if self.psi is None:
            self.found.evaluations[self.here] += who
            self.length = np.where(who, norms(self.problems.gradient(self.new)), self.length)
        self._end(who, self.new, k + 1, converged=True)
