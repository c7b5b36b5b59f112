"""The minimiser of a dual-averaging model, on client and server."""

from __future__ import annotations

from typing import Any

from flower_fedcon.regularizers.constrained import constrained_prox
from flower_fedcon.validation import Array


def step_weight(t: int, power: float, shift: float) -> float:
    """Return alpha_t = (t + a)^q, the weight of step t.

    >>> step_weight(3, 0.0, 0.0), step_weight(3, 2.0, 1.0)
    (1.0, 16.0)
    """
    return float((t + shift) ** power)


def model_curvature(steps: float, damping: float, strong_convexity: float) -> float:
    """Return c = gamma + (mu/2) A.

    >>> model_curvature(2, 1.0, 0.5)
    1.5
    """
    return damping + 0.5 * strong_convexity * steps


def model_minimizer(
    psi: Any,
    z: Array,
    steps: float,
    *,
    damping: float,
    strong_convexity: float,
    anchor: Array | None = None,
    radius: float | None = None,
) -> Array:
    """Return P(z, A): the minimiser of the model after A steps.

    With c = gamma + (mu/2) A it is prox(z / c, A / c). With an anchor it is the minimiser subject
    to ||w - anchor||_psi <= radius.

    Parameters
    ----------
    psi : Regularizer
    z : array, shape (..., *model)
        gamma w_0 + (mu/2) (sum of points) - (sum of gradients).
    steps : float
        A.
    damping : float
        gamma.
    strong_convexity : float
        mu.
    anchor, radius : optional
        A ball around the anchor in psi's own norm.

    >>> from flower_fedcon.regularizers import L1
    >>> model_minimizer(L1(1.0), np.array([6.0, 1.0]), 2, damping=1.0, strong_convexity=1.0)
    array([2., 0.])
    """
    curvature = model_curvature(steps, damping, strong_convexity)
    center, step = z / curvature, steps / curvature
    if anchor is None or radius is None:
        return psi.prox(center, step)  # type: ignore[no-any-return]
    return constrained_prox(psi, center, step, anchor, radius)
