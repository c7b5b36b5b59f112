"""The extrapolated dual point of DualFL, on client and server."""

from __future__ import annotations

from flower_fedcon.validation import Array


def extrapolate(
    v: Array, c: Array | None, theta: Array, ratio: float, beta: float
) -> tuple[Array, Array]:
    """Return zeta and the new c_j: c := v_j + r theta, zeta := (1 + beta) c - beta c_j.

    Parameters
    ----------
    v, theta : array, shape (..., *model)
    c : array, optional
        c_j of the round before; None for 0.
    ratio, beta : float

    >>> extrapolate(np.ones(1), np.ones(1), np.ones(1), 1.0, 0.5)
    (array([2.5]), array([2.]))
    """
    new = v + ratio * theta
    if not beta or c is None:
        return new, new
    return (1 + beta) * new - beta * c, new
