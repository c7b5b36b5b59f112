"""Regularizers that are sums of the norms of groups of entries."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers.base import (
    Regularizer,
    check_prox,
    norm,
    soft,
    weight_or_weights,
)
from flower_fedcon.sets.groups import (
    Groups,
    check_groups,
    group_norms,
    labels_for,
    rescale_groups,
)
from flower_fedcon.sets.shapes import ByValue, expect_floats, size_of
from flower_fedcon.validation import Array, nonnegative


class _GroupPenalty(ByValue, Regularizer):
    """psi(x) = sum_g weight_g ||x_g||_2 + l1 ||x||_1, over groups g that do not overlap."""

    @abstractmethod
    def _weights(self) -> tuple[float | Array, float | Array]:
        """Return the norms' weight (or one for each group) and l1 (or one for each entry)."""

    @abstractmethod
    def _labels(self, shape: tuple[int, ...]) -> Array:
        """Return the group of each entry, flattened."""

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless the groups fit models of `shape`."""
        self._labels(shape)

    def value(self, x: Array) -> float:
        """Return psi(x)."""
        weight, l1 = self._weights()
        norms = group_norms(x.reshape(-1), self._labels(x.shape))
        absolute = float((l1 * np.abs(x)).sum()) if np.any(l1) else 0.0
        if isinstance(weight, np.ndarray):
            return float(weight.dot(norms)) + absolute
        return weight * float(norms.sum()) + absolute

    def prox(self, v: Array, step: float, *, batch: int = 0) -> Array:
        """Soft-threshold the entries at step * l1, then the groups' norms at step * weight."""
        step = check_prox(self, v, step)
        expect_floats(type(self).__name__, v)
        weight, l1 = self._weights()
        labels = self._labels(shape := v.shape[batch:])
        if step == 0 or not v.size:
            return v
        # All models at once; the numbers of groups continue from model to model.
        count, models = int(labels.max()) + 1, v.size // math.prod(shape)
        if models > 1:
            labels = (labels + count * np.arange(models)[:, None]).reshape(-1)
            weight = np.tile(weight, models) if isinstance(weight, np.ndarray) else weight
        x = soft(v, step * l1).astype(v.dtype, copy=False) if np.any(l1) else v
        norms = group_norms(x.reshape(-1), labels)
        return rescale_groups(x, labels, norms, np.maximum(norms - step * weight, 0.0))

    def subgradient(self, x: Array) -> Array:
        """Return weight x_g / ||x_g|| + l1 sign(x), with 0 for a group that is 0."""
        weight, l1 = self._weights()
        labels = self._labels(x.shape)
        norms = group_norms(x.reshape(-1), labels)
        directions = rescale_groups(x, labels, norms, weight * np.ones_like(norms))
        return directions + l1 * np.sign(x)

    def subdifferential_distance(self, x: Array, grad: Array) -> float:
        """Return the least ||grad + q|| over the subdifferential at x."""
        weight, l1 = self._weights()
        labels = self._labels(x.shape)
        norms = group_norms(x.reshape(-1), labels)
        # In each entry, take the subgradient of the l1 part that brings the sum nearest to 0.
        smooth = grad + rescale_groups(x, labels, norms, weight * np.ones_like(norms))
        rest = np.where(x == 0, soft(smooth, l1), smooth + l1 * np.sign(x)).reshape(-1)
        left = group_norms(rest, labels)
        left = np.where(norms > 0, left, np.maximum(left - weight, 0.0))
        return norm(left)


@dataclass(frozen=True, eq=False)
class L2Norm(_GroupPenalty):
    """psi(x) = weight ||x||_2, with weight >= 0: all entries are one group.

    Examples
    --------
    >>> L2Norm(5.0).prox(np.array([6.0, 8.0]), 1.0)
    array([3., 4.])
    """

    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", nonnegative("L2Norm(weight)", self.weight))

    def _weights(self) -> tuple[float, float]:
        return self.weight, 0.0

    def _labels(self, shape: tuple[int, ...]) -> Array:
        return np.zeros(size_of(shape), dtype=np.intp)

    def scaled(self, factor: float) -> L2Norm:
        """Return factor * psi."""
        return L2Norm(nonnegative("factor", factor) * self.weight)


@dataclass(frozen=True, eq=False)
class _Grouped(_GroupPenalty):
    """What the regularizers with a field `groups` share."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        groups = check_groups(f"{name}(groups)", self._groups)
        object.__setattr__(self, "groups", groups)
        for field, check in (("weight", weight_or_weights), ("l1", nonnegative)):
            if hasattr(self, field):
                weight = check(f"{name}({field})", getattr(self, field))
                object.__setattr__(self, field, weight)
        weights = getattr(self, "weight", 0.0)
        if isinstance(weights, np.ndarray) and (
            not isinstance(groups, np.ndarray) or weights.shape != (int(groups.max()) + 1,)
        ):
            raise ConfigError(
                f"{name}(weight) with a weight for each group needs groups=labels of as many "
                f"groups, got weights of shape {weights.shape} and groups={groups!r}"
            )

    @property
    def _groups(self) -> Any:
        return getattr(self, "groups")  # noqa: B009  (a field of the subclasses)

    def _labels(self, shape: tuple[int, ...]) -> Array:
        return labels_for(self._groups, shape)

    def scaled(self, factor: float) -> Self:
        """Return factor * psi."""
        factor = nonnegative("factor", factor)
        changes = {f: factor * getattr(self, f) for f in ("weight", "l1") if hasattr(self, f)}
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class GroupLasso(_Grouped):
    """psi(x) = weight sum_g ||x_g||_2, over groups g of entries that do not overlap.

    Parameters
    ----------
    weight : float, or array of one for each group
        >= 0; a float is the same for groups of all sizes. `np.sqrt(np.bincount(labels))` times a
        weight compensates for the groups' sizes; groups must then be an array of labels.
    groups : int, "rows" or array of int
        An int is the size of equal, contiguous groups of the flattened model. With "rows", each
        index of the first axis is a group. An array of the model's shape holds the label 0, 1, 2,
        ... of each entry's group.

    Examples
    --------
    >>> GroupLasso(5.0, groups=2).prox(np.array([6.0, 8.0, 1.0, -1.0]), 1.0) + 0.0
    array([3., 4., 0., 0.])
    """

    weight: float | Array
    groups: Groups

    def _weights(self) -> tuple[float | Array, float]:
        return self.weight, 0.0


@dataclass(frozen=True, eq=False)
class SparseGroupLasso(_Grouped):
    """psi(x) = l1 ||x||_1 + weight sum_g ||x_g||_2.

    Parameters
    ----------
    l1 : float
        >= 0.
    weight, groups
        As for `GroupLasso`.

    Examples
    --------
    >>> psi = SparseGroupLasso(l1=1.0, weight=5.0, groups="rows")
    >>> psi.prox(np.array([[7.0, 9.0], [1.0, -1.0]]), 1.0) + 0.0
    array([[3., 4.],
           [0., 0.]])
    """

    l1: float
    weight: float | Array
    groups: Groups

    def _weights(self) -> tuple[float | Array, float]:
        return self.weight, self.l1
