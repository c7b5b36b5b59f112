"""Regularizers psi: their values, proximal operators and subgradients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.checks import Array, nonnegative
from flower_fedcon.errors import ConfigError
from flower_fedcon.sets import ConstraintSet


class Regularizer(ABC):
    """A closed convex function psi of a model of any shape.

    `batch` is the number of leading axes of an argument that index clients: with `batch=1` the
    same call serves a stack of models.
    """

    @abstractmethod
    def value(self, x: Array) -> float:
        """Return psi(x)."""

    @abstractmethod
    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the minimiser w of psi(w) + ||w - v||^2 / (2 step), in the dtype of `v`.

        At step = 0 that is `v` itself (not a copy).

        Raises
        ------
        ConfigError
            If `step` is negative or not finite.
        """

    @abstractmethod
    def scaled(self, factor: float) -> Regularizer:
        """Return factor * psi, for factor >= 0."""

    def subgradient(self, x: Array) -> Array:
        """Return an element of the subdifferential of psi at x.

        Raises
        ------
        ConfigError
            If psi has no usable one.
        """
        raise ConfigError(
            f"{self!r} has no subgradient to offer: use an algorithm that works with its proximal "
            "operator"
        )

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return how far `x` is from a stationary point of f + psi, if `grad` is f's gradient.

        Where psi's subdifferential has a closed form this is the least ||grad + q|| over its
        elements q. Elsewhere (`Indicator`, foreign operators) it is ||x - prox(x - grad)|| with
        step 1 (for a set: with its projection). Both are 0 exactly at stationary points.
        """
        return _norm(x - self.prox(x - grad, 1.0))

    def __call__(self, x: Array) -> float:
        """Return psi(x)."""
        return self.value(x)


@dataclass(frozen=True)
class Zero(Regularizer):
    """psi = 0."""

    def value(self, x: Array) -> float:
        """Return 0."""
        return 0.0

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return `v`."""
        _check_step(step)
        return v

    def subgradient(self, x: Array) -> Array:
        """Return zeros."""
        return np.zeros_like(x)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return ||grad||."""
        return _norm(grad)

    def scaled(self, factor: float) -> Zero:
        """Return the same function."""
        nonnegative("factor", factor)
        return self


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """psi(x) = l1 ||x||_1 + l2/2 ||x||^2, with l1, l2 >= 0.

    Examples
    --------
    >>> ElasticNet(l1=1.0, l2=1.0).prox(np.array([3.0, -0.5]), 1.0)
    array([1., 0.])
    """

    l1: float
    l2: float

    def __post_init__(self) -> None:
        # Python floats: a NumPy one would turn a float32 model into float64.
        for name in ("l1", "l2"):
            object.__setattr__(self, name, nonnegative(f"ElasticNet({name})", getattr(self, name)))

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        return self.l1 * float(np.abs(x).sum()) + 0.5 * self.l2 * float(np.vdot(x, x))

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Soft-threshold at step * l1, then shrink by 1 + step * l2."""
        step = _check_step(step)
        if step == 0:
            return v
        return _soft_threshold(v, step * self.l1) / (1.0 + step * self.l2)

    def subgradient(self, x: Array) -> Array:
        """Return l1 sign(x) + l2 x, with sign(0) = 0."""
        return self.l1 * np.sign(x) + self.l2 * x

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x."""
        smooth = grad + self.l2 * x
        at_zero = np.maximum(np.abs(smooth) - self.l1, 0)
        return _norm(np.where(x == 0, at_zero, smooth + self.l1 * np.sign(x)))

    def scaled(self, factor: float) -> ElasticNet:
        """Return factor * psi."""
        factor = nonnegative("factor", factor)
        return ElasticNet(factor * self.l1, factor * self.l2)


@dataclass(frozen=True)
class L1(Regularizer):
    """psi(x) = weight ||x||_1, with weight >= 0.

    Examples
    --------
    >>> L1(2.0).prox(np.array([3.0, -0.5]), 0.5)
    array([2., 0.])
    """

    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", nonnegative("L1(weight)", self.weight))

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        return self.weight * float(np.abs(x).sum())

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Soft-threshold at step * weight."""
        step = _check_step(step)
        return v if step == 0 else _soft_threshold(v, step * self.weight)

    def subgradient(self, x: Array) -> Array:
        """Return weight sign(x), with sign(0) = 0."""
        subgradient: Array = self.weight * np.sign(x)
        return subgradient

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x."""
        return ElasticNet(self.weight, 0.0).subdifferential_distance(x, grad)

    def scaled(self, factor: float) -> L1:
        """Return factor * psi."""
        return L1(nonnegative("factor", factor) * self.weight)


@dataclass(frozen=True)
class L2Squared(Regularizer):
    """psi(x) = weight/2 ||x||^2, with weight >= 0.

    Examples
    --------
    >>> L2Squared(1.0).prox(np.array([3.0, -1.0]), 1.0)
    array([ 1.5, -0.5])
    """

    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", nonnegative("L2Squared(weight)", self.weight))

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        return 0.5 * self.weight * float(np.vdot(x, x))

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Shrink by 1 + step * weight."""
        step = _check_step(step)
        return v if step == 0 else v / (1.0 + step * self.weight)

    def subgradient(self, x: Array) -> Array:
        """Return weight x."""
        return self.weight * x

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return ||grad + weight x||."""
        return _norm(grad + self.weight * x)

    def scaled(self, factor: float) -> L2Squared:
        """Return factor * psi."""
        return L2Squared(nonnegative("factor", factor) * self.weight)


@dataclass(frozen=True)
class Indicator(Regularizer):
    """psi = 0 on a constraint set, infinity outside.

    Examples
    --------
    >>> from flower_fedcon.sets import L2Ball
    >>> psi = Indicator(L2Ball(1.0))
    >>> psi.value(np.array([3.0, 4.0])), psi.prox(np.array([3.0, 4.0]), 0.1)
    (inf, array([0.6, 0.8]))
    """

    constraint: ConstraintSet

    def __post_init__(self) -> None:
        if not isinstance(self.constraint, ConstraintSet):
            raise ConfigError(f"Indicator needs a constraint set, got {self.constraint!r}")

    def value(self, x: Array) -> float:
        """Return 0 inside the set (to 1e-9 of its scale, 1e-5 in float32), infinity outside."""
        tolerance = 1e-5 if x.dtype == np.float32 else 1e-9
        return 0.0 if self.constraint.contains(x, tolerance) else math.inf

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the projection of `v`, whatever the step (its limit at step 0)."""
        _check_step(step)
        return self.constraint.project(v, batch=batch)

    def subgradient(self, x: Array) -> Array:
        """Raise: an indicator's subgradients are no directions to step along."""
        raise ConfigError(
            f"Indicator({self.constraint!r}) has no subgradient to step along: use an algorithm "
            "that projects or calls the linear minimization oracle"
        )

    def scaled(self, factor: float) -> Indicator:
        """Return the same function."""
        nonnegative("factor", factor)
        return self


