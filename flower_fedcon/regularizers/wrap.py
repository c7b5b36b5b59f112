"""Regularizers made from other objects: sets, foreign operators, layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers.base import Regularizer, check_prox, check_step
from flower_fedcon.regularizers.elementwise import Zero
from flower_fedcon.sets import ConstraintSet
from flower_fedcon.sets.product import OfLayers, check_parts, join
from flower_fedcon.validation import Array, nonnegative


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
        """Return the projection of `v`, for any step (also at its limit, 0)."""
        check_step(step)
        return self.constraint.project(v, batch=batch)

    def subgradient(self, x: Array) -> Array:
        """Raise: an indicator's subgradients give no direction to step along."""
        raise ConfigError(
            f"Indicator({self.constraint!r}) has no subgradient to step along: use an algorithm "
            "that projects or calls the linear minimisation oracle"
        )

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise if models of `shape` do not fit the set."""
        self.constraint.check_shape(shape)

    def scaled(self, factor: float) -> Indicator:
        """Return the same function."""
        nonnegative("factor", factor)
        return self


@dataclass(frozen=True, eq=False)
class Foreign(Regularizer):
    """factor * operator, for an operator with `prox(v, step)` and `__call__(v)` on vectors.

    These are pyproximal's conventions, in which indicators return True or False. A weakly convex
    operator has an attribute `weak_convexity`, as in `Regularizer`.
    """

    operator: Any
    factor: float = 1.0

    def __eq__(self, other: object) -> bool:
        """Return whether the other has the same operator and factor."""
        if not isinstance(other, Foreign):
            return NotImplemented
        return other.operator is self.operator and other.factor == self.factor

    def __hash__(self) -> int:
        return hash((id(self.operator), self.factor))

    @property
    def weak_convexity(self) -> float:
        """The operator's modulus (0 if it has none) times the factor."""
        return self.factor * float(getattr(self.operator, "weak_convexity", 0.0))

    def value(self, x: Array) -> float:
        """Return factor * operator(x)."""
        value = self.operator(x.reshape(-1))
        if isinstance(value, bool | np.bool_):
            return 0.0 if value else math.inf
        return self.factor * float(value)

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the operator's prox at step * factor, one call for each model."""
        step = check_prox(self, v, step) * self.factor
        if step == 0:
            return v
        models = v.reshape((math.prod(v.shape[:batch]), -1))
        out = [np.asarray(self.operator.prox(model.copy(), step)) for model in models]
        return np.stack(out).astype(v.dtype, copy=False).reshape(v.shape)

    def scaled(self, factor: float) -> Foreign:
        """Return factor * psi."""
        return Foreign(self.operator, nonnegative("factor", factor) * self.factor)


@dataclass(frozen=True, eq=False)
class Separable(OfLayers[Regularizer], Regularizer):
    """psi(x) = the sum of one regularizer for each layer of a model that is a list of arrays.

    The layers are packed one after another into a vector, as for every algorithm.

    Parameters
    ----------
    parts : sequence of (regularizer, shape)
        A regularizer may be None, a set or a foreign operator: see `as_regularizer`.

    Examples
    --------
    >>> from flower_fedcon.regularizers import L1
    >>> psi = Separable([(L1(1.0), (2,)), (None, (1, 2))])
    >>> psi.prox(np.array([3.0, -0.5, 3.0, -0.5]), 1.0)
    array([ 2. ,  0. ,  3. , -0.5])
    """

    parts: tuple[tuple[Regularizer, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        parts = check_parts("Separable(parts)", self.parts, object)
        parts = tuple((as_regularizer(part), shape) for part, shape in parts)
        object.__setattr__(self, "parts", parts)
        for part, shape in parts:
            part.check_shape(shape)

    @property
    def weak_convexity(self) -> float:
        """The largest modulus of a layer."""
        return max((part.weak_convexity for part, _ in self.parts), default=0.0)

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        return math.fsum(part.value(layer) for part, layer in self._layers(x))

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the layers' proximal points."""
        step = check_step(step)
        layers = self._layers(v, batch)
        return join([part.prox(layer, step, batch=batch) for part, layer in layers], batch)

    def subgradient(self, x: Array) -> Array:
        """Return the layers' subgradients."""
        return join([part.subgradient(layer) for part, layer in self._layers(x)], 0)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the root of the sum of the layers' squared distances."""
        layers = zip(self._layers(x), self._layers(grad), strict=True)
        return math.hypot(*(part.subdifferential_distance(y, g) for (part, y), (_, g) in layers))

    def entrywise(self, shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """Return the layers' weights, one after another."""
        layers = [part.entrywise(layer_shape) for part, layer_shape in self.parts]
        known = [weights for weights in layers if weights is not None]
        if len(known) < len(layers):
            return None
        l1, l2 = (
            np.concatenate([each.ravel() for each in one]) for one in zip(*known, strict=True)
        )
        return l1, l2

    def scaled(self, factor: float) -> Separable:
        """Return factor * psi."""
        return Separable(tuple((part.scaled(factor), shape) for part, shape in self.parts))


def as_regularizer(obj: object) -> Regularizer:
    """Return `obj` as a regularizer.

    Parameters
    ----------
    obj : None, Regularizer, ConstraintSet or object
        None becomes `Zero`, and a set its `Indicator`. Any object with `prox(v, step)` and
        `__call__(v)` on vectors (such as a pyproximal operator) is wrapped.

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
        f"a regularizer must be None, a Regularizer, a constraint set, or an object with prox(v, "
        f"step) and __call__(v), got {obj!r}"
    )
