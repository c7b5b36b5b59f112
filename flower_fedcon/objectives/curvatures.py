"""The curvature of an objective along each entry of its model, and objectives in other units."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from flower_fedcon.objectives.base import Objective, Scaled
from flower_fedcon.objectives.quadratic import Quadratic
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.validation import Array

# Data do not change.
_kept: WeakKeyDictionary[Any, Array] = WeakKeyDictionary()
_usual: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


def entry_curvatures(f: Any) -> Array | None:
    """Return the approximate curvature of f along each entry of x; None if unknown.

    It is the diagonal of a bound on the Hessian, or of the Hessian at a usual point. It measures
    the entries' units and depends only on the data.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastSquares
    >>> entry_curvatures(LeastSquares([[1.0, 100.0], [3.0, 100.0]], [0.0, 1.0]))
    array([5.e+00, 1.e+04])
    """
    if isinstance(f, Scaled):
        inner = entry_curvatures(f.objective)
        return None if inner is None else f.factor * inner
    method = getattr(f, "entry_curvatures", None)
    if method is None:
        return None
    try:
        if f not in _kept:
            _kept[f] = np.asarray(method(), dtype=np.float64)
        return _kept[f]
    except TypeError:  # the object takes no weak reference, or has no hash
        return np.asarray(method(), dtype=np.float64)


def usual_sizes(f: Any) -> tuple[Any, Any]:
    """Return the size of a usual gradient of f, and of a usual curvature, to a power of 10^4.

    Both are 1 for data in ordinary units, and NaN for an unknown objective. With a client axis both
    are arrays.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastSquares
    >>> A, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -2.0])
    >>> usual_sizes(LeastSquares(A, b)), usual_sizes(LeastSquares(1e9 * A, b))
    ((1.0, 1.0), (100000000.0, 1e+20))
    """
    try:
        if f not in _usual:
            gradient, curvature = _own_sizes(f)
            _usual[f] = to_power(gradient), to_power(curvature)
        return _usual[f]
    except TypeError:  # the object takes no weak reference, or has no hash
        gradient, curvature = _own_sizes(f)
        return to_power(gradient), to_power(curvature)


def _own_sizes(f: Any) -> tuple[Any, Any]:
    if isinstance(f, Scaled):
        gradient, curvature = _own_sizes(f.objective)
        return f.factor * gradient, f.factor * curvature
    method = getattr(f, "usual_sizes", None)
    return (np.nan, np.nan) if method is None else method()


def to_power(size: Any) -> Any:
    """Return the nearest powers of 10^4; 1 for sizes that are 0 or infinite, NaN for NaN.

    >>> to_power(np.array([0.5, 3e4, 0.0])), to_power(1e-7)
    (array([1.e+00, 1.e+04, 1.e+00]), 1e-08)
    """
    size = np.asarray(size, dtype=np.float64)
    usual = np.where(np.isinf(size) | (size <= 0), 1.0, size)
    powers = 10.0 ** (4.0 * np.round(0.25 * np.log10(usual)))
    return powers if powers.ndim else float(powers)


def in_units(f: Any, sizes: Array) -> Any:
    """Return z -> f(sizes * z) as an objective.

    Examples
    --------
    >>> from flower_fedcon.objectives import LeastSquares
    >>> f = in_units(LeastSquares([[1.0, 100.0]], [1.0]), np.array([1.0, 0.01]))
    >>> f.A, f.gradient(np.zeros(2))
    (array([[1., 1.]]), array([-1., -1.]))
    """
    if isinstance(f, Scaled):
        return Scaled(in_units(f.objective, sizes), f.factor)
    if isinstance(f, LinearModel) and hasattr(f, "in_units") and f.bears(sizes):
        return f.in_units(sizes)
    if type(f) is Quadratic:
        other = copy.copy(f)
        other.__dict__.pop("_constants", None)
        other.Q, other.b = f.Q * sizes * sizes[:, None], f.b * sizes
        return other
    return InUnits(f, sizes)


class InUnits(Objective):
    """z -> f(sizes * z), of any objective.

    Parameters
    ----------
    objective : object
    sizes : array of the model's shape
        > 0.
    """

    def __init__(self, objective: Any, sizes: Array) -> None:
        self.objective, self.sizes, self.shape = objective, sizes, sizes.shape

    def value(self, x: Array) -> float:
        """Return f(sizes * x)."""
        return float(self.objective.value(self.sizes * x))

    def gradient(self, x: Array) -> Array:
        """Return the gradient in x."""
        derivatives: Array = self.sizes * self.objective.gradient(self.sizes * x)
        return derivatives

    @property
    def hessian(self) -> Callable[..., Array]:
        """The `hessian` of f, in these units; missing if f has none."""
        hessian, flat = self.objective.hessian, self.sizes.reshape(-1)

        def own(x: Array, columns: Array | None = None) -> Array:
            some = () if columns is None else (columns,)
            units = flat if columns is None else flat[columns]
            scaled: Array = hessian(self.sizes * x, *some) * units * units[:, None]
            return scaled

        return own

    def _curvature(self) -> tuple[float | None, float | None]:
        L = getattr(self.objective, "smoothness", None)
        return None if L is None else float(L) * float(self.sizes.max()) ** 2, None
