"""The interface of an objective, and scaled objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.set_aside import set_aside
from flower_fedcon.validation import Array, count, nonnegative


class SmoothFunction(Protocol):
    """The least that a user's own objective must have; the problem then needs its start, `x0`.

    With an attribute `shape` it needs no start. `Objective` lists the optional parts: minibatches,
    constants, second derivatives, metrics.
    """

    def value(self, x: Array) -> float:
        """Return f(x)."""

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x, in the shape of x."""


def places_of_rows(rows: object) -> Array:
    """Return the rows of a batch as an array of integers.

    Raises
    ------
    ConfigError
        If they are not whole numbers.
    """
    places = np.asarray(rows)
    if places.ndim != 1 or places.size == 0 or places.dtype.kind not in "iu":
        raise ConfigError("rows must be a one-dimensional, non-empty array of integers")
    return places


class Objective(ABC):
    """A differentiable function f of a model x.

    A subclass defines `value` and `gradient`. A mean over examples also sets `num_examples` and
    defines `batch_gradient`. Optional methods add more. `add_gradient(x, out, scale)` adds scale
    times the gradient to `out` in place, which can be faster. `metrics(x)` returns a dict of
    numbers by name (a test accuracy, say); histories then hold the clients' mean of each, in
    simulations and on nodes. Second-order methods use `hessian(x, columns=None)`, and the local
    solver "exact" uses `hessian_products(x)`, the map v -> H v.

    `value` and `gradient` define the function; all other methods must agree with them. A subclass
    of a loss that overrides only `gradient` therefore loses the inherited methods (Hessians,
    minibatches, constants) unless it defines them, too; an error names a lost one where it is
    needed. An overridden `stochastic_gradient` replaces `batch_gradient`.

    Attributes
    ----------
    shape : tuple of int
        Shape of x.
    num_examples : int
        Number of rows of data; 1 without rows.
    dtype : dtype
        Type of the data, and of the gradient at an x of the same type.
    """

    shape: tuple[int, ...]
    num_examples: int = 1
    dtype: np.dtype[Any] = np.dtype(np.float64)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        set_aside(cls, Objective)

    @abstractmethod
    def value(self, x: Array) -> float:
        """Return f(x)."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """Return the gradient at x, in the shape of x."""

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return f(x) and the gradient at x."""
        return self.value(x), self.gradient(x)

    def batch_gradient(self, x: Array, rows: Array) -> Array:
        """Return the gradient at x of the mean over `rows` (integers) only.

        Raises
        ------
        ConfigError
            If the objective has no rows.
        """
        raise ConfigError(
            f"{type(self).__name__} has no minibatches: use gradient, or define batch_gradient"
        )

    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int | None = None
    ) -> Array:
        """Return the gradient over `batch_size` rows, drawn uniformly without replacement.

        Parameters
        ----------
        x : array of `shape`
        rng : numpy.random.Generator
        batch_size : int, optional
            >= 1. If None, or at least `num_examples`, all rows are used and nothing is drawn.

        Raises
        ------
        ConfigError
            If `batch_size` is not a whole number >= 1.
        """
        if batch_size is None or count("batch_size", batch_size) >= self.num_examples:
            return self.gradient(x)
        rows = rng.choice(self.num_examples, batch_size, replace=False, shuffle=False)
        return self.batch_gradient(x, rows)

    @property
    def smoothness(self) -> float | None:
        """L, the Lipschitz constant of the gradient (or an upper bound); None if unknown."""
        return self._constants[0]

    @property
    def strong_convexity(self) -> float | None:
        """Mu, the modulus of strong convexity (or a lower bound); None if unknown."""
        return self._constants[1]

    @cached_property
    def _constants(self) -> tuple[float | None, float | None]:
        return self._curvature()

    def _curvature(self) -> tuple[float | None, float | None]:
        """Return L and mu; called once, when one of them is first needed."""
        return None, None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.num_examples} examples, shape {self.shape}>"


