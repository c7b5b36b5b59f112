"""Folded concave penalties: MCP and SCAD, which do not shrink large entries.

They are weakly convex, not convex: their proximal operators exist for short steps only.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers.base import (
    LONGEST,
    Regularizer,
    check_prox,
    norm,
    soft,
)
from flower_fedcon.sets.shapes import ByValue
from flower_fedcon.validation import Array, nonnegative, positive


class _FoldedConcave(ByValue, Regularizer):
    """psi(x) = sum_i p(|x_i|), p concave, with slope p'(0) > 0 at 0 and 0 far from it."""

    @property
    @abstractmethod
    def _slope_at_zero(self) -> float:
        """p'(0)."""

    @abstractmethod
    def _slope(self, size: Array) -> Array:
        """Return p' at sizes |x_i|; at 0 it is p'(0)."""

    @abstractmethod
    def _shrunk(self, v: Array, step: float) -> Array:
        """Return the prox at a step that is short enough."""

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Soft-threshold small entries, stretch medium ones, and leave large ones unchanged.

        Raises
        ------
        ConfigError
            If the step is not below 1/rho, rho the modulus of weak convexity: for longer steps
            psi(w) + ||w - v||^2 / (2 step) has several minimisers for some v.
        """
        step = check_prox(self, v, step)
        if step * self.weak_convexity >= LONGEST:
            raise ConfigError(
                f"the prox of {self!r} exists only for steps below {1 / self.weak_convexity:g}, "
                f"the inverse of its modulus of weak convexity, got {step:g}: take smaller steps, "
                f"or a regularizer with a smaller modulus"
            )
        return self._shrunk(v, step) if step and self._slope_at_zero else v

    def subgradient(self, x: Array) -> Array:
        """Return p'(|x_i|) sign(x_i), with sign(0) = 0."""
        slopes: Array = self._slope(np.abs(x)) * np.sign(x)
        return slopes.astype(x.dtype, copy=False)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the (Frechet) subdifferential at x."""
        at_zero = np.maximum(np.abs(grad) - self._slope_at_zero, 0)
        return norm(np.where(x == 0, at_zero, grad + self.subgradient(x)))


@dataclass(frozen=True, eq=False)
class MCP(_FoldedConcave):
    """psi(x) = sum_i weight |x_i| - x_i^2 / (2 gamma), constant where |x_i| >= gamma weight.

    The minimax concave penalty (Zhang 2010): between the l1 norm (gamma large) and the number of
    entries that are not 0. Its modulus of weak convexity is 1/gamma.

    Parameters
    ----------
    weight : float
        >= 0, the slope at 0.
    gamma : float (default: 3.0)
        > 0; proximal steps must be below it.

    Examples
    --------
    >>> MCP(1.0, gamma=3.0).prox(np.array([0.5, 2.0, 4.0]), 1.0)
    array([0. , 1.5, 4. ])
    """

    weight: float
    gamma: float = 3.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", nonnegative("MCP(weight)", self.weight))
        object.__setattr__(self, "gamma", positive("MCP(gamma)", self.gamma))

    @property
    def weak_convexity(self) -> float:
        """1/gamma, or 0 with weight 0."""
        return 1.0 / self.gamma if self.weight else 0.0

    @property
    def _slope_at_zero(self) -> float:
        return self.weight

    def _slope(self, size: Array) -> Array:
        return np.maximum(self.weight - size / self.gamma, 0.0)

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        size = np.minimum(np.abs(x), self.gamma * self.weight)
        return float((size * (self.weight - size / (2.0 * self.gamma))).sum(dtype=np.float64))

    def _shrunk(self, v: Array, step: float) -> Array:
        near = soft(v, step * self.weight) / (1.0 - step / self.gamma)
        return np.where(np.abs(v) <= self.gamma * self.weight, near, v)

    def scaled(self, factor: float) -> MCP:
        """Return factor * psi, which is an MCP, too."""
        factor = nonnegative("factor", factor)
        return MCP(factor * self.weight, self.gamma / factor if factor else self.gamma)


@dataclass(frozen=True, eq=False)
class SCAD(_FoldedConcave):
    """psi(x) = factor sum_i p(|x_i|): weight |x_i| up to weight, constant from a weight on.

    The smoothly clipped absolute deviation (Fan and Li 2001): p' decreases linearly from weight at
    t = weight to 0 at t = a weight. Its modulus of weak convexity is factor/(a - 1).

    Parameters
    ----------
    weight : float
        >= 0.
    a : float (default: 3.7)
        > 2; with factor 1 proximal steps must be below a - 1.
    factor : float (default: 1.0)
        >= 0.

    Examples
    --------
    >>> SCAD(1.0, a=3.7).prox(np.array([0.5, 1.5, 4.0]), 1.0)
    array([0. , 0.5, 4. ])
    """

    weight: float
    a: float = 3.7
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name, check in (("weight", nonnegative), ("a", positive), ("factor", nonnegative)):
            object.__setattr__(self, name, check(f"SCAD({name})", getattr(self, name)))
        if self.a <= 2:
            raise ConfigError(f"SCAD(a) must be > 2, got {self.a!r}: 3.7 is the usual value")

    @property
    def weak_convexity(self) -> float:
        """factor/(a - 1), or 0 with weight 0."""
        return self.factor / (self.a - 1.0) if self.weight else 0.0

    @property
    def _slope_at_zero(self) -> float:
        return self.factor * self.weight

    def _slope(self, size: Array) -> Array:
        falling = np.maximum(self.a * self.weight - size, 0.0) / (self.a - 1.0)
        return self.factor * np.minimum(self.weight, falling)

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        size = np.minimum(np.abs(x), self.a * self.weight)
        beyond = np.maximum(size - self.weight, 0.0)
        per_entry = self.weight * size - beyond * beyond / (2.0 * (self.a - 1.0))
        return self.factor * float(per_entry.sum(dtype=np.float64))

    def _shrunk(self, v: Array, step: float) -> Array:
        weight, a, size, step = self.weight, self.a, np.abs(v), step * self.factor
        level = step * weight
        middle = ((a - 1.0) * v - np.sign(v) * (a * level)) / (a - 1.0 - step)
        shrunk = np.where(size <= weight + level, soft(v, level), middle)
        return np.where(size <= a * weight, shrunk, v)

    def scaled(self, factor: float) -> SCAD:
        """Return factor * psi."""
        return replace(self, factor=nonnegative("factor", factor) * self.factor)
