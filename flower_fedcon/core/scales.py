"""Estimates of constants that rules need, for objectives that do not state them.

L is estimated from gradients. An estimate from finitely many gradients is a lower bound. It is
therefore multiplied by `MARGIN` and logged, and the run continues with shorter steps if its
objective grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.validation import Array

MARGIN = 1.25
_POWERS = 8  # steps of the power method
_APART = 1e-3  # distance between the points of two gradients, relative to a gradient step


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
    gradients: Callable[[Sequence[Array]], list[Array]],
    x0: Array,
    count: int,
    rng: np.random.Generator,
    *,
    smoothness: bool = True,
) -> Scales:
    """Return the scales of clients, by the power method on differences of their gradients.

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

    Examples
    --------
    >>> H = [np.diag([1.0, 3.0]), np.diag([8.0, 2.0])]
    >>> found = estimate(lambda xs: [h @ x - 1 for h, x in zip(H, xs)], np.zeros(2), 2,
    ...                  np.random.default_rng(0))
    >>> [round(L, 2) for L in found.smoothnesses], round(found.steepest, 6)
    ([3.75, 10.0], 1.414214)
    """
    at_start = gradients([x0] * count)
    lengths = [float(np.linalg.norm(g)) for g in at_start]
    if not smoothness:
        return Scales([], max(lengths))
    # Differences are taken over a length that scales with the units of x. The first one, when these
    # units are not known yet, uses the shortest length that rounding allows; the later ones use a
    # part of a gradient step.
    shortest = float(np.finfo(x0.dtype).eps) ** 0.5 * max(1.0, float(np.abs(x0).max(initial=0.0)))
    directions = [_unit(rng.standard_normal(x0.shape)) for _ in range(count)]
    found = [0.0] * count
    for _ in range(_POWERS):
        apart = [
            _APART * length / L if L and length else shortest
            for length, L in zip(lengths, found, strict=True)
        ]
        points = [x0 + (h * v).astype(x0.dtype) for h, v in zip(apart, directions, strict=True)]
        for j, (g, start) in enumerate(zip(gradients(points), at_start, strict=True)):
            bent = (g - start).astype(np.float64) / apart[j]
            length = float(np.linalg.norm(bent))
            if np.isfinite(length) and length > 0:
                found[j], directions[j] = max(found[j], length), bent / length
    return Scales([MARGIN * L for L in found], max(lengths))


def _unit(v: Array) -> Array:
    return v / (float(np.linalg.norm(v)) or 1.0)
