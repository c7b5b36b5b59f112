"""Certified minimisers of centralised problems, as a reference for federated algorithms.

The solvers share only objectives and proximal operators with the algorithms.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import (
    LeastSquares,
    LogisticRegression,
    Objective,
    Quadratic,
    Scaled,
    SmoothFunction,
    SoftmaxRegression,
)
from flower_fedcon.objectives.curvatures import in_units
from flower_fedcon.objectives.set_aside import is_ours, owner_of
from flower_fedcon.problems.proximal_newton import excess, interchangeable, newton
from flower_fedcon.regularizers import Indicator, Regularizer
from flower_fedcon.sets import ConstraintSet
from flower_fedcon.solvers.coordinate_descent import coordinate_descent
from flower_fedcon.solvers.quadratic_models import definite
from flower_fedcon.solvers.units import Units, mean_curvatures, units_of
from flower_fedcon.validation import Array, count, float_array, positive

_log = logging.getLogger("flwr")
_DENSE = 1000  # entries of a model up to which second derivatives are used
_DOUBTS = 500  # and up to which their eigenvalues are used
_FAR = 1e-6  # of F's usual size: a gap that is reported
_CURVED = 1e-8  # a curvature that counts as 0, where about 1 is usual
_EPS = float(np.finfo(np.float64).eps)
_LOOKS = 100


@dataclass(frozen=True)
class Reference:
    """A minimiser of F + psi and its certificate.

    Attributes
    ----------
    x : array
        The minimiser, float64.
    value : float
        F(x) + psi(x).
    residual : float
        L ||z - prox(z - gradient/L, 1/L)||, the norm of the proximal gradient in z = x / units; or
        a bound on it, the least ||gradient + q|| over the subdifferential of psi. It is 0 at a
        minimiser.
    method : str
        The solver: "direct", "l-bfgs", "newton", "coordinate descent", "fista", or several.
    units : array, optional
        F has a curvature of about 1 along each entry of z; see `flower_fedcon.solvers.units`.
    gap : float
        F(x) + psi(x) minus its minimum. It is an upper bound for a set with a linear minimisation
        oracle, and for a quadratic F with l1 and l2 weights. For another twice differentiable F of
        at most 500 entries it is an estimate; otherwise it is NaN. Computed at first use.
    """

    x: Array
    value: float
    residual: float
    method: str
    units: Array | None = None
    _excess: Callable[[], float] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def gap(self) -> float:
        """The value minus the minimum: a bound, or an estimate."""
        return math.nan if self._excess is None else self._excess()

    def length(self, move: Array) -> float:
        """Return the norm of a move from x in the units of `residual`."""
        scaled = move.reshape(-1) if self.units is None else (move / self.units).reshape(-1)
        return float(np.linalg.norm(scaled))


def solve(
    objectives: Sequence[SmoothFunction],
    regularizer: Regularizer,
    x0: Array,
    *,
    tolerance: float = 1e-10,
    max_iterations: int = 100_000,
) -> Reference:
    """Minimise (1/N) sum_j f_j(x) + psi(x) to a certified residual.

    It first scales columns to one size, so that their units do not matter
    (`flower_fedcon.solvers.units`).

    Parameters
    ----------
    objectives : sequence of N objects
        Convex; each with `value` and `gradient` on arrays shaped like `x0`.
    regularizer : Regularizer
        psi; `Indicator(set)` for a constraint.
    x0 : array
        The start.
    tolerance : float
        The residual must be at most tolerance times the norm of the gradient of F at x0 or at 0,
        whichever is larger.
    max_iterations : int
        The largest number of iterations of each iterative stage.

    Raises
    ------
    ConfigError
        If there are no objectives, psi is not convex, or an argument cannot be used.
    FedConError
        If the tolerance was not reached, or F is a quadratic without a minimiser.

    Examples
    --------
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> f = Quadratic(np.eye(2), np.array([3.0, 0.5]))
    >>> found = solve([f], L1(1.0), np.zeros(2))
    >>> found.x, found.value
    (array([2., 0.]), -2.0)
    """
    if regularizer.weak_convexity:
        raise ConfigError(
            f"{regularizer!r} is not convex, so no solver certifies a minimum: run without F* "
            f"(reference = false), and use certificates, whose kkt is 0 at stationary points"
        )
    x0 = float_array("x0", x0).astype(np.float64)
    mean = _Mean(objectives)
    limit = count("max_iterations", max_iterations)
    start = mean.gradient(x0)
    if start.shape != x0.shape:
        raise ConfigError(
            f"the gradient has shape {start.shape} and x0 has shape {x0.shape}: give them one shape"
        )
    units = units_of(regularizer, mean_curvatures(mean.parts), x0.shape, exact=True)
    smooth, psi, x = mean.in_units(units), units.psi, x0 / units.sizes
    size = max(units.length(start), units.length(mean.gradient(np.zeros_like(x0))))
    target = positive("tolerance", tolerance) * size

    weights = psi.entrywise(x.shape)
    method, residual = "", math.inf
    if weights is not None and not weights[0].any():
        direct = _direct(smooth.parts, weights[1], x)
        x, method = (
            (_lbfgs(smooth, weights[1], x, target, limit), "l-bfgs") if direct is None else direct
        )
        residual = _away(smooth, psi, x)
    elif (least := _by_coordinates(smooth, psi, x, target, limit)) is not None:
        (x, residual), method = least, "coordinate descent"
    if not residual <= target and weights is not None and smooth.twice(x.size):
        x, residual = newton(smooth, weights, x, target, limit)
        method = f"{method}+newton".lstrip("+")
    if not residual <= target + _rounding(x, weights):
        steps = _ProximalSteps(smooth, psi, x)  # computing L may take longer than the rest
        residual = steps.residual(x)
        if not residual <= target:
            x, residual = steps.fista(x, target, limit)
            method = f"{method}+fista".lstrip("+")
    seen = weights if x.size <= _DOUBTS and smooth.twice(x.size) else None
    above = None if seen is None else partial(excess, smooth, seen, x)
    if not residual <= target + _rounding(x, weights):
        why = "" if seen is None else interchangeable(smooth, seen, x)
        raise FedConError(
            f"the reference stopped at a residual of {residual:.3g}, above {target:.3g} "
            f"({method}, at most {limit} iterations): "
            + (why or "pass a larger tolerance or max_iterations, or add l2")
        )
    if seen is not None and above is not None:
        # If F has curvature along all directions, a short subgradient implies that F* is near.
        far, short = _FAR * size * size, math.inf if "fista" in method else residual
        curved = short * short <= 2 * _CURVED * far and definite(
            smooth.hessian(x) + np.diag(seen[1].reshape(-1)), _CURVED
        )
        if not curved and above() > far and (why := interchangeable(smooth, seen, x)):
            _log.warning("F* may be %.2g too high: %s", above(), why)
    x = x * units.sizes
    if isinstance(regularizer, Indicator) and not regularizer.constraint.without_oracle:
        above = partial(_frank_wolfe_gap, mean, regularizer.constraint, x)
    value = mean.value(x) + regularizer.value(x)
    return Reference(x, value, residual, method or "fista", units.sizes, above)


def _frank_wolfe_gap(smooth: _Mean, constraint: ConstraintSet, x: Array) -> float:
    slope = smooth.gradient(x)
    return float(np.vdot(slope, x - constraint.lmo(slope).dense()))


def _away(smooth: _Mean, psi: Regularizer, x: Array) -> float:
    return psi.subdifferential_distance(x, smooth.gradient(x))


def _rounding(x: Array, weights: Any) -> float:
    """Return a gradient's rounding error, in units in which F has curvature 1 along entries."""
    return 0.0 if weights is None else 4 * _EPS * float(np.abs(x).sum())


