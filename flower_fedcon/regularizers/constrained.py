"""The prox of a norm, restricted to a ball of the same norm around any point."""

from __future__ import annotations

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import L1, GroupLasso, L2Norm, L2Squared, NuclearNorm, Regularizer
from flower_fedcon.regularizers.batched import BatchedRegularizer
from flower_fedcon.sets import ConstraintSet, GroupL2Ball, L1Ball, L2Ball, NuclearNormBall
from flower_fedcon.validation import Array


def norm_ball(psi: Regularizer, radius: float) -> ConstraintSet:
    """Return the ball around 0 of psi's norm.

    Raises
    ------
    ConfigError
        If psi is not a multiple of a norm that has a ball in this package.

    Examples
    --------
    >>> norm_ball(L1(0.1), 2.0)
    L1Ball(radius=2.0)
    """
    if isinstance(psi, L1) and isinstance(psi.weight, float):
        return L1Ball(radius)
    if isinstance(psi, L2Norm | L2Squared):
        return L2Ball(radius)
    if isinstance(psi, GroupLasso):
        return GroupL2Ball(radius, psi.groups)
    if isinstance(psi, NuclearNorm):
        return NuclearNormBall(radius)
    raise ConfigError(
        "a radius needs a regularizer with a norm ball (L1 with one weight, L2Norm, L2Squared, "
        f"GroupLasso, NuclearNorm), got {psi!r}: choose one of them, or leave the radius out"
    )


def constrained_prox(
    psi: Regularizer | BatchedRegularizer, v: Array, step: float, center: Array, radius: float
) -> Array:
    """Return argmin of psi(w) + ||w - v||^2 / (2 step) over ||w - center||_psi <= radius.

    It is exact to rounding for L1. Otherwise Dykstra's algorithm alternates the prox of psi and
    the projection onto the ball, and converges to it. (One prox followed by one projection gives
    another point.)

    Parameters
    ----------
    psi : Regularizer
        One for which `norm_ball` has a ball.
    v, center : array
        Of the model's shape.
    step : float
        > 0.
    radius : float
        > 0.

    Examples
    --------
    >>> constrained_prox(L1(1.0), np.array([5.0, 2.0]), 1.0, np.zeros(2), 3.0)
    array([3., 0.])
    """
    if isinstance(psi, BatchedRegularizer):
        inner = psi.inner
        return psi.each(v, lambda model: constrained_prox(inner, model, step, center, radius))
    ball = norm_ball(psi, radius)
    free = psi.prox(v, step)
    if ball.excess(free - center) <= 0:
        return free
    if isinstance(psi, L1) and isinstance(psi.weight, float):
        return _l1(psi.weight, v, step, center, radius)
    return _dykstra(psi, ball, v, step, center)


def _l1(weight: float, v: Array, step: float, center: Array, radius: float) -> Array:
    """Find the multiplier theta of the ball among the kinks of a decreasing function.

    w(theta) = argmin weight |w| + theta |w - center| + (w - v)^2 / (2 step), entry by entry, and
    ||w(theta) - center||_1 falls from above the radius to 0, linear between its kinks.
    """
    v64, c = v.astype(np.float64), center.astype(np.float64)
    low, high = np.minimum(c, 0), np.maximum(c, 0)
    side = np.where(c > 0, 1.0, -1.0)

    def point(theta: float) -> Array:
        outside = step * (weight + theta)
        # Between 0 and its center, |w| and |w - center| pull an entry in opposite directions.
        between = v64 - side * step * (weight - theta)
        inner = np.maximum(low, np.minimum(between, np.maximum(high, v64 - outside)))
        result: Array = np.minimum(v64 + outside, inner)
        return result

    def norm(theta: float) -> float:
        return float(np.abs(point(theta) - c).sum())

    # An entry's formula changes where it meets 0 or its center.
    kinks = np.concatenate(
        [
            (low - v64) / step - weight,
            (v64 - high) / step - weight,
            weight - side * (v64 - low) / step,
            weight - side * (v64 - high) / step,
        ],
        axis=None,
    )
    kinks = np.unique(np.append(kinks[kinks > 0], 0.0))
    first, last = 0, len(kinks) - 1  # norm(kinks[first]) > radius >= norm(kinks[last]) = 0
    while last - first > 1:
        middle = (first + last) // 2
        if norm(kinks[middle]) > radius:
            first = middle
        else:
            last = middle
    above, below = norm(kinks[first]), norm(kinks[last])
    share = (above - radius) / (above - below)
    theta = kinks[first] + share * (kinks[last] - kinks[first])
    return point(theta).astype(v.dtype)


def _dykstra(psi: Regularizer, ball: ConstraintSet, v: Array, step: float, center: Array) -> Array:
    x, from_prox, from_ball = v, np.zeros_like(v), np.zeros_like(v)
    tolerance = 4 * float(np.finfo(v.dtype).eps)
    for _ in range(10_000):
        y = psi.prox(x + from_prox, step)
        from_prox = x + from_prox - y
        before, x = x, center + ball.project(y + from_ball - center)
        from_ball = y + from_ball - x
        size = max(1.0, float(np.abs(x).max()))
        # Both tests: x can stay in place while the corrections grow, but then it differs from y.
        if max(np.abs(x - y).max(), np.abs(x - before).max()) <= tolerance * size:
            break
    return x