class Scaled(Objective):
    """The function factor * f.

    Parameters
    ----------
    objective : object
        f, any object with `value` and `gradient`.
    factor : float
        >= 0, for example a client's weight.
    constraint : bool (default: True)
        Whether f's own constraint is scaled, too, which a mean of constraints needs.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic, Scaled
    >>> half = Scaled(Quadratic(np.eye(2), np.zeros(2)), 0.5)
    >>> half.gradient(np.array([2.0, 4.0])), half.smoothness
    (array([1., 2.]), 0.5)
    """

    def __init__(
        self, objective: SmoothFunction, factor: float, *, constraint: bool = True
    ) -> None:
        self.objective: Any = objective
        self.factor = nonnegative("Scaled(factor)", factor)
        self.constraint_factor = self.factor if constraint else 1.0
        self.num_examples = int(getattr(objective, "num_examples", 1))
        self.dtype = np.dtype(getattr(objective, "dtype", np.float64))
        if hasattr(objective, "shape"):
            self.shape = objective.shape

    def value(self, x: Array) -> float:
        """Return factor * f(x)."""
        return self.factor * float(self.objective.value(x))

    def gradient(self, x: Array) -> Array:
        """Return factor times the gradient of f."""
        return self._times(self.objective.gradient(x))

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return factor times the value and the gradient of f."""
        if not hasattr(self.objective, "value_and_gradient"):
            return self.value(x), self.gradient(x)
        value, gradient = self.objective.value_and_gradient(x)
        return self.factor * float(value), self._times(gradient)

    @property
    def batch_gradient(self) -> Callable[[Array, Array], Array]:
        """The `batch_gradient` of f, times factor; missing if f has none."""
        batch = self.objective.batch_gradient
        return lambda x, rows: self._times(batch(x, rows))

    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int | None = None
    ) -> Array:
        """Return factor times f's own minibatch gradient, or its gradient if it has none."""
        if batch_size is not None:
            count("batch_size", batch_size)
        if not hasattr(self.objective, "stochastic_gradient"):
            return self.gradient(x)
        return self._times(self.objective.stochastic_gradient(x, rng, batch_size))

    @property
    def add_gradient(self) -> Callable[[Array, Array, float], None]:
        """The `add_gradient` of f, times factor; missing if f has none."""
        add = self.objective.add_gradient
        return lambda x, out, scale: add(x, out, self.factor * scale)

    @property
    def hessian(self) -> Callable[..., Array]:
        """The `hessian` of f, times factor; missing if f has none."""
        hessian = self.objective.hessian
        return lambda x, columns=None: self.factor * hessian(x, columns)

    @property
    def indefinite_hessian(self) -> Callable[[Array], Array]:
        """The `indefinite_hessian` of f, times factor; missing if f has none."""
        unchanged = self.objective.indefinite_hessian
        return lambda x: self.factor * unchanged(x)

    @property
    def hessian_products(self) -> Callable[[Array], Callable[[Array], Array]]:
        """The `hessian_products` of f, times factor; missing if f has none."""
        products = self.objective.hessian_products

        def scaled(x: Array) -> Callable[[Array], Array]:
            product = products(x)
            return lambda v: self._times(product(v))

        return scaled

    @property
    def constraint_value(self) -> Callable[[Array], float]:
        """The functional constraint of f, times factor if `constraint`; missing if f has none."""
        constraint = self.objective.constraint_value
        return lambda x: self.constraint_factor * float(constraint(x))

    @property
    def constraint_gradient(self) -> Callable[[Array], Array]:
        """The gradient of `constraint_value`; missing if f has no constraint."""
        gradient = self.objective.constraint_gradient
        return lambda x: self._times(gradient(x), self.constraint_factor)

    @property
    def constraint_counts(self) -> Array:
        """The weights of f's part in the groups' constraints, used instead of the factor."""
        counts: Array = self.objective.constraint_counts
        return counts

    @property
    def constraint_sums(self) -> Callable[[Array], Array]:
        """The part of f in the groups' constraints; missing if f has none."""
        return self.objective.constraint_sums  # type: ignore[no-any-return]

    @property
    def constraint_sums_gradient(self) -> Callable[[Array, Array], Array]:
        """The gradient of a weighted sum of `constraint_sums`; missing if f has none."""
        return self.objective.constraint_sums_gradient  # type: ignore[no-any-return]

    def _times(self, gradient: Any, factor: float | None = None) -> Array:
        """Return the scaled gradient: an array, or a list of arrays (a network's layers)."""
        factor = self.factor if factor is None else factor
        scaled: Any = (
            [factor * layer for layer in gradient]
            if isinstance(gradient, list)
            else factor * gradient
        )
        return scaled  # type: ignore[no-any-return]

    def _curvature(self) -> tuple[float | None, float | None]:
        constants = (
            getattr(self.objective, name, None) for name in ("smoothness", "strong_convexity")
        )
        smooth, strong = (None if c is None else self.factor * c for c in constants)
        return smooth, strong

    def __repr__(self) -> str:
        return f"Scaled({self.objective!r}, {self.factor!r})"


def unscaled(objective: Any) -> Any:
    """Return the objective without its factors.

    >>> from flower_fedcon.objectives import Quadratic
    >>> f = Quadratic(np.eye(1), np.ones(1))
    >>> unscaled(Scaled(Scaled(f, 2.0), 3.0)) is f
    True
    """
    while type(objective) is Scaled:
        objective = objective.objective
    return objective
