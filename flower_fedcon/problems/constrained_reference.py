"""Certified minimisers under functional constraints, by sequential quadratic programming."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.problems.reference import Reference, curvature_along
from flower_fedcon.regularizers import Zero
from flower_fedcon.solvers.units import units_of
from flower_fedcon.validation import Array

Function = Callable[[Array], float]
Slope = Callable[[Array], Array]
_SMALL = 1e-6  # a constraint this close to its bound may have a multiplier
_TOLERANCE = 1e-5
"""The residual's tolerance, relative to the largest slope at x0; its square is that of the
constraints, relative to their sizes there.
"""
_OPTIONS = {"maxiter": 2000, "ftol": 1e-15}
_STEPS_INSIDE = 5
_PAIRS = 10  # of points on each scale, between which gradients must be monotone


def solve_constrained(
    value: Function,
    gradient: Slope,
    constraints: Callable[[Array], Array],
    jacobian: Slope,
    x0: Array,
    *,
    curvatures: Array | None = None,
) -> Reference:
    """Minimise F(x) subject to g_k(x) <= 0, all convex and smooth, to a certified residual.

    SciPy's SLSQP solves it, in units in which F and the constraints have size 1 and change by about
    1 over a length of 1. The residual is the least ||grad F + sum mu_k grad g_k|| over the
    mu_k >= 0 of the active constraints; at a minimiser it is 0.

    Parameters
    ----------
    value, gradient : callable
        F, and its gradient in the shape of `x0`.
    constraints, jacobian : callable
        The g_k, shape (m,), and their gradients, shape (m, *shape of x0).
    x0 : array
        The start.
    curvatures : array, optional
        The approximate curvature of F along each entry, which gives the units of the entries.

    Raises
    ------
    FedConError
        If the residual was not reached. If no point satisfies the constraints, the error says so.
    ConfigError
        If the gradients at a few points show that F or a constraint is not convex.

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

    shape, given = x0.shape, np.asarray(x0, dtype=np.float64)
    scales = _Scales.of(gradient, constraints, jacobian, given, curvatures)
    _check_convex(lambda x: np.concatenate([gradient(x)[None], jacobian(x)]), given, scales.x)
    value, gradient = scales.function(value, gradient)
    given_bounds = constraints, jacobian
    constraints, jacobian = scales.bounds(constraints, jacobian)
    start = given / scales.x

    slopes = _rows(jacobian, shape)
    result = minimize(
        lambda flat: value(flat.reshape(shape)),
        start.ravel(),
        jac=lambda flat: gradient(flat.reshape(shape)).ravel(),
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda flat: -constraints(flat.reshape(shape)),
            "jac": lambda flat: -slopes(flat),
        },
        options=_OPTIONS,
    )
    x, g = _moved_inside(constraints, slopes, result.x, shape, _TOLERANCE**2)
    binding = slopes(x)[g > -_SMALL]
    slope = gradient(x.reshape(shape)).ravel()
    residual = float(np.linalg.norm(slope))
    if len(binding):
        residual = float(nnls(binding.T, -slope)[1])
    if g.max() > _TOLERANCE**2:
        _raise_if_nothing_keeps(*given_bounds, given, curvatures)
    if not residual <= _TOLERANCE or not g.max() <= _TOLERANCE**2:
        raise FedConError(
            f"the reference stopped at a residual of {residual:.3g}, with constraints up to "
            f"{g.max():.3g} of their values at x0 ({result.message}): try looser constraints, give "
            f"optimum=, or run without F* (reference = false)"
        )
    x = x.reshape(shape)
    steep = scales.f / scales.far
    return Reference(
        scales.x * x, scales.f * float(value(x)), steep * residual, "slsqp", scales.x / scales.far
    )


def least_violation(
    constraints: Callable[[Array], Array],
    jacobian: Slope,
    x0: Array,
    *,
    curvatures: Array | None = None,
) -> Reference:
    """Minimise max_k g_k(x), all convex and smooth, to a certified residual.

    SciPy's SLSQP solves it over x and a bound t on all g_k. The residual is the least ||sum mu_k
    grad g_k|| over weights mu_k >= 0 of the largest constraints, which sum to 1; at a minimiser it
    is 0.

    Parameters
    ----------
    constraints, jacobian, x0, curvatures : see `solve_constrained`

    Raises
    ------
    FedConError
        If the residual was not reached.
    ConfigError
        If the gradients at a few points show that a constraint is not convex.

    Examples
    --------
    x <= -0.5 and x >= 0.5 are 1 apart:

    >>> found = least_violation(
    ...     lambda x: np.array([x[0] + 0.5, 0.5 - x[0]]), lambda x: np.array([[1.0], [-1.0]]),
    ...     np.ones(1))
    >>> round(found.value, 6)
    0.5
    """
    from scipy.optimize import minimize, nnls

    shape, given = x0.shape, np.asarray(x0, dtype=np.float64)
    scales = _Scales.of(None, constraints, jacobian, given, curvatures)
    _check_convex(jacobian, given, scales.x)
    constraints, jacobian = scales.bounds(constraints, jacobian)
    start, slopes = given / scales.x, _rows(jacobian, shape)
    result = minimize(
        lambda point: point[-1],
        np.append(start.ravel(), constraints(start).max()),
        jac=lambda point: np.eye(1, len(point), len(point) - 1)[0],
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda point: point[-1] - constraints(point[:-1].reshape(shape)),
            "jac": lambda point: np.pad(-slopes(point[:-1]), ((0, 0), (0, 1)), constant_values=1.0),
        },
        options=_OPTIONS,
    )
    x = np.asarray(result.x[:-1], dtype=np.float64)
    g = constraints(x.reshape(shape))
    rows = slopes(x)[g > g.max() - _SMALL]
    sums = np.ones((1, len(rows)))  # the weights' sum, which is 1
    weights, _ = nnls(np.vstack([rows.T, sums]), np.append(np.zeros(x.size), 1.0))
    residual = float(np.linalg.norm(weights @ rows)) / max(float(weights.sum()), 1e-300)
    if not residual <= _TOLERANCE:
        raise FedConError(
            f"the least violation was not found: SLSQP stopped at {scales.g * g.max():.3g}, with a "
            f"relative residual of {residual:.3g} ({result.message}): add l2"
        )
    steep, units = scales.g / scales.far, scales.x / scales.far
    return Reference(
        scales.x * x.reshape(shape), scales.g * float(g.max()), steep * residual, "slsqp", units
    )


