"""Affine subspaces: the solutions of linear equations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.sets.flats import Unbounded
from flower_fedcon.sets.shapes import ByValue, each, expect_finite
from flower_fedcon.validation import Array, float_array


def check_normals(name: str, A: Array, shape: tuple[int, ...]) -> None:
    """Raise unless models have the shape of a set's normals."""
    if shape != A.shape[1:]:
        wanted = ", ".join(("m", *map(str, shape)))
        raise ConfigError(
            f"{name} has normals of shape {A.shape[1:]}, the model {shape}: give it an array of "
            f"shape ({wanted})"
        )


def unit_rows(
    owner: str, matrix: object, offsets: object, names: Sequence[str]
) -> tuple[Array, Array]:
    """Return equations <row, x> = offset with flattened rows of norm 1: the rows and the offsets.

    Parameters
    ----------
    owner : str
        The type whose fields they are, for error messages.
    matrix : array, shape (m, *model)
    offsets : array, shape (m,)
    names : sequence of str
        The names of the two fields.

    Raises
    ------
    ConfigError
        If a row is 0, or the shapes do not match.

    Examples
    --------
    >>> unit_rows("AffineSubspace", [[0.0, 2.0]], [3.0], "Ab")
    (array([[0., 1.]]), array([1.5]))
    """
    first, second = names
    rows = float_array(f"{owner}({first})", matrix).astype(np.float64)
    levels = float_array(f"{owner}({second})", offsets).astype(np.float64)
    if rows.ndim < 2 or rows.size == 0 or levels.shape != rows.shape[:1]:
        raise ConfigError(
            f"{owner}({first}) must have the shape (m, *model) and {second} the shape (m,), m >= 1,"
            f" got {rows.shape} and {levels.shape}"
        )
    flat = rows.reshape(len(rows), -1)
    largest = np.abs(flat).max(axis=1)
    if (largest == 0).any():
        raise ConfigError(
            f"row {int(np.flatnonzero(largest == 0)[0])} of {owner}({first}) is 0: leave it out"
        )
    flat = flat / largest[:, None]
    norms = np.linalg.norm(flat, axis=1)
    with np.errstate(over="ignore"):
        scaled: Array = levels / largest / norms
    if not np.isfinite(scaled).all():
        i = int(np.flatnonzero(~np.isfinite(scaled))[0])
        raise ConfigError(
            f"{owner}({second})[{i}] = {levels[i]:g} is too large for row {i} of {first}, of "
            f"entries up to {largest[i]:g}: scale the data"
        )
    return flat / norms[:, None], scaled


class Flat(NamedTuple):
    """The solutions of linear equations: point + the null space of `basis`."""

    point: Array  # the solution of least norm, shape (d,)
    basis: Array  # orthonormal rows that span the equations' normals, shape (r, d)

    def move(self, x: Array) -> Array:
        """Return the projection of a vector of float64."""
        for _ in range(2):  # the second pass removes the rounding of a large distance
            x = x - self.basis.T @ (self.basis @ (x - self.point))
        return x


def solve_equations(owner: str, rows: Array, levels: Array) -> Flat:
    """Return the solutions of rows x = levels, from a singular value decomposition.

    Raises
    ------
    ConfigError
        If the equations have no solution.
    """
    u, s, vt = np.linalg.svd(rows, full_matrices=False)
    rank = int(np.count_nonzero(s > max(rows.shape) * np.finfo(float).eps * s[0]))
    flat = Flat(vt[:rank].T @ (u[:, :rank].T @ levels / s[:rank]), vt[:rank])
    errors, size = np.abs(rows @ flat.point - levels), np.abs(flat.point)
    allowed = 1e-9 * np.maximum(np.abs(levels), np.abs(rows) @ size) + 1e-13 * size.max()
    error = float(errors.max())
    if (errors > allowed).any():
        raise ConfigError(
            f"{owner} is empty: its {len(rows)} equations, of rank {rank}, contradict each other "
            f"(the best point violates one by {error:.3g}): remove one"
        )
    return flat


@dataclass(frozen=True, eq=False)
class AffineSubspace(ByValue, Unbounded):
    """The set A x = b; equations may depend on each other. It is unbounded: projections only.

    Parameters
    ----------
    A : array, shape (m, *model)
        A normal for each equation, none 0.
    b : array, shape (m,)

    Raises
    ------
    ConfigError
        If no x satisfies all equations.

    Examples
    --------
    >>> AffineSubspace(np.array([[1.0, 1.0, 0.0]]), np.array([2.0])).project(np.zeros(3)) + 0.0
    array([1., 1., 0.])
    """

    A: Array
    b: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "A", float_array("AffineSubspace(A)", self.A))
        object.__setattr__(self, "b", float_array("AffineSubspace(b)", self.b))
        _ = self._flat

    @cached_property
    def _flat(self) -> Flat:
        return solve_equations(
            "AffineSubspace(A, b)", *unit_rows("AffineSubspace", self.A, self.b, "Ab")
        )

    @property
    def scale(self) -> float:
        """The distance from the origin, at least 1."""
        return max(1.0, float(np.linalg.norm(self._flat.point)))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models have the normals' shape."""
        check_normals("AffineSubspace", self.A, shape)

    def excess(self, x: Array) -> float:
        """Return the distance."""
        self.check_shape(x.shape)
        point, basis = self._flat
        return float(np.linalg.norm(basis @ (x.reshape(-1) - point)))

    def violation(self, x: Array) -> float:
        """Return the distance, or 0 within rounding."""
        return 0.0 if self.contains(x) else self.excess(x)

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return infinity, or 0 where the equations leave one point."""
        self.check_shape(shape)
        return 0.0 if len(self._flat.basis) == self._flat.point.size else np.inf

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Subtract the part along the normals, by their orthonormal basis, which is cached."""
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)

        def move(model: Array) -> Array:
            moved = self._flat.move(model.reshape(-1).astype(np.float64))
            return moved.astype(model.dtype).reshape(model.shape)

        return each(x, batch, move)
