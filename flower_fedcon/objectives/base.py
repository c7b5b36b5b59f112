"""The interface of an objective, linear models over rows of data, and scaled objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, count, float_array, nonnegative


class SmoothFunction(Protocol):
    """What a user's own objective must have at least."""

    def value(self, x: Array) -> float:
        """Return f(x)."""

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x, in the shape of x."""


class Objective(ABC):
    """A differentiable function f of a model x.

    A subclass defines `value` and `gradient`; one that is a mean over examples also sets
    `num_examples` and defines `batch_gradient`. Where it is faster, it may also define
    `add_gradient(x, out, scale)`, which adds scale times the gradient to `out` in place. With
    `metrics(x)`, a dict of numbers by name (a test accuracy, say), histories have the mean over
    the clients of each number, here and on nodes.

    Attributes
    ----------
    shape : tuple of int
        Shape of x.
    num_examples : int
        Number of rows of data; 1 where there are none.
    dtype : dtype
        Type of the data, and of the gradient at an x of the same type.
    """

    shape: tuple[int, ...]
    num_examples: int = 1
    dtype: np.dtype[Any] = np.dtype(np.float64)

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
        """Return L and mu; called once, when one of them is first asked for."""
        return None, None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.num_examples} examples, shape {self.shape}>"


class LinearModel(Objective):
    """The mean over rows a_i of loss(<a_i, x>, target_i), plus l2/2 ||x||^2.

    A subclass sets `targets` and defines the two private functions of the scores <a_i, x>.
    """

    targets: Array
    l2: float = 0.0

    def __init__(self, A: object) -> None:
        name = f"{type(self).__name__}(A)"
        array = float_array(name, A)
        if array.ndim < 2 or array.size == 0:
            raise ConfigError(
                f"{name} must have shape (examples, *model shape), all >= 1, got {array.shape}"
            )
        self.num_examples = len(array)
        self.shape = self._row_shape = array.shape[1:]
        self.dtype = array.dtype
        self.rows = array.reshape(len(array), -1)

    @property
    def A(self) -> Array:  # noqa: N802
        """The data, in the shape in which they were given."""
        return self.rows.reshape((self.num_examples, *self._row_shape))

    def _match(self, name: str, targets: Array) -> Array:
        if targets.shape != (self.num_examples,):
            raise ConfigError(
                f"{type(self).__name__}: A has {self.num_examples} rows, so {name} must have "
                f"shape ({self.num_examples},), got {targets.shape}"
            )
        return targets

    @abstractmethod
    def _scores(self, x: Array, rows: Array) -> Array:
        """Return <a_i, x> for each row in a new array."""

    @abstractmethod
    def _loss(self, scores: Array) -> float:
        """Return the mean loss over all rows."""

    @abstractmethod
    def _pull_back(self, scores: Array, rows: Array, targets: Array) -> Array:
        """Return the gradient of the mean loss in the shape of x; may overwrite `scores`."""

    def value(self, x: Array) -> float:
        """Return f(x)."""
        self._expect(x)
        return self._loss(self._scores(x, self.rows)) + self._ridge(x)

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x, in the shape of x."""
        return self._gradient(x, self.rows, self.targets)

    def batch_gradient(self, x: Array, rows: Array) -> Array:
        """Return the gradient at x of the mean over `rows` (integers), l2 included."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.size == 0 or rows.dtype.kind not in "iu":
            raise ConfigError("rows must be a one-dimensional, non-empty array of integers")
        return self._gradient(x, self.rows[rows], self.targets[rows])

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return f(x) and the gradient at x, which share a product with the data."""
        self._expect(x)
        scores = self._scores(x, self.rows)
        value = self._loss(scores) + self._ridge(x)
        gradient = self._pull_back(scores, self.rows, self.targets)
        if self.l2:
            gradient += self.l2 * x
        return value, gradient

    def _gradient(self, x: Array, rows: Array, targets: Array) -> Array:
        self._expect(x)
        gradient = self._pull_back(self._scores(x, rows), rows, targets)
        if self.l2:
            gradient += self.l2 * x
        return gradient

    def _ridge(self, x: Array) -> float:
        return 0.5 * self.l2 * float(np.vdot(x, x)) if self.l2 else 0.0

    def _expect(self, x: Array) -> None:
        if x.shape != self.shape:
            raise ConfigError(f"{type(self).__name__} takes x of shape {self.shape}, got {x.shape}")

    def _singular_squares(self) -> tuple[float, float]:
        """Return sigma_max^2 and sigma_min^2 of the rows (0 with fewer rows than entries of x)."""
        rows = self.rows.astype(np.float64, copy=False)
        m, d = rows.shape
        squares = np.linalg.eigvalsh(rows @ rows.T if m < d else rows.T @ rows)
        top = max(float(squares[-1]), 0.0)
        # Below the product's rounding errors the smallest one cannot be told from 0.
        known = m >= d and squares[0] > d * np.finfo(np.float64).eps * top
        return top, float(squares[0]) if known else 0.0


class Scaled(Objective):
    """The function factor * f.

    Parameters
    ----------
    objective : object
        f, any object with `value` and `gradient`.
    factor : float
        >= 0, for example a client's weight.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic, Scaled
    >>> half = Scaled(Quadratic(np.eye(2), np.zeros(2)), 0.5)
    >>> half.gradient(np.array([2.0, 4.0])), half.smoothness
    (array([1., 2.]), 0.5)
    """

    def __init__(self, objective: SmoothFunction, factor: float) -> None:
        self.objective: Any = objective
        self.factor = nonnegative("Scaled(factor)", factor)
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

    def batch_gradient(self, x: Array, rows: Array) -> Array:
        """Return factor times the gradient of f over `rows`."""
        if not hasattr(self.objective, "batch_gradient"):
            return super().batch_gradient(x, rows)
        return self._times(self.objective.batch_gradient(x, rows))

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
    def constraint_value(self) -> Callable[[Array], float]:
        """The functional constraint of f, times factor; missing if f has none."""
        constraint = self.objective.constraint_value
        return lambda x: self.factor * float(constraint(x))

    @property
    def constraint_gradient(self) -> Callable[[Array], Array]:
        """The gradient of `constraint_value`; missing if f has no constraint."""
        gradient = self.objective.constraint_gradient
        return lambda x: self._times(gradient(x))

    def _times(self, gradient: Any) -> Array:
        """Return the scaled gradient: an array, or a list of arrays (a network's layers)."""
        scaled: Any = (
            [self.factor * layer for layer in gradient]
            if isinstance(gradient, list)
            else self.factor * gradient
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
