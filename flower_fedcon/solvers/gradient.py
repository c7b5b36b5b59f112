"""Solvers that step along the gradient."""

from __future__ import annotations

from dataclasses import dataclass

from flower_fedcon.errors import ConfigError
from flower_fedcon.solvers.descent import TIGHT, Restart, Rules, descend
from flower_fedcon.solvers.problem import LocalProblem, LocalSolver, Solution, Stop
from flower_fedcon.validation import choice, count, positive


@dataclass(frozen=True)
class AOGM(LocalSolver):
    """The optimized gradient method with adaptive restart (Kim and Fessler 2018).

    With a regularizer it is FISTA with restart and backtracking.

    Parameters
    ----------
    tolerance : float, optional
        > 0; 1e-12 if None. With rule "gradient" it bounds ||grad h||, relative to its norm at the
        start, or to a usual one (`LocalProblem.usual`) if that is larger. With rule "energy" it
        bounds the relative change of the value; 1e-12 then leaves an error of about 1e-6
        sqrt(|h|/mu_h) in x.
    max_iterations : int
        >= 1.
    restart : {"gradient", "function"} or None
        When to drop the momentum: when the step points against the last move ("gradient"), when
        the value has grown ("function"), or never (None).
    backtracking : bool
        Adapt the step size, up and down, to the curvature on the path. Without it the step size is
        1/L_h, and the objective must state its smoothness.
    rule : {"gradient", "energy"}
        The stopping rule.
    over_step : bool
        False leaves out the over-step of OGM, which makes it Nesterov's method.
    first_step : float, optional
        > 0. With backtracking, the first step size tried; 1/L_h if None, or 1 if L_h is unknown.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic(np.diag([1.0, 4.0]), np.array([1.0, 8.0]))
    >>> AOGM().solve(LocalProblem(f, np.zeros(2))).x.round(9)
    array([1., 2.])
    """

    tolerance: float | None = None
    max_iterations: int = 1000
    restart: Restart = "gradient"
    backtracking: bool = True
    rule: str = "gradient"
    over_step: bool = True
    first_step: float | None = None

    def __post_init__(self) -> None:
        if self.restart is not None:
            choice("AOGM(restart)", self.restart, ("gradient", "function"))
        choice("AOGM(rule)", self.rule, ("gradient", "energy"))
        count("AOGM(max_iterations)", self.max_iterations)
        _optional("AOGM(tolerance)", self.tolerance)
        if _optional("AOGM(first_step)", self.first_step) and not self.backtracking:
            raise ConfigError("AOGM(first_step) is for backtracking: without it the step is 1/L_h")

    @property
    def most_iterations(self) -> int:
        """The most iterations of a call."""
        return self.max_iterations

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return a minimiser; see `LocalSolver.solve`."""
        return descend(problem, self.rules, stop)

    @property
    def rules(self) -> Rules:
        """How to step, and when to stop."""
        tolerance = self.tolerance or TIGHT
        energy = self.rule == "energy"
        return Rules(
            max_iterations=self.max_iterations,
            tolerance=TIGHT if energy else tolerance,
            energy=tolerance if energy else None,
            step=self.first_step,
            backtracking=self.backtracking,
            over_step=self.over_step,
            restart=self.restart,
        )


@dataclass(frozen=True)
class GradientDescent(LocalSolver):
    """Gradient steps; with a regularizer, proximal gradient steps.

    Parameters
    ----------
    steps : int, optional
        >= 1. Without a tolerance, the number of steps; with one, the largest number.
    tolerance : float, optional
        > 0, for ||grad h|| relative to its norm at the start, or to a usual one
        (`LocalProblem.usual`) if that is larger. At least one of `steps` and `tolerance` must be
        given.
    lr : float, optional
        > 0, the step size. If None it is 1/L_h, or found by backtracking where L_h is unknown.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic(np.eye(1), np.ones(1))
    >>> GradientDescent(steps=2, lr=0.5).solve(LocalProblem(f, np.zeros(1))).x
    array([0.75])
    """

    steps: int | None = None
    tolerance: float | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.tolerance is None:
            raise ConfigError("GradientDescent needs steps, tolerance, or both")
        if self.steps is not None:
            count("GradientDescent(steps)", self.steps)
        _optional("GradientDescent(tolerance)", self.tolerance)
        _optional("GradientDescent(lr)", self.lr)

    @property
    def most_iterations(self) -> int:
        """The most iterations of a call."""
        return 100_000 if self.steps is None else self.steps

    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return a minimiser; see `LocalSolver.solve`."""
        return descend(problem, self.rules(problem.states_smoothness), stop)

    def rules(self, known: bool) -> Rules:
        """Return how to step and when to stop, with or without a known smoothness."""
        return Rules(
            max_iterations=self.most_iterations,
            tolerance=self.tolerance,
            step=self.lr,
            backtracking=self.lr is None and not known,
            momentum=False,
            restart=None,
        )


def _optional(name: str, value: float | None) -> float | None:
    return None if value is None else positive(name, value)
