"""Polyhedra: projections by an active-set method, vertices by linear programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.sets.affine import Flat, check_normals, solve_equations, unit_rows
from flower_fedcon.sets.atoms import Atom, DenseAtom, each_atom
from flower_fedcon.sets.base import ConstraintSet, rounding_of, unbounded
from flower_fedcon.sets.shapes import ByValue, each, expect_finite, only_array
from flower_fedcon.validation import Array, float_array

TOLERANCE = 1e-12  # of the inequalities, relative to the size of their terms
_DEPENDENT = 1e-10  # a unit normal is in the span of others if its part outside is no longer


class _Reduced(NamedTuple):
    """The inequalities, on the flat of the equations."""

    flat: Flat | None  # None without equations
    free: Array | None  # orthonormal columns that span the flat's directions
    rows: Array  # shape (m, free dimensions), of norm 1
    levels: Array  # shape (m,)


@dataclass(frozen=True, eq=False)
class Polyhedron(ByValue, ConstraintSet):
    """The set A x <= b, with C x = d if C and d are given.

    Parameters
    ----------
    A : array, shape (m, *model)
        A normal for each inequality, none 0.
    b : array, shape (m,)
    C : array, shape (k, *model), optional
        A normal for each equation.
    d : array, shape (k,), optional

    Raises
    ------
    ConfigError
        If the set is empty. `lmo` raises it if the set is unbounded.

    Notes
    -----
    A projection takes about one step for each inequality that holds with equality at the
    solution, and every step reads all inequalities. It suits up to some hundred inequalities.

    Examples
    --------
    >>> sides = np.array([[-1.0, 0.0], [0.0, -1.0], [1.0, 1.0]])
    >>> triangle = Polyhedron(sides, np.array([0.0, 0.0, 1.0]))
    >>> triangle.project(np.array([2.0, 1.0])).round(12)
    array([1., 0.])
    >>> triangle.lmo(np.array([1.0, -1.0])).dense().round(12) + 0.0
    array([0., 1.])
    """

    A: Array
    b: Array
    C: Array | None = None
    d: Array | None = None

    def __post_init__(self) -> None:
        if (self.C is None) != (self.d is None):
            raise ConfigError("Polyhedron needs both C and d, or neither")
        for name in "AbCd":
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, float_array(f"Polyhedron({name})", value))
        if self.C is not None and self.C.shape[1:] != self.A.shape[1:]:
            raise ConfigError(
                f"Polyhedron's A is of models of shape {self.A.shape[1:]}, its C of "
                f"{self.C.shape[1:]}"
            )
        self._nearest(np.zeros(self._inequalities[0].shape[1]))  # raises if the set is empty

    @cached_property
    def _inequalities(self) -> tuple[Array, Array]:
        return unit_rows("Polyhedron", self.A, self.b, "Ab")

    @cached_property
    def _equations(self) -> tuple[Array, Array] | None:
        return None if self.C is None else unit_rows("Polyhedron", self.C, self.d, "Cd")

    @cached_property
    def _reduced(self) -> _Reduced:
        rows, levels = self._inequalities
        if self._equations is None:
            return _Reduced(None, None, rows, levels)
        flat = solve_equations("Polyhedron(C, d)", *self._equations)
        free = np.linalg.svd(flat.basis)[2][len(flat.basis) :].T
        inner, rest = rows @ free, levels - rows @ flat.point
        norms = np.linalg.norm(inner, axis=1)
        left = norms > _DEPENDENT  # the others are constant on the flat
        if (rest < -1e-9 * _compared(rows, levels, flat.point))[~left].any():
            raise self._empty()
        return _Reduced(flat, free, inner[left] / norms[left, None], rest[left] / norms[left])

    @property
    def scale(self) -> float:
        """The largest distance from the origin to a face's plane, at least 1."""
        largest = max(1.0, float(np.abs(self._inequalities[1]).max()))
        if self._equations is None:
            return largest
        return max(largest, float(np.abs(self._equations[1]).max()))

    @cached_property
    def _unit(self) -> float:
        """The unit of length in linear programs: HiGHS treats 1e-7 as 0, and 1e20 as no bound."""
        levels = self._inequalities[1]
        if self._equations is not None:
            levels = np.concatenate([levels, self._equations[1]])
        nonzero = np.abs(levels[levels != 0])
        return max(float(nonzero.min()), float(nonzero.max()) / 1e15) if nonzero.size else 1.0

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models have the normals' shape."""
        check_normals("Polyhedron", self.A, shape)

    def excess(self, x: Array) -> float:
        """Return the largest distance of x from a half-space or plane that it is outside of."""
        self.check_shape(x.shape)
        flat, (rows, levels) = x.reshape(-1).astype(np.float64), self._inequalities
        largest = float((rows @ flat - levels).max())
        if self._equations is None:
            return largest
        rows, levels = self._equations
        return max(largest, float(np.abs(rows @ flat - levels).max()))

    def contains(self, x: Array, tolerance: float = 1e-12) -> bool:
        """Return whether `x` is in the set, to `tolerance` relative to the terms compared."""
        self.check_shape(x.shape)
        flat = x.reshape(-1).astype(np.float64)
        rounding = rounding_of(x) + tolerance * min(1.0, self._unit)  # at a corner x may be 0
        rows, levels = self._inequalities
        over = rows @ flat - levels
        kept = bool((over <= tolerance * _compared(rows, levels, flat) + rounding).all())
        if self._equations is None or not kept:
            return kept
        rows, levels = self._equations
        off = np.abs(rows @ flat - levels)
        return bool((off <= tolerance * _compared(rows, levels, flat) + rounding).all())

    def violation(self, x: Array) -> float:
        """Return the distance from `x` to the set, or 0 within rounding."""
        return 0.0 if self.contains(x) else super().violation(x)

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return the diagonal of the smallest box around the set, an upper bound.

        Two linear programs for each entry of the model find the box. An unbounded set
        gives infinity.
        """
        self.check_shape(shape)
        if not self._bounded:
            return math.inf
        sides = []
        for unit in np.eye(self._inequalities[0].shape[1]):
            sides.append(float(unit @ (self._minimiser(-unit) - self._minimiser(unit))))
        return math.hypot(*sides)

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Solve the quadratic program exactly, by a dual active-set method.

        Goldfarb and Idnani, "A numerically stable dual method for solving strictly convex quadratic
        programs", 1983. Inequalities hold to 1e-12 of the size of their terms.

        Raises
        ------
        FedConError
            If rounding prevents a solution.
        """
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)

        def nearest(model: Array) -> Array:
            point = self._nearest(model.reshape(-1).astype(np.float64))
            return point.astype(model.dtype).reshape(model.shape)

        return each(x, batch, nearest)

    def _nearest(self, v: Array) -> Array:
        flat, free, rows, levels = self._reduced
        if flat is None or free is None:
            point = nearest_point(rows, levels, v)
            if point is None:
                raise self._empty()
            return point
        inner = nearest_point(rows, levels, free.T @ (v - flat.point))
        if inner is None:
            raise self._empty()
        moved: Array = flat.point + free @ inner
        return moved

    def _empty(self) -> ConfigError:
        return ConfigError(
            "the Polyhedron is empty: no x has A x <= b"
            + (" and C x = d" if self.C is not None else "")
            + ". Check the signs (A x >= b is -A x <= -b)"
        )

    @cached_property
    def _bounded(self) -> bool:
        """Whether the set is bounded: only y = 0 has A y <= 0 and C y = 0 (Stiemke's lemma)."""
        rows, _ = self._inequalities
        spanning, lower = rows, [1.0] * len(rows)
        if self._equations is not None:
            spanning = np.vstack([rows, self._equations[0]])
            lower += [-math.inf] * len(self._equations[0])
        if np.linalg.matrix_rank(spanning) < rows.shape[1]:
            return False
        bounds = [(low, math.inf) for low in lower]
        told = _linear_program(np.zeros(len(spanning)), A_eq=spanning.T,
                               b_eq=np.zeros(rows.shape[1]), bounds=bounds)  # fmt: skip
        return bool(told.status == 0)

    @property
    def without_oracle(self) -> str:
        """Why there is no oracle, if the set is unbounded; else ""."""
        return "" if self._bounded else unbounded("the Polyhedron")

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return a vertex that minimises <g, s>, by a linear program (HiGHS, dual simplex)."""
        self.check_shape(g.shape[batch:])
        expect_finite(self, g)
        if self.without_oracle:
            raise ConfigError(self.without_oracle)

        def vertex(one: Array) -> DenseAtom:
            corner = self._minimiser(one.reshape(-1).astype(np.float64))
            return DenseAtom(corner.astype(one.dtype).reshape(one.shape))

        return each_atom(g, batch, vertex)

    def _minimiser(self, g: Array) -> Array:
        (rows, levels), unit = self._inequalities, self._unit
        equal: dict[str, Array] = {}
        if self._equations is not None:
            equal = {"A_eq": self._equations[0], "b_eq": self._equations[1] / unit}
        size = float(np.abs(g).max())
        result = _linear_program(g / size if size else g, A_ub=rows, b_ub=levels / unit, **equal)
        if result.status:
            raise FedConError(f"the linear program of a Polyhedron failed: {result.message}")
        return self._nearest(result.x * unit)  # HiGHS satisfies inequalities to 1e-7 only

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the point, which must lie in the set."""
        self.check_shape(shape)
        value = only_array(arrays, "value", shape, dtype)
        if not self.contains(value, 1e-6):
            raise ConfigError("an atom lies outside the Polyhedron")
        return DenseAtom(value)


