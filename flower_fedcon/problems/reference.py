"""Certified minimisers of centralised problems, to measure the federated algorithms against.

The only code shared with the algorithms is that of the objectives and the proximal operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from flower_fedcon.problems.coordinate_descent import coordinate_descent
from flower_fedcon.regularizers import L2Squared, Regularizer, Zero
from flower_fedcon.validation import Array, count, float_array, positive


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
        L ||x - prox(x - gradient/L, 1/L)||, the norm of the proximal gradient, or a bound on it,
        the least ||gradient + q|| over the subdifferential of psi; 0 at a minimiser.
    method : str
        How it was found: "direct", "l-bfgs", "coordinate descent", "fista", or two of them.
    """

    x: Array
    value: float
    residual: float
    method: str


def solve(
    objectives: Sequence[SmoothFunction],
    regularizer: Regularizer,
    x0: Array,
    *,
    tolerance: float = 1e-10,
    max_iterations: int = 100_000,
) -> Reference:
    """Minimise (1/N) sum_j f_j(x) + psi(x) to a certified residual.

    Parameters
    ----------
    objectives : sequence of N objects
        Convex; each with `value` and `gradient` on arrays shaped like `x0`.
    regularizer : Regularizer
        psi; `Indicator(set)` for a constraint.
    x0 : array
        Where to start.
    tolerance : float
        The residual must come down to tolerance * max(1, ||gradient of F at x0||).
    max_iterations : int
        The most iterations of each iterative stage.

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
            f"{regularizer!r} is not convex: no solver certifies a minimum. Run without F* "
            "(reference = false), and take certificates, whose kkt is 0 at stationary points"
        )
    x = float_array("x0", x0).astype(np.float64)
    smooth = _Mean(objectives)
    limit = count("max_iterations", max_iterations)
    start = smooth.gradient(x)
    if start.shape != x.shape:
        raise ConfigError(f"the gradient has shape {start.shape}, x0 has shape {x.shape}")
    target = positive("tolerance", tolerance) * max(1.0, float(np.linalg.norm(start)))

    if isinstance(regularizer, Zero | L2Squared):
        ridge = regularizer.weight if isinstance(regularizer, L2Squared) else 0.0
        direct = _direct(smooth.parts, ridge, x)
        x, method = (
            (_lbfgs(smooth, ridge, x, target, limit), "l-bfgs") if direct is None else direct
        )
    else:
        method = ""
    residual = math.inf
    if not method and (found := _by_coordinates(smooth, regularizer, x, target, limit)) is not None:
        (x, residual), method = found, "coordinate descent"
    if not residual <= target:
        steps = _ProximalSteps(smooth, regularizer, x)  # its L may take longer than all the rest
        residual = steps.residual(x)
        if not residual <= target:
            x, residual = steps.fista(x, target, limit)
            method = f"{method}+fista".lstrip("+")
    if not residual <= target:
        raise FedConError(
            f"the reference stopped at a residual of {residual:.3g}, above {target:.3g} "
            f"({method}, at most {limit} iterations): pass a larger tolerance or max_iterations, "
            "scale the data to unit size, or add l2"
        )
    return Reference(x, smooth.value(x) + regularizer.value(x), residual, method or "fista")


class _Mean:
    """(1/N) sum_j f_j, by fewer evaluations where the f_j are of one type."""

    def __init__(self, objectives: Sequence[SmoothFunction]) -> None:
        if not objectives:
            raise ConfigError("solve needs at least one objective")
        stacked = _stack(objectives)
        self.parts: list[Any] = list(objectives) if stacked is None else [stacked]

    def value(self, x: Array) -> float:
        return sum(float(f.value(x)) for f in self.parts) / len(self.parts)

    def gradient(self, x: Array) -> Array:
        total: Array = np.asarray(self.parts[0].gradient(x), dtype=np.float64)
        for f in self.parts[1:]:
            total = total + f.gradient(x)
        return total / len(self.parts) if len(self.parts) > 1 else total

    @property
    def smoothness(self) -> float | None:
        total = 0.0
        for f in self.parts:
            if (constant := getattr(f, "smoothness", None)) is None:
                return None
            total += float(constant)
        return total / len(self.parts)


def _stack(objectives: Sequence[Any]) -> Objective | None:
    """Return the mean of `objectives` as one objective over all rows; None if there is none."""
    cores, factors = [], []
    for f in objectives:
        factors.append(1.0)
        while isinstance(f, Scaled):
            factors[-1] *= f.factor
            f = f.objective
        cores.append(f)
    kinds = {type(f) for f in cores}
    kind = kinds.pop()
    known = (LeastSquares, LogisticRegression, SoftmaxRegression)
    if kinds or kind not in known or len({f.shape for f in cores}) > 1:
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
    if kind is LeastSquares:
        weights = weights * [f.scale for f in cores]
        own = [np.ones(f.num_examples) if f.weights is None else f.weights for f in cores]
        root = np.sqrt(np.repeat(weights, sizes) * np.concatenate(own))
        A *= root.reshape((-1, *[1] * (A.ndim - 1)))
        return LeastSquares(A, root * targets, scale=len(A))
    total = float(weights[0]) * len(A)
    if np.ptp(weights) > 1e-14 * weights[0] or total == 0:
        return None
    l2 = float(np.mean([factor * f.l2 for factor, f in zip(factors, cores, strict=True)])) / total
    if kind is LogisticRegression:
        return Scaled(LogisticRegression(A, targets, l2), total)
    return Scaled(SoftmaxRegression(A, targets, cores[0].num_classes, l2), total)


def _direct(parts: Sequence[Any], ridge: float, x: Array) -> tuple[Array, str] | None:
    """Solve the linear system of a quadratic problem; None if it is not one."""
    if any(isinstance(f, LeastSquares) and f.sparse for f in parts):
        return None
    if len(parts) == 1 and isinstance(parts[0], LeastSquares):
        f = parts[0]
        weight = math.sqrt(f.scale / f.num_examples)
        rows, targets = weight * f.rows, weight * f.targets
        if ridge:
            rows = np.concatenate([rows, math.sqrt(ridge) * np.eye(x.size)])
            targets = np.concatenate([targets, np.zeros(x.size)])
        return np.linalg.lstsq(rows, targets, rcond=None)[0].reshape(x.shape), "direct"
    if not all(isinstance(f, Quadratic | LeastSquares) for f in parts):
        return None
    hessian = ridge * np.eye(x.size)
    linear = np.zeros(x.size)
    for f in parts:
        hessian += f.hessian(x) / len(parts)
        linear -= f.gradient(np.zeros_like(x)).ravel() / len(parts)
    eigenvalues = np.linalg.eigvalsh(hessian)
    if eigenvalues[0] < -1e-12 * np.abs(eigenvalues).max():
        raise FedConError(
            f"the mean of the quadratics has the eigenvalue {eigenvalues[0]:.3g} < 0: it has no "
            "minimiser; add L2Squared or constrain it"
        )
    found = np.linalg.lstsq(hessian, linear, rcond=None)[0]
    found += np.linalg.lstsq(hessian, linear - hessian @ found, rcond=None)[0]
    if np.linalg.norm(hessian @ found - linear) > 1e-6 * np.linalg.norm(linear):
        raise FedConError(
            "the mean of the quadratics is linear along some direction: it has no minimiser; add "
            "L2Squared or constrain it"
        )
    return found.reshape(x.shape), "direct"


def _by_coordinates(
    smooth: _Mean, psi: Regularizer, x: Array, target: float, limit: int
) -> tuple[Array, float] | None:
    """Solve least squares with l1 and l2 weights; None if that is not the problem.

    Returns x and the least ||gradient + q|| over the subdifferential of psi: no less than the norm
    of the proximal gradient, whatever L.
    """
    weights = psi.entrywise(x.shape)
    if weights is None or len(smooth.parts) > 1 or not isinstance(smooth.parts[0], LeastSquares):
        return None
    f = smooth.parts[0]
    if f.sparse or f.weights is not None or f.intercept:
        return None
    root = math.sqrt(f.scale / f.num_examples)
    A, b = f.rows.reshape(f.num_examples, -1), f.targets
    if root != 1.0:
        A, b = root * A, root * b
    l1, l2 = (each.reshape(-1) for each in weights)

    def distance(at: Array, gradient: Array) -> float:
        return psi.subdifferential_distance(at.reshape(x.shape), gradient.reshape(x.shape))

    found, gap = coordinate_descent(A, b, l1, l2, x.reshape(-1), distance, target, limit)
    return found.reshape(x.shape), gap


def _lbfgs(smooth: _Mean, ridge: float, x: Array, target: float, limit: int) -> Array:
    from scipy.optimize import minimize

    def both(flat: Array) -> tuple[float, Array]:
        x_now = flat.reshape(x.shape)
        value = smooth.value(x_now) + 0.5 * ridge * float(flat @ flat)
        return value, smooth.gradient(x_now).ravel() + ridge * flat

    gtol = target / math.sqrt(x.size)  # a bound on the largest entry
    options = {"maxiter": limit, "maxfun": 2 * limit, "gtol": gtol, "ftol": 0.0, "maxcor": 20}
    found = minimize(both, x.ravel(), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x, dtype=np.float64).reshape(x.shape)


class _ProximalSteps:
    """Proximal gradient steps of step size 1/L on F + psi."""

    def __init__(self, smooth: _Mean, psi: Regularizer, x: Array) -> None:
        self.gradient: Callable[[Array], Array] = smooth.gradient
        self.psi = psi
        known = smooth.smoothness
        self.known = known is not None and math.isfinite(known)
        self.L = (known if known is not None and self.known else self._guess(x)) or 1.0

    def _guess(self, x: Array) -> float:
        """Return the curvature of F along its gradient at x."""
        gradient = self.gradient(x)
        norm = float(np.linalg.norm(gradient))
        step = 1e-4 * max(1.0, float(np.linalg.norm(x))) / norm if norm else 0.0
        change = float(np.linalg.norm(self.gradient(x - step * gradient) - gradient))
        return change / (step * norm) if step else 1.0

    def step(self, y: Array, gradient: Array) -> Array:
        return self.psi.prox(y - gradient / self.L, 1.0 / self.L)

    def residual(self, x: Array) -> float:
        return self.L * float(np.linalg.norm(x - self.step(x, self.gradient(x))))

    def fista(self, x: Array, target: float, limit: int) -> tuple[Array, float]:
        """Accelerate, and restart whenever the momentum points uphill; return x, residual.

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

        It compares gradients: near the minimiser a difference of values is mere rounding error.
        """
        move = (new - y).ravel()
        square = float(move @ move)
        if not math.isfinite(square) or self.L * math.sqrt(square) <= target:
            return False
        return float((self.gradient(new) - gradient).ravel() @ move) > self.L * square
