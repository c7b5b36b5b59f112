"""The moves of DualFL's dual variables, identical bit for bit on client and server."""

from __future__ import annotations

from typing import Any

from flower_fedcon.validation import Array


def extrapolate(
    z: Array, c: Array | None, theta: Array, r: float, beta: float
) -> tuple[Array, Array]:
    """Return zeta and the new c_j: c := r theta - z_j, zeta := (1 + beta) c - beta c_j.

    Parameters
    ----------
    z, theta : array, shape (..., *model)
    c : array, optional
        c_j of the previous round; None for 0.
    r, beta : float

    >>> extrapolate(np.ones(1), np.ones(1), np.ones(1), 2.0, 0.5)
    (array([1.]), array([1.]))
    """
    new = r * theta - z
    if not beta or c is None:
        return new, new
    return (1 + beta) * new - beta * c, new


def catch_up(z: Array, e: Array, drift: Any, left: Any) -> tuple[Array, Array]:
    """Return z_j and e_j after a client's missed rounds: z_j + A_j e_j, B_j e_j.

    Parameters
    ----------
    z, e : array, shape (..., *model)
    drift, left : float, or array, shape (..., 1, ..., 1)
        A_j and B_j.

    >>> catch_up(np.ones(1), np.ones(1), 0.5, 0.25)
    (array([1.5]), array([0.25]))
    """
    return z + drift * e, left * e


def move(z: Array, e: Array, delta: Array, a: float, b: float, k: float) -> tuple[Array, Array]:
    """Return the next z and e, of a client or of the mean: z + a e + delta, b e - k delta.

    Parameters
    ----------
    z, e, delta : array, shape (..., *model)
    a, b, k : float
        The round's coefficients.

    >>> move(np.ones(1), np.ones(1), np.ones(1), 0.5, 0.25, 0.5)
    (array([2.5]), array([-0.25]))
    """
    return z + a * e + delta, b * e - k * delta
