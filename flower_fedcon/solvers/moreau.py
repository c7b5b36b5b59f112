"""How far the mean of proximal steps may be extrapolated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flower_fedcon.errors import UnknownScaleError
from flower_fedcon.validation import Array


def constant_extrapolation(gamma: float, smoothness: Sequence[float], cohort: int) -> float:
    """Return 1/(gamma L_gamma), with the bound of L_gamma for cohorts of this size.

    Parameters
    ----------
    gamma : float
        The proximal steps' length, > 0.
    smoothness : sequence of float
        L_i of each of the N clients; empty if they are unknown.
    cohort : int
        From 1 to N.

    Raises
    ------
    UnknownScaleError
        If the L_i are unknown, or all 0.

    >>> constant_extrapolation(1.0, [1.0, 1.0], 2), constant_extrapolation(1.0, [0.0, 1.0], 1)
    (2.0, 2.0)
    """
    if not smoothness or max(smoothness) == 0:
        raise UnknownScaleError(
            "the clients' smoothness L_i is unknown: give extrapolation a number, at most "
            '1/(gamma L_gamma), or take "diversity"'
        )
    n, c = len(smoothness), cohort
    envelopes = [L / (1 + gamma * L) for L in smoothness]
    largest, mean = max(envelopes), float(np.mean(envelopes))
    if c < n:
        mean = ((n - c) * largest + n * (c - 1) * mean) / (c * (n - 1))
    return 1 / (gamma * mean)


def square(x: Array) -> float:
    """Return the squared norm of all entries of x.

    >>> square(np.array([3.0, 4.0]))
    25.0
    """
    return float(np.vdot(x, x))
