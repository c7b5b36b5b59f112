"""An objective of a list of arrays, as the algorithms see it: a function of one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.layout import Layout, Model
from flower_fedcon.validation import Array


class PackedObjective:
    """An objective of a list of arrays, as a function of the packed vector.

    Parameters
    ----------
    objective : object
        The user's objective: `value` takes a list of arrays, and `gradient` takes and returns one.
    layout : Layout
        The model's layout.

    Examples
    --------
    >>> class Squares:
    ...     def value(self, x):
    ...         return sum(float((layer**2).sum()) for layer in x) / 2
    ...     def gradient(self, x):
    ...         return x
    >>> layers = [np.array([3.0]), np.array([[1.0, 2.0]])]
    >>> f = PackedObjective(Squares(), Layout.of(layers))
    >>> f.value(np.array([3.0, 1.0, 2.0])), f.gradient(np.array([3.0, 1.0, 2.0]))
    (7.0, array([3., 1., 2.]))
    """

    def __init__(self, objective: Any, layout: Layout) -> None:
        self._objective = objective
        self._layout = layout
        self.num_examples = int(getattr(objective, "num_examples", 1))
        self.smoothness = getattr(objective, "smoothness", None)
        self.strong_convexity = getattr(objective, "strong_convexity", None)
        self.shape = layout.shape

    def value(self, x: Array) -> float:
        """Return f(x)."""
        return float(self._objective.value(self._layers(x)))

    def gradient(self, x: Array) -> Array:
        """Return the gradient, packed."""
        return self._layout.pack(self._objective.gradient(self._layers(x)), "a gradient")

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return f(x) and the packed gradient."""
        both = getattr(self._objective, "value_and_gradient", None)
        if both is None:
            return self.value(x), self.gradient(x)
        value, gradient = both(self._layers(x))
        return float(value), self._layout.pack(gradient, "a gradient")

    @property
    def batch_gradient(self) -> Callable[[Array, Array], Array]:
        """The user's gradient over rows, packed; missing if the objective has none."""
        gradient = self._objective.batch_gradient
        return lambda x, rows: self._layout.pack(gradient(self._layers(x), rows), "a gradient")

    @property
    def hessian(self) -> Callable[..., Array]:
        """The user's second derivatives, in the packed vector; missing if f has none."""
        hessian = self._objective.hessian
        return lambda x, columns=None: hessian(self._layers(x), columns)

    @property
    def constraint_value(self) -> Callable[[Array], float]:
        """The user's functional constraint g; missing if the objective has none."""
        constraint = self._objective.constraint_value
        return lambda x: float(constraint(self._layers(x)))

    @property
    def constraint_gradient(self) -> Callable[[Array], Array]:
        """The gradient of g, packed; missing if the objective has none."""
        gradient = self._objective.constraint_gradient
        return lambda x: self._layout.pack(gradient(self._layers(x)), "a gradient")

    @property
    def constraint_counts(self) -> Array:
        """The counts of the user's `constraint_sums`; missing if the objective has none."""
        counts: Array = self._objective.constraint_counts
        return counts

    @property
    def constraint_sums(self) -> Callable[[Array], Array]:
        """The user's part of the groups' constraints; missing if the objective has none."""
        sums = self._objective.constraint_sums
        return lambda x: np.asarray(sums(self._layers(x)))

    @property
    def constraint_sums_gradient(self) -> Callable[[Array, Array], Array]:
        """The gradient of a weighted sum of `constraint_sums`, packed; missing if there is none."""
        gradient = self._objective.constraint_sums_gradient
        return lambda x, weights: self._layout.pack(
            gradient(self._layers(x), weights), "a gradient"
        )

    def stochastic_gradient(
        self, x: Array, rng: np.random.Generator, batch_size: int | None = None
    ) -> Array:
        """Return the user's minibatch gradient, packed."""
        gradient = self._objective.stochastic_gradient(self._layers(x), rng, batch_size)
        return self._layout.pack(gradient, "a gradient")

    def _layers(self, x: Array) -> Model:
        """Return the layers of a copy of x, which the objective may change."""
        return self._layout.unpack(x.copy())
