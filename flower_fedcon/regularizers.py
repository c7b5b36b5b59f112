"""Regularizers psi: their values, proximal operators and subgradients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, Self

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
class _Penalty(Regularizer):
    """psi(x) = l1 ||x||_1 + l2/2 ||x||^2: what the elementwise regularizers share.

    The fields of a subclass are its weights, finite and >= 0.
    """

    def __post_init__(self) -> None:
        # Python floats: a NumPy one would turn a float32 model into float64.
        for f in fields(self):
            weight = nonnegative(f"{type(self).__name__}({f.name})", getattr(self, f.name))
            object.__setattr__(self, f.name, weight)

    @abstractmethod
    def _weights(self) -> tuple[float, float]:
        """Return l1 and l2."""

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        l1, l2 = self._weights()
        absolute = l1 * float(np.abs(x).sum()) if l1 else 0.0
        return absolute + (0.5 * l2 * float(np.vdot(x, x)) if l2 else 0.0)

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Soft-threshold at step * l1, then shrink by 1 + step * l2."""
        step = _check_step(step)
        l1, l2 = self._weights()
        if level := step * l1:
            v = v - np.minimum(np.maximum(v, -level), level)
        return v / (1.0 + step * l2) if step * l2 else v

    def subgradient(self, x: Array) -> Array:
        """Return l1 sign(x) + l2 x, with sign(0) = 0."""
        l1, l2 = self._weights()
        return l1 * np.sign(x) + l2 * x

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x."""
        l1, l2 = self._weights()
        smooth = grad + l2 * x
        at_zero = np.maximum(np.abs(smooth) - l1, 0)
        return _norm(np.where(x == 0, at_zero, smooth + l1 * np.sign(x)))

    def scaled(self, factor: float) -> Self:
        """Return factor * psi."""
        factor = nonnegative("factor", factor)
        return replace(self, **{f.name: factor * getattr(self, f.name) for f in fields(self)})


@dataclass(frozen=True)
class Zero(_Penalty):
    """psi = 0."""

    def _weights(self) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True)
class L1(_Penalty):
    """psi(x) = weight ||x||_1, with weight >= 0.

    Examples
    --------
    >>> L1(2.0).prox(np.array([3.0, -0.5]), 0.5)
    array([2., 0.])
    """

    weight: float

    def _weights(self) -> tuple[float, float]:
        return self.weight, 0.0


@dataclass(frozen=True)
class L2Squared(_Penalty):
    """psi(x) = weight/2 ||x||^2, with weight >= 0.

    Examples
    --------
    >>> L2Squared(1.0).prox(np.array([3.0, -1.0]), 1.0)
    array([ 1.5, -0.5])
    """

    weight: float

    def _weights(self) -> tuple[float, float]:
        return 0.0, self.weight


@dataclass(frozen=True)
class ElasticNet(_Penalty):
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


def _norm(x: Array) -> float:
    return float(np.linalg.norm(np.reshape(x, -1)))