class _Mean:
    """(1/N) sum_j f_j, with fewer evaluations if the f_j have one type."""

    def __init__(self, objectives: Sequence[SmoothFunction]) -> None:
        if not objectives:
            raise ConfigError("solve needs at least one objective")
        stacked = _stack(objectives)
        self.parts: list[Any] = list(objectives) if stacked is None else [stacked]

    def in_units(self, units: Units) -> _Mean:
        """Return the same function in other units."""
        if units.plain:
            return self
        other = copy.copy(self)
        other.parts = [in_units(f, units.sizes) for f in self.parts]
        return other

    def twice(self, size: int) -> bool:
        """Return whether second derivatives are available for a model of this size."""
        available = all(callable(getattr(f, "hessian", None)) for f in self.parts)
        return available and size <= _DENSE

    def value(self, x: Array) -> float:
        return sum(float(f.value(x)) for f in self.parts) / len(self.parts)

    def gradient(self, x: Array) -> Array:
        total: Array = np.asarray(self.parts[0].gradient(x), dtype=np.float64)
        for f in self.parts[1:]:
            total = total + f.gradient(x)
        return total / len(self.parts) if len(self.parts) > 1 else total

    def hessian(self, x: Array) -> Array:
        total: Array = np.array(self.parts[0].hessian(x), dtype=np.float64)
        for f in self.parts[1:]:
            total += f.hessian(x)
        return total / len(self.parts)

    @property
    def smoothness(self) -> float | None:
        total = 0.0
        for f in self.parts:
            if (constant := getattr(f, "smoothness", None)) is None:
                return None
            total += float(constant)
        return total / len(self.parts)


