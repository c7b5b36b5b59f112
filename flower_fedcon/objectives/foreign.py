"""A user's own objective, as the algorithms see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.base import Objective, Scaled
from flower_fedcon.objectives.bounds import GroupLossBounds, LossBound
from flower_fedcon.objectives.packed import PackedObjective
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.objectives.set_aside import SetAside, is_ours, owner_of
from flower_fedcon.validation import Array

_VALUES = ("value", "constraint_value")
_GRADIENTS = (
    "gradient",
    "batch_gradient",
    "stochastic_gradient",
    "constraint_gradient",
    "constraint_sums_gradient",
)
_OWN = (*_VALUES, *_GRADIENTS, "value_and_gradient", "constraint_sums")
_MADE_OF = {
    "value_and_gradient": ("value", "gradient"),
    "add_gradient": ("gradient",),
    "pulled_gradient": ("gradient",),
}
"""Attributes of this package's losses that are built from other methods, not from patched ones."""


class ForeignObjective:
    """An objective of one array whose answers are checked, and that cannot change its argument.

    It gets a copy of x, which it may change or return. A gradient may be anything that NumPy turns
    into an array of x's shape. Other attributes are passed through. The exception are those that
    its class builds from a value or gradient that this object itself overrides.

    Parameters
    ----------
    objective : object

    Examples
    --------
    >>> class Squares:
    ...     def value(self, x):
    ...         return (x**2).sum() / 2
    ...     def gradient(self, x):
    ...         return list(x)
    >>> f = ForeignObjective(Squares())
    >>> f.value(np.array([3.0, 4.0])), f.gradient(np.array([3.0, 4.0]))
    (12.5, array([3., 4.]))
    """

    def __init__(self, objective: Any) -> None:
        self._objective = objective
        state = getattr(objective, "__dict__", {})
        self._hidden = frozenset(
            name
            for name, sources in _MADE_OF.items()
            if name not in state and any(source in state for source in sources)
        )

    def __getattr__(self, name: str) -> Any:
        # Copy and pickle read some attributes before `objective` exists.
        if name.startswith("__") or name == "_hidden" or name in self._hidden:
            raise AttributeError(name)
        member = getattr(self._objective, name)
        if name in _VALUES:
            return lambda x: self._number(name, member(x.copy()))
        if name in _GRADIENTS:
            return lambda x, *more: self._array(name, member(x.copy(), *more), x)
        if name == "constraint_sums":
            return lambda x: self._sums(member(x.copy()))
        return self._both(member) if name == "value_and_gradient" else member

    def _both(self, found: Callable[[Array], Any]) -> Callable[[Array], tuple[float, Array]]:
        name = "value_and_gradient"

        def value_and_gradient(x: Array) -> tuple[float, Array]:
            answer = found(x.copy())
            if not isinstance(answer, tuple | list) or len(answer) != 2:
                raise self._other_than("a number and an array", name, answer)
            return self._number(name, answer[0]), self._array(name, answer[1], x)

        return value_and_gradient

    def _number(self, name: str, value: Any) -> float:
        array = _plain(value)
        if array is None or array.size != 1:
            raise self._other_than("a number", name, value)
        return float(array.item())

    def _sums(self, value: Any) -> Array:
        shape, array = np.shape(self._objective.constraint_counts), _plain(value)
        if array is None or array.shape != shape:
            raise self._other_than(f"an array of shape {shape}", "constraint_sums", value)
        return array.astype(np.float64)

    def _array(self, name: str, value: Any, x: Array) -> Array:
        array = _plain(value)
        if array is None or array.shape != x.shape:
            raise self._other_than(f"an array of shape {x.shape}", name, value)
        return array.astype(x.dtype)  # a copy: the objective may keep what it returned

    def _other_than(self, expected: str, name: str, value: Any) -> ConfigError:
        kind, text = type(self._objective).__name__, repr(value)
        text = text if len(text) <= 80 else f"{type(value).__name__} {text[:60]}..."
        return ConfigError(f"{kind}.{name}(x) must return {expected}, got {text}")


def _plain(value: Any) -> Array | None:
    """Return a value as an array of numbers; None if NumPy cannot make one."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None


_INTERFACES = Objective, LinearModel


def as_seen(objective: Any, layout: Layout) -> Any:
    """Return an objective as the algorithms see it: a function of one array, checked if foreign."""
    if isinstance(objective, PackedObjective | ForeignObjective):
        return objective
    if layout.layered:
        packed = getattr(objective, "packed_objective", None)  # a faster form of its own
        return PackedObjective(objective, layout) if packed is None else packed(layout)
    return ForeignObjective(objective) if is_foreign(objective) else objective


def why_no_batches(objective: Any, size: int) -> str | None:
    """Return why an objective has no minibatches of `size` rows; None if it has.

    An objective that draws its own batches in `stochastic_gradient` may have any number of rows. An
    objective of this package without rows (`Quadratic`, say) counts as one row.
    """
    core: Any = objective
    while isinstance(
        core, Scaled | PackedObjective | ForeignObjective | LossBound | GroupLossBounds
    ):
        inside: Any = core
        hidden = isinstance(inside, PackedObjective | ForeignObjective)
        core = inside._objective if hidden else inside.objective
    kind = type(core)
    name = kind.__name__
    if _defines(core, "stochastic_gradient"):
        return None
    if is_foreign(core) and not _defines(core, "num_examples"):
        return (
            f"{name} does not state its number of rows: set num_examples and define "
            f"batch_gradient(x, rows), or leave batch_size={size} out"
        )
    if size >= int(core.num_examples) or _defines(core, "batch_gradient"):
        return None
    owner = owner_of(kind, "batch_gradient")
    member = None if owner is None else vars(owner)["batch_gradient"]
    if isinstance(member, SetAside):
        return f"{member.why(name)}, or leave batch_size={size} out"
    return f"{name} has no batch_gradient(x, rows): define it, or leave batch_size={size} out"


def _defines(objective: Any, name: str) -> bool:
    """Return whether an objective has a method or number that does not come from `Objective`."""
    inherited = isinstance(objective, Objective) and owner_of(type(objective), name) is Objective
    defined = not inherited or name in getattr(objective, "__dict__", ())
    return defined and hasattr(objective, name)


def is_foreign(objective: Any) -> bool:
    """Return whether an object is not of this package, or overrides value or gradient."""
    if isinstance(objective, LossBound | GroupLossBounds):
        return is_foreign(objective.objective)
    kinds = type(objective).__mro__[:-1]
    others = [kind for kind in kinds if not is_ours(kind)]
    ours = any(kind not in others and kind not in _INTERFACES for kind in kinds)
    state = getattr(objective, "__dict__", {})
    return not ours or any(name in part for part in (state, *map(vars, others)) for name in _OWN)
