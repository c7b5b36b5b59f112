"""The doubly stochastic matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.sets.atoms import Atom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.compact import PermutationAtom
from flower_fedcon.sets.shapes import each, expect_finite, only_array
from flower_fedcon.sets.simplex import simplex_projection
from flower_fedcon.validation import Array, count

_STEPS = 200
_FAR = 1e3  # entries farther apart than this would make Newton's method round too much
_INDEX = np.dtype(np.intp)


@dataclass(frozen=True)
class Birkhoff(ConstraintSet):
    """The size x size matrices with entries >= 0 whose rows and columns sum to 1.

    Its vertices are the permutation matrices.

    Parameters
    ----------
    size : int
        >= 1.

    Examples
    --------
    >>> Birkhoff(2).project(np.array([[1.0, 0.0], [0.5, 0.5]]))
    array([[0.75, 0.25],
           [0.25, 0.75]])
    >>> Birkhoff(2).lmo(np.array([[1.0, 0.0], [0.0, 0.0]])).dense()
    array([[0., 1.],
           [1., 0.]])
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", count("Birkhoff(size)", self.size))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models are size x size."""
        if shape != (self.size, self.size):
            raise ConfigError(
                f"{self!r} is a set of {self.size} x {self.size} matrices, and the model has shape "
                f"{shape}"
            )

    def excess(self, x: Array) -> float:
        """Return the largest of -min x and the errors of the sums of rows and columns."""
        self.check_shape(x.shape)
        expect_finite(self, x)
        wide = x.astype(np.float64, copy=False)
        errors = max(float(np.abs(wide.sum(axis=axis) - 1.0).max()) for axis in (0, 1))
        return max(errors, -float(wide.min()))

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to the set, or 0 within rounding."""
        return 0.0 if self.contains(x) else super().violation(x)

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return sqrt(2 size) (0 for size 1)."""
        return self.diameter

    @property
    def diameter(self) -> float:
        """The distance between two permutations that agree nowhere, sqrt(2 size); 0 for size 1."""
        return math.sqrt(2 * self.size) if self.size > 1 else 0.0

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Return the nearest doubly stochastic matrix.

        Newton's method solves the dual problem (Li, Sun and Toh 2020). The result max(x + a_i +
        b_j, 0) is the exact projection onto the matrices that share its row and column sums.
        These sums are 1 to 1e-13, or to rounding where x is large.

        Raises
        ------
        FedConError
            If the sums are less exact after 200 steps.
        """
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)
        return each(x, batch, self._project)

    def _project(self, x: Array) -> Array:
        wide = x.astype(np.float64, copy=False)
        # Constants along rows and columns do not change the projection; removing them saves digits.
        wide = wide - wide.max(axis=1, keepdims=True)
        wide = wide - wide.max(axis=0, keepdims=True)
        size = self.size
        if -float(wide.min()) > _FAR:
            wide = np.maximum(_levelled(wide), -_FAR * size)  # entries so far below end at 0
        spread = float(-wide.min())
        target = 1e-13 + 4 * np.finfo(np.float64).eps * spread
        dual = np.zeros(2 * size)
        dual[:size] = _row_levels(wide)

        def point(at: Array) -> Array:
            result: Array = np.maximum(wide + at[:size, None] + at[size:], 0.0)
            return result

        def cost(at: Array, primal: Array) -> float:
            return 0.5 * float((primal * primal).sum()) - float(at.sum())

        primal = point(dual)
        value = cost(dual, primal)
        error = math.inf
        for _ in range(_STEPS):
            residual = np.concatenate([primal.sum(axis=1), primal.sum(axis=0)]) - 1.0
            error = float(np.abs(residual).max())
            if error <= target:
                return primal.astype(x.dtype)
            active = (primal > 0).astype(np.float64)
            hessian = np.diag(np.concatenate([active.sum(axis=1), active.sum(axis=0)]))
            hessian[:size, size:] = active
            hessian[size:, :size] = active.T
            hessian[np.diag_indices(2 * size)] += min(1e-3, 1e-3 * error) + 1e-14 * size
            move = -np.linalg.solve(hessian, residual)
            slope, step = float(residual @ move), 1.0
            while True:
                trial = dual + step * move
                primal = point(trial)
                new = cost(trial, primal)
                if new <= value + 1e-4 * step * slope + 1e-15 * abs(value) or step < 1e-10:
                    break
                step *= 0.5
            dual, value = trial, new
        if error <= 1e-9 * max(1.0, spread):
            return primal.astype(x.dtype)
        raise FedConError(
            f"the projection onto {self!r} stopped at sums that differ from 1 by {error:.3g}: "
            "use an algorithm that calls the linear minimisation oracle, or scale the matrix"
        )

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return the permutation matrix of least <g, s>, an assignment problem."""
        self.check_shape(g.shape[batch:])
        expect_finite(self, g)
        assign = _assignment()
        if batch == 0:
            return PermutationAtom(assign(g)[1], g.dtype)
        models = g.reshape(-1, self.size, self.size)
        columns = np.stack([assign(model)[1] for model in models])
        return PermutationAtom(columns.reshape(g.shape[:-1]), g.dtype)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the matrix of a permutation."""
        self.check_shape(shape)
        code = PermutationAtom.code(self.size)
        columns = only_array(arrays, "columns", (self.size,), code).astype(np.intp)
        if not np.array_equal(np.sort(columns), np.arange(self.size)):
            raise ConfigError(
                f"the columns {columns} are not a permutation of 0 to {self.size - 1}"
            )
        return PermutationAtom(columns, dtype)


def _levelled(x: Array) -> Array:
    """Return x minus constants along rows and columns: 0 on the best permutation, else at most 0.

    The constants are the dual variables of the assignment problem, found as longest paths.
    """
    best = _assignment()(-x)[1]
    gain = x - x[np.arange(len(x)), best][:, None]
    columns = np.zeros(len(x))
    for _ in range(len(x)):
        columns = np.maximum(columns, (columns[best][:, None] + gain).max(axis=0))
    levelled: Array = np.minimum(gain + columns[best][:, None] - columns, 0.0)
    return levelled


@cache
def _assignment() -> Callable[[Array], tuple[Array, Array]]:
    from scipy.optimize import linear_sum_assignment  # slow to import

    return linear_sum_assignment  # type: ignore[no-any-return]


def _row_levels(x: Array) -> Array:
    """Return for each row the shift that brings the sum of its positive part to 1."""
    projected = simplex_projection(x, 1.0)
    best = projected.argmax(axis=1)
    rows = np.arange(len(x))
    levels: Array = projected[rows, best] - x[rows, best]
    return levels
