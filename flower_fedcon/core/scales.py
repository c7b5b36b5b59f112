"""Estimates of constants that rules need, for objectives that do not state them.

L is estimated from gradients. An estimate from finitely many gradients is a lower bound. It is
therefore multiplied by `MARGIN` and logged, and the run continues with shorter steps if its
objective grows.
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
_WALK = 3  # gradient steps for which L has to be large enough
_TRIES = 8  # the most exchanges that fail to find the units, or that are tried steps
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


UNIT = 1.0
"""A placeholder for a constant in settings with which no step is taken."""


def estimate(
    gradients: Callable[[Sequence[Array]], Sequence[Array]],
    x0: Array,
    count: int,
    rng: np.random.Generator,
    *,
    smoothness: bool = True,
    alone: bool = False,
) -> Scales:
    """Return the scales of clients, by differences of their gradients.

    The first exchanges find the units of each client: the distance at which its gradient changes by
    a thousandth. At this distance from x0 the power method finds the largest curvature. Then a few
    gradient steps of length 1/L are tried, and L grows where a gradient changes faster than L
    allows. The result scales with the units of x and of f.

    Parameters
    ----------
    gradients : callable
        Returns the gradient of each client, each at a different point.
    x0 : array
    count : int
        How many clients.
    rng : numpy.random.Generator
        Draws the first directions.
    smoothness : bool
        Whether to estimate L_i, or the gradients' lengths only.
    alone : bool
        Whether each client steps along its own gradient, as in several local steps. Otherwise all
        step along the mean.

    Examples
    --------
    >>> H = [np.diag([1.0, 3.0]), np.diag([8.0, 2.0])]
    >>> found = estimate(lambda xs: [h @ x - 1 for h, x in zip(H, xs)], np.zeros(2), 2,
    ...                  np.random.default_rng(0))
    >>> [round(L, 2) for L in found.smoothnesses], round(found.steepest, 6)
    ([3.75, 10.0], 1.414214)
    """
    at_start = [np.asarray(g) for g in gradients([x0] * count)]
    steepest = max(map(_length, at_start))
    if not smoothness or not math.isfinite(steepest):
        return Scales([0.0] * count if smoothness else [], steepest)
    probes = [_Probe(x0, g, rng.standard_normal(x0.shape)) for g in at_start]
    while any(probe.going for probe in probes):
        known = [p.apart for p in probes if p.length and p.settled]
        for probe in probes:
            if known and not probe.length and not probe.settled:  # the units of x are everyone's
                probe.apart = max(known)
        points = [probe.point() for probe in probes]
        for probe, point, g in zip(probes, points, gradients(points), strict=True):
            if probe.going:
                probe.take(point, g)
    L = np.array([MARGIN * probe.curvature for probe in probes])
    del probes
    return Scales(_borne(gradients, x0, at_start, L, alone=alone).tolist(), steepest)


class _Probe:
    """An estimate of one client's largest curvature at the start, exchange by exchange.

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
        far = self.apart if self.going else 0.0
        return np.asarray(self._x + far * self._direction).astype(self._x.dtype)

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
        found: float = max(_APART * self._usual / curvature, self._least)
        return found


def _borne(
    gradients: Callable[[Sequence[Array]], Sequence[Array]],
    x0: Array,
    at_start: Sequence[Array],
    L: Array,
    *,
    alone: bool,
) -> Array:
    """Return L, increased until it is large enough for a few gradient steps of length 1/L.

    It is large enough for a step if the gradient changes by at most L times the step's length. If
    it is for no step that is tried, perhaps because they leave the objectives' domain, L stays.
    """
    x, g, taken, kept = [x0] * len(L), list(at_start), np.zeros(len(L), int), L.copy()
    steep = _APART * np.array([_length(own) for own in g])
    for _ in range(_TRIES + _WALK):
        if alone:
            large, towards = L, g
        else:
            mean = np.asarray(np.sum(g, axis=0, dtype=np.float64) / len(g))
            large, towards = np.full(len(L), L.max()), [mean] * len(g)
        far = np.array([_length(own) for own in towards])
        going = (taken < _WALK) & (large > 0) & (far > (steep if alone else steep.max()))
        if not going.any():
            break
        points = [
            (at - own / one).astype(x0.dtype) if goes else at
            for at, own, one, goes in zip(x, towards, large, going, strict=True)
        ]
        there = [np.asarray(own) for own in gradients(points)]
        bent = [_length(new.astype(np.float64) - own) for new, own in zip(there, g, strict=True)]
        curvature = np.where(going, np.array(bent) * large / np.where(going, far, 1.0), 0.0)
        bears = curvature <= large  # false for NaN
        wanted = np.where(curvature < math.inf, MARGIN * curvature, math.inf)
        faster = ~(curvature <= _ABOVE * large)
        L = np.maximum(L, np.minimum(wanted, np.where(faster, _FASTER, _LARGER) * large))
        for j in np.flatnonzero(going & (bears if alone else bears.all())):
            x[j], g[j], kept[j] = points[j], there[j], L[j]
            taken[j] += 1
    return kept


def _length(v: Array) -> float:
    return float(np.linalg.norm(v.astype(np.float64).reshape(-1)))
