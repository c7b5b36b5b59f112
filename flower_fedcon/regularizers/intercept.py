"""A regularizer of the coefficients that leaves the intercept free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers.base import Regularizer
from flower_fedcon.regularizers.wrap import as_regularizer
from flower_fedcon.sets.shapes import ByValue
from flower_fedcon.validation import Array


@dataclass(frozen=True, eq=False)
class WithIntercept(ByValue, Regularizer):
    """psi(x) = inner(coefficients), where the last entry of x (the last row of a matrix) is free.

    Use it with an objective that has `intercept=True`: its model has that last entry.

    Parameters
    ----------
    inner : regularizer, or anything that `as_regularizer` takes, such as a set

    Examples
    --------
    >>> from flower_fedcon.regularizers import L1
    >>> WithIntercept(L1(1.0)).prox(np.array([3.0, -0.5, -0.5]), 1.0)
    array([ 2. ,  0. , -0.5])
    """

    inner: Regularizer

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner", as_regularizer(self.inner))

    @property
    def weak_convexity(self) -> float:
        """The inner regularizer's modulus."""
        return self.inner.weak_convexity

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless the coefficients fit the inner regularizer."""
        if not shape or shape[0] < 2:
            raise ConfigError(
                f"WithIntercept needs a model of coefficients and an intercept, got shape {shape}"
            )
        self.inner.check_shape((shape[0] - 1, *shape[1:]))

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        return self.inner.value(x[:-1])

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the proximal point of the coefficients, with the intercept unchanged."""
        self.check_shape(v.shape[batch:])
        ahead = (slice(None),) * batch
        out = v.copy()
        out[(*ahead, slice(-1))] = self.inner.prox(v[(*ahead, slice(-1))], step, batch=batch)
        return out if step else v

    def subgradient(self, x: Array) -> Array:
        """Return a subgradient, 0 for the intercept."""
        return np.concatenate([self.inner.subgradient(x[:-1]), np.zeros_like(x[-1:])])

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the root of the squared distances of coefficients and intercept."""
        inner = self.inner.subdifferential_distance(x[:-1], grad[:-1])
        return float(np.hypot(inner, np.linalg.norm(grad[-1])))

    def scaled(self, factor: float) -> WithIntercept:
        """Return factor * psi."""
        return WithIntercept(self.inner.scaled(factor))

    def entrywise(self, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """Return the weights of the coefficients, and 0 for the intercept."""
        weights = self.inner.entrywise((shape[0] - 1, *shape[1:]))
        if weights is None:
            return None
        free: Any = np.zeros((1, *shape[1:]))
        return np.concatenate([weights[0], free]), np.concatenate([weights[1], free])
