"""The exact minimiser of many clients at once: what `exact` does, along a leading axis.

The closed forms are repeated with stacks of factors, and `tests/math/test_stacked_solvers.py` holds
the two together; Newton's method is the same code.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from flower_fedcon.arrays import anyone
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.objectives.losses import LeastSquares
from flower_fedcon.objectives.quadratic import Quadratic
from flower_fedcon.solvers.clients import LocalProblems, Solutions, norms, some, wide
from flower_fedcon.solvers.descent import TIGHT
from flower_fedcon.solvers.exact import KEPT, REFINEMENTS, RULES
from flower_fedcon.solvers.newton import newton
from flower_fedcon.solvers.problem import Stop, targets
from flower_fedcon.solvers.stacked_descent import descend_all
from flower_fedcon.validation import Array


class Inverses(NamedTuple):
    """(Hessian of h_i)^-1 of several clients, by their inverse Cholesky factors.

    Attributes
    ----------
    factors : array, shape (n, k, k)
    known : array of bool, shape (n,)
        Whose Hessian is positive definite.
    rows : array, shape (n, k, d), optional
        With rows A_i, the factors are those of A_i A_i' + s I, for Woodbury's formula.
    shift : float
    """

    factors: Array
    known: Array
    rows: Array | None
    shift: float

    def solve(self, g: Array) -> Array:
        """Return the solutions for right-hand sides of shape (n, *shape)."""
        flat = g.reshape(len(g), -1).astype(np.float64, copy=False)
        if self.rows is None:
            return self._small(flat).reshape(g.shape)
        scores = np.matmul(self.rows, flat[:, :, None])[:, :, 0]
        pulled = np.matmul(self._small(scores)[:, None, :], self.rows)[:, 0]
        solution: Array = (flat - pulled) / self.shift
        return solution.reshape(g.shape)

    def _small(self, b: Array) -> Array:
        half = np.matmul(self.factors, b[:, :, None])
        found: Array = np.matmul(self.factors.swapaxes(1, 2), half)[:, :, 0]
        return found

    def only(self, places: Array | slice) -> Inverses:
        """Return those of some clients."""
        rows = None if self.rows is None else self.rows[places]
        return Inverses(self.factors[places], self.known[places], rows, self.shift)


# A stack meets few shifts in a run. Its factors are dropped when it is.
_inverses: WeakKeyDictionary[Stack, dict[float, Inverses | None]] = WeakKeyDictionary()


def inverses(stack: Stack, shift: float) -> Inverses | None:
    """Return the inverse Hessians of a whole stack; None where there is no closed form."""
    known = _inverses.setdefault(stack, {})
    if shift not in known:
        if len(known) >= KEPT:
            del known[next(iter(known))]
        known[shift] = _invert(stack, shift)
    return known[shift]


class Hessians(NamedTuple):
    """The Hessians of several quadratic functions, or what Woodbury's formula makes of them.

    Attributes
    ----------
    matrices : array, shape (n, k, k)
        H_i; with rows A_i of H_i = w_i A_i' A_i, the smaller A_i A_i'.
    rows : array, shape (n, k, d), optional
    weights : array, shape (n, 1, 1)
        w_i; 1 without rows.
    """

    matrices: Array
    rows: Array | None
    weights: Array


def hessians(stack: Any) -> Hessians | None:
    """Return the Hessians of a whole stack; None where they vary with the model."""
    f, one = getattr(stack, "objective", None), np.ones((1, 1, 1))
    if type(f) is Quadratic:
        return Hessians(f.Q.astype(np.float64, copy=False), None, one)
    if type(f) is not LeastSquares or f.sparse:
        return None
    rows = f.rows.astype(np.float64, copy=False)
    if f.weights is not None:
        rows = rows * np.sqrt(f.weights.astype(np.float64))[:, :, None]
    m, d = rows.shape[1:]
    weights = np.reshape(f.scale, (-1, 1, 1)) / m
    if m >= d:
        return Hessians(weights * np.matmul(rows.swapaxes(1, 2), rows), None, one)
    if not weights.all():  # 0 A' A is also 1 0' 0
        rows, weights = np.where(weights == 0, 0.0, rows), np.where(weights == 0, 1.0, weights)
    return Hessians(np.matmul(rows, rows.swapaxes(1, 2)), rows, weights)


def _invert(stack: Any, shift: float) -> Inverses | None:
    if (found := hessians(stack)) is None:
        return None
    matrices, rows, weights = found
    if rows is None:
        return _cholesky(matrices, shift)
    if not shift:
        return None
    return _cholesky(matrices, shift / weights)._replace(rows=rows, shift=shift)


class Spectra(NamedTuple):
    """The same by eigenvalues: (H_i + s I)^-1 for any s, which may vary from round to round.

    Attributes
    ----------
    values : array, shape (n, k)
        Eigenvalues of `Hessians.matrices`.
    basis : array, shape (n, k, k)
        Its rows are the eigenvectors.
    weights : array, shape (n, 1)
    rows : array, shape (n, k, d), optional
    """

    values: Array
    basis: Array
    weights: Array
    rows: Array | None

    def inverses(self, shift: Any) -> Inverses:
        """Return (H_i + shift I)^-1; with rows, for a shift that is not 0."""
        moved = self.values + shift / self.weights
        factors = self.basis / np.sqrt(moved)[:, :, None]
        return Inverses(factors, (moved > 0).all(axis=1), self.rows, shift)


def spectra(stack: Stack) -> Spectra | None:
    """Return the eigenvalues of a whole stack's Hessians; None where they vary with the model."""
    if (found := hessians(stack)) is None:
        return None
    values, vectors = np.linalg.eigh(found.matrices)
    return Spectra(values, vectors.swapaxes(1, 2), found.weights[:, :, 0], found.rows)


