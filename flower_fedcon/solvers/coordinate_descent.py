"""Least squares with an l1 norm, by coordinate descent on the few entries that matter."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flower_fedcon.compiled import recursion
from flower_fedcon.compiled.recursions import descend
from flower_fedcon.validation import Array

_FEWEST, _MOST = 10, 4000  # entries of a working set
_EPOCHS = 5  # between two checks of the support
_TIRED = 1000  # epochs on one working set, at most
_SHARE = 0.03  # a working set is solved to this share of the violation elsewhere


def coordinate_descent(
    A: Array,
    b: Array,
    l1: Array,
    l2: Array,
    x: Array,
    distance: Callable[[Array, Array], float],
    target: float,
    limit: int,
) -> tuple[Array, float]:
    """Minimise ||A x - b||^2 / 2 + sum_i l1_i |x_i| + l2_i x_i^2 / 2.

    A working set holds the non-zero entries and those that violate their optimality conditions
    most, and it grows (Massias, Gramfort and Salmon 2018, "Celer"). Coordinate descent on its Gram
    matrix solves it. Once the signs no longer change, the remaining quadratic is solved exactly.

    Parameters
    ----------
    A : array, shape (m, d)
    b : array, shape (m,)
    l1, l2 : array, shape (d,)
        >= 0.
    x : array, shape (d,)
        The start.
    distance : callable
        Returns how far x is from the minimiser, from x and the gradient of the square, A'(A x - b).
    target : float
        The distance at which to stop.
    limit : int
        The largest number of epochs, passes over a working set.

    Returns
    -------
    x : array, shape (d,)
    distance : float
        Above the target if the limit or a working set of 4000 entries is reached, or if a pass over
        all entries no longer halves it.

    Examples
    --------
    >>> weights, start = np.array([1.0, 1.0]), np.zeros(2)
    >>> far = lambda x, gradient: float(np.where(x == 0, abs(gradient) - 1, gradient + 1).max())
    >>> coordinate_descent(np.eye(2), np.array([3.0, 0.5]), weights, start, start, far, 1e-12, 100)
    (array([2., 0.]), 0.0)
    """
    x, spent, size, before = x.copy(), 0, _FEWEST, math.inf
    while True:
        gradient = A.T @ (A @ x - b)
        away = distance(x, gradient)
        if away <= target or spent >= limit or (size >= x.size and away > 0.5 * before):
            return x, away
        before = away
        violation = _violation(x, gradient, l1, l2)
        active = x != 0
        size = max(size, 2 * int(np.count_nonzero(active)))
        if size < x.size:
            order = np.argpartition(-np.where(active, np.inf, violation), size - 1)
            chosen = np.sort(order[:size])
        else:
            chosen = np.arange(x.size)
        if chosen.size > _MOST:
            return x, away
        columns = np.ascontiguousarray(A[:, chosen])
        gram = columns.T @ columns + np.diag(l2[chosen])
        goal = 0.1 * target / math.sqrt(x.size)
        if size < x.size:
            goal = max(goal, _SHARE * float(violation.max()))
        rest = min(limit - spent, _TIRED)
        x[chosen], epochs = solved(gram, columns.T @ b, l1[chosen], x[chosen], goal, rest)
        spent += epochs
        size = min(2 * size, x.size)


def _violation(x: Array, gradient: Array, l1: Array, l2: Array) -> Array:
    """Return how far the entries are from their optimality conditions."""
    at_zero = np.maximum(np.abs(gradient) - l1, 0.0)
    violation: Array = np.where(x == 0, at_zero, np.abs(gradient + l2 * x + l1 * np.sign(x)))
    return violation


def solved(
    gram: Array, linear: Array, l1: Array, x: Array, target: float, limit: int
) -> tuple[Array, int]:
    """Minimise x'gram x/2 - linear'x + sum_i l1_i |x_i| to a violation of its conditions.

    Returns x and the number of epochs.
    """
    x, epochs = x.copy(), 0
    descent = recursion(descend, gram.size) or descend
    rounding = 1e-15 * float(np.abs(linear).max())
    while epochs < limit:
        some = min(_EPOCHS, limit - epochs)
        gradient = gram @ x - linear
        descent(gram, gradient, x, l1, some)
        epochs += some
        if some == _EPOCHS:
            x = _on_the_support(gram, linear, l1, x)
        gradient = gram @ x - linear
        if float(_violation(x, gradient, l1, 0.0 * l1).max()) <= max(target, rounding):
            break
    return x, epochs


def _on_the_support(gram: Array, linear: Array, l1: Array, x: Array) -> Array:
    """Return x moved to the minimiser for its signs, or up to where a sign would change."""
    for _ in range(10):
        support = np.flatnonzero(x)
        if support.size == 0:
            return x
        signs = np.sign(x[support])
        try:
            factor = np.linalg.cholesky(gram[np.ix_(support, support)])
        except np.linalg.LinAlgError:
            return x
        half = np.linalg.solve(factor, linear[support] - l1[support] * signs)
        move = np.linalg.solve(factor.T, half) - x[support]
        if not np.isfinite(move).all():
            return x
        # An entry may reach 0, and stays there.
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(signs * move < 0, -x[support] / move, np.inf)
        step = min(1.0, float(steps.min()))
        x = x.copy()
        x[support] += step * move
        if step == 1.0:
            return x
        x[support[steps <= step]] = 0.0
    return x
