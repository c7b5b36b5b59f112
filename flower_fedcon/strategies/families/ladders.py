"""The values that a race tries in addition to a rule's value, between measured limits.

The best step depends on the directions of the clients' curvatures, which L and mu do not show. If
all clients are steep in the same directions, the mean is as ill-conditioned as they are. If each
client is steep in its own directions, the mean is well conditioned. The best steps of these two
cases agree for kappa = L/mu = 10, and differ by a factor of a thousand for kappa = 10^6.
"""

from __future__ import annotations

import math

from flower_fedcon.core.protocol import Setup

_APART, _MOST = 1.7, 7  # powers of 2 between neighbours, and the largest number of values
_FLATTEST = 1e6  # kappa beyond which ranges no longer grow


def between(value: float, low: float, high: float) -> list[float]:
    """Return a rule's value, and a grid from `low` to `high` in factors of about three.

    Grid values within a factor of 2 of the rule's value are left out.

    >>> [round(value, 2) for value in between(1.0, 0.3, 10.0)]
    [1.0, 0.3, 3.11, 10.0]
    """
    span = math.log2(high / low)
    count = min(_MOST, math.ceil(span / _APART - 0.3) + 1)
    if count <= 1:
        others = [math.sqrt(low * high)]
    else:
        others = [low * 2 ** (span * i / (count - 1)) for i in range(count)]
    nearest = min(others, key=lambda other: abs(math.log2(other / value)))
    if abs(math.log2(nearest / value)) <= 1:
        others.remove(nearest)
    return [value, *others]


def condition(setup: Setup) -> float | None:
    """Return kappa = L/mu of the clients' objectives, at most 10^6; None if mu is unknown."""
    L, mu = setup.smoothness, setup.strong_convexity
    if L is None or mu is None:
        return None
    return min(_FLATTEST, L / mu) if mu else _FLATTEST