class _Scales(NamedTuple):
    """The scales that have size 1 in SLSQP's problem.

    Attributes
    ----------
    x : array of the model's shape
        The lengths over which F, or the largest constraint, changes by about its size.
    f, g : float
        The sizes of changes of F and of the constraints.
    far : float
        x in the units of the entries.
    """

    x: Array
    f: float
    g: float
    far: float

    @classmethod
    def of(
        cls,
        gradient: Slope | None,
        constraints: Callable[[Array], Array],
        jacobian: Slope,
        x0: Array,
        curvatures: Array | None,
    ) -> _Scales:
        """Return the scales, from values at x0."""
        sizes = units_of(Zero(), curvatures, x0.shape, exact=True).sizes
        slopes = np.asarray(jacobian(x0)).reshape(-1, x0.size) * sizes.reshape(-1)
        steepest = float(np.linalg.norm(slopes, axis=1).max())
        values = np.abs(constraints(x0))
        far, curved = 0.0, 1.0
        if gradient is not None:
            down: Slope = gradient
            steep = float(np.linalg.norm(sizes * down(x0)))
            if curvatures is None:
                curved = curvature_along(down, x0)
            far = steep / curved
        if steepest:
            far = max(far, float(values.max()) / steepest) or 1.0
        far = far or 1.0
        return cls(far * sizes, curved * far * far, steepest * far or 1.0, far)

    def function(self, value: Function, gradient: Slope) -> tuple[Function, Slope]:
        """Return F and its gradient in these units."""
        return (
            lambda x: value(self.x * x) / self.f,
            lambda x: self.x * gradient(self.x * x) / self.f,
        )

    def bounds(
        self, constraints: Callable[[Array], Array], jacobian: Slope
    ) -> tuple[Callable[[Array], Array], Slope]:
        """Return the constraints and their gradients, in these units."""
        return (
            lambda x: np.asarray(constraints(self.x * x)) / self.g,
            lambda x: self.x * np.asarray(jacobian(self.x * x)) / self.g,
        )


def _raise_if_nothing_keeps(
    constraints: Callable[[Array], Array],
    jacobian: Slope,
    x0: Array,
    curvatures: Array | None,
) -> None:
    """Raise if it is certain that no point satisfies the constraints."""
    try:
        least = least_violation(constraints, jacobian, x0, curvatures=curvatures)
    except FedConError:  # not certain
        return
    doubt = least.residual * least.length(least.x - x0)
    if least.value > max(_TOLERANCE**2 * float(np.abs(constraints(x0)).max()), doubt):
        raise FedConError(
            f"no model satisfies these bounds: every model exceeds one of them by at least about "
            f"{least.value:.3g}. Raise the bounds by more than that "
            f"(FederatedProblem.least_violation)"
        )


def _moved_inside(
    constraints: Callable[[Array], Array],
    slopes: Slope,
    x: Array,
    shape: tuple[int, ...],
    most: float,
) -> tuple[Array, Array]:
    """Return SLSQP's last point, moved into the constraints and flattened, and their values.

    SLSQP stops once F no longer falls, which may be some 1e-10 outside; Newton's steps for the
    constraints lead back.
    """
    x = np.asarray(x, dtype=np.float64)
    for _ in range(_STEPS_INSIDE):
        g = constraints(x.reshape(shape))
        if not most < g.max() < _SMALL:
            break
        x = x - np.linalg.lstsq(slopes(x)[g > most], g[g > most])[0]
    return x, constraints(x.reshape(shape))


def _rows(jacobian: Slope, shape: tuple[int, ...]) -> Slope:
    """Return the gradients as a function of a flat point, one in each row."""

    def rows(flat: Array) -> Array:
        slopes = np.asarray(jacobian(flat.reshape(shape)))
        return slopes.reshape(len(slopes), -1)

    return rows


def _check_convex(slopes: Slope, x0: Array, lengths_of_x: Array) -> None:
    """Raise if one of the gradients, shape (m, *shape of x0), is not monotone near x0."""
    rng = np.random.default_rng(0)
    for scale in np.repeat([0.1, 1.0], _PAIRS):
        a, b = x0 + scale * lengths_of_x * rng.standard_normal((2, *x0.shape))
        first, second = (np.asarray(slopes(x)).reshape(-1, x0.size) for x in (a, b))
        move = (b - a).ravel()
        lengths = np.linalg.norm(first, axis=1) + np.linalg.norm(second, axis=1)
        if ((second - first) @ move < -1e-6 * lengths * np.linalg.norm(move)).any():
            raise ConfigError(
                "the objectives or their constraints are not convex, so no solver certifies a "
                "minimum: run without F* (reference = false), and use certificates, whose kkt is 0 "
                "at stationary points"
            )
