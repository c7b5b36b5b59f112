"""Local problems whose entries are in units far apart, solved in units that make them alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from flower_fedcon.objectives.curvatures import InUnits, entry_curvatures, in_units, usual_sizes
from flower_fedcon.regularizers import Regularizer, Zero
from flower_fedcon.regularizers.rescaled import rescaled
from flower_fedcon.solvers.problem import LocalProblem
from flower_fedcon.validation import Array

_APART = 1e3  # from this ratio of units on, a gradient's norm says little about its entries
_differ: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def units_apart(objective: Any, shift: float, shape: tuple[int, ...]) -> Array | None:
    """Return sizes that make the curvatures of objective plus shift about 1; None for 1.

    Parameters
    ----------
    objective : object
        The objective of one client.
    shift : float
        The curvature added to it.
    shape : tuple of int
        The model's.

    Examples
    --------
    >>> from flower_fedcon.objectives import LogisticRegression
    >>> f = LogisticRegression(np.array([[1.0, 2e6], [1.0, -2e6]]), np.array([1.0, -1.0]))
    >>> units_apart(f, 0.0, (2,)) * [1.0, 2e6], units_apart(f, 1e12, (2,))
    (array([2.        , 1.90734863]), None)
    """
    if not _may_differ(objective):
        return None
    curvatures = entry_curvatures(objective)
    if curvatures is None or curvatures.shape != shape:
        return None
    total = np.abs(curvatures) + shift
    usable = np.isfinite(total) & (total > 0)
    if not usable.any():
        return None
    logs = np.where(usable, -0.5 * np.log2(np.where(usable, total, 1.0)), 0.0)
    logs = np.round(np.where(usable, logs, logs[usable].mean()))
    return np.exp2(logs) if np.ptp(logs) > np.log2(_APART) else None


def _may_differ(objective: Any) -> bool:
    """Return whether an objective's entries are in units far apart before a shift is added."""
    try:
        if objective not in _differ:
            _differ[objective] = _spread(objective) > 2 * np.log2(_APART)
        return _differ[objective]
    except TypeError:  # the object takes no weak reference, or has no hash
        return True


def _spread(objective: Any) -> float:
    values = entry_curvatures(objective)
    usable = np.empty(0) if values is None else values[np.isfinite(values) & (values > 0)]
    return float(np.ptp(np.log2(usable))) if usable.size else 0.0


class AlikeProblem(LocalProblem):
    """One client's problem in z = x / sizes.

    Parameters
    ----------
    given : LocalProblem
        Of one client.
    sizes : array of the model's shape
        > 0; replaced by their means if psi allows no others.
    """

    __slots__ = ("_given", "_in_units", "sizes")

    def __init__(self, given: LocalProblem, sizes: Array) -> None:
        psi: Regularizer = Zero() if given.regularizer is None else given.regularizer
        self.sizes, penalty = rescaled(psi, sizes)
        super().__init__(
            InUnits(given.objective, self.sizes), given.start / self.sizes, regularizer=penalty
        )
        self._given = given
        self._in_units = in_units(given.objective, self.sizes)  # a copy of the data: once a solve

    def value(self, x: Array) -> Any:
        """Return h, without psi."""
        return self._given.value(self.sizes * x)

    def gradient(self, x: Array) -> Array:
        """Return the gradient of h in z."""
        derivatives: Array = self.sizes * self._given.gradient(self.sizes * x)
        return derivatives

    def evaluate(self, x: Array) -> tuple[Any, Array, Any]:
        """Return h, its gradient in z, and the sizes of its terms."""
        value, gradient, size = self._given.evaluate(self.sizes * x)
        return value, self.sizes * gradient, size

    def hessian_products(self, x: Array) -> Callable[[Array], Array] | None:
        """Return the map v -> (Hessian of h in z) v; None if f has none."""
        product = self._given.hessian_products(self.sizes * x)
        return product and (lambda v: self.sizes * product(self.sizes * v))

    def hessian_of(self, objective: Any, x: Array) -> Array:
        """Return the Hessian of h in z."""
        flat = (self.sizes * self.sizes).reshape(-1)
        return super().hessian_of(objective, x) + np.diag(self._given.shift * flat)

    @property
    def has_hessian(self) -> bool:
        """Whether `hessian_products` returns a map."""
        return self._given.has_hessian

    @property
    def _told(self) -> tuple[Any, Any]:
        """The size of a usual gradient of f in z, and of its curvature, which is 1."""
        return usual_sizes(self._in_units)[0], 1.0

    @property
    def smoothness(self) -> Any:
        """L_h in z; None if unknown."""
        L = getattr(self._in_units, "smoothness", None)
        return None if L is None else float(L) + self._given.shift * float(self.sizes.max()) ** 2

    @property
    def strong_convexity(self) -> Any:
        """A lower bound on mu_h in z; None if unknown."""
        mu = getattr(self._in_units, "strong_convexity", None)
        return None if mu is None else float(mu) + self._given.shift * float(self.sizes.min()) ** 2

    def beside(self, x: Array) -> Any:
        """Return the size of the terms in the gradient of h in z other than f's."""
        _, linear, shift, center, *_ = self._given.added
        terms = 0.0 if linear is None else np.abs(linear)
        if shift:
            terms = terms + shift * (
                np.abs(self.sizes * x) + np.abs(0.0 if center is None else center)
            )
        return float(np.linalg.norm((self.sizes * terms).reshape(-1)))
