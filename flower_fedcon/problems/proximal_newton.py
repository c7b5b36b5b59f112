"""Proximal Newton steps on a smooth function with l1 and l2 weights, for the reference."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from flower_fedcon.solvers.coordinate_descent import solved
from flower_fedcon.solvers.quadratic_models import apart, hardly_apart
from flower_fedcon.validation import Array

_MOST = 200  # steps
_EPOCHS = 2000  # of coordinate descent, for one step
_STEADY = 1e-13  # keeps a singular model solvable; curvatures are about 1
_HALVINGS = 40
_IDLE = 3  # successive steps without progress


class _Smooth(Protocol):
    def value(self, x: Array) -> float: ...
    def gradient(self, x: Array) -> Array: ...
    def hessian(self, x: Array) -> Array: ...


def newton(
    smooth: _Smooth, weights: tuple[Array, Array], x: Array, target: float, limit: int
) -> tuple[Array, float]:
    """Minimise F(x) + sum_i l1_i |x_i| + l2_i x_i^2 / 2, for convex, twice differentiable F.

    Each step minimises the second-order model with the l1 norm: by coordinate descent, and exactly
    once the signs are fixed. It is halved until the function decreases.

    Parameters
    ----------
    smooth : object
        F: `value`, `gradient`, and `hessian`, of the flattened model, with curvatures of about 1
        along entries.
    weights : pair of arrays of the shape of x
        l1 and l2.
    x : array
        The start.
    target : float
        The distance from stationarity at which to stop.
    limit : int
        The largest number of steps.

    Returns
    -------
    x : array
    distance : float
        The least ||gradient + q|| over the subdifferential: above the target if rounding, or the
        limit, ends the steps.

    Examples
    --------
    >>> from flower_fedcon.objectives import LogisticRegression
    >>> f = LogisticRegression(np.array([[2.0], [2.0], [2.0]]), np.array([1, 1, -1]))
    >>> x, away = newton(f, (np.zeros(1), np.zeros(1)), np.zeros(1), 1e-12, 50)
    >>> x.round(9)  # log(2) / 2
    array([0.34657359])
    """
    l1, l2 = (each.reshape(-1) for each in weights)

    def total(z: Array) -> float:
        flat = z.reshape(-1)
        return smooth.value(z) + float((l1 * np.abs(flat) + 0.5 * l2 * flat * flat).sum())

    def slope(z: Array) -> Array:
        gradient: Array = smooth.gradient(z).reshape(-1) + l2 * z.reshape(-1)
        return gradient

    g, value = slope(x), total(x)
    away = _distance(x, g, l1)
    best, best_away, idle = x, away, 0
    for _ in range(min(limit, _MOST)):
        if best_away <= target or idle >= _IDLE or not np.isfinite(away):
            break
        flat = x.reshape(-1)
        H = smooth.hessian(x) + np.diag(l2 + _STEADY)
        aim = _model_minimiser(H, H @ flat - g, l1, flat, 0.01 * target).reshape(x.shape)
        fall = float(g @ (aim - x).reshape(-1)) + float((l1 * np.abs(aim.reshape(-1))).sum())
        fall -= float((l1 * np.abs(flat)).sum())
        share = 1.0
        for _ in range(_HALVINGS):
            new = x + share * (aim - x)
            higher = total(new) - value
            if higher <= 1e-4 * share * min(fall, 0.0) + 1e-14 * abs(value):
                break
            share *= 0.5
        x, value = new, value + higher
        g = slope(x)
        away = _distance(x, g, l1)
        idle = 0 if away < 0.5 * best_away else idle + 1
        if away < best_away:
            best, best_away = x, away
    return best, best_away


def excess(smooth: _Smooth, weights: tuple[Array, Array], x: Array) -> float:
    """Return an approximate upper bound on F + psi minus its minimum.

    It is s'H^-1 s / 2, where s is the shortest element of the subdifferential and H is the Hessian
    with psi's squares. For a quadratic F it is a true bound, with any l1 norm. Directions in which
    H is rounding error are left out.

    Parameters
    ----------
    smooth, weights, x
        As for `newton`.
    """
    l1, l2 = (each.reshape(-1) for each in weights)
    g = smooth.gradient(x).reshape(-1) + l2 * x.reshape(-1)
    values, vectors = np.linalg.eigh(smooth.hessian(x) + np.diag(l2))
    along = vectors.T @ _subgradient(x.reshape(-1), g, l1)
    least = 16 * len(g) * np.finfo(np.float64).eps * max(float(values[-1]), 1e-300)
    curved = values > least
    return 0.5 * float((along[curved] ** 2 / values[curved]).sum())


def interchangeable(smooth: _Smooth, weights: tuple[Array, Array], x: Array) -> str:
    """Return a text with the entries that are collinear up to rounding; "" without any."""
    return hardly_apart(apart(smooth.hessian(x), weights, x))


def _subgradient(x: Array, g: Array, l1: Array) -> Array:
    """Return the shortest element of a gradient plus the subdifferential of an l1 norm."""
    at_zero = np.sign(g) * np.maximum(np.abs(g) - l1, 0.0)
    shortest: Array = np.where(x == 0, at_zero, g + l1 * np.sign(x))
    return shortest


def _distance(x: Array, g: Array, l1: Array) -> float:
    return float(np.linalg.norm(_subgradient(x.reshape(-1), g, l1)))


def _model_minimiser(H: Array, b: Array, l1: Array, x: Array, goal: float) -> Any:
    """Minimise z'Hz/2 - b'z + sum l1 |z|, from x."""
    if not l1.any():
        return x + np.linalg.solve(H, b - H @ x)
    x = np.where((x == 0) & (l1 == 0), 1e-300, x)  # free entries are on the support
    return solved(H, b, l1, x, goal / np.sqrt(len(x)), _EPOCHS)[0]
