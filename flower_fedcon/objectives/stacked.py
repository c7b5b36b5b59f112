"""Objectives of many clients, stacked in arrays with a leading client axis: one pass serves all.

Which kinds can be stacked, and those that are no losses of rows (see `stacked_losses` for these).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

import numpy as np

from flower_fedcon.objectives.base import Scaled
from flower_fedcon.objectives.client_axis import Stack, Stackable, Which, chosen, per_client
from flower_fedcon.objectives.linear import LeastSquares, Quadratic
from flower_fedcon.objectives.logistic import LogisticRegression, SoftmaxRegression
from flower_fedcon.objectives.many import ManyClients, column
from flower_fedcon.objectives.quadratic_assignment import QuadraticAssignment
from flower_fedcon.objectives.regression import HuberRegression, PoissonRegression, ScoreLoss
from flower_fedcon.objectives.stacked_losses import (
    StackedLeastSquares,
    StackedLogisticRegression,
    StackedScoreLoss,
    StackedSoftmaxRegression,
)
from flower_fedcon.objectives.stacked_rows import Table
from flower_fedcon.validation import Array

__all__ = ["Stack", "Which", "key", "stack", "stacks"]


def key(objective: Any) -> Hashable | None:
    """Return what objectives in one stack must share; None for a type that cannot be stacked."""
    if type(objective) is Scaled:
        inner = key(objective.objective)
        return None if inner is None else ("Scaled", inner)
    if isinstance(objective, Stackable):
        own = objective.stack_key()
        return None if own is None else (type(objective), own)
    kind = type(objective)
    if kind is Quadratic:
        return kind.__name__, objective.shape, objective.dtype
    if kind is QuadraticAssignment:
        count = len(objective.entries)
        few = count <= len(objective.A)  # for many, the whole product is faster
        return (kind.__name__, objective.shape, objective.dtype, count) if few else None
    if kind in _KINDS:
        if objective.sparse or objective.weights is not None:
            return None
        rows, targets = objective.rows, objective.targets
        parameters = objective.parameters if isinstance(objective, ScoreLoss) else ()
        return kind.__name__, *parameters, objective.shape, rows.shape, rows.dtype, targets.dtype
    return None


def stack(objectives: Sequence[Any]) -> Stack:
    """Return objectives with the same `key` as one stack."""
    kind = type(objectives[0])
    if issubclass(kind, Stackable):
        return kind.stacked(objectives)
    return StackedScaled(objectives) if kind is Scaled else _KINDS[kind](objectives)


def why_not_one_stack(objectives: Sequence[Any]) -> str | None:
    """Return why objectives with the same `key` are no stack after all; None if they are."""
    first = objectives[0]
    if type(first) is Scaled:
        return why_not_one_stack([o.objective for o in objectives])
    return first.why_not_stacked(objectives) if isinstance(first, Stackable) else None


def stacks(objectives: Sequence[Any]) -> list[tuple[Stack, Array]]:
    """Return all objectives in stacks, each with the places of those that are in it."""
    if isinstance(objectives, ManyClients):
        return [(stack(objectives), np.arange(len(objectives)))]
    groups = alike(objectives).values()
    return [(stack([objectives[c] for c in own]), np.array(own)) for own in groups]


def alike(objectives: Sequence[Any]) -> dict[Hashable | None, list[int]]:
    """Return the places of the objectives with each `key`."""
    by_key: dict[Hashable | None, list[int]] = {}
    for place, objective in enumerate(objectives):
        by_key.setdefault(key(objective), []).append(place)
    return by_key


class StackedQuadratic(Table):
    """A stack of `Quadratic`."""

    def __init__(self, objectives: Sequence[Any]) -> None:
        super().__init__([o.Q for o in objectives], [o.b for o in objectives])
        self.shape = objectives[0].shape

    def _piece(
        self, x: Array, tables: Array, targets: Array, which: Which, scale: float = 1.0
    ) -> Array:
        gradient: Array
        if x.ndim == 1:
            gradient = np.matmul(tables, x)
        else:
            gradient = np.matmul(tables, x[:, :, None])[:, :, 0]
        gradient -= targets
        if scale != 1.0:
            gradient *= scale
        return gradient

    def values(self, x: Array) -> Array:
        """Return each client's value at x."""
        values: Array = (0.5 * np.matmul(self.tables, x) - self.targets).dot(x)
        return values

    def own_values(self, x: Array) -> Array:
        """Return each client's value at its own point."""
        return self.value_and_gradient(x)[0]

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both, which share the product with the matrices."""
        gradient = self.gradient(x, slice(0, len(x)))
        values: Array = 0.5 * np.einsum("ij,ij->i", gradient - self.targets, x)
        return values, gradient


class StackedQuadraticAssignment(Stack):
    """A stack of `QuadraticAssignment`, each with a few entries."""

    def __init__(self, objectives: Sequence[Any]) -> None:
        self.shape, self.num_examples = objectives[0].shape, objectives[0].num_examples
        self.i, self.j = (np.stack([o.entries[:, axis] for o in objectives]) for axis in (0, 1))
        self.A = np.stack([o.A[i] for o, i in zip(objectives, self.i, strict=True)])
        self.B = np.stack([o.B[j] for o, j in zip(objectives, self.j, strict=True)])
        self.entries = 2 * self.A[0].size

    def gradient(self, x: Array, which: Which) -> Array:
        """Return the gradients of some clients."""
        A, B, i, j = self.A[which], self.B[which], self.i[which], self.j[which]
        products = (np.matmul(A, x) * B).sum(axis=-1)
        clients = np.arange(len(i))[:, None]
        own = x[i, j] if x.ndim == 2 else x[clients, i, j]
        gradient: Array = np.matmul(A.swapaxes(1, 2), own[:, :, None] * B)
        gradient[clients, i, j] += products
        return gradient

    def values(self, x: Array) -> Array:
        """Return each client's value at x."""
        products = (np.matmul(self.A, x) * self.B).sum(axis=-1)
        values: Array = (products * x[self.i, self.j]).sum(axis=-1)
        return values

    def own_values(self, x: Array) -> Array:
        """Return each client's value at its own point."""
        products = (np.matmul(self.A, x) * self.B).sum(axis=-1)
        own = x[np.arange(len(x))[:, None], self.i, self.j]
        values: Array = (products * own).sum(axis=-1)
        return values

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = copy.copy(self)
        for name in ("i", "j", "A", "B"):
            setattr(part, name, getattr(self, name)[which])
        return part


