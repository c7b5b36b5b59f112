"""Regularizers that act on each entry by itself."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers.base import (
    Regularizer,
    check_prox,
    norm,
    soft,
    weight_or_weights,
)
from flower_fedcon.sets.shapes import ByValue, expect_floats
from flower_fedcon.validation import Array, nonnegative


@dataclass(frozen=True, eq=False)
class Penalty(ByValue, Regularizer):
    """psi(x) = l1 ||x||_1 + l2/2 ||x||^2: what the elementwise regularizers share.

    The fields of a subclass are its weights, finite and >= 0; l1 may be an array.
    """

    def __post_init__(self) -> None:
        # Python floats: a NumPy float would turn a float32 model into float64.
        for f in fields(self):
            weight = nonnegative(f"{type(self).__name__}({f.name})", getattr(self, f.name))
            object.__setattr__(self, f.name, weight)

    @abstractmethod
    def _weights(self) -> tuple[float | Array, float]:
        """Return l1 and l2."""

    def weights(self) -> tuple[float, float] | None:
        """Return l1 and l2; None if l1 differs from entry to entry."""
        l1, l2 = self._weights()
        return None if isinstance(l1, np.ndarray) else (l1, l2)

    def entrywise(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the weights of each entry."""
        self.check_shape(shape)
        l1, l2 = self._weights()
        return np.broadcast_to(l1, shape).astype(float), np.full(shape, l2)

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        l1, l2 = self._weights()
        absolute = 0.0
        if isinstance(l1, np.ndarray):
            self.check_shape(x.shape)
            absolute = float((l1 * np.abs(x)).sum())
        elif l1:
            absolute = l1 * float(np.abs(x).sum())
        return absolute + (0.5 * l2 * float(np.vdot(x, x)) if l2 else 0.0)

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Soft-threshold at step * l1, then shrink by 1 + step * l2."""
        l1, l2 = self._weights()
        step = check_prox(self, v, step)
        if isinstance(l1, np.ndarray):
            expect_floats(type(self).__name__, v)
            self.check_shape(v.shape[batch:])
            if step:
                v = soft(v, (step * l1).astype(v.dtype, copy=False))
        elif l1 and (level := step * l1):
            v = soft(v, level)
        return v / (1.0 + step * l2) if l2 and step * l2 else v

    def subgradient(self, x: Array) -> Array:
        """Return l1 sign(x) + l2 x, with sign(0) = 0."""
        l1, l2 = self._weights()
        return (l1 * np.sign(x) + l2 * x).astype(x.dtype, copy=False)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x."""
        l1, l2 = self._weights()
        smooth = grad + l2 * x
        at_zero = np.maximum(np.abs(smooth) - l1, 0)
        return norm(np.where(x == 0, at_zero, smooth + l1 * np.sign(x)))

    def scaled(self, factor: float) -> Self:
        """Return factor * psi."""
        factor = nonnegative("factor", factor)
        return replace(self, **{f.name: factor * getattr(self, f.name) for f in fields(self)})


@dataclass(frozen=True, eq=False)
class Zero(Penalty):
    """psi = 0."""

    def _weights(self) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True, eq=False)
class L1(Penalty):
    """psi(x) = weight ||x||_1, or sum_i weight_i |x_i|, with weights >= 0.

    Parameters
    ----------
    weight : float or array of the model's shape
        >= 0; with an array each entry has its own, and 0 leaves it free.

    Examples
    --------
    >>> L1(2.0).prox(np.array([3.0, -0.5]), 0.5)
    array([2., 0.])
    >>> L1(np.array([2.0, 0.0])).prox(np.array([3.0, -0.5]), 0.5)
    array([ 2. , -0.5])
    """

    weight: float | Array

    def __post_init__(self) -> None:
        weight = weight_or_weights("L1(weight)", self.weight)
        object.__setattr__(self, "weight", weight)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless an array of weights has the model's shape."""
        if isinstance(self.weight, np.ndarray) and self.weight.shape != shape:
            raise ConfigError(f"L1 has weights of shape {self.weight.shape}, the model {shape}")

    def _weights(self) -> tuple[float | Array, float]:
        return self.weight, 0.0


@dataclass(frozen=True, eq=False)
class L2Squared(Penalty):
    """psi(x) = weight/2 ||x||^2, with weight >= 0.

    Examples
    --------
    >>> L2Squared(1.0).prox(np.array([3.0, -1.0]), 1.0)
    array([ 1.5, -0.5])
    """

    weight: float

    def _weights(self) -> tuple[float, float]:
        return 0.0, self.weight


@dataclass(frozen=True, eq=False)
class ElasticNet(Penalty):
    """psi(x) = l1 ||x||_1 + l2/2 ||x||^2, with l1, l2 >= 0.

    Examples
    --------
    >>> ElasticNet(l1=1.0, l2=1.0).prox(np.array([3.0, -0.5]), 1.0)
    array([1., 0.])
    """

    l1: float
    l2: float

    def _weights(self) -> tuple[float, float]:
        return self.l1, self.l2


@dataclass(frozen=True)
class Nonnegative(Regularizer):
    """psi = 0 where every entry is >= 0, infinity elsewhere.

    Examples
    --------
    >>> psi = Nonnegative()
    >>> psi.prox(np.array([3.0, -0.5]), 0.1), psi.value(np.array([3.0, -0.5]))
    (array([3., 0.]), inf)
    """

    def value(self, x: Array) -> float:
        """Return 0 if every x_i >= -1e-9 max |x| (-1e-5 max |x| in float32), else infinity."""
        tolerance = 1e-5 if x.dtype == np.float32 else 1e-9
        return 0.0 if float(x.min()) >= -tolerance * float(np.abs(x).max()) else math.inf

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Clip at zero, for any step (also at its limit, 0)."""
        check_prox(self, v, step)
        return np.maximum(v, 0)

    def subgradient(self, x: Array) -> Array:
        """Raise: an indicator's subgradients give no direction to step along."""
        raise ConfigError(
            "Nonnegative() has no subgradient to step along: use an algorithm that uses its "
            "proximal operator"
        )

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential; infinity where it is empty."""
        if self.value(x) != 0:
            return math.inf
        return norm(np.where(x > 0, grad, np.minimum(grad, 0)))

    def scaled(self, factor: float) -> Nonnegative:
        """Return the same function."""
        nonnegative("factor", factor)
        return self
