"""What rules need to know of the clients' objectives, where these do not state it.

L is estimated from gradients. An estimate from finitely many of them is a lower bound: it is
multiplied by `MARGIN`, said in the log, and kept safe by the run, which goes on with shorter steps
where its objective grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.validation import Array

MARGIN = 1.25
_POWERS = 8  # steps of the power method
_APART = 1e-3  # how far gradients are apart, over the length of a gradient step


class Scales(NamedTuple):
    """What gradients at the start say of the clients' objectives.

    Attributes
    ----------
    smoothnesses : list of float
        About L_i of each client; empty where all of them state it.
    steepest : float
        max_i ||grad f_i(x0)||.
    """

    smoothnesses: list[float]
    steepest: float

    def sharper(self, factor: float) -> Scales:
        """Return the same with larger L_i."""
        return self._replace(smoothnesses=[factor * L for L in self.smoothnesses])


UNIT = 1.0
"""Stands for a constant in settings that no step is taken with."""


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
        Returns the gradient of each client at a point of its own.
    x0 : array
    count : int
        How many clients.
    rng : numpy.random.Generator
        Of the first directions.
    smoothness : bool
        Whether L_i is asked for, or the gradients' lengths alone.

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
    # Differences are taken over a length that moves with the units of x: at first, when nothing is
    # known of these, over the shortest that rounding allows; then over part of a gradient step.
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
