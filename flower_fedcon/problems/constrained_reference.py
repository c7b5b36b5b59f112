"""Certified minimisers under functional constraints, by sequential quadratic programming."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flower_fedcon.errors import FedConError
from flower_fedcon.problems.reference import Reference
from flower_fedcon.validation import Array, positive

Function = Callable[[Array], float]
Slope = Callable[[Array], Array]
_SMALL = 1e-6  # a constraint this close to its bound may have a multiplier


def solve_constrained(
    value: Function,
    gradient: Slope,
    constraints: Callable[[Array], Array],
    jacobian: Slope,
    x0: Array,
    *,
    tolerance: float = 1e-5,
) -> Reference:
    """Minimise F(x) subject to g_k(x) <= 0, all convex and smooth, to a certified residual.

    By SciPy's SLSQP. The residual is the least ||grad F + sum mu_k grad g_k|| over the mu_k >= 0 of
    the constraints that bind; at a minimiser it is 0.

    Parameters
    ----------
    value, gradient : callable
        F, and its gradient in the shape of `x0`.
    constraints, jacobian : callable
        The g_k, shape (m,), and their gradients, shape (m, *shape of x0).
    x0 : array
        Where to start.
    tolerance : float
        The residual must come down to tolerance * max(1, ||gradient of F at x0||), and the
        constraints to the tolerance's square.

    Raises
    ------
    FedConError
        If that was not reached: the constraints leave no point, say.

    Examples
    --------
    The minimum of ||x - (2, 2)||^2 / 2 in the unit ball:

    >>> found = solve_constrained(
    ...     lambda x: float((x - 2) @ (x - 2)) / 2, lambda x: x - 2,
    ...     lambda x: np.array([x @ x - 1]), lambda x: 2 * x[None], np.zeros(2))
    >>> found.x.round(6), round(found.value, 6)
    (array([0.707107, 0.707107]), 1.671573)
    """
    from scipy.optimize import minimize, nnls

    shape, start = x0.shape, np.asarray(x0, dtype=np.float64)
    target = positive("tolerance", tolerance) * max(1.0, float(np.linalg.norm(gradient(start))))

    def slopes(flat: Array) -> Array:
        found = np.asarray(jacobian(flat.reshape(shape)))
        return found.reshape(len(found), -1)

    found = minimize(
        lambda flat: value(flat.reshape(shape)),
        start.ravel(),
        jac=lambda flat: gradient(flat.reshape(shape)).ravel(),
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda flat: -constraints(flat.reshape(shape)),
            "jac": lambda flat: -slopes(flat),
        },
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    x = np.asarray(found.x, dtype=np.float64)
    g = constraints(x.reshape(shape))
    binding = slopes(x)[g > -_SMALL]
    slope = gradient(x.reshape(shape)).ravel()
    residual = float(np.linalg.norm(slope))
    if len(binding):
        residual = float(nnls(binding.T, -slope)[1])
    if not residual <= target or not g.max() <= tolerance**2:
        raise FedConError(
            f"the reference stopped at a residual of {residual:.3g} and constraints up to "
            f"{g.max():.3g} ({found.message}): looser constraints, or scaled data, may help; or "
            "give optimum=, or run without F* (reference = false)"
        )
    return Reference(x.reshape(shape), float(value(x.reshape(shape))), residual, "slsqp")
