"""Sets of matrices with bounded singular values or eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError, NotFiniteError
from flower_fedcon.sets.atoms import Atom, each_atom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.compact import RankOneAtom, SquareAtom
from flower_fedcon.sets.lanczos import DENSE_BELOW, top_eigenpair
from flower_fedcon.sets.operators import MatrixOperator
from flower_fedcon.sets.shapes import (
    each,
    expect_finite,
    expect_floats,
    expect_matrix,
    expect_unit,
    only_array,
)
from flower_fedcon.sets.simplex import simplex_projection
from flower_fedcon.validation import Array, expect_array, expect_names, positive

Product: TypeAlias = Callable[[Array], Array]

TOLERANCE = 1e-9
SAFE_LEVELS = (1e-60, 1e60)  # between these, no product or sum of squares over- or underflows


def svd(x: Array) -> tuple[Array, Array, Array]:
    """Return the thin singular value decomposition U, s, V' in float64."""
    u, s, vt = np.linalg.svd(x.astype(np.float64, copy=False), full_matrices=False)
    return u, s, vt


def largest_entry(owner: object, g: Array) -> float:
    """Return max |g_ij| without a copy; raise if an entry is not finite."""
    expect_floats(type(owner).__name__, g)
    level = max(float(g.max()), -float(g.min()))
    if not math.isfinite(level):
        expect_finite(owner, g)
    return level


def top_singular_pair(
    g: Array | MatrixOperator, level: float, *, tolerance: float = TOLERANCE
) -> tuple[Array, Array]:
    """Return unit vectors u, v with u' G v within `tolerance` of the largest singular value.

    With fewer than 64 rows or columns by a dense decomposition, else by Lanczos' method on G'G or
    GG', whichever is smaller, from a fixed vector: the same G gives the same bits.

    Parameters
    ----------
    g : array or MatrixOperator, shape (m, n)
    level : float
        The size of its largest entries; 0 for a zero matrix.
    tolerance : float
        > 0, relative.
    """
    m, n = g.shape
    if level == 0.0:
        return -np.eye(1, m)[0], np.eye(1, n)[0]
    if min(m, n) < DENSE_BELOW:
        u, _, vt = svd((g.to_dense() if isinstance(g, MatrixOperator) else g) / level)
        return u[:, 0], vt[0]
    if isinstance(g, MatrixOperator):
        matrix = g * (1.0 / level)
        forward: Product = matrix.dot
        backward: Product = matrix.transposed_dot
    else:
        scaled = np.asarray(g, dtype=np.float64)
        if not SAFE_LEVELS[0] < level < SAFE_LEVELS[1]:
            scaled = scaled / level
        forward, backward = scaled.dot, scaled.T.dot
    tall = m >= n
    pair = top_eigenpair(
        (lambda v: backward(forward(v))) if tall else (lambda u: forward(backward(u))),
        min(m, n),
        tolerance=tolerance,  # the square would allow twice as much
    )
    other = forward(pair.vector) if tall else backward(pair.vector)
    norm = float(np.linalg.norm(other))
    if not pair.converged or norm == 0.0:
        u, _, vt = svd(g.to_dense() if isinstance(g, MatrixOperator) else g)
        return u[:, 0], vt[0]
    other /= norm
    return (other, pair.vector) if tall else (pair.vector, other)


