"""The problem that a local solver is given, and the solution that it returns."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from flower_fedcon.arrays import dot, is_array, known, larger, length, pick
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives.curvatures import usual_sizes
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.regularizers import Regularizer, Zero
from flower_fedcon.regularizers.batched import BatchedRegularizer
from flower_fedcon.validation import Array, nonnegative

Stop: TypeAlias = Callable[[Array, Array], Any]
"""(x, gradient at x) -> bool; for many clients an array of bool."""


class LocalProblem:
    """Minimise h(x) + psi(x), where h(x) = f(x) + <linear, x> + shift/2 ||x - center||^2.

    It is the problem of one client, or of each client of a cohort. A cohort's arrays have a leading
    axis of clients, and a number of one client becomes an array of shape (n,).

    Parameters
    ----------
    objective : object
        f, with `value` and `gradient`. Solvers find a minimiser if it is convex. An engine's
        objective of many clients has `served`, a `ServedClients`.
    start : array
        Where a solver starts. Its shape and dtype are the model's.
    linear : array, optional
        Shape of `start`, or of one model; 0 if None.
    shift : float
        >= 0.
    center : array, optional
        Shape of `start`, or of one model; the origin if None.
    regularizer : Regularizer, optional
        psi, one client's; 0 if None.

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

    __slots__ = (
        "_both", "added", "axes", "eps", "many", "objective", "regularizer", "start",
    )  # fmt: skip

    def __init__(
        self,
        objective: Any,
        start: Array,
        *,
        linear: Array | None = None,
        shift: float = 0.0,
        center: Array | None = None,
        regularizer: Regularizer | None = None,
    ) -> None:
        served: Any = getattr(objective, "served", None)
        self.many = served is not None
        if self.many:
            objective, shape = served, (len(served), *served.shape)
            if start.shape != shape:  # all clients have the same
                start = np.broadcast_to(start, shape)
        model_shape = start.shape[1:] if self.many else start.shape
        for name, array in (("linear", linear), ("center", center)):
            if array is not None and array.shape not in (start.shape, model_shape):
                raise ConfigError(
                    f"LocalProblem({name}) must have the start's shape {start.shape}, "
                    f"got {array.shape}"
                )
        self.objective: Any = objective
        self.start = start
        shift = nonnegative("LocalProblem(shift)", shift) if known(shift) else shift
        self.added = LocalPass(start, linear, shift, center)
        psi: Any = regularizer
        if isinstance(psi, BatchedRegularizer):
            psi = psi.inner
        self.regularizer = None if isinstance(psi, Zero) else psi
        self.axes = start.ndim - self.many
        self.eps = float(np.finfo(start.dtype).eps)
        self._both = getattr(objective, "value_and_gradient", None)

    @property
    def shift(self) -> Any:
        """The curvature added to f."""
        return self.added.shift

    def value(self, x: Array) -> Any:
        """Return h(x), without psi."""
        return sum(self._terms(x, self.objective.value(x)))

    def gradient(self, x: Array) -> Array:
        """Return the gradient of h at x, in the shape and dtype of x."""
        return self._add(x, self.objective.gradient(x))

    def evaluate(self, x: Array) -> tuple[Any, Array, Any]:
        """Return h(x), its gradient, and the sum of the sizes of the terms of h(x).

        The rounding error of h(x) is about that sum times the machine epsilon.
        """
        if self._both is None:
            value, gradient = self.objective.value(x), self.objective.gradient(x)
        else:
            value, gradient = self._both(x)
        terms = self._terms(x, value)
        return sum(terms), self._add(x, gradient), sum(map(abs, terms))

    def hessian_products(self, x: Array) -> Callable[[Array], Array] | None:
        """Return the map v -> (Hessian of h at x) v; None if f has none."""
        products = getattr(self.objective, "hessian_products", None)
        product = None if products is None else products(x)
        if product is None or not self.shift:
            return product
        return lambda v: product(v) + self.shift * v

    def hessian_of(self, objective: Any, x: Array) -> Array:
        """Return the Hessian of h at x, for one client's objective with `hessian`."""
        hessian: Array = objective.hessian(x) + self.shift * np.eye(x.size)
        return hessian

    @property
    def has_hessian(self) -> bool:
        """Whether `hessian_products` returns a map."""
        products = getattr(self.objective, "hessian_products", None)
        return products is not None and not (self.many and products(self.start) is None)

    def prox(self, v: Array, steps: Any, going: Any) -> Array:
        """Return the prox of psi at v, for the clients in `going`."""
        psi: Any = self.regularizer
        new: Array = self.objective.prox(psi, v, steps, going) if self.many else psi.prox(v, steps)
        return new

    def penalty(self, x: Array) -> Any:
        """Return psi(x)."""
        psi = self.regularizer
        if psi is None:
            return 0.0
        return np.array([float(psi.value(one)) for one in x]) if self.many else psi.value(x)

    @property
    def smoothness(self) -> Any:
        """L_h, the Lipschitz constant of the gradient of h; None if unknown."""
        return self._shifted("smoothness")

    @property
    def strong_convexity(self) -> Any:
        """Mu_h, the modulus of strong convexity of h; None if unknown."""
        return self._shifted("strong_convexity")

    @property
    def states_smoothness(self) -> bool:
        """Whether L_h is known for every client."""
        if self.many:
            return bool(self.objective.states_smoothness)
        return self.smoothness is not None

    def started_at(self, x: Array) -> LocalProblem:
        """Return the same problem with another start."""
        other = copy(self)
        other.start = x
        return other

    def only(self, places: Array | slice) -> LocalProblem:
        """Return the problems of some clients of a cohort."""
        other = copy(self)
        other.objective = self.objective.only(places)
        other.start = self.start[places]
        other.added = self.added.only(places)
        other._both = other.objective.value_and_gradient
        return other

    def one(self, place: int) -> LocalProblem:
        """Return the problem of one client of a cohort, without the axis of clients."""
        part = self.only(slice(place, place + 1))
        _, linear, shift, center, *_ = part.added
        arrays = (a if a is None or a.ndim < part.start.ndim else a[0] for a in (linear, center))
        return LocalProblem(
            self.objective.objectives[place],
            part.start[0],
            shift=float(np.ravel(shift)[0]),
            regularizer=self.regularizer,
            **dict(zip(("linear", "center"), arrays, strict=True)),
        )

    def each(self, number: Any) -> Any:
        """Return the same number for each client."""
        return np.full(len(self.start), number) if self.many else number

    @property
    def usual(self) -> tuple[Any, Any]:
        """The size of a usual gradient of f, and of its curvature: 1 for ordinary units.

        See `flower_fedcon.objectives.curvatures.usual_sizes`. If f does not state them, its units
        are not known. Its gradient is then taken to be as large as the other terms at the start (0
        if there are none), and its curvature as large as the shift, but at least 1.
        """
        gradient, curvature = self._told
        tells = self.tells
        if tells is True:
            return gradient, curvature
        size = pick(tells, gradient, self.beside(self.start))
        return size, pick(tells, curvature, larger(1.0, self.shift))

    @property
    def tells(self) -> Any:
        """Whether f states the size of its usual gradients."""
        gradient = self._told[0]
        return gradient == gradient  # not NaN

    @property
    def _told(self) -> tuple[Any, Any]:
        """The usual sizes that f states; NaN if it does not."""
        sizes: tuple[Any, Any] = self.objective.usual if self.many else usual_sizes(self.objective)
        return sizes

    def beside(self, x: Array) -> Any:
        """Return the size of the terms in the gradient of h other than f's."""
        _, linear, shift, center, *_ = self.added
        total = 0.0 if linear is None else length(linear, self.axes)
        if shift:
            away = 0.0 if center is None else length(center, self.axes)
            total = total + shift * (length(x, self.axes) + away)
        return total

    def rounding(self, x: Array) -> Any:
        """Return the norm below which a gradient of h is only rounding error of its terms."""
        # This matters if the gradient is small; then f's gradient is as large as the other terms.
        return 100 * self.eps * self.beside(x)

    def _terms(self, x: Array, value: Any) -> tuple[Any, Any, Any]:
        value = value if self.many else float(value)
        _, linear, shift, center, *_ = self.added
        along = 0.0 if linear is None else dot(x, linear, self.axes)
        if not shift:
            return value, along, 0.0
        away = x if center is None else x - center
        return value, along, 0.5 * shift * dot(away, away, self.axes)

    def _add(self, x: Array, gradient: Array) -> Array:
        # Never in place: the array may be the objective's own.
        if not is_array(gradient):
            gradient = np.asarray(gradient)
        added: Array = self.added.add_to(gradient, x)
        return added if added.dtype == x.dtype else added.astype(x.dtype)

    def _shifted(self, name: str) -> Any:
        constant = getattr(self.objective, name, None)
        if constant is None:
            return None
        return (constant if self.many else float(constant)) + self.shift


