"""Points of a distance-generating function h: from a model to its dual, and back with a prox.

A method that moves a dual z goes back by
    w = argmin_w -<z, w> + step psi(w) + h(w).
For h = ||w||^2/2, "euclidean", it is prox_psi(z, step). A `Distance` is another h.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from flower_fedcon.arrays import known, repeat
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import Indicator, Regularizer, Zero
from flower_fedcon.regularizers.batched import BatchedRegularizer
from flower_fedcon.sets import HalfSpace, Hyperplane
from flower_fedcon.validation import Array

Point: TypeAlias = Callable[[Array, float], Array]
"""Returns w from z and the step, with the entries of a model along the last axis."""
_FAR, _NEAR = 2.0**100, 2.0**-100
_ROUNDING = 2.0**-51


class Distance(ABC):
    """A distance-generating function h: strictly convex, by its gradient and that of h*.

    Derive a class from it for an h of your own. Arrays that it gets have the entries of a model
    along their last axis, in one row, whatever the model's shape. By default `point` serves psi =
    0, a `HalfSpace` and a `Hyperplane`; `point_of` says how it serves others.

    Examples
    --------
    >>> class Burg(Distance):  # h = -sum log w, on positive vectors
    ...     def gradient(self, x):
    ...         return -1 / x
    ...
    ...     def inverse(self, z):
    ...         return -1 / z
    >>> h = Burg()
    >>> h.point(Zero(), h.gradient(np.array([0.5, 2.0])), 1.0)
    array([0.5, 2. ])
    """

    strong_convexity: float = 0.0
    """Of h in the Euclidean norm, for the rule of `client_lr`; 0 if unknown: then it is given."""
    along_last_axis: ClassVar[bool] = False
    """Whether the functions take several rows at once, (..., d); else they get one at a time."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """Return the dual of x, grad h(x)."""

    @abstractmethod
    def inverse(self, z: Array) -> Array:
        """Return the x with grad h(x) = z, grad h*(z)."""

    def point_of(self, psi: Regularizer) -> Point | None:
        """Return how w follows from z and the step; None if that is not known for this psi."""
        if isinstance(psi, Zero):
            return lambda z, step: self.inverse(z)
        flat = psi.constraint if isinstance(psi, Indicator) else None
        if isinstance(flat, HalfSpace | Hyperplane):
            normal, offset = flat.normal.reshape(-1), flat.offset
            always = isinstance(flat, Hyperplane)

            def moved(z: Array, step: float) -> Array:
                """Return w on the flat: its dual is z minus a multiple of the normal."""

                def beyond(level: Array) -> Array:
                    terms: Array = self.inverse(z - level * normal) * normal
                    over: Array = terms.sum(axis=-1, keepdims=True) - offset
                    return over

                level = level_of(beyond, z, -1.0 if always else 0.0)
                return self.inverse(z - level * normal)

            return moved
        return None

    def point(self, psi: Regularizer, z: Array, step: float) -> Array:
        """Return argmin_w -<z, w> + step psi(w) + h(w).

        Raises
        ------
        ConfigError
            If this is not known for psi.
        """
        return self.check(psi)(z, step)

    def check(self, psi: Regularizer) -> Point:
        """Return `point_of(psi)`.

        Raises
        ------
        ConfigError
            If it is None.
        """
        found = self.point_of(psi)
        if found is None:
            raise ConfigError(
                f"distance={self!r} has no closed form, and no equation in one unknown, for the "
                f'prox of {psi!r}: {self.takes}. Use distance="euclidean", or a class of your own '
                f"with point_of"
            )
        return found

    @property
    def takes(self) -> str:
        """What psi it serves, for an error."""
        return "it serves psi = 0, HalfSpace and Hyperplane"

    def modulus(self, psi: Regularizer) -> float:
        """Return the strong convexity of h where psi is finite; 0 if unknown."""
        return self.strong_convexity

    def check_start(self, x: Array) -> None:  # noqa: B027  (any start will do)
        """Raise unless grad h(x) exists."""


class _Bracket(NamedTuple):
    """Where the levels lie: at low the function is above 0, at high not, once none goes on."""

    low: Array
    high: Array
    going: Array


def level_of(excess: Callable[[Array], Array], rows: Array, least: float = 0.0) -> Array:
    """Return, for each of the rows, the level at which a falling function is 0.

    It is `least` where the function is below 0 there; a `least` below 0 is only a first guess, and
    is doubled.

    >>> level_of(lambda t: np.array([[3.0], [-1.0]]) - t, np.ones((2, 4)))
    array([[3.],
           [0.]])
    """
    start = (rows[..., :1] * 0.0).astype(float) + least  # traced if the rows are

    def wider(at: _Bracket) -> _Bracket:
        left = (at.low < 0) & (excess(at.low) < 0) & (at.low > -_FAR)
        right = (excess(at.high) > 0) & (at.high < _FAR)
        low, high = np.where(left, 2.0 * at.low, at.low), np.where(right, 2.0 * at.high, at.high)
        return _Bracket(low, high, left | right)

    def narrower(at: _Bracket) -> _Bracket:
        middle = at.low + (at.high - at.low) / 2.0
        above = excess(middle) > 0
        low, high = np.where(above, middle, at.low), np.where(above, at.high, middle)
        largest = np.maximum(np.abs(low), np.abs(high))
        going = at.going & (at.low < middle) & (middle < at.high) & (largest > _NEAR)
        return _Bracket(low, high, going & (high - low > _ROUNDING * largest))

    found = repeat(wider, _Bracket(start, np.maximum(np.abs(start), 1.0), start == start))
    far = (found.low <= -_FAR) | (found.high >= _FAR)
    if known(far) and far.any():
        raise ConfigError("psi is infinite wherever h is finite: no point satisfies both")
    inside = excess(found.low) > 0
    found = repeat(narrower, found._replace(going=inside))
    return np.where(inside, found.high, found.low)


def _in_rows(
    h: Distance, x: Array, axes: int, function: Callable[[Array], Array], what: str
) -> Array:
    """Return a function of models of any shape, with or without a client axis."""
    rows = x.reshape(*x.shape[: x.ndim - axes], -1)
    if h.along_last_axis or rows.ndim == 1:
        out = function(rows)
    else:
        out = np.stack([function(row) for row in rows.reshape(-1, rows.shape[-1])])
    if out.size != x.size or (known(out) and np.isnan(out).any() and not np.isnan(x).any()):
        raise ConfigError(
            f"distance={h!r}: its {what} of a vector of {rows.shape[-1]} entries has other entries "
            f"or none: it must be finite wherever h is"
        )
    return out.reshape(x.shape).astype(x.dtype, copy=False)


def primal_point(psi: Any, z: Array, step: float, h: Distance | None, axes: int) -> Array:
    """Return w for models z with `axes` axes; without h it is the Euclidean prox.

    >>> from flower_fedcon.regularizers import L1
    >>> from flower_fedcon.sets import Simplex
    >>> from flower_fedcon.solvers import Entropy
    >>> primal_point(L1(1.0), np.array([3.0, 0.5]), 1.0, None, 1)
    array([2., 0.])
    >>> primal_point(Indicator(Simplex(2.0)), np.log([1.0, 3.0]), 1.0, Entropy(), 1)
    array([0.5, 1.5])
    """
    if h is None:
        return psi.prox(z, step)  # type: ignore[no-any-return]
    inner = psi.inner if isinstance(psi, BatchedRegularizer) else psi
    return _in_rows(h, z, axes, lambda rows: h.point(inner, rows, step), "point")


def dual_point(x: Array, h: Distance | None, axes: int) -> Array:
    """Return grad h(x) of models with `axes` axes, x itself without h.

    >>> from flower_fedcon.solvers import PNorm
    >>> dual_point(np.array([3.0, 4.0]), PNorm(2.0), 1)
    array([3., 4.])
    """
    return x if h is None else _in_rows(h, x, axes, h.gradient, "gradient")


def unprojected(z: Array, h: Distance, axes: int) -> Array:
    """Return grad h*(z) of models with `axes` axes: w without psi."""
    return _in_rows(h, z, axes, h.inverse, "inverse")


def safe_modulus(h: Distance | None, psi: Regularizer, title: str) -> float:
    """Return what 1/L is multiplied by in a rule for steps: h's strong convexity, at least.

    Raises
    ------
    ConfigError
        If it is not known.
    """
    if h is None:
        return 1.0
    modulus = h.modulus(psi)
    if not (0 < modulus < math.inf):
        raise ConfigError(
            f"{title}: with distance={h!r} and {psi!r} no step length follows from L, since h has "
            f"no known strong convexity there: give client_lr"
        )
    return modulus
