"""Regularizers in other units, z -> psi(sizes * z), for the sizes of units that psi allows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from flower_fedcon.regularizers.base import Regularizer, check_prox, norm, soft
from flower_fedcon.regularizers.each import Each
from flower_fedcon.regularizers.elementwise import Nonnegative, Zero
from flower_fedcon.regularizers.group_norms import _GroupPenalty
from flower_fedcon.regularizers.intercept import WithIntercept
from flower_fedcon.regularizers.wrap import Indicator, Separable
from flower_fedcon.sets import Box, L1Ball
from flower_fedcon.sets.product import split
from flower_fedcon.sets.shapes import ByValue
from flower_fedcon.validation import Array, nonnegative


def rescaled(
    psi: Regularizer, sizes: Array, weights: tuple[Array, Array] | None = None
) -> tuple[Array, Regularizer]:
    """Return sizes of units, and psi in them: z -> psi(sizes * z).

    If psi acts entry by entry, or is the indicator of an l1 ball, every entry has the
    requested unit. A norm of groups allows one unit a group; others, such as the nuclear norm,
    allow one for all entries.

    Parameters
    ----------
    psi : Regularizer
    sizes : array of the model's shape
        > 0.
    weights : pair of arrays, optional
        `psi.entrywise(sizes.shape)`, if it is already computed.

    Returns
    -------
    sizes : array of the same shape
        The requested sizes, or their geometric means (rounded to a power of 2) where psi needs
        equal ones.
    psi : Regularizer

    Examples
    --------
    >>> from flower_fedcon.regularizers import L1, L2Norm
    >>> sizes, psi = rescaled(L1(3.0), np.array([1.0, 4.0]))
    >>> sizes, psi.value(np.ones(2)), psi.prox(np.array([5.0, 5.0]), 1.0)
    (array([1., 4.]), 15.0, array([2., 0.]))
    >>> rescaled(L2Norm(1.0), np.array([1.0, 4.0]))[0]
    array([2., 2.])
    """
    if isinstance(psi, Zero | Nonnegative):
        return sizes, psi
    weights = psi.entrywise(sizes.shape) if weights is None else weights
    if weights is not None:
        l1, l2 = weights
        return sizes, Entrywise(l1 * sizes, l2 * sizes * sizes)
    if isinstance(psi, WithIntercept):
        units, inner = rescaled(psi.inner, sizes[:-1])
        return np.concatenate([units, sizes[-1:]]), WithIntercept(inner)
    if isinstance(psi, Separable):
        shapes = [shape for _, shape in psi.parts]
        layers = zip(psi.parts, split(sizes, shapes, 0), strict=True)
        pairs = [rescaled(part, layer) for (part, _), layer in layers]
        parts = zip(pairs, shapes, strict=True)
        return (
            np.concatenate([units.ravel() for units, _ in pairs]),
            Separable(tuple((part, shape) for (_, part), shape in parts)),
        )
    if isinstance(psi, Each):
        units, inner = rescaled(psi.inner, _mean_size(sizes, axis=0))
        return np.broadcast_to(units, sizes.shape), Each(inner)
    if isinstance(psi, Indicator) and isinstance(psi.constraint, Box):
        box = psi.constraint
        return sizes, Indicator(Box(box.lower / sizes, box.upper / sizes))
    if isinstance(psi, Indicator) and type(psi.constraint) is L1Ball:
        return sizes, L1BallInUnits(sizes, psi.constraint.radius)
    if isinstance(psi, _GroupPenalty):
        return _groups(psi, sizes)
    one = float(_mean_size(sizes))
    return np.full_like(sizes, one), psi if one == 1.0 else InUnits(psi, one)


def _mean_size(sizes: Array, axis: int | None = None) -> Array:
    """Return the geometric mean, a power of 2 if the sizes are."""
    logs = np.log2(sizes)
    mean: Array = logs.mean(axis=axis)
    whole = not (logs - np.round(logs)).any()
    return np.exp2(np.round(mean) if whole else mean)


def _groups(psi: _GroupPenalty, sizes: Array) -> tuple[Array, Regularizer]:
    weight, l1 = psi._weights()
    labels = psi._labels(sizes.shape)
    each = np.array(
        [float(_mean_size(sizes.ravel()[labels == g])) for g in range(int(labels.max()) + 1)]
    )
    units = each[labels].reshape(sizes.shape)
    return units, GroupsInUnits(labels, weight * each, l1 * units)


@dataclass(frozen=True, eq=False)
class Entrywise(ByValue, Regularizer):
    """psi(x) = sum_i l1_i |x_i| + l2_i x_i^2 / 2.

    Parameters
    ----------
    l1, l2 : array of the model's shape
        >= 0.

    Examples
    --------
    >>> psi = Entrywise(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    >>> psi.prox(np.array([3.0, 3.0]), 1.0)
    array([2. , 1.5])
    """

    l1: Array
    l2: Array

    def entrywise(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the weights of each entry."""
        return self.l1, self.l2

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        return float((self.l1 * np.abs(x) + 0.5 * self.l2 * x * x).sum())

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Soft-threshold at step * l1, then shrink by 1 + step * l2."""
        step = check_prox(self, v, step)
        if not step:
            return v
        shrunk: Array = soft(v, (step * self.l1).astype(v.dtype, copy=False))
        return (shrunk / (1.0 + step * self.l2)).astype(v.dtype, copy=False)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x."""
        smooth = grad + self.l2 * x
        at_zero = np.maximum(np.abs(smooth) - self.l1, 0)
        return norm(np.where(x == 0, at_zero, smooth + self.l1 * np.sign(x)))

    def prox_residual(self, x: Array, grad: Array) -> float:
        """Return ||x - prox(x - grad, 1)||, without cancellation."""
        move = grad + self.l2 * x + np.clip(x - grad, -self.l1, self.l1)
        return norm(move / (1.0 + self.l2))

    def scaled(self, factor: float) -> Entrywise:
        """Return factor * psi."""
        factor = nonnegative("factor", factor)
        return Entrywise(factor * self.l1, factor * self.l2)


@dataclass(frozen=True, eq=False)
class GroupsInUnits(_GroupPenalty):
    """psi(x) = sum_g weight_g ||x_g||_2 + sum_i l1_i |x_i|.

    Parameters
    ----------
    labels : array of int, shape (entries,)
    weight : array, shape (groups,)
    l1 : array of the model's shape
    """

    labels: Array
    weight: Array
    l1: Array

    def _weights(self) -> tuple[Array, Array]:
        return self.weight, self.l1

    def _labels(self, shape: tuple[int, ...]) -> Array:
        return self.labels

    def scaled(self, factor: float) -> GroupsInUnits:
        """Return factor * psi."""
        factor = nonnegative("factor", factor)
        return replace(self, weight=factor * self.weight, l1=factor * self.l1)


@dataclass(frozen=True, eq=False)
class L1BallInUnits(ByValue, Regularizer):
    """0 where sum_i sizes_i |z_i| <= radius, infinity elsewhere.

    Parameters
    ----------
    sizes : array of the model's shape
        > 0.
    radius : float
        > 0.

    Examples
    --------
    >>> psi = L1BallInUnits(np.array([1.0, 10.0]), 12.0)
    >>> psi.prox(np.array([4.0, 2.0]), 1.0).round(9), psi.prox(np.array([2.0, 1.0]), 1.0)
    (array([3.88118812, 0.81188119]), array([2., 1.]))
    """

    sizes: Array
    radius: float

    def value(self, x: Array) -> float:
        """Return 0 inside the set, to 1e-9 of its radius, infinity outside."""
        inside = float((self.sizes * np.abs(x)).sum()) <= self.radius * (1.0 + 1e-9)
        return 0.0 if inside else math.inf

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the projection: each entry shrinks by its size times a common number."""
        check_prox(self, v, step)
        flat, sizes = v.reshape(*v.shape[:batch], -1), self.sizes.reshape(-1)
        least = np.argsort(-np.abs(flat) / sizes, axis=-1)
        weighed = np.take_along_axis(sizes * np.abs(flat), least, axis=-1)
        levels = (np.cumsum(weighed, axis=-1) - self.radius) / np.cumsum(sizes[least] ** 2, axis=-1)
        level = np.maximum(levels.max(axis=-1, keepdims=True), 0.0)
        shrunk: Array = soft(flat, (level * sizes).astype(v.dtype, copy=False)).reshape(v.shape)
        return shrunk

    def scaled(self, factor: float) -> L1BallInUnits:
        """Return the same function."""
        nonnegative("factor", factor)
        return self


@dataclass(frozen=True, eq=False)
class InUnits(ByValue, Regularizer):
    """z -> psi(size z).

    Parameters
    ----------
    psi : Regularizer
    size : float
        > 0.

    Examples
    --------
    >>> from flower_fedcon.regularizers import L2Norm
    >>> InUnits(L2Norm(2.5), 2.0).prox(np.array([6.0, 8.0]), 1.0)
    array([3., 4.])
    """

    psi: Regularizer
    size: float

    @property
    def weak_convexity(self) -> float:
        """The modulus of psi in these units."""
        return self.psi.weak_convexity * self.size**2

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise if models of `shape` do not fit psi."""
        self.psi.check_shape(shape)

    def value(self, x: Array) -> float:
        """Return psi(size x)."""
        return self.psi.value(self.size * x)

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Return the proximal point of psi, in these units."""
        return self.psi.prox(self.size * v, step * self.size**2, batch=batch) / self.size

    def subgradient(self, x: Array) -> Array:
        """Return a subgradient of psi, in these units."""
        return self.size * self.psi.subgradient(self.size * x)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return psi's distance in these units."""
        if type(self.psi).subdifferential_distance is Regularizer.subdifferential_distance:
            return self.prox_residual(x, grad)
        distance = self.psi.subdifferential_distance(self.size * x, grad / self.size)
        return distance if math.isinf(distance) else self.size * distance

    def scaled(self, factor: float) -> InUnits:
        """Return factor * psi."""
        return InUnits(self.psi.scaled(factor), self.size)