def _stack(objectives: Sequence[Any]) -> Objective | None:
    """Return the mean of `objectives` as one objective over all rows; None if impossible."""
    cores, factors = [], []
    for f in objectives:
        factors.append(1.0)
        while isinstance(f, Scaled):
            factors[-1] *= f.factor
            f = f.objective
        cores.append(f)
    kinds = {type(f) for f in cores}
    kind = kinds.pop()
    stackable = (LeastSquares, LogisticRegression, SoftmaxRegression)
    if kinds or kind not in stackable:
        return None
    if len({(f.shape, f.targets.shape[1:]) for f in cores}) > 1:  # outputs are no trace regression
        return None
    weighted = any(f.weights is not None for f in cores)
    if any(f.sparse or (f.l2 and f.intercept) for f in cores):
        return None
    if weighted and kind is not LeastSquares:
        return None
    sizes = np.array([f.num_examples for f in cores])
    # The mean is a weighted sum over all rows; these are the weights of each client's rows.
    weights = np.array(factors) / sizes / len(cores)
    shape = cores[0].A.shape[1:] if not cores[0].intercept else cores[0].rows.shape[1:]
    A = np.concatenate([f.rows.reshape(-1, *shape) for f in cores]).astype(np.float64, copy=False)
    targets = np.concatenate([f.targets for f in cores])
    l2 = float(np.mean([factor * f.l2 for factor, f in zip(factors, cores, strict=True)]))
    if kind is LeastSquares:
        weights = weights * [f.scale for f in cores]
        row_weights = [np.ones(f.num_examples) if f.weights is None else f.weights for f in cores]
        root = np.sqrt(np.repeat(weights, sizes) * np.concatenate(row_weights))
        A *= root.reshape((-1, *[1] * (A.ndim - 1)))
        targets = root.reshape(-1, *[1] * (targets.ndim - 1)) * targets
        return LeastSquares(A, targets, scale=len(A), l2=l2)
    total = float(weights[0]) * len(A)
    if np.ptp(weights) > 1e-14 * weights[0] or total == 0:
        return None
    l2 /= total
    if kind is LogisticRegression:
        return Scaled(LogisticRegression(A, targets, l2), total)
    return Scaled(SoftmaxRegression(A, targets, cores[0].num_classes, l2), total)


def _is_quadratic(f: Any) -> bool:
    """Return whether a function is a quadratic of this package, with nothing overridden."""
    methods = ("value", "gradient", "hessian", "loss", "slope", "curvature")
    owners = filter(None, (owner_of(type(f), name) for name in methods))
    return isinstance(f, Quadratic | LeastSquares) and all(map(is_ours, owners))