@dataclass(frozen=True, eq=False)
class Foreign(Regularizer):
    """factor * operator, for an operator with `prox(v, step)` and `__call__(v)` on vectors.

    These are pyproximal's conventions: its indicators answer True or False.
    """

    operator: Any
    factor: float = 1.0

    def value(self, x: Array) -> float:
        """Return factor * operator(x)."""
        value = self.operator(x.reshape(-1))
        if isinstance(value, bool | np.bool_):
            return 0.0 if value else math.inf
        return self.factor * float(value)

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the operator's prox at step * factor, one call for each model."""
        step = _check_step(step) * self.factor
        if step == 0:
            return v
        models = v.reshape((math.prod(v.shape[:batch]), -1))
        out = [np.asarray(self.operator.prox(model.copy(), step)) for model in models]
        return np.stack(out).astype(v.dtype, copy=False).reshape(v.shape)

    def scaled(self, factor: float) -> Foreign:
        """Return factor * psi."""
        return Foreign(self.operator, nonnegative("factor", factor) * self.factor)


def as_regularizer(obj: object) -> Regularizer:
    """Return `obj` as a regularizer.

    Parameters
    ----------
    obj : None, Regularizer, ConstraintSet or object
        None is zero, a set its indicator; any object with `prox(v, step)` and `__call__(v)` on
        vectors (such as a pyproximal operator) is wrapped.

    Raises
    ------
    ConfigError
        If `obj` is none of these.

    Examples
    --------
    >>> as_regularizer(None)
    Zero()
    """
    if obj is None:
        return Zero()
    if isinstance(obj, Regularizer):
        return obj
    if isinstance(obj, ConstraintSet):
        return Indicator(obj)
    if isinstance(obj, type):
        raise ConfigError(f"pass an instance, such as {obj.__name__}(...), not the class itself")
    if callable(obj) and callable(getattr(obj, "prox", None)):
        return Foreign(obj)
    raise ConfigError(
        "a regularizer is None, a Regularizer, a constraint set, or an object with prox(v, step) "
        f"and __call__(v); got {obj!r}"
    )


def _check_step(step: float) -> float:
    if not 0 <= step < math.inf:
        raise ConfigError(f"step must be finite and >= 0, got {step!r}")
    return float(step)


def _soft_threshold(v: Array, level: float) -> Array:
    return v - np.minimum(np.maximum(v, -level), level)


def _norm(x: Array) -> float:
    return float(np.linalg.norm(np.reshape(x, -1)))
