"""Detection of minimisers at infinity: outcomes that columns separate."""

from __future__ import annotations

import numpy as np

from flower_fedcon.solvers.quadratic_models import QuadraticModel
from flower_fedcon.validation import Array

_SINGULAR = 1e-10  # share of the largest curvature at the start: directions without data
_FLAT = 1e-6  # of a direction's curvature at the start: every score along it is above 14
_GONE = 1e-11  # of that curvature: the rest is rounding
_ON = 0.01  # of the distance already moved: a step further out
_NAMED = 0.1  # of the largest entry, in units of the curvature


def runaway(first: Array, model: QuadraticModel, x: Array, flat: float = _FLAT) -> Array:
    """Return the flattened entries of x along which a convex objective falls for ever.

    If a direction separates the outcomes of a logistic, multinomial, Poisson or Cox model, the
    objective falls along it without a minimum. Slope and curvature go to 0 at the same rate:
    Newton's steps keep their length while the gradient, which decides convergence, vanishes. Such a
    direction is recognised by two signs: almost nothing is left of its curvature at the start, and
    a step without penalty leads further out (or only rounding is left). At a minimum that step is
    0, and nearly equal columns have little curvature at the start already.

    Parameters
    ----------
    first : array, shape (d, d)
        The Hessian at the start.
    model : QuadraticModel
        About x, without the penalty.
    x : array, shape (d,), or of the model's shape
    flat : float
        A direction runs away if no more than this share of its curvature at the start is left. A
        value above the default also finds directions that may only be on their way.

    Returns
    -------
    array of int
        The entries that make up most of the directions that run away; empty if none does.

    Examples
    --------
    >>> x = 20.0  # log(1 + exp(-x)): its slope is -exp(-x), its curvature exp(-x)
    >>> end = QuadraticModel(np.array([[np.exp(-x)]]), np.array([(x + 1) * np.exp(-x)]), 0.0)
    >>> runaway(np.array([[0.25]]), end, np.array([x]))
    array([0])
    """
    z, sizes = x.reshape(-1).astype(np.float64), np.sqrt(np.diag(first))
    used = np.flatnonzero(sizes > 0)
    none = np.empty(0, dtype=np.int64)
    if not used.size or not np.isfinite(model.H).all():
        return none
    size, z = sizes[used], z[used] * sizes[used]
    roots, axes = np.linalg.eigh(first[np.ix_(used, used)] / size / size[:, None])
    apart = roots > _SINGULAR * roots[-1]
    axes, root = axes[:, apart], np.sqrt(roots[apart])
    back = axes / root / size[:, None]  # from coordinates in which the first Hessian is 1
    left, turn = np.linalg.eigh(back.T @ model.H[np.ix_(used, used)] @ back)
    slope = (model.H @ x.reshape(-1) - model.b)[used]
    gone = turn.T @ (root * (axes.T @ z))
    step = -(turn.T @ (back.T @ slope)) / np.where(left > 0, left, np.inf)
    fading = (left <= flat) & (step * np.sign(gone) >= _ON * np.abs(gone))
    away = (fading | (left <= _GONE)) & (gone != 0)
    parts = np.abs(axes @ ((turn[:, away] @ gone[away]) / root))
    if not away.any() or not parts.any():
        return none
    entries: Array = used[parts >= _NAMED * parts.max()]
    return entries
