"""Intervals with a penalty: the debiased lasso, from one exchange of sums at the lasso's estimate.

With S = X'WX/n (W = 1 for a squared loss) and u the mean score, both at the estimate b and after
projection on the intercept,

    debiased:    b + M u,    covariance:    phi M S M' / n.

Row k of M comes from the lasso of column k on the others ("nodewise", van de Geer, Buhlmann, Ritov
and Dezeure 2014, sections 2 and 3): (1, -g_k) / t_k^2 with t_k^2 = S_kk - S_k g_k. Its weight is
sqrt(log p / n) / 4 for columns of length 1. This has the rate of their theory, and is small because
in intervals a remaining bias of b harms more than width. If much bias remains nevertheless
(splines, products and their columns explain one another) and rows are plentiful, row k of M is that
of the inverse of S. Then b + M u is a Newton step in column k without bias, and the interval is as
wide as without a penalty. phi is RSS / (n - s) for a squared loss, where s counts the non-zero
entries of b and the intercepts; otherwise it is 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flower_fedcon.compiled import recursion
from flower_fedcon.compiled.recursions import descend
from flower_fedcon.errors import ConfigError, first_few, number_of
from flower_fedcon.solvers.coordinate_descent import solved
from flower_fedcon.tables.families.base import RESIDUAL, family_of
from flower_fedcon.tables.preparation import INTERCEPT
from flower_fedcon.tables.statistics.estimates import (
    DEBIASED,
    NO_ERRORS,
    Estimates,
    fits_exactly,
)
from flower_fedcon.tables.statistics.site_sums import unpacked
from flower_fedcon.validation import Array

_RATE = 0.25  # times sqrt(log p / n): the nodewise weight
_CLOSE = 1e-9  # tolerance of the nodewise optimality conditions
_EPOCHS, _LOOKS = 5, 40  # of plain descent, before supports are solved exactly
_LIMIT = 100_000  # epochs for one column
_NOTHING = 1e-12  # share of a column left by an intercept that counts as rounding
_ALIKE = 1e-10  # 1 - correlation that counts as rounding
_FAR = 0.5  # an entry of M S above this, off the diagonal, gets a note
_NEAR, _PLENTY = 0.1, 5  # above this the inverse is used, with this many rows a column
_CAUTION = (
    "intervals of a debiased lasso are valid if few coefficients are not 0 and each column depends "
    "on few others; they are not conditional on the selected columns"
)


def expect_lasso(title: str, family: str, penalty: str, remedies: tuple[str, str]) -> None:
    """Raise unless a fit can be debiased.

    Parameters
    ----------
    title : str
        The feature that needs it.
    family : str
        The loss's name in schemas.
    penalty : {"l1", "none", ...}
        An l1 norm only, no penalty, or another one in words.
    remedies : tuple of str
        How to get only an l1 norm, and how to get errors without a penalty.

    Raises
    ------
    ConfigError
    """
    if not family_of(family).debiased:
        raise ConfigError(
            f"{title} is for squared, logistic (two classes) and Poisson losses, and this one is "
            f"{family}: fit without a penalty for intervals"
        )
    if penalty == "none":
        raise ConfigError(f"{title} is for fits with a penalty: give {remedies[1]}")
    if penalty != "l1":
        raise ConfigError(
            f"{title} removes the bias of an l1 norm only, got {penalty}: give {remedies[0]}"
        )


def debiased(name: str, names: Sequence[str], x: Array, sums: Mapping[str, Array]) -> Estimates:
    """Return debiased coefficients with their covariance.

    Parameters
    ----------
    name : str
        The loss's name in schemas.
    names : sequence of str
        The parameters' names; an intercept is last.
    x : array, shape (p,) or (p + 1,)
        The lasso's estimate.
    sums : dict
        All sites' sums at x, in the form of `flower_fedcon.tables.statistics.site_sums.estimates`.

    Returns
    -------
    Estimates
        Estimates of the columns only: the method gives no interval for the intercept, which absorbs
        the remaining bias.

    Raises
    ------
    ConfigError
        If a column is constant, two are proportional, or no row is left for phi.
    """
    family, p = family_of(name), len(names) - (INTERCEPT in names)
    n, _, deviance, *_, own_intercepts = sums["numbers"].tolist()
    S, u = unpacked(sums["information"], len(names)) / n, sums["score"] / n
    whole = np.diag(S)[:p].copy()
    if len(names) > p:
        free, corner = S[:p, p], float(S[p, p])
        S, u = S[:p, :p] - np.outer(free, free) / corner, u[:p] - free * (u[p] / corner)
    left = np.diag(S)
    empty = [names[j] for j in np.flatnonzero(~(left > _NOTHING * whole)).tolist()]
    if empty:
        raise ConfigError(
            f"the rows carry no information on {first_few(empty, what='parameter')}: a column that "
            f"is constant, or 0 in all rows with weight, has no interval. Leave it out"
        )
    sizes = np.sqrt(left)
    R = S / sizes / sizes[:, None]
    alike = np.argwhere(np.triu(np.abs(R) >= 1.0 - _ALIKE, 1))
    if alike.size:
        both = [names[j] for j in alike[0].tolist()]
        raise ConfigError(
            f"parameters {both[0]} and {both[1]} are not identified: one column is a multiple of "
            f"the other. Leave one out"
        )
    phi = 1.0
    if family.scale == RESIDUAL:
        used = int(np.count_nonzero(x[:p]) + len(names) - p + own_intercepts)
        if n <= used:
            raise ConfigError(
                f"{number_of(n, 'row is', 'rows are')} too few to estimate a variance beside "
                f"{used} coefficients that are not 0: use a larger penalty"
            )
        phi = deviance / (n - used)
    M = nodewise(R, _RATE * math.sqrt(math.log(max(p, 2)) / n))
    if n >= _PLENTY * len(names):
        M = _sharpened(M, R)
    product = M @ R
    np.fill_diagonal(product, 0.0)
    far = [names[j] for j in np.flatnonzero(np.abs(product).max(axis=1) > _FAR).tolist()]
    notes = [_CAUTION]
    if far:
        notes.append(
            f"the intervals of {first_few(far)} keep a good part of the penalty's bias, since "
            f"these columns nearly depend on others"
        )
    M = M / sizes / sizes[:, None]
    V = phi / n * (M @ S @ M.T)
    if fits_exactly(family, DEBIASED, names, x, sums):
        notes.append(NO_ERRORS)
        V = np.full((p, p), math.nan)
    return Estimates(
        family=family,
        method=DEBIASED,
        names=tuple(names[:p]),
        values=x[:p] + M @ u,
        covariance=0.5 * (V + V.T),
        n=n,
        loglik=math.nan,
        deviance=math.nan,
        pearson=math.nan,
        dispersion=phi,
        counted=len(names),
        notes=tuple(notes),
    )


def nodewise(R: Array, weight: float) -> Array:
    """Return an approximate inverse of a correlation matrix, which may be singular.

    Parameters
    ----------
    R : array, shape (p, p)
        With diagonal 1.
    weight : float
        The weight of the l1 norm in the lasso of each column on the others.

    Returns
    -------
    array, shape (p, p)
        Rows (1, -g_k) / t_k^2; M R is 1 on the diagonal, and at most weight / t_k^2 elsewhere.

    Examples
    --------
    >>> nodewise(np.array([[1.0, 0.5], [0.5, 1.0]]), 0.1).round(6)
    array([[ 1.25, -0.5 ],
           [-0.5 ,  1.25]])
    """
    p = len(R)
    M = np.eye(p)
    for k in range(p):
        l1 = np.full(p, weight)
        l1[k] = 3.0  # above any gradient: a column stays out of its own lasso
        g = _lasso(R, np.ascontiguousarray(R[k]), l1)
        M[k] -= g
        M[k] /= 1.0 - R[k] @ g
    return M


def _sharpened(M: Array, R: Array) -> Array:
    """Return M with rows of the inverse of R, if it exists, where M R is far from the identity."""
    far = np.abs(M @ R - np.eye(len(R))).max(axis=1) > _NEAR
    values, vectors = np.linalg.eigh(R)
    if not far.any() or values[0] <= _ALIKE * values[-1]:
        return M
    return np.where(far[:, None], vectors / values @ vectors.T, M)


def _lasso(R: Array, linear: Array, l1: Array) -> Array:
    """Return argmin g'R g/2 - linear'g + sum_i l1_i |g_i|."""
    descent = recursion(descend, R.size) or descend
    g, gradient = np.zeros(len(R)), -linear
    for _ in range(_LOOKS):
        descent(R, gradient, g, l1, _EPOCHS)
        away = np.where(g == 0, np.abs(gradient) - l1, np.abs(gradient + l1 * np.sign(g)))
        if float(away.max()) <= _CLOSE:
            return g
    return solved(R, linear, l1, g, _CLOSE, _LIMIT)[0]
