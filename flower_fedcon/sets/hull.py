"""The convex hull of given points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.sets.atoms import Atom, each_atom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.shapes import ByValue, each, expect_finite, only_array
from flower_fedcon.validation import Array, float_array

_INDEX = np.dtype(np.int64)


class ListedAtom(Atom):
    """One of a list of points that both sides know.

    Parameters
    ----------
    points : array, shape (m, *model)
    index : int
    dtype : dtype
        Type of the dense form.
    """

    __slots__ = ("dtype", "index", "points", "shape")

    def __init__(self, points: Array, index: int, dtype: np.dtype[np.generic]) -> None:
        self.points = points
        self.index = index
        self.shape = points.shape[1:]
        self.dtype = dtype

    def dense(self) -> Array:
        """Return s."""
        point: Array = self.points[self.index].astype(self.dtype)
        return point

    def arrays(self) -> dict[str, Array]:
        """Return the one index."""
        return {"index": np.array(self.index, dtype=_INDEX)}


@dataclass(frozen=True, eq=False)
class ConvexHull(ByValue, ConstraintSet):
    """The set of all weighted means of given points.

    Parameters
    ----------
    atoms : array, shape (m, *model)
        The points, m >= 1; they need not all be vertices.

    Examples
    --------
    >>> triangle = ConvexHull(np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
    >>> triangle.project(np.array([2.0, 2.0]))
    array([1., 1.])
    >>> triangle.lmo(np.array([1.0, -1.0])).dense()
    array([0., 2.])
    """

    atoms: Array

    def __post_init__(self) -> None:
        atoms = float_array("ConvexHull(atoms)", self.atoms)
        if atoms.ndim < 2 or atoms.size == 0:
            raise ConfigError(
                f"ConvexHull(atoms) must have the shape (m, *model), m >= 1, got {atoms.shape}"
            )
        object.__setattr__(self, "atoms", atoms)

    @cached_property
    def _centred(self) -> tuple[Array, Array]:
        """The mean of the points, and the points around it, flattened."""
        flat = self.atoms.reshape(len(self.atoms), -1).astype(np.float64)
        center = flat.mean(axis=0)
        return center, flat - center

    @property
    def scale(self) -> float:
        """The largest distance of a point from their mean; 1 if all points are equal."""
        return float(np.linalg.norm(self._centred[1], axis=1).max()) or 1.0

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless models have the points' shape."""
        if shape != self.atoms.shape[1:]:
            raise ConfigError(
                f"ConvexHull has points of shape {self.atoms.shape[1:]}, the model {shape}"
            )

    def excess(self, x: Array) -> float:
        """Return the distance."""
        self.check_shape(x.shape)
        wide = x.astype(np.float64)
        return float(np.linalg.norm(wide - self.project(wide)))

    def violation(self, x: Array) -> float:
        """Return the distance, or 0 within rounding."""
        distance = self.excess(x)
        return 0.0 if distance <= 1e-12 * self.scale else distance

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return the largest distance between two points."""
        self.check_shape(shape)
        points = self._centred[1]
        return max(float(np.linalg.norm(points - one, axis=1).max()) for one in points)

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Find the face that holds the nearest point, and project onto its plane.

        Wolfe, "Finding the nearest point in a polytope", 1976: an active-set method, exact to
        rounding.
        """
        self.check_shape(x.shape[batch:])
        expect_finite(self, x)
        center, points = self._centred

        def nearest(model: Array) -> Array:
            wide = model.reshape(-1).astype(np.float64)
            point = center + nearest_in_hull(points, wide - center)
            return point.astype(model.dtype).reshape(model.shape)

        return each(x, batch, nearest)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return the point s of the list with the smallest <g, s>."""
        self.check_shape(g.shape[batch:])
        expect_finite(self, g)
        points = self._centred[1]

        def best(one: Array) -> ListedAtom:
            products = points @ one.reshape(-1).astype(np.float64)
            return ListedAtom(self.atoms, int(products.argmin()), one.dtype)

        return each_atom(g, batch, best)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the point with this index."""
        self.check_shape(shape)
        index = int(only_array(arrays, "index", (), _INDEX))
        if not 0 <= index < len(self.atoms):
            raise ConfigError(f"index {index} is outside a hull of {len(self.atoms)} points")
        return ListedAtom(self.atoms, index, dtype)


def nearest_in_hull(points: Array, v: Array) -> Array:
    """Return the nearest point to v in the convex hull of the rows of `points`.

    Examples
    --------
    >>> nearest_in_hull(np.eye(2), np.array([1.0, 1.0]))
    array([0.5, 0.5])
    """
    reach = float(np.linalg.norm(points, axis=1).max())
    chosen = [int(((points - v) ** 2).sum(axis=1).argmin())]
    weights = np.ones(1)
    for _ in range(20 * (len(points) + 10)):
        x = weights @ points[chosen]
        products = points @ (v - x)
        entering = int(products.argmax())
        gap = float(products[entering] - x @ (v - x))
        rounding = 8 * np.finfo(float).eps * reach * (reach + float(np.linalg.norm(v)))
        if gap <= rounding or entering in chosen:
            return x
        chosen, weights = [*chosen, entering], np.append(weights, 0.0)
        while True:
            target = _affine_weights(points[chosen], v)
            if (target > 0).all():
                weights = target
                break
            # Move towards the plane's nearest point, until the first weight is 0.
            falling = target <= 0
            shares = weights[falling] / np.maximum(weights[falling] - target[falling], 1e-300)
            weights = weights + float(shares.min()) * (target - weights)
            first = np.flatnonzero(falling)[shares.argmin()]
            kept = weights > 1e-15
            kept[first] = False
            chosen = [one for one, stays in zip(chosen, kept, strict=True) if stays]
            weights = weights[kept] / weights[kept].sum()
        if entering not in chosen:  # only rounding is left to gain
            return weights @ points[chosen]
    raise FedConError(
        f"a projection onto the hull of {len(points)} points came to no end: rounding makes some "
        "of them depend on others; remove those"
    )


def _affine_weights(corners: Array, v: Array) -> Array:
    """Return the weights, of sum 1, of the nearest point to v in the plane through the corners."""
    first, *_ = corners
    solved = np.linalg.lstsq((corners[1:] - first).T, v - first, rcond=None)[0]
    return np.concatenate([[1.0 - solved.sum()], solved])