def _cholesky(matrices: Array, shifts: Any) -> Inverses:
    matrices = matrices + shifts * np.eye(matrices.shape[-1])
    known = np.ones(len(matrices), bool)
    try:
        factors = np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # of one of them
        factors = np.empty_like(matrices)
        for place, matrix in enumerate(matrices):
            try:
                factors[place] = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                factors[place], known[place] = np.eye(len(matrix)), False
    return Inverses(np.linalg.inv(factors), known, None, 0.0)


def exact_all(
    problems: LocalProblems, inverse: Inverses | None, stop: Stop | None = None
) -> Solutions:
    """Return the minimisers of all clients; see `Exact`."""
    if problems.regularizer is None and inverse is not None:
        found = Solutions.begun(problems.start)
        closed, others = np.flatnonzero(inverse.known), np.flatnonzero(~inverse.known)
        if closed.size:
            mine = problems.only(closed, problems.start[closed])
            put(found, closed, refined(mine, inverse.only(closed)))
        if others.size:
            theirs = problems.only(others, problems.start[others])
            put(found, others, descend_all(theirs, RULES, some(stop, others)))
        return found
    if problems.regularizer is not None or problems.hessian_products(problems.start) is None:
        return descend_all(problems, RULES, stop)
    return _by_products(problems, stop)


def _by_products(problems: LocalProblems, stop: Stop | None) -> Solutions:
    """Solve by Newton's method, and by `AOGM` from there where that does not get there."""
    found, left = newton(problems, TIGHT, stop)
    if left.size:
        start, x = problems.start, found.x[left]
        goals = targets(TIGHT, norms(problems.gradient(start))[left], start)
        lengths = np.nan_to_num(np.maximum(1.0, found.gradient_norm[left]), nan=1.0, posinf=1.0)
        rest = problems.only(left, x)
        end = descend_all(rest, RULES, some(stop, left), goals / lengths)
        iterations = found.iterations[left] + end.iterations
        evaluations = found.evaluations[left] + 1 + end.evaluations
        put(found, left, end._replace(iterations=iterations, evaluations=evaluations))
    return found


def refined(problems: LocalProblems, inverse: Inverses) -> Solutions:
    """Solve quadratic problems by one Newton step, and a few more that refine it."""
    x = problems.start
    gradient = problems.gradient(x)
    length = first = norms(gradient)
    eps, count = problems.eps, len(x)
    going, rounded, iterations = np.ones(count, bool), np.zeros(count, bool), np.zeros(count, int)
    for _ in range(REFINEMENTS):
        iterations = iterations + going
        step = inverse.solve(gradient)
        x = np.where(wide(going, x), (x - step).astype(x.dtype, copy=False), x)
        gradient = problems.gradient(x)
        length = np.where(going, norms(gradient), length)
        going = going & ~(length <= 50 * eps * np.maximum(1.0, first))
        rounded = rounded | (going & (norms(step) <= 4 * eps * norms(x)))
        going = going & ~rounded
        if not anyone(going):
            break
    converged = rounded | (length <= targets(TIGHT, first, x)) | (length <= problems.rounding(x))
    trials = np.zeros(count, int)
    return Solutions(x, length, iterations, iterations + 1, converged, trials, {})


def put(found: Solutions, places: Array, part: Solutions) -> None:
    """Write the solutions of some clients, those at `places`, to those of all."""
    for whole, piece in zip(found[:-1], part[:-1], strict=True):
        whole[places] = piece
    found.errors.update({int(places[place]): error for place, error in part.errors.items()})