class Solution(NamedTuple):
    """The result of a local solver.

    For a cohort, x has a leading axis of clients, and the other fields are arrays of shape (n,).

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
        Whether the tolerance was met; True if the solver has none.
    trials : int
        Steps tried in backtracking.
    products : int
        Products with the Hessian, which count as evaluations, too.
    proxes : int
        Proximal operators of psi.
    """

    x: Array
    gradient_norm: Any
    iterations: Any
    evaluations: Any
    converged: Any
    trials: Any = 0
    products: Any = 0
    proxes: Any = 0

    @classmethod
    def begun(cls, problem: LocalProblem) -> Self:
        """Return a solution before the first step."""
        each = problem.each
        return cls(problem.start, each(math.nan), each(0), each(0), each(False), *(each(0),) * 3)


class LocalSolver(ABC):
    """A method that minimises a `LocalProblem`. Its fields, plain values, are sent to clients."""

    @property
    def most_iterations(self) -> int:
        """The largest number of iterations in a call; 0 if only the problem bounds it."""
        return 0

    @abstractmethod
    def solve(self, problem: LocalProblem, *, stop: Stop | None = None) -> Solution:
        """Return a minimiser, to the accuracy of the solver's settings.

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
            If the iterates diverge, as they do if h + psi is unbounded below.
        """


class ClientsError(FedConError):
    """The solves of some clients of a cohort failed.

    Attributes
    ----------
    errors : dict
        The errors by the clients' places in the cohort.
    """

    def __init__(self, errors: dict[int, FedConError]) -> None:
        super().__init__(str(next(iter(errors.values()))))
        self.errors = errors


def target(problem: LocalProblem, tolerance: Any, start: Any) -> Any:
    """Return the gradient norm to reach, not below rounding.

    It is relative to the norm at the start, or to a usual one (`LocalProblem.usual`) if that is
    larger.
    """
    return larger(tolerance, 50 * problem.eps) * larger(problem.usual[0], start)


def remaining(problem: LocalProblem, goal: Any, x: Array, norm: Any) -> Any:
    """Return the tolerance with which a solver that starts at x has the same `target`.

    Parameters
    ----------
    problem : LocalProblem
    goal : float
        The target so far.
    x : array
    norm : float
        Of the gradient there.
    """
    usual = larger(problem.started_at(x).usual[0], norm)
    return goal / pick(usual > 0, usual, 1.0)