def _linear_program(cost: Array, **constraints: Any) -> Any:
    from scipy.optimize import linprog  # slow to import

    constraints.setdefault("bounds", (None, None))
    return linprog(cost, method="highs-ds", **constraints)


def nearest_point(rows: Array, levels: Array, v: Array) -> Array | None:
    """Return the point nearest to v of rows x <= levels; None if there is no such point.

    Starting at v, one violated inequality after another enters the active set W, and leaves it
    when its multiplier would turn negative. Throughout, x = v - sum_W u_j row_j with u >= 0.

    Parameters
    ----------
    rows : array, shape (m, d)
        Of norm 1.
    levels : array, shape (m,)
    v : array, shape (d,)

    Examples
    --------
    >>> nearest_point(np.eye(2), np.zeros(2), np.array([3.0, -1.0]))
    array([ 0., -1.])
    """
    x, active, u = v, [], []  # type: Array, list[int], list[float]
    sizes = _compared(rows, levels, v)
    for _ in range(50 * (len(rows) + 10)):
        over = (rows @ x - levels) / sizes
        over[active] = -math.inf
        entering = int(over.argmax()) if over.size else 0
        if not over.size or over[entering] <= TOLERANCE:
            return _polished(rows[active], levels[active], v, x)
        entered = 0.0
        while True:
            outside, inside = _split(rows[active], rows[entering])
            length = float(outside @ outside)
            full = math.inf
            if length > _DEPENDENT**2:
                full = float(rows[entering] @ x - levels[entering]) / length
            ratios = [w / r if r > 1e-14 else math.inf for w, r in zip(u, inside, strict=True)]
            leaving = int(np.argmin(ratios)) if ratios else -1
            step = min(full, ratios[leaving] if ratios else math.inf)
            if step == math.inf:
                return None
            if full < math.inf:
                x = x - step * outside
            u = [w - step * r for w, r in zip(u, inside, strict=True)]
            entered += step
            if step == full:
                active, u = [*active, entering], [*u, entered]
                break
            del active[leaving], u[leaving]
    raise FedConError(
        f"a projection onto a polyhedron of {len(rows)} inequalities came to no end: rounding "
        "makes them depend on each other; remove those that others imply"
    )


def _compared(rows: Array, levels: Array, x: Array) -> Array:
    """Return the size of each inequality's terms at x, > 0."""
    sizes: Array = np.maximum(np.maximum(np.abs(levels), np.abs(rows) @ np.abs(x)), 1e-300)
    return sizes


def _split(active: Array, normal: Array) -> tuple[Array, Array]:
    """Return the part of a normal outside the active ones' span, and its coefficients in them."""
    if not len(active):
        return normal, np.empty(0)
    q, r = np.linalg.qr(active.T)
    inside = q.T @ normal
    outside = normal - q @ inside
    again = q.T @ outside
    return outside - q @ again, np.linalg.solve(r, inside + again)


def _polished(active: Array, levels: Array, v: Array, x: Array) -> Array:
    """Return the nearest point of the active inequalities' planes, without the steps' rounding."""
    if not len(active):
        return x
    q, r = np.linalg.qr(active.T)
    x = v - q @ (q.T @ v - np.linalg.solve(r.T, levels))
    polished: Array = x - q @ (q.T @ x - np.linalg.solve(r.T, levels))
    return polished
