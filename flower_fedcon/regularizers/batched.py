"""Sets and regularizers for local steps that serve one client or many at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.arrays import is_array
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import L1, MCP, SCAD, ElasticNet, L2Squared, Zero
from flower_fedcon.regularizers.elementwise import Penalty
from flower_fedcon.sets import Atom
from flower_fedcon.sets.atoms import each_atom
from flower_fedcon.sets.shapes import each
from flower_fedcon.validation import Array

_ENTRY_BY_ENTRY = L1, L2Squared, ElasticNet, Zero, MCP, SCAD


def _fail_alone(oracle: Callable[..., Any], x: Array, axes: int, *rest: Any, **more: Any) -> None:
    """Raise the error of a stack's only model again, so that it names a place in the model."""
    if x.ndim > axes and len(x) == 1:
        oracle(x[0], *rest, **more)


def _serves_many(oracle: Callable[..., Any]) -> bool:
    """Return whether an oracle takes `batch`; a user's own class may leave it out."""
    try:
        named = inspect.signature(oracle).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "batch" or p.kind is p.VAR_KEYWORD for p in named)


def _of_each(oracle: Callable[..., Any], x: Array, axes: int, *rest: Any, **more: Any) -> Array:
    """Return an oracle's points for a stack of models, one by one if it takes no stack."""
    if _serves_many(oracle):
        try:
            return oracle(x, *rest, batch=x.ndim - axes, **more)  # type: ignore[no-any-return]
        except ConfigError:
            _fail_alone(oracle, x, axes, *rest, **more)
            raise
    return each(x, x.ndim - axes, lambda model: np.asarray(oracle(model.copy(), *rest, **more)))


class BatchedSet:
    """A constraint set for one model, or for a stack of them: the number of axes says which.

    Parameters
    ----------
    inner : ConstraintSet
    axes : int
        Number of axes of one model.
    """

    def __init__(self, inner: Any, axes: int) -> None:
        self.inner, self.axes = inner, axes

    @property
    def iterative(self) -> bool:
        """Whether the oracle takes a tolerance."""
        return bool(getattr(self.inner, "iterative", False))

    @property
    def coordinate_magnitude(self) -> float | None:
        """The same as of the inner set."""
        return getattr(self.inner, "coordinate_magnitude", None)

    def lmo(self, g: Array, **options: Any) -> Atom:
        """Return the vertices."""
        if not _serves_many(self.inner.lmo):
            return each_atom(g, g.ndim - self.axes, lambda one: self.inner.lmo(one, **options))
        try:
            return self.inner.lmo(g, batch=g.ndim - self.axes, **options)  # type: ignore[no-any-return]
        except ConfigError:
            _fail_alone(self.inner.lmo, g, self.axes, **options)
            raise

    def project(self, x: Array) -> Array:
        """Return the projections."""
        return _of_each(self.inner.project, x, self.axes)


class BatchedRegularizer:
    """A regularizer for one model, or for a stack of them.

    Parameters
    ----------
    inner : Regularizer
    axes : int
        Number of axes of one model.
    """

    def __init__(self, inner: Any, axes: int) -> None:
        self.inner, self.axes = inner, axes

    def prox(self, v: Array, step: Any) -> Array:
        """Return the proximal points, with one step or each client's."""
        if is_array(step):
            each = zip(v, step.tolist(), strict=True)
            return np.stack([self.inner.prox(model, length) for model, length in each])
        return _of_each(self.inner.prox, v, self.axes, step)

    def subgradient(self, x: Array) -> Array:
        """Return a subgradient at each point."""
        if type(self.inner) in _ENTRY_BY_ENTRY:
            subgradients: Array = self.inner.subgradient(x)
            return subgradients
        return self.each(x, self.inner.subgradient)

    def scaled(self, factor: float) -> BatchedRegularizer:
        """Return factor * psi."""
        return BatchedRegularizer(self.inner.scaled(factor), self.axes)

    def each(self, x: Array, function: Callable[[Array], Array]) -> Array:
        """Return `function` of each model."""
        if x.ndim == self.axes:
            return function(x)
        return np.stack([function(model) for model in x])


def entry_weights(psi: object) -> tuple[float, float] | None:
    """Return l1 and l2 of psi = l1 |x|_1 + l2/2 |x|^2, batched or not; None if psi is another.

    >>> from flower_fedcon.regularizers import L1, ElasticNet, Nonnegative
    >>> [entry_weights(psi) for psi in (L1(0.5), ElasticNet(1.0, 2.0), Nonnegative())]
    [(0.5, 0.0), (1.0, 2.0), None]
    """
    inner = psi.inner if isinstance(psi, BatchedRegularizer) else psi
    if isinstance(inner, Penalty) and type(inner).prox is Penalty.prox:
        return inner.weights()
    return None