def _direct(parts: Sequence[Any], ridge: Array, x: Array) -> tuple[Array, str] | None:
    """Solve the linear system of a quadratic problem; None for other problems."""
    if not all(map(_is_quadratic, parts)):
        return None
    ridge = ridge.reshape(-1)
    if any(isinstance(f, LeastSquares) and f.sparse for f in parts):
        return None
    if len(parts) == 1 and isinstance(parts[0], LeastSquares):
        f = parts[0]
        weight = math.sqrt(f.scale / f.num_examples)
        rows, targets = weight * f.rows, weight * f.targets
        if f.weights is not None:
            root = np.sqrt(f.weights.astype(np.float64))
            rows, targets = root[:, None] * rows, (root * targets.T).T
        if f.l2:
            bound = 1.0 if f._bound is None else f._bound
            ridge = ridge + np.broadcast_to(f.l2 * bound, x.shape).reshape(-1)
        d = rows.shape[1]
        outputs, ridges = targets.reshape(len(rows), -1).T, ridge.reshape(d, -1).T
        columns = [_least_squares(rows, one, own) for one, own in zip(outputs, ridges, strict=True)]
        return np.stack(columns, axis=-1).reshape(x.shape), "direct"
    hessian = np.diag(ridge)
    linear = np.zeros(x.size)
    for f in parts:
        hessian += f.hessian(x) / len(parts)
        linear -= f.gradient(np.zeros_like(x)).ravel() / len(parts)
    eigenvalues = np.linalg.eigvalsh(hessian)
    if eigenvalues[0] < -1e-12 * np.abs(eigenvalues).max():
        raise FedConError(
            f"the mean of the quadratics has the eigenvalue {eigenvalues[0]:.3g} < 0, so it has no "
            f"minimiser: add L2Squared, or a constraint"
        )
    solution = np.linalg.lstsq(hessian, linear, rcond=None)[0]
    solution += np.linalg.lstsq(hessian, linear - hessian @ solution, rcond=None)[0]
    if np.linalg.norm(hessian @ solution - linear) > 1e-6 * np.linalg.norm(linear):
        raise FedConError(
            "the mean of the quadratics is linear along a direction, so it has no minimiser: add "
            "L2Squared, or a constraint"
        )
    return solution.reshape(x.shape), "direct"


def _least_squares(rows: Array, targets: Array, ridge: Array) -> Array:
    """Return argmin ||A x - b||^2 + sum_i ridge_i x_i^2."""
    if ridge.any():
        rows = np.concatenate([rows, np.diag(np.sqrt(ridge))])
        targets = np.concatenate([targets, np.zeros(len(ridge))])
    solution: Array = np.linalg.lstsq(rows, targets, rcond=None)[0]
    return solution


def _by_coordinates(
    smooth: _Mean, psi: Regularizer, x: Array, target: float, limit: int
) -> tuple[Array, float] | None:
    """Solve least squares with l1 and l2 weights; None for other problems.

    Returns x and the least ||gradient + q|| over the subdifferential of psi: no less than the norm
    of the proximal gradient, whatever L.
    """
    weights = psi.entrywise(x.shape)
    if weights is None or len(smooth.parts) > 1 or not isinstance(smooth.parts[0], LeastSquares):
        return None
    f = smooth.parts[0]
    if not _is_quadratic(f) or f.sparse or f.weights is not None or f.intercept or f.l2:
        return None
    if f.targets.ndim > 1:  # several outputs
        return None
    root = math.sqrt(f.scale / f.num_examples)
    A, b = f.rows.reshape(f.num_examples, -1), f.targets
    if root != 1.0:
        A, b = root * A, root * b
    l1, l2 = (each.reshape(-1) for each in weights)

    def distance(at: Array, gradient: Array) -> float:
        return psi.subdifferential_distance(at.reshape(x.shape), gradient.reshape(x.shape))

    solution, gap = coordinate_descent(A, b, l1, l2, x.reshape(-1), distance, target, limit)
    return solution.reshape(x.shape), gap


