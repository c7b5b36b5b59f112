"""The loop of gradient steps that `AOGM` and `GradientDescent` share.

It follows Kim and Fessler, "Adaptive restart of the optimized gradient method for convex
optimization", J. Optim. Theory Appl. 178 (2018), with the full backtracking of Calatroni and
Chambolle, SIAM J. Optim. 29 (2019). With a regularizer every gradient step is followed by its
proximal operator, and the loop is FISTA with restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.solvers.problem import LocalProblem, Solution, Stop, norm, target
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
    unknown.
    """

    max_iterations: int
    tolerance: float | None = TIGHT
    energy: float | None = None
    step: float | None = None
    backtracking: bool = True
    momentum: bool = True
    over_step: bool = True
    restart: Restart = "gradient"


def descend(problem: LocalProblem, rules: Rules, stop: Stop | None = None) -> Solution:
    """Minimise h + psi by (accelerated, proximal) gradient steps.

    Paper symbols: gradients are taken at the x_k, and plain steps from there lead to the y_k.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # `_check` reports them
        return _Descent(problem, rules, stop).run()


def diverged(k: int) -> FedConError:
    """Return the error of a solve that diverges in iteration k."""
    return FedConError(
        f"the local solver diverged in iteration {k}: is the objective convex and bounded "
        "below, with a correct smoothness? If not, pass a smaller lr, or backtracking=True"
    )


class _Descent:
    def __init__(self, problem: LocalProblem, rules: Rules, stop: Stop | None) -> None:
        self.problem, self.rules, self.stop = problem, rules, stop
        self.psi = problem.regularizer
        self.eps = float(np.finfo(problem.start.dtype).eps)
        self.a = self._first_step()
        self.needs_values = rules.energy is not None or rules.restart == "function"
        self.goal = math.inf
        self.best, self.best_at = math.inf, 0
        self.evaluations = self.trials = 0

    def run(self) -> Solution:
        problem, rules = self.problem, self.rules
        x = y = problem.start
        energy = math.nan
        length, t = math.nan, 1.0
        for k in range(rules.max_iterations):
            self._look(x)
            if self.psi is None:
                length = self._check(norm(self.g), k)
                if self._good(x, self.g, length):
                    return self._solution(x, length, k, True)
            if k == 0 and self.needs_values:
                energy = self.value + (self.psi.value(x) if self.psi else 0.0)
            previous = self.a
            if rules.backtracking and k > 0:
                self.a /= GROW
            new = self._step(x)
            if self.psi is not None:
                step = (x - new) / self.a
                length = self._check(norm(step), k)
                if self._good_proximal(new, step, length):
                    return self._solution(new, length, k + 1, True)
            if rules.tolerance is not None and self._stuck(x, length, k):
                return self._solution(new if self.psi else x, length, k + 1, False)

            before, energy = energy, self._energy(new)
            if rules.energy is not None:
                change = abs(energy - before) / max(abs(energy), 1e-300)
                if change < rules.energy:
                    return self._solution(new, self._length_at(new, length), k + 1, True)
            if rules.momentum:
                move = new - y
                uphill = float(np.vdot(new - x, move)) < 0
                if energy > before if rules.restart == "function" else rules.restart and uphill:
                    t = 1.0
                # a_k / a_{k+1} keeps the bound of the accelerated method when step sizes vary.
                t_new = (1 + math.sqrt(1 + 4 * (previous / self.a) * t * t)) / 2
                following = new + ((t - 1) / t_new) * move
                if rules.over_step and self.psi is None:
                    following += (t / t_new) * (new - x)
                x, t = following, t_new
            else:
                x = new
            y = new
        return self._solution(y, length, rules.max_iterations, rules.tolerance is None)

    def _first_step(self) -> float:
        rules = self.rules
        if rules.step is not None:
            return rules.step
        L = self.problem.smoothness
        if L is None and not rules.backtracking:
            raise ConfigError(CONSTANT_STEP)
        return 1 / L if L and math.isfinite(L) else 1.0

    def _look(self, x: Array) -> None:
        self.evaluations += 1
        if self.rules.backtracking or self.needs_values:
            self.value, self.g, self.size = self.problem.evaluate(x)
        else:
            self.g = self.problem.gradient(x)

    def _step(self, x: Array) -> Array:
        """Return x - a g, or its prox, at the step size a that backtracking accepts."""
        while True:
            new = x - self.a * self.g
            if self.psi is not None:
                new = self.psi.prox(new, self.a)
            self.new_value: float | None = None
            if not self.rules.backtracking:
                return new
            self.trials += 1
            if self._short_enough(x, new):
                return new
            self.a *= SHRINK

    def _short_enough(self, x: Array, new: Array) -> bool:
        """Return whether h lies below its quadratic model of curvature 1/a at `new`."""
        move = new - x
        square = float(np.vdot(move, move))
        if square == 0:
            return True
        if square / (2 * self.a) > CLEAR * self.eps * self.size:
            self.new_value = self.problem.value(new)
            model = self.value + float(np.vdot(self.g, move)) + square / (2 * self.a)
            return self.new_value <= model + 4.5 * self.eps * self.size
        # Near the minimiser a difference of values is mere rounding error. For a quadratic this
        # test of the gradients is equivalent.
        self.evaluations += 1
        change = self.problem.gradient(new) - self.g
        return float(np.vdot(change, move)) <= square / self.a

    def _energy(self, new: Array) -> float:
        if not self.needs_values:
            return math.nan
        value = self.problem.value(new) if self.new_value is None else self.new_value
        return value + (self.psi.value(new) if self.psi else 0.0)

    def _check(self, length: float, k: int) -> float:
        if not math.isfinite(length):
            raise diverged(k)
        if k == 0 and self.rules.tolerance is not None:
            self.goal = target(self.rules.tolerance, length, self.problem.start)
        return length

    def _good(self, x: Array, gradient: Array, length: float) -> bool:
        if self.rules.tolerance is not None:
            if length <= self.goal:
                return True
            if length <= 1e6 * self.eps and length <= self.problem.rounding(x):
                return True
        return self.stop is not None and bool(self.stop(x, gradient))

    def _good_proximal(self, new: Array, step: Array, length: float) -> bool:
        if self.rules.tolerance is not None:
            if length <= self.goal:
                return True
            if self.a * length <= 50 * self.eps * norm(new):
                return True
        if self.stop is None or not self.stop(new, step):
            return False
        self.evaluations += 1
        return bool(self.stop(new, step + (self.problem.gradient(new) - self.g)))

    def _stuck(self, x: Array, length: float, k: int) -> bool:
        """Return whether steps are below the rounding of x, or the gradient no longer shrinks."""
        if length < self.best:
            self.best, self.best_at = length, k
        return self.a * length <= 0.5 * self.eps * norm(x) or k - self.best_at > PATIENCE

    def _length_at(self, new: Array, length: float) -> float:
        if self.psi is not None:
            return length
        self.evaluations += 1
        return norm(self.problem.gradient(new))

    def _solution(self, x: Array, length: float, iterations: int, converged: bool) -> Solution:
        if x is self.problem.start:
            x = x.copy()
        return Solution(x, length, iterations, self.evaluations, converged, self.trials)