class StackedScaled(Stack):
    """A stack of `Scaled` objectives."""

    def __init__(self, objectives: Sequence[Any]) -> None:
        self.inner = stack(column(objectives, "objective"))
        self.shape, self.num_examples = self.inner.shape, self.inner.num_examples
        self.entries, self.models_at_once = self.inner.entries, self.inner.models_at_once
        factors = column(objectives, "factor")
        self.factor = per_client(factors, objectives[0].dtype, len(self.shape))

    def gradient(self, x: Array, which: Which) -> Array:
        """Return the factors times the gradients."""
        return self._times(self.inner.gradient(x, which), which)

    def batch_gradient(self, x: Array, which: Which, rows: Array) -> Array:
        """Return the factors times the gradients over some rows."""
        return self._times(self.inner.batch_gradient(x, which, rows), which)

    def values(self, x: Array) -> Array:
        """Return the factors times the values."""
        return np.reshape(self.factor, -1) * self.inner.values(x)

    def only(self, which: Which) -> Self:
        """Return a stack of some of the clients."""
        part = copy.copy(self)
        part.inner, part.factor = self.inner.only(which), chosen(self.factor, which)
        return part

    def own_values(self, x: Array) -> Array:
        """Return the factors times the values, each at its own point."""
        return np.reshape(self.factor, -1) * self.inner.own_values(x)

    def value_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return both, times the factors."""
        values, gradient = self.inner.value_and_gradient(x)
        return np.reshape(self.factor, -1) * values, self._times(gradient, slice(0, len(x)))

    def hessian_products(self, x: Array) -> Callable[[Array], Array] | None:
        """Return the factors times the Hessians' map."""
        product = self.inner.hessian_products(x)
        if product is None:
            return None
        return lambda v: self._times(product(v), slice(0, len(v)))

    def _times(self, gradient: Array, which: Which) -> Array:
        gradient *= chosen(self.factor, which)
        return gradient


_KINDS: dict[type[Any], type[Any]] = {
    LeastSquares: StackedLeastSquares,
    LogisticRegression: StackedLogisticRegression,
    HuberRegression: StackedScoreLoss,
    PoissonRegression: StackedScoreLoss,
    SoftmaxRegression: StackedSoftmaxRegression,
    Quadratic: StackedQuadratic,
    QuadraticAssignment: StackedQuadraticAssignment,
}
