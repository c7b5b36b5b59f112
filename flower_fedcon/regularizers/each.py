"""One regularizer for each of several models side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers.base import Regularizer
from flower_fedcon.regularizers.wrap import as_regularizer
from flower_fedcon.sets.shapes import ByValue
from flower_fedcon.validation import Array


@dataclass(frozen=True, eq=False)
class Each(ByValue, Regularizer):
    """psi(X) = sum_k inner(X_k), over the models X_k along the first axis of X.

    Parameters
    ----------
    inner : regularizer, or anything that `as_regularizer` takes

    Examples
    --------
    >>> from flower_fedcon.regularizers import L2Norm
    >>> Each(L2Norm(5.0)).prox(np.array([[6.0, 8.0], [3.0, 4.0]]), 1.0) + 0.0
    array([[3., 4.],
           [0., 0.]])
    """

    inner: Regularizer

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner", as_regularizer(self.inner))

    @property
    def weak_convexity(self) -> float:
        """The inner regularizer's modulus."""
        return self.inner.weak_convexity

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless each model fits the inner regularizer."""
        if len(shape) < 2:
            raise ConfigError(f"Each needs an axis of models before theirs, got the shape {shape}")
        self.inner.check_shape(shape[1:])

    def value(self, x: Array) -> float:
        """Return psi(X)."""
        return math.fsum(self.inner.value(model) for model in x)

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the models' proximal points."""
        return self.inner.prox(v, step, batch=batch + 1)

    def subgradient(self, x: Array) -> Array:
        """Return the models' subgradients."""
        return np.stack([self.inner.subgradient(model) for model in x])

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the root of the sum of the models' squared distances."""
        pairs = zip(x, grad, strict=True)
        return math.hypot(*(self.inner.subdifferential_distance(y, g) for y, g in pairs))

    def scaled(self, factor: float) -> Each:
        """Return factor * psi."""
        return Each(self.inner.scaled(factor))

    def entrywise(self, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """Return the inner weights, for each model."""
        weights = self.inner.entrywise(shape[1:])
        if weights is None:
            return None
        return np.broadcast_to(weights[0], shape), np.broadcast_to(weights[1], shape)
