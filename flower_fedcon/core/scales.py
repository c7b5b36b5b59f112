"""Estimates of constants that rules need, for objectives that do not state them.

A client estimates L by itself, from some twenty gradients, and tells two numbers (the exchange
"scales"). An estimate from finitely many gradients is a lower bound. It is therefore multiplied by
`MARGIN` and logged, and the run continues with shorter steps if its objective grows. A number far
above those of the other clients is not believed (`not_believed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.validation import Array

MARGIN = 1.25
LOUD = 1e3
"""Machine epsilons of a gradient, below which a difference of gradients is rounding."""
_POWERS, _COUNTED = 7, 4  # steps of the power method, and how many of the last ones count
_TRIES = 8  # the most gradients that fail to find the units, or that are tried steps
_APART = 1e-3  # distance between the points of two gradients, relative to a gradient step
_FAR = 3e-3  # the most for the first distance
_MOST = 0.1  # the largest relative change of a gradient in a step of the power method
_ALIKE = 1e-2  # the relative difference of two curvatures that count as equal
_LARGER, _FASTER, _ABOVE = 4.0, 16.0, 1e6  # factors of L; the second if L is so much too small


class Scales(NamedTuple):
    """Scales of the clients' objectives, from gradients at the start.

    Attributes
    ----------
    smoothnesses : list of float
        An estimate of L_i for each client; empty if all clients state it.
    steepest : float
        max_i ||grad f_i(x0)||.
    """

    smoothnesses: list[float]
    steepest: float

    def sharper(self, factor: float) -> Scales:
        """Return a copy with larger L_i."""
        return self._replace(smoothnesses=[factor * L for L in self.smoothnesses])


class OwnScales(NamedTuple):
    """Scales of one client's objective: ||grad f_i(x0)|| and, if asked for, an estimate of L_i."""

    steepness: float
    smoothness: float | None = None


FAR = 1e3
"""The multiple of the median of the others above which a client's number is not believed."""


def not_believed(told: Sequence[float]) -> list[int]:
    """Return the places of numbers that are more than `FAR` times the median of the others.

    L is the largest of the clients' numbers, so that one of them alone could make all steps as
    short as it likes. No clients have honest numbers so far apart, unless their units differ. If
    such a one is left out, and the steps are too long for it, the run starts again with a larger L.
    Of two numbers neither is left out, and none if most are 0.

    >>> not_believed([2.0, 1e9, 1.0]), not_believed([1.0, 1e9]), not_believed([0.0, 0.0, 1.0])
    ([1], [], [])
    """
    if len(told) < 3:
        return []
    # For a number in the upper half, the others have the median of all but the largest.
    most = FAR * float(np.median(np.sort(np.asarray(told))[:-1]))
    return [place for place, number in enumerate(told) if number > most > 0]


ONE, SEVERAL = 1, 3
"""Gradient steps that L has to be large enough for: of methods with one local step, and others."""
UNIT = 1.0
"""A placeholder for a constant in settings with which no step is taken."""


def estimate(
    gradient: Callable[[Array], Array],
    x0: Array,
    rng: np.random.Generator,
    *,
    steps: int = SEVERAL,
) -> OwnScales:
    """Return the scales of one client, by differences of its gradients.

    The first gradients find the units: the distance at which a gradient changes by a thousandth.
    At this distance from x0 the power method finds the largest curvature. Then gradient steps of
    length 1/L are tried, and L grows where the gradient changes faster than L allows. The result
    scales with the units of x and of f.

    Parameters
    ----------
    gradient : callable
        Returns the gradient at a point; NaN beyond the objective's domain.
    x0 : array
    rng : numpy.random.Generator
        Draws the first direction.
    steps : int
        The number of gradient steps of length 1/L that L has to be large enough for: more for
        methods that take several local steps. 0 if L is not needed.

    Examples
    --------
    >>> H = np.diag([8.0, 2.0])
    >>> found = estimate(lambda x: H @ x - 1, np.zeros(2), np.random.default_rng(0))
    >>> round(found.smoothness, 2), round(found.steepness, 6)
    (10.0, 1.414214)
    """
    at_start = np.asarray(gradient(x0))
    steepness = _length(at_start)
    if not steps or not math.isfinite(steepness):
        return OwnScales(steepness, 0.0 if steps else None)
    probe = _Probe(x0, at_start, rng.standard_normal(x0.shape))
    while probe.going:
        point = probe.point()
        probe.take(point, np.asarray(gradient(point)))
    return OwnScales(steepness, _borne(gradient, x0, at_start, MARGIN * probe.curvature, steps))


