"""The proximal step of dual averaging in its Bregman form.

With a distance-generating function h the dual point z stands for the primal point
    w = argmin_w -<z, w> + step psi(w) + h(w).
For h = ||w||^2/2 it is prox_psi(z, step). For h = sum w log(w/r), with the indicator of the simplex
of radius r as psi, it is r exp(z) / sum exp(z) for every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array

DISTANCES = ("euclidean", "entropy")


def primal_point(psi: Any, z: Array, step: float, simplex_radius: float | None) -> Array:
    """Return w for z of shape (..., d); with a radius, h is the entropy on that simplex.

    >>> from flower_fedcon.regularizers import L1
    >>> primal_point(L1(1.0), np.array([3.0, 0.5]), 1.0, None)
    array([2., 0.])
    >>> primal_point(None, np.log([1.0, 3.0]), 1.0, 2.0)
    array([0.5, 1.5])
    """
    if simplex_radius is None:
        return psi.prox(z, step)  # type: ignore[no-any-return]
    shares = np.exp(z - z.max(axis=-1, keepdims=True))
    return simplex_radius * shares / shares.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]


def dual_point(x: Array, simplex_radius: float | None) -> Array:
    """Return the z that stands for x, the gradient of h up to a constant.

    Raises
    ------
    ConfigError
        If an entry is not above 0: with the entropy a run must start inside the simplex.

    >>> dual_point(np.array([0.5, 0.5]), 1.0).round(6)
    array([-0.693147, -0.693147])
    """
    if simplex_radius is None:
        return x
    if x.ndim != 1 or not (x > 0).all():
        raise ConfigError(
            'distance="entropy" starts from a vector with entries above 0: give x0, such as equal '
            "shares of the radius"
        )
    return np.log(x / simplex_radius)
