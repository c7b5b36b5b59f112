"""Inverses of constant Hessians by their factors, of one client or a cohort.

For a cohort all arrays have a leading axis of clients, and a number becomes an array of shape (n,
1, 1).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from flower_fedcon.arrays import is_array, times
from flower_fedcon.objectives import LeastSquares, Quadratic, Scaled
from flower_fedcon.objectives.client_axis import Stack
from flower_fedcon.objectives.stacked_objective import StackedObjective
from flower_fedcon.validation import Array

KEPT = 4
# An objective meets few shifts in a run. Its factors are dropped with it.
_kept: WeakKeyDictionary[Any, dict[Hashable, Inverses | None]] = WeakKeyDictionary()


class Hessians(NamedTuple):
    """The Hessian of a quadratic function, or the smaller matrix of Woodbury's formula.

    Attributes
    ----------
    matrices : array, shape (k, k)
        H; or A A', if H = w A' A + r I with few rows A.
    rows : array, shape (k, d), optional
    weights : float
        w; 1 without rows.
    ridge : float
        r; 0 without rows.
    """

    matrices: Array
    rows: Array | None
    weights: Any
    ridge: Any = 0.0


class Inverses(NamedTuple):
    """(H + s I)^-1 by its inverse Cholesky factor.

    Attributes
    ----------
    factors : array, shape (k, k)
    known : bool
        Whether the matrix is positive definite.
    rows : array, shape (k, d), optional
        With rows A, the factor is that of A A' + (s/w) I, for Woodbury's formula.
    shift : float
        s, plus the ridge of H with rows; for a cohort also an array of n numbers.
    """

    factors: Array
    known: Any
    rows: Array | None
    shift: Any

    def solve(self, g: Array) -> Array:
        """Return the solution for a right-hand side.

        The model may be a matrix with d rows: each of its columns is then solved for.
        """
        clients = self.factors.shape[:-2]
        flat = g.reshape(*clients, -1).astype(np.float64, copy=False)
        d = self.factors.shape[-1] if self.rows is None else self.rows.shape[-1]
        if flat.shape[-1] != d:
            flat = flat.reshape(*clients, d, -1)
        if self.rows is None:
            return self._small(flat).reshape(g.shape)
        # (s I + w A'A)^-1 = (I - A' (s/w I + A A')^-1 A) / s.
        pulled = _times(self.rows.swapaxes(-1, -2), self._small(_times(self.rows, flat)))
        shift = self.shift
        if is_array(shift):
            shift = shift.reshape(-1, *[1] * (flat.ndim - 1))
        solution: Array = (flat - pulled) / shift
        return solution.reshape(g.shape)

    def _small(self, b: Array) -> Array:
        # NumPy has no triangular solver; with the factor's inverse, two products solve.
        solution: Array = _times(self.factors.swapaxes(-1, -2), _times(self.factors, b))
        return solution

    def only(self, places: Any) -> Inverses:
        """Return the inverses of some clients of a cohort."""
        rows = None if self.rows is None else self.rows[places]
        shift = self.shift[places] if is_array(self.shift) else self.shift
        return Inverses(self.factors[places], self.known[places], rows, shift)


class Spectra(NamedTuple):
    """The eigenvalues of a cohort's Hessians: they give (H + s I)^-1 for a varying s.

    Attributes
    ----------
    values : array, shape (n, k)
        Eigenvalues of `Hessians.matrices`.
    basis : array, shape (n, k, k)
        Its rows are the eigenvectors.
    weights : array, shape (n, 1)
    rows : array, shape (n, k, d), optional
    ridge : number, or array of shape (n, 1)
        As in `Hessians`.
    """

    values: Array
    basis: Array
    weights: Array
    rows: Array | None
    ridge: Any = 0.0

    def inverses(self, shift: Any) -> Inverses:
        """Return (H + shift I)^-1; with rows the shift and the ridge must not both be 0."""
        if self.rows is not None:
            shift = shift + self.ridge
        moved = self.values + shift / self.weights
        factors = self.basis / np.sqrt(moved)[:, :, None]
        return Inverses(factors, (moved > 0).all(axis=1), self.rows, shift)


def inverses(objective: Any, shift: float) -> Inverses | None:
    """Return (H + shift I)^-1 of an objective, or of a stack; None if H varies with the model.

    It is kept for the next call with the same shift.
    """
    owner, factor = unscaled(objective)
    if type(owner) not in (Quadratic, LeastSquares):
        return None
    kept = _kept.setdefault(owner, {})
    if (factor, shift) not in kept:
        if len(kept) >= KEPT:
            del kept[next(iter(kept))]
        kept[factor, shift] = _invert(owner, factor, shift)
    return kept[factor, shift]


def spectra(stack: Stack) -> Spectra | None:
    """Return the eigenvalues of a stack's Hessians; None if they vary with the model."""
    hessians = _hessians(*unscaled(stack))
    if hessians is None:
        return None
    values, vectors = np.linalg.eigh(hessians.matrices)
    weights = np.reshape(hessians.weights, (-1, 1))
    ridge = hessians.ridge
    ridge = ridge.reshape(-1, 1) if isinstance(ridge, np.ndarray) else ridge
    return Spectra(values, vectors.swapaxes(1, 2), weights, hessians.rows, ridge)


