"""The problem that a local solver is given, and the solution that it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flower_fedcon.arrays import known
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import SmoothFunction
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.regularizers import Regularizer, Zero
from flower_fedcon.validation import Array, nonnegative

Stop: TypeAlias = Callable[[Array, Array], Any]
"""(x, gradient at x) -> bool; of many clients an array of their answers."""


class LocalProblem:
    """Minimise h(x) + psi(x), where h(x) = f(x) + <linear, x> + shift/2 ||x - center||^2.

    Parameters
    ----------
    objective : object
        f, with `value` and `gradient`; convex for the solvers to find a minimiser.
    start : array
        Where a solver starts. Its shape and dtype are the model's.
    linear : array, optional
        Shape of `start`; 0 if None.
    shift : float
        >= 0.
    center : array, optional
        Shape of `start`; the origin if None.
    regularizer : Regularizer, optional
        psi; 0 if None.

    Raises
    ------
    ConfigError
        If `shift` is negative or a shape does not match.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic(np.eye(2), np.zeros(2))
    >>> h = LocalProblem(f, np.zeros(2), shift=3.0, center=np.array([4.0, 8.0]))
    >>> h.value(np.zeros(2)), h.gradient(np.zeros(2)), h.smoothness
    (120.0, array([-12., -24.]), 4.0)
    """

    __slots__ = ("_added", "center", "linear", "objective", "regularizer", "shift", "start")

    def __init__(
        self,
        objective: SmoothFunction,
        start: Array,
        *,
        linear: Array | None = None,
        shift: float = 0.0,
        center: Array | None = None,
        regularizer: Regularizer | None = None,
    ) -> None:
        many = hasattr(objective, "stacked_clients")  # arrays may have one more axis
        for name, array in (("linear", linear), ("center", center)):
            if array is not None and array.shape != start.shape and not many:
                raise ConfigError(
                    f"LocalProblem({name}) must have the start's shape {start.shape}, "
                    f"got {array.shape}"
                )
        self.objective: Any = objective
        self.start = start
        self.linear = linear
        self.shift = nonnegative("LocalProblem(shift)", shift) if known(shift) else shift
        self.center = center
        self.regularizer = None if isinstance(regularizer, Zero) else regularizer
        self._added = LocalPass(start, linear, self.shift, center)

    def value(self, x: Array) -> float:
        """Return h(x), without psi."""
        return sum(self._terms(x, float(self.objective.value(x))))

    def gradient(self, x: Array) -> Array:
        """Return the gradient of h at x, in the shape and dtype of x."""
        return self._add(x, self.objective.gradient(x))

    def evaluate(self, x: Array) -> tuple[float, Array, float]:
        """Return h(x), its gradient, and the sum of the sizes of the terms of h(x).

        The rounding error of h(x) is about that sum times the machine epsilon.
        """
        both = getattr(self.objective, "value_and_gradient", None)
        value, gradient = both(x) if both else (self.objective.value(x), self.objective.gradient(x))
        terms = self._terms(x, float(value))
        return sum(terms), self._add(x, gradient), sum(map(abs, terms))

    @property
    def smoothness(self) -> float | None:
        """L_h, the Lipschitz constant of the gradient of h; None if unknown."""
        return self._shifted("smoothness")

    @property
    def strong_convexity(self) -> float | None:
        """Mu_h, the modulus of strong convexity of h; None if unknown."""
        return self._shifted("strong_convexity")

    def started_at(self, x: Array) -> LocalProblem:
        """Return the same problem with another start."""
        return LocalProblem(
            self.objective,
            x,
            linear=self.linear,
            shift=self.shift,
            center=self.center,
            regularizer=self.regularizer,
        )

    def rounding(self, x: Array) -> float:
        """Return the norm below which a gradient of h is mere rounding error of its terms."""
        # This matters where the gradient is small; f's gradient is then as large as the others.
        total = 0.0 if self.linear is None else norm(self.linear)
        if self.shift:
            total += self.shift * (norm(x) + (0.0 if self.center is None else norm(self.center)))
        return 100 * float(np.finfo(x.dtype).eps) * total

    def _terms(self, x: Array, value: float) -> tuple[float, float, float]:
        linear = 0.0 if self.linear is None else float(np.vdot(self.linear, x))
        if not self.shift:
            return value, linear, 0.0
        away = x if self.center is None else x - self.center
        return value, linear, 0.5 * self.shift * float(np.vdot(away, away))

    def _add(self, x: Array, gradient: Array) -> Array:
        # Never in place: the array may be the objective's own.
        corrected: Array = self._added.add_to(np.asarray(gradient, dtype=x.dtype), x)
        return corrected.astype(x.dtype, copy=False)

    def _shifted(self, name: str) -> float | None:
        constant = getattr(self.objective, name, None)
        return None if constant is None else float(constant) + self.shift


class Solution(NamedTuple):
    """What a local solver found.

    Attributes
    ----------
    x : array
        The shape and dtype of the problem's start.
    gradient_norm : float
        The last ||grad h|| that was computed; with psi, the norm of the proximal gradient step
        divided by its step size.
    iterations : int
    evaluations : int
        Number of gradients of f that were computed.
    converged : bool
        Whether the tolerance was met; true if the solver has none.
    trials : int
        Steps tried in backtracking.
    """

    x: Array
    gradient_norm: float
    iterations: int
    evaluations: int
    converged: bool
    trials: int = 0


class LocalSolver(ABC):
    """A method that minimises a `LocalProblem`. Its fields, plain values, are sent to clients."""

    @property
    def most_iterations(self) -> int:
        """The most iterations of a call; 0 where nothing but the problem bounds them."""
        return 0

    @abstractmethod
    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return a minimiser, to the accuracy that the solver's settings ask for.

        Parameters
        ----------
        problem : LocalProblem
            Its arrays are not modified.
        stop : callable, optional
            A further stopping test: (x, gradient of h at x) -> bool. With psi it is given a
            subgradient of h + psi at x. The x that passes the test is the one returned.

        Raises
        ------
        FedConError
            If the iterates diverge, as they do where h + psi is unbounded below.
        """


def norm(x: Array) -> float:
    """Return the Euclidean norm of all entries of x."""
    return float(np.linalg.norm(x.reshape(-1)))


def target(tolerance: float, start: float, x: Array) -> float:
    """Return the gradient norm to reach: relative to max(1, start), and not below rounding."""
    return max(tolerance, 50 * float(np.finfo(x.dtype).eps)) * max(1.0, start)


def targets(tolerances: Any, starts: Array, x: Array) -> Array:
    """Return each client's gradient norm to reach, as `target` does, shape (n,).

    Parameters
    ----------
    tolerances : float, or array of shape (n,)
    starts : array, shape (n,)
        The gradients' norms at the start.
    x : array
        Of the dtype that rounds.
    """
    rounding = 50 * float(np.finfo(x.dtype).eps)
    return np.maximum(tolerances, rounding) * np.maximum(1.0, starts)  # type: ignore[no-any-return]