def _lbfgs(smooth: _Mean, ridge: Array, x: Array, target: float, limit: int) -> Array:
    from scipy.optimize import minimize

    steep = float(np.linalg.norm(smooth.gradient(x) + ridge * x))
    if not steep:
        return x
    # SciPy's stopping rules are absolute: the function is scaled to fall by about 1 over a length
    # of 1.
    far = steep / curvature_along(smooth.gradient, x)

    def both(flat: Array) -> tuple[float, Array]:
        x_now = far * flat.reshape(x.shape)
        value = smooth.value(x_now) + 0.5 * float((ridge * x_now * x_now).sum())
        slope = smooth.gradient(x_now) + ridge * x_now
        return value / (steep * far), slope.ravel() / steep

    gtol = target / steep / math.sqrt(x.size)  # a bound on the largest entry
    options = {"maxiter": limit, "maxfun": 2 * limit, "gtol": gtol, "ftol": 0.0, "maxcor": 20}
    solution = minimize(both, x.ravel() / far, jac=True, method="L-BFGS-B", options=options)
    return far * np.asarray(solution.x, dtype=np.float64).reshape(x.shape)


def curvature_along(gradient: Callable[[Array], Array], x: Array) -> float:
    """Return the curvature of F along its gradient at x, over 1e-4 of the distance to the minimum.

    A first estimate of the curvature, over another length, gives that length.

    >>> round(curvature_along(lambda x: 1e-9 * (x - 1e12), np.zeros(1)), 14)
    1e-09
    """
    slope = gradient(x)
    norm = float(np.linalg.norm(slope))
    if not norm or not math.isfinite(norm):
        return 1.0
    length, curvature = 1e-4 * (float(np.linalg.norm(x)) or 1.0), 1.0
    for _ in range(_LOOKS):
        change = float(np.linalg.norm(gradient(x - (length / norm) * slope) - slope))
        if not math.isfinite(change):
            length *= 1e-3
        elif change <= 1e-9 * norm:  # the change is only rounding
            length *= 1e4
        else:
            curvature = change / length
            wanted = 1e-4 * norm / curvature
            if 0.01 <= length / wanted <= 1e3:
                break
            length = wanted
    return curvature


class _ProximalSteps:
    """Proximal gradient steps of step size 1/L on F + psi."""

    def __init__(self, smooth: _Mean, psi: Regularizer, x: Array) -> None:
        self.gradient: Callable[[Array], Array] = smooth.gradient
        self.psi = psi
        stated = smooth.smoothness
        self.known = stated is not None and math.isfinite(stated)
        guess = stated if stated is not None and self.known else curvature_along(smooth.gradient, x)
        self.L = guess or 1.0

    def step(self, y: Array, gradient: Array) -> Array:
        return self.psi.prox(y - gradient / self.L, 1.0 / self.L)

    def residual(self, x: Array) -> float:
        return self.L * float(np.linalg.norm(x - self.step(x, self.gradient(x))))

    def fista(self, x: Array, target: float, limit: int) -> tuple[Array, float]:
        """Return x and residual after accelerated steps, restarted if the momentum points uphill.

        O'Donoghue and Candes (2015). Without a known L each step is tested, and L is doubled until
        the step is short enough.
        """
        y, momentum = x, 1.0
        for _ in range(limit):
            gradient = self.gradient(y)
            new = self.step(y, gradient)
            while not self.known and self._too_long(y, gradient, new, target):
                self.L *= 2.0
                new = self.step(y, gradient)
            back = (y - new).ravel()
            length = self.L * float(np.linalg.norm(back))
            if length <= target and (residual := self.residual(new)) <= target:
                return new, residual
            if not math.isfinite(length):
                break
            move = new - x
            if back @ move.ravel() > 0:
                momentum, y = 1.0, new
            else:
                following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
                y = new + ((momentum - 1.0) / following) * move
                momentum = following
            x = new
        return x, self.residual(x)

    def _too_long(self, y: Array, gradient: Array, new: Array, target: float) -> bool:
        """Return whether F's curvature from y to new exceeds L.

        It compares gradients: near the minimiser differences of values are rounding error only.
        """
        move = (new - y).ravel()
        square = float(move @ move)
        if not math.isfinite(square) or self.L * math.sqrt(square) <= target:
            return False
        return float((self.gradient(new) - gradient).ravel() @ move) > self.L * square