def unscaled(f: Any) -> tuple[Any, float]:
    """Return an objective (or a stack of them) without its factor, and the factor."""
    factor = 1.0
    while isinstance(f, Scaled | StackedObjective):
        factor, f = factor * getattr(f, "factor", 1.0), f.objective
    return f, factor


def _hessians(f: Any, factor: float) -> Hessians | None:
    if type(f) is Quadratic:
        return Hessians(factor * f.Q.astype(np.float64), None, 1.0)
    if type(f) is not LeastSquares or f.sparse:
        return None
    rows: Array = f.rows.astype(np.float64, copy=False)
    if f.weights is not None:
        rows = rows * np.sqrt(f.weights.astype(np.float64))[..., None]
    m, d = rows.shape[-2:]
    scale = f.scale.reshape(-1, 1, 1) if isinstance(f.scale, np.ndarray) else f.scale
    weights = factor * scale / m
    ridge = factor * (f.l2.reshape(-1, 1, 1) if isinstance(f.l2, np.ndarray) else f.l2)
    alike = f._bound is None or not np.any(ridge)
    if m >= d or not alike:
        matrices = weights * np.matmul(rows.swapaxes(-1, -2), rows)
        if np.any(ridge):  # with several outputs the columns of the model have the same one
            bound = np.ones(d) if f._bound is None else f._bound.reshape(d, -1)[:, 0]
            matrices += ridge * np.diag(bound)
        return Hessians(matrices, None, 1.0)
    if not np.all(weights):  # 0 A' A is also 1 0' 0
        rows, weights = np.where(weights == 0, 0.0, rows), np.where(weights == 0, 1.0, weights)
    return Hessians(np.matmul(rows, rows.swapaxes(-1, -2)), rows, weights, ridge)


def _times(matrices: Array, x: Array) -> Array:
    """Return each client's matrix times its vector, or times its matrix with more columns."""
    product: Array = times(matrices, x) if x.ndim < matrices.ndim else np.matmul(matrices, x)
    return product


def _invert(f: Any, factor: float, shift: float) -> Inverses | None:
    hessians = _hessians(f, factor)
    if hessians is None:
        return None
    if hessians.rows is not None:
        shift = shift + hessians.ridge
        if not np.all(shift):
            return None
    matrices = hessians.matrices + (shift / hessians.weights) * np.eye(hessians.matrices.shape[-1])
    return Inverses(*inverse_factors(matrices), hessians.rows, shift)


def inverse_factors(matrices: Array) -> tuple[Array, Any]:
    """Return inverse Cholesky factors, and whether the matrices are positive definite.

    The matrices are first scaled to ones on their diagonals, so that rounding does not depend on
    the columns' units.

    >>> inverse_factors(np.diag([4.0, 1e-18]))
    (array([[5.e-01, 0.e+00],
           [0.e+00, 1.e+09]]), True)
    """
    diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
    positive = np.where(diagonal > 0, diagonal, 1.0)
    sizes = np.exp2(np.round(-0.5 * np.log2(positive)))
    factors, definite = _cholesky(matrices * sizes[..., None, :] * sizes[..., :, None])
    return np.linalg.inv(factors) * sizes[..., None, :], definite


def _cholesky(matrices: Array) -> tuple[Array, Any]:
    """Return the Cholesky factors, and which matrices are positive definite."""
    many = matrices.ndim > 2
    try:
        return np.linalg.cholesky(matrices), np.ones(len(matrices), bool) if many else True
    except np.linalg.LinAlgError:
        if not many:
            return np.eye(len(matrices)), False
    factors, definite = zip(*map(_cholesky, matrices), strict=True)  # one matrix at a time
    return np.stack(factors), np.array(definite)