class _Probe:
    """An estimate of the largest curvature at the start, gradient by gradient.

    Parameters
    ----------
    x0, gradient : array
        The start, and the client's gradient there.
    direction : array
        The first direction of the power method.
    """

    def __init__(self, x0: Array, gradient: Array, direction: Array) -> None:
        self.length, self.curvature = _length(gradient), 0.0
        self.going, self.settled = True, False  # whether units are known
        self._x, self._g = x0, gradient.astype(np.float64)
        self._direction = direction / (_length(direction) or 1.0)
        eps, size = float(np.finfo(x0.dtype).eps), float(np.abs(x0).max(initial=0.0))
        self._least, self._loud = eps**0.5 * size, LOUD * eps
        self.apart = self._least or eps**0.5
        self._usual = self.length  # of a gradient
        self._near, self._beyond, self._tries = 0.0, math.inf, 0
        self._last, self._bound = 0.0, 0.0  # curvatures: the last, and the largest or last usable

    def point(self) -> Array:
        """Return where the gradient is asked for next."""
        return np.asarray(self._x + self.apart * self._direction).astype(self._x.dtype)

    def take(self, point: Array, gradient: Array) -> None:
        """Take the gradient at the point."""
        moved, bent = _length(point.astype(np.float64) - self._x), gradient - self._g
        change = _length(bent)
        curvature = change / moved if moved else 0.0
        self._tries += 1
        if self.settled:
            near = self._settle(change, curvature)
        else:
            self._find_units(change, curvature, _length(gradient))
            near = self.settled
        if near:
            self._direction = bent / change

    def _find_units(self, change: float, curvature: float, length: float) -> None:
        """Find a distance at which the gradient changes by more than rounding, but not by much.

        If the gradient at the start is itself rounding error, any distance in proportion to which
        the gradient changes will do.
        """
        h, part = self.apart, change / (max(self.length, length) or 1.0)
        if self._loud < part < math.inf and curvature:
            alike = abs(curvature - self._last) <= _ALIKE * curvature
            self._last, self._bound = curvature, max(self._bound, curvature)
            if part <= _FAR or h <= self._least or alike:
                if part > _FAR:
                    self._usual = change / _APART
                self.settled, self._tries, self._bound = True, 0, curvature
                self._near, self._beyond = min(h, self._apart(curvature)), math.inf
                self.apart = self._apart(curvature)
                return
            self._beyond, self.apart = h, max(h * _APART / part, self._least)
        elif math.isfinite(change):
            self._near, self.apart = h, h * 1e-2 / self._loud
        else:
            self._beyond, self.apart = h, h * 1e-4
        if not self._near < self.apart < self._beyond:
            self.apart = math.sqrt(self._near) * math.sqrt(self._beyond)
        if self._tries == _TRIES:
            self.curvature, self.going = self._bound, False

    def _settle(self, change: float, curvature: float) -> bool:
        """Do a step of the power method, and move half the way to the right distance.

        Returns
        -------
        bool
            Whether the step was near enough to count.
        """
        near = 0 < change <= _MOST * self._usual
        if near:
            self._near, self._bound = self.apart, curvature
            self.apart = math.sqrt(self.apart) * math.sqrt(self._apart(curvature))
            if self._tries > _POWERS - _COUNTED:
                self.curvature = max(self.curvature, curvature)
        elif change:  # or not finite
            self._beyond = self.apart
            self.apart = max(self._near, self._least)
        if self.apart >= self._beyond:
            self.apart = math.sqrt(self._near) * math.sqrt(self._beyond)
        if self._tries == _POWERS:
            self.going, self.curvature = False, self.curvature or self._bound
        return near

    def _apart(self, curvature: float) -> float:
        distance: float = max(_APART * self._usual / curvature, self._least)
        return distance


def _borne(
    gradient: Callable[[Array], Array], x0: Array, at_start: Array, L: float, steps: int
) -> float:
    """Return L, increased until it is large enough for some gradient steps of length 1/L.

    It is large enough for a step if the gradient changes by at most L times the step's length. If
    it is for no step that is tried, perhaps because they leave the objective's domain, L stays.
    """
    x, g, taken, kept = x0, at_start, 0, L
    steep = _APART * _length(g)
    for _ in range(_TRIES + steps):
        far = _length(g)
        if not (taken < steps and L > 0 and far > steep):
            break
        point = (x - g / L).astype(x0.dtype)
        there = np.asarray(gradient(point))
        curvature = _length(there.astype(np.float64) - g) * L / far
        bears = curvature <= L  # false for NaN
        wanted = MARGIN * curvature if curvature < math.inf else math.inf
        L = max(L, min(wanted, (_LARGER if curvature <= _ABOVE * L else _FASTER) * L))
        if bears:
            x, g, kept = point, there, L
            taken += 1
    return kept


def _length(v: Array) -> float:
    return float(np.linalg.norm(v.astype(np.float64).reshape(-1)))