@dataclass(frozen=True)
class NuclearNormBall(ConstraintSet):
    """The matrices whose singular values sum to at most radius.

    Examples
    --------
    >>> ball = NuclearNormBall(radius=2.0)
    >>> ball.project(np.diag([3.0, 1.0]))
    array([[2., 0.],
           [0., 0.]])
    >>> ball.lmo(np.diag([3.0, 1.0])).dense() + 0.0
    array([[-2.,  0.],
           [ 0.,  0.]])
    """

    iterative: ClassVar[bool] = True
    """Whether `lmo` takes a tolerance."""

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("NuclearNormBall(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models are matrices."""
        expect_matrix(self, shape)

    def excess(self, x: Array) -> float:
        """Return the sum of the singular values minus the radius, or an upper bound <= 0 on it."""
        self.check_shape(x.shape)
        expect_finite(self, x)
        # The sum is at most sqrt(rank) times the Frobenius norm, so deep inside no SVD is needed.
        bound = math.sqrt(min(x.shape)) * float(np.linalg.norm(x)) - self.radius
        if bound <= 0:
            return bound
        values = np.linalg.svd(x.astype(np.float64, copy=False), compute_uv=False)
        return float(values.sum()) - self.radius

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return 2 radius."""
        return 2.0 * self.radius

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Project the singular values onto the l1 ball; this needs all of them."""
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)
        return each(x, batch, self._project)

    def _project(self, x: Array) -> Array:
        u, s, vt = svd(x)
        if s.sum() <= self.radius:
            return x.copy()
        kept = simplex_projection(s, self.radius)
        rank = max(1, int(np.count_nonzero(kept)))
        return ((u[:, :rank] * kept[:rank]) @ vt[:rank]).astype(x.dtype, copy=False)

    def lmo(
        self,
        g: Array | MatrixOperator,
        *,
        batch: int = 0,
        tolerance: float = TOLERANCE,
    ) -> Atom:
        """Return -radius u v' for the top singular pair of g; for g = 0, +radius at entry (0, 0).

        Parameters
        ----------
        g : array or MatrixOperator
            An operator with at least 64 rows and columns is made dense only if Lanczos' method
            fails.
        batch : int
        tolerance : float
            <g, s> is within tolerance * radius * ||g|| of its minimum. Frank-Wolfe steps of size
            eta_t keep their rate with errors of the order of eta_t L diameter^2: early steps may
            be inexact.
        """
        positive("tolerance", tolerance)
        self.check_shape(g.shape[batch:])
        if isinstance(g, MatrixOperator):
            level = g.bound()
            if not math.isfinite(level):
                raise NotFiniteError(
                    f"{self!r} was given an operator with values that are not finite"
                )
            return self._vertex(g, level, tolerance)
        return each_atom(
            g, batch, lambda model: self._vertex(model, largest_entry(self, model), tolerance)
        )

    def _vertex(self, g: Array | MatrixOperator, level: float, tolerance: float) -> RankOneAtom:
        u, v = top_singular_pair(g, level, tolerance=tolerance)
        return RankOneAtom(u.astype(g.dtype), v.astype(g.dtype), self.radius)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the rank-one matrix that these unit vectors give."""
        self.check_shape(shape)
        expect_names(arrays, ("u", "v"))
        u = expect_array(arrays, "u", shape[:1], dtype)
        v = expect_array(arrays, "v", shape[1:], dtype)
        expect_unit(u)
        expect_unit(v)
        return RankOneAtom(u, v, self.radius)


@dataclass(frozen=True)
class SpectrahedronTraceBall(ConstraintSet):
    """The symmetric positive semidefinite matrices with trace at most radius.

    Zero is a vertex. The matrices with trace equal to the radius form a face.

    Examples
    --------
    >>> ball = SpectrahedronTraceBall(radius=1.0)
    >>> ball.lmo(np.diag([1.0, -2.0])).dense()
    array([[0., 0.],
           [0., 1.]])
    >>> ball.lmo(np.eye(2)).dense()
    array([[0., 0.],
           [0., 0.]])
    """

    iterative: ClassVar[bool] = True
    """Whether `lmo` takes a tolerance."""

    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("SpectrahedronTraceBall(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models are square matrices."""
        expect_matrix(self, shape)
        if shape[0] != shape[1]:
            raise ConfigError(f"{self!r} is a set of square matrices, the model has shape {shape}")

    def excess(self, x: Array) -> float:
        """Return the largest of trace - radius, -(least eigenvalue) and the asymmetry."""
        self.check_shape(x.shape)
        expect_finite(self, x)
        wide = x.astype(np.float64, copy=False)
        values = np.linalg.eigvalsh(0.5 * (wide + wide.T))
        over = max(float(values.sum()) - self.radius, -float(values[0]))
        return max(over, float(np.linalg.norm(0.5 * (wide - wide.T))) or -math.inf)

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to the set, or 0 within rounding."""
        return 0.0 if self.contains(x) else super().violation(x)

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return sqrt(2) radius (radius for a single entry)."""
        return (math.sqrt(2) if shape[0] > 1 else 1.0) * self.radius

    @property
    def diameter(self) -> float:
        """The diameter with two or more rows, sqrt(2) radius."""
        return math.sqrt(2) * self.radius

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Take the symmetric part, and project its eigenvalues."""
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)
        return each(x, batch, self._project)

    def _project(self, x: Array) -> Array:
        wide = x.astype(np.float64, copy=False)
        values, vectors = np.linalg.eigh(0.5 * wide + 0.5 * wide.T)
        kept = np.maximum(values, 0.0)
        if kept.sum() > self.radius:
            kept = simplex_projection(values, self.radius)
        projected = (vectors * kept) @ vectors.T
        symmetric: Array = (0.5 * (projected + projected.T)).astype(x.dtype, copy=False)
        return symmetric

    def lmo(self, g: Array, *, batch: int = 0, tolerance: float = TOLERANCE) -> Atom:
        """Return radius u u' for the least eigenvalue of g's symmetric part, 0 if that is >= 0."""
        positive("tolerance", tolerance)
        self.check_shape(g.shape[batch:])
        return each_atom(g, batch, lambda model: self._vertex(model, tolerance))

    def _vertex(self, g: Array, tolerance: float) -> SquareAtom:
        size = len(g)
        level = largest_entry(self, g)
        if level == 0.0:
            return SquareAtom(np.zeros(size, dtype=g.dtype), self.radius)
        wide = g.astype(np.float64, copy=False) / level
        wide = 0.5 * (wide + wide.T)
        pair = None
        if size >= DENSE_BELOW:
            pair = top_eigenpair(lambda v: -wide.dot(v), size, tolerance=tolerance)
        if pair is not None and pair.converged:
            least, u = -pair.value, pair.vector
        else:
            values, vectors = np.linalg.eigh(wide)
            least, u = float(values[0]), vectors[:, 0]
        return SquareAtom((u if least < 0 else np.zeros(size)).astype(g.dtype), self.radius)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the matrix of a unit vector, or of the zero vector."""
        self.check_shape(shape)
        u = only_array(arrays, "u", shape[:1], dtype)
        if u.any():
            expect_unit(u)
        return SquareAtom(u, self.radius)
