"""The interface of a regularizer, and functions that several of them use."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from flower_fedcon.arrays import known
from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.shapes import expect_finite
from flower_fedcon.validation import Array, float_array, nonnegative, squared_norm


class Regularizer(ABC):
    """A closed function psi of a model of any shape, convex unless `weak_convexity` is above 0.

    `batch` is the number of leading axes of an argument that index clients: with `batch=1` the
    same call serves a stack of models.
    """

    @property
    def weak_convexity(self) -> float:
        """The least rho >= 0 for which psi + rho/2 ||x||^2 is convex: 0 for a convex psi.

        With rho > 0 the prox exists only for steps below 1/rho.
        """
        return 0.0

    @abstractmethod
    def value(self, x: Array) -> float:
        """Return psi(x)."""

    @abstractmethod
    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the minimiser w of psi(w) + ||w - v||^2 / (2 step), in the dtype of `v`.

        At step = 0 it is `v` itself, not a copy.

        Raises
        ------
        ConfigError
            If `step` is negative or not finite, or psi is weakly convex and the step too long.
        """

    @abstractmethod
    def scaled(self, factor: float) -> Regularizer:
        """Return factor * psi, for factor >= 0."""

    def subgradient(self, x: Array) -> Array:
        """Return an element of the subdifferential of psi at x.

        Raises
        ------
        ConfigError
            If psi has none that can be used.
        """
        raise ConfigError(
            f"{self!r} has no subgradient: use an algorithm that uses its proximal operator"
        )

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return how far `x` is from a stationary point of f + psi, if `grad` is f's gradient.

        Where psi's subdifferential has a closed form this is the least ||grad + q|| over its
        elements q. Elsewhere (`Indicator`, foreign operators) it is `prox_residual`. Both are 0
        exactly at stationary points.
        """
        return self.prox_residual(x, grad)

    def prox_residual(self, x: Array, grad: Array) -> float:
        """Return ||x - prox(x - step grad, step)|| / step: 0 exactly at stationary points.

        The step is 1 (for a set the prox is its projection), or 1/(2 rho) for a weakly convex psi
        if that is shorter.
        """
        step = min(1.0, 0.5 / self.weak_convexity) if self.weak_convexity else 1.0
        if step == 1.0:
            return norm(x - self.prox(x - grad, 1.0))
        return norm(x - self.prox(x - step * grad, step)) / step

    def entrywise(self, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """Return l1 and l2 of `shape` if psi(x) = sum_i l1_i |x_i| + l2_i x_i^2 / 2; else None."""
        return None

    def check_shape(self, shape: tuple[int, ...]) -> None:  # noqa: B027  (of any shape)
        """Raise if models of `shape` do not fit this regularizer."""

    def __call__(self, x: Array) -> float:
        """Return psi(x)."""
        return self.value(x)


def check_step(step: float) -> float:
    """Return `step` as a float if it is finite and >= 0."""
    if not 0 <= step < math.inf:
        raise ConfigError(f"step must be finite and >= 0, got {step!r}")
    return step if type(step) is float or not known(step) else float(step)


LONGEST = 1.0 - 1e-12
"""The bound of step times modulus of weak convexity: at 1 a prox divides by 0, or by rounding."""


def check_prox(psi: object, v: Array, step: float) -> float:
    """Return the step size of a prox as a float, if it is valid and `v` is finite."""
    # One pass: a finite square norm means finite entries; large ones overflow it and are looked at.
    if not squared_norm(v) < math.inf:
        expect_finite(psi, v)
    return check_step(step)


def norm(x: Array) -> float:
    """Return the l2 norm of all entries."""
    return float(np.linalg.norm(np.reshape(x, -1)))


def soft(v: Array, level: float | Array) -> Array:
    """Return sign(v) max(|v| - level, 0), in the dtype of `v` for a Python float."""
    shrunk: Array = v - np.minimum(np.maximum(v, -level), level)
    return shrunk if v.ndim else np.asarray(shrunk)


def weight_or_weights(name: str, value: object) -> float | Array:
    """Return a weight as a float, or an array of weights, all finite and >= 0."""
    if not isinstance(value, list | tuple | np.ndarray) or np.ndim(value) == 0:
        return nonnegative(name, value.item() if isinstance(value, np.ndarray) else value)
    array = float_array(name, value)
    if array.size == 0 or (array < 0).any():
        raise ConfigError(f"{name} must hold weights >= 0, got {value!r}")
    return array
