"""Weights of a path, from the entries that psi penalises and the weight at which all are 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.validation import Array, float_array

_HUGE = 1e12  # a weight at which a prox makes all penalised entries 0
_HALVINGS = 60


def penalised(psi: Regularizer, x: Array) -> Array:
    """Return which entries psi penalises, as bools with the shape of x.

    >>> from flower_fedcon.regularizers import L1, WithIntercept
    >>> penalised(WithIntercept(L1(2.0)), np.ones(3))
    array([ True,  True, False])
    """
    entrywise = psi.entrywise(x.shape)
    if entrywise is not None:
        drawn: Array = (entrywise[0] > 0) | (entrywise[1] > 0)
        return drawn
    ones = np.ones_like(x)
    moved: Array = psi.scaled(_HUGE).prox(ones, 1.0) != ones
    return moved


def largest_weight(psi: Regularizer, x: Array, gradient: Array) -> float:
    """Return the smallest lambda for which a null model x is a solution with lambda psi.

    Parameters
    ----------
    psi : Regularizer
    x : array
        The null model: 0 in the penalised entries, and fitted elsewhere.
    gradient : array
        The gradient of the objective at x.

    Raises
    ------
    ConfigError
        If there is none, as for a squared norm.

    Examples
    --------
    >>> from flower_fedcon.regularizers import GroupLasso
    >>> psi = GroupLasso(0.5, groups=2)
    >>> round(largest_weight(psi, np.zeros(2), np.array([3.0, -4.0])), 9)
    10.0
    """
    entrywise = psi.entrywise(x.shape)
    v = x - gradient
    if entrywise is not None:
        l1, l2 = entrywise
        if (l2[l1 == 0] > 0).any() or not (l1 > 0).any():
            raise _no_largest(psi)
        return float((np.abs(v[l1 > 0]) / l1[l1 > 0]).max())
    null = psi.scaled(_HUGE).prox(v, 1.0)
    size = float(np.abs(v - null).max())  # for any unit: the search is over numbers of size 1
    if not size:
        raise _no_largest(psi)
    v = (v - null) / size
    null = psi.scaled(_HUGE).prox(v, 1.0)

    def leaves_nothing(weight: float) -> bool:
        return np.array_equal(psi.scaled(weight).prox(v, 1.0), null)

    high = 1.0
    while not leaves_nothing(high):
        high *= 2.0
        if high > _HUGE:
            raise _no_largest(psi)
    while leaves_nothing(0.5 * high) and high > 1.0 / _HUGE:
        high *= 0.5
    low = 0.5 * high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if leaves_nothing(middle):
            high = middle
        else:
            low = middle
    return size * high


def weights(values: Sequence[float] | Array) -> Array:
    """Return the weights of a grid, the largest first.

    Raises
    ------
    ConfigError
        If a weight is negative, or there are none.
    """
    grid = float_array("values", values, ndim=1)
    if grid.size == 0 or grid.min() < 0:
        raise ConfigError(f"values must be lambdas >= 0, at least one, got {values!r}")
    return -np.sort(-grid)


def _no_largest(psi: Regularizer) -> ConfigError:
    return ConfigError(
        f"{psi!r} makes no coefficient 0 at any weight, so a path has no largest lambda: give "
        "values=[...], or add an l1 part"
    )
