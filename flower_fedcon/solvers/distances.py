"""Distance-generating functions: entropy, p-norms, quadratic forms.

Each knows the w of a psi from its optimality, z - grad h(w) in step times psi's subdifferential, in
closed form or by one equation in one unknown (`level_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.regularizers import Indicator, Nonnegative, Regularizer
from flower_fedcon.regularizers.base import soft
from flower_fedcon.regularizers.elementwise import Penalty
from flower_fedcon.sets import Box, L1Ball, L2Ball, LInfBall, Simplex
from flower_fedcon.sets.shapes import ByValue
from flower_fedcon.solvers.bregman import Distance, Point, level_of
from flower_fedcon.validation import Array, float_array, positive


def _sum(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]


def _flat(value: float | Array) -> float | Array:
    """Return a number, or an array of the model's shape as one row."""
    return value.reshape(-1) if isinstance(value, np.ndarray) else value


def _weights(psi: Regularizer) -> tuple[float | Array, float] | None:
    """Return l1 and l2 of psi = sum_i l1_i |x_i| + l2/2 ||x||^2; None if it is another."""
    if not isinstance(psi, Penalty) or type(psi).prox is not Penalty.prox:
        return None
    l1, l2 = psi._weights()
    return _flat(l1), l2


def _bounds(constraint: object) -> tuple[float | Array, float | Array] | None:
    """Return the bounds of a box, or of an l-infinity ball; None of another set."""
    if isinstance(constraint, Box):
        return _flat(constraint.lower), _flat(constraint.upper)
    if isinstance(constraint, LInfBall):
        return -constraint.radius, constraint.radius
    return None


@dataclass(frozen=True)
class Entropy(Distance):
    """h(w) = sum w log w - w, on models with entries above 0.

    grad h = log w, and grad h* = exp z. The prox of the simplex is then r exp(z) / sum exp(z); a
    step multiplies each entry by a number above 0.

    Examples
    --------
    >>> from flower_fedcon.regularizers import L1
    >>> h = Entropy()
    >>> h.point(L1(np.log(2.0)), h.gradient(np.array([1.0, 4.0])), 1.0)
    array([0.5, 2. ])
    """

    along_last_axis = True

    def gradient(self, x: Array) -> Array:
        """Return log x, that of the least number above 0 where an entry has rounded to 0."""
        return np.log(np.maximum(x, np.finfo(x.dtype).tiny))  # type: ignore[no-any-return]

    def inverse(self, z: Array) -> Array:
        """Return exp z."""
        return np.exp(z)

    def point_of(self, psi: Regularizer) -> Point | None:
        """Serve penalties of entries, the simplex, l1 balls and boxes."""
        weights, constraint = _weights(psi), getattr(psi, "constraint", None)
        if isinstance(psi, Nonnegative):
            return lambda z, step: np.exp(z)
        if weights is not None:
            l1, l2 = weights
            return lambda z, step: _pulled(z - step * l1, step * l2)
        if isinstance(psi, Indicator) and isinstance(constraint, Simplex):
            return lambda z, step: constraint.radius * _shares(z)
        if isinstance(psi, Indicator) and isinstance(constraint, L1Ball):

            def within(z: Array, step: float) -> Array:
                top = z.max(axis=-1, keepdims=True)
                total = top + np.log(_sum(np.exp(z - top)))
                shorter: Array = np.exp(z - np.maximum(total - np.log(constraint.radius), 0.0))
                return shorter

            return within
        bounds = _bounds(constraint)
        if isinstance(psi, Indicator) and bounds is not None and np.all(np.asarray(bounds[1]) > 0):
            return lambda z, step: np.clip(np.exp(z), *bounds)
        return super().point_of(psi)

    @property
    def takes(self) -> str:
        """What psi it serves."""
        return (
            "it serves psi = 0, L1, L2Squared, ElasticNet, Nonnegative, Simplex, L1Ball, Box and "
            "LInfBall with an inner point above 0, HalfSpace and Hyperplane"
        )

    def modulus(self, psi: Regularizer) -> float:
        """Return 1 over the largest entry that psi allows, at most 1; 0 if it allows any."""
        constraint = psi.constraint if isinstance(psi, Indicator) else None
        if isinstance(constraint, Simplex | L1Ball):
            return 1.0 / max(1.0, constraint.radius)
        bounds = _bounds(constraint)
        return 0.0 if bounds is None else 1.0 / max(1.0, float(np.max(bounds[1])))

    def check_start(self, x: Array) -> None:
        """Raise unless all entries are above 0."""
        if not (x > 0).all():
            raise ConfigError(
                'distance="entropy" starts from a vector with entries above 0: give x0, such as '
                "equal shares of the radius"
            )


def _shares(z: Array) -> Array:
    """Return exp(z) / sum exp(z)."""
    shares = np.exp(z - z.max(axis=-1, keepdims=True))
    return shares / _sum(shares)  # type: ignore[no-any-return]


def _pulled(z: Array, pull: float) -> Array:
    """Return the root of log w + pull w = z."""
    if not pull:
        return np.exp(z)
    from scipy.special import wrightomega

    return wrightomega(z + np.log(pull)) / pull  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PNorm(Distance):
    """h(w) = ||w||_p^2 / 2, for 1 < p <= 2.

    grad h* is the gradient of ||z||_q^2 / 2, 1/p + 1/q = 1, and h is (p - 1)-strongly convex. With
    d entries, p = 1 + 1/log(d) suits sparse models, and gradients whose entries are alike in size.

    Parameters
    ----------
    p : float (default: 1.5)

    Examples
    --------
    >>> h = PNorm(1.5)
    >>> h.inverse(h.gradient(np.array([1.0, -2.0, 0.0]))).round(12)
    array([ 1., -2.,  0.])
    """

    p: float = 1.5
    along_last_axis = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", positive("PNorm(p)", self.p))
        if not 1 < self.p <= 2:
            raise ConfigError(
                f"PNorm needs 1 < p <= 2, got {self.p!r}: for other p its h is not strongly convex"
            )
        object.__setattr__(self, "strong_convexity", self.p - 1)

    def gradient(self, x: Array) -> Array:
        """Return sign(x) |x|^(p-1) ||x||_p^(2-p)."""
        return _norm_gradient(x, self.p)

    def inverse(self, z: Array) -> Array:
        """Return the same of z with q."""
        return _norm_gradient(z, self.p / (self.p - 1))

    def point_of(self, psi: Regularizer) -> Point | None:
        """Serve l1 penalties, nonnegative models, the simplex, l1 balls and boxes."""
        weights, constraint = _weights(psi), getattr(psi, "constraint", None)
        if isinstance(psi, Nonnegative):
            return lambda z, step: self.inverse(np.maximum(z, 0.0))
        if weights is not None and not weights[1]:
            l1 = weights[0]
            return lambda z, step: self.inverse(soft(z, step * l1))
        if not isinstance(psi, Indicator):
            return None
        if isinstance(constraint, L1Ball | Simplex):
            return _of_radius(constraint, self.inverse)
        bounds = _bounds(constraint)
        if bounds is None:
            return super().point_of(psi)

        def boxed(z: Array, step: float) -> Array:
            """Return w; its norm n is the root of ||w(n)||_p = n."""

            def at(n: Array) -> Array:
                with np.errstate(over="ignore"):
                    less = np.maximum(n, np.finfo(z.dtype).tiny) ** (2 - self.p)
                    steep = np.sign(z) * (np.abs(z) / less) ** (1 / (self.p - 1))
                clipped: Array = np.clip(steep, *bounds)
                return clipped

            def beyond(n: Array) -> Array:
                return _norm(at(n), self.p) - n

            return at(level_of(beyond, z))

        return boxed

    @property
    def takes(self) -> str:
        """What psi it serves."""
        return (
            "it serves psi = 0, L1, Nonnegative, Simplex, L1Ball, Box, LInfBall, HalfSpace and "
            "Hyperplane"
        )


def _norm(x: Array, p: float) -> Array:
    """Return ||x||_p along the last axis."""
    size = np.abs(x).max(axis=-1, keepdims=True)
    size = np.where(size > 0, size, 1.0)
    return size * _sum(np.abs(x / size) ** p) ** (1 / p)


def _norm_gradient(x: Array, p: float) -> Array:
    """Return the gradient of ||x||_p^2 / 2, 0 at 0."""
    norm = _norm(x, p)
    norm = np.where(norm > 0, norm, 1.0)
    return norm * np.sign(x) * np.abs(x / norm) ** (p - 1)


def _of_radius(constraint: L1Ball | Simplex, inverse: Any) -> Point:
    """Return w with ||w||_1 <= r, or w >= 0 with sum r: the level below which duals are cut."""
    simplex, radius = isinstance(constraint, Simplex), constraint.radius

    def cut(z: Array, level: Array) -> Array:
        return inverse(np.maximum(z - level, 0.0) if simplex else soft(z, level))  # type: ignore[no-any-return]

    def within(z: Array, step: float) -> Array:
        def beyond(level: Array) -> Array:
            return _sum(np.abs(cut(z, level))) - radius

        return cut(z, level_of(beyond, z, -1.0 if simplex else 0.0))

    return within


@dataclass(frozen=True, eq=False)
class QuadraticForm(ByValue, Distance):
    """h(w) = w'Aw/2: steps in other units for each entry, or along other axes.

    Parameters
    ----------
    A : array
        A vector of numbers above 0, the diagonal, or a symmetric positive definite matrix; of the
        model's entries in one row, whatever its shape.

    Examples
    --------
    >>> from flower_fedcon.regularizers import L1
    >>> QuadraticForm([1.0, 4.0]).point(L1(1.0), np.array([3.0, 5.0]), 1.0)
    array([2., 1.])
    """

    A: Any
    along_last_axis = True

    def __post_init__(self) -> None:
        A = float_array("QuadraticForm(A)", self.A)
        square = A.ndim == 2 and A.shape[0] == A.shape[1] and np.allclose(A, A.T)
        if not (A.size and (square or A.ndim == 1)):
            raise ConfigError(
                f"QuadraticForm needs A of shape (d,), the diagonal, or (d, d) and symmetric, got "
                f"an array of shape {A.shape}"
            )
        object.__setattr__(self, "A", A)
        if not self._eigen[0].min() > 0:
            raise ConfigError(
                f"QuadraticForm needs a positive definite A: its least eigenvalue is "
                f"{self._eigen[0].min():g}"
            )
        object.__setattr__(self, "strong_convexity", float(self._eigen[0].min()))

    @cached_property
    def _eigen(self) -> tuple[Array, Array | None]:
        """Eigenvalues and eigenvectors, None for the axes."""
        return (self.A, None) if self.A.ndim == 1 else tuple(np.linalg.eigh(self.A))  # type: ignore[return-value]

    def _divided(self, z: Array, more: float | Array = 0.0) -> Array:
        """Return (A + more I)^-1 z."""
        values, vectors = self._eigen
        if vectors is None:
            return z / (values + more)
        return ((z @ vectors) / (values + more)) @ vectors.T

    def gradient(self, x: Array) -> Array:
        """Return A x."""
        dual: Array = self.A * x if self.A.ndim == 1 else x @ self.A
        return dual

    def inverse(self, z: Array) -> Array:
        """Return A^-1 z."""
        return self._divided(z)

    def point_of(self, psi: Regularizer) -> Point | None:
        """Serve l2 penalties and balls; with a diagonal also what acts on each entry."""
        weights, constraint = _weights(psi), getattr(psi, "constraint", None)
        diagonal = self.A.ndim == 1
        if weights is not None and (diagonal or not np.any(weights[0])):
            l1, l2 = weights
            return lambda z, step: self._divided(soft(z, step * l1), step * l2)
        if isinstance(psi, Nonnegative) and diagonal:
            return lambda z, step: self._divided(np.maximum(z, 0.0))
        if not isinstance(psi, Indicator):
            return None
        if isinstance(constraint, L2Ball):

            def within(z: Array, step: float) -> Array:
                def beyond(more: Array) -> Array:
                    return _norm(self._divided(z, more), 2.0) - constraint.radius

                return self._divided(z, level_of(beyond, z))

            return within
        if diagonal and isinstance(constraint, L1Ball | Simplex):
            return _of_radius(constraint, self._divided)
        bounds = _bounds(constraint)
        if diagonal and bounds is not None:
            return lambda z, step: np.clip(self._divided(z), *bounds)
        return super().point_of(psi)

    @property
    def takes(self) -> str:
        """What psi it serves."""
        more = "L1, ElasticNet, Nonnegative, Simplex, L1Ball, Box, LInfBall, "
        return (
            f"it serves psi = 0, L2Squared, L2Ball, {more if self.A.ndim == 1 else ''}HalfSpace "
            f"and Hyperplane"
        )

    def check_start(self, x: Array) -> None:
        """Raise unless A fits the model."""
        if x.size != len(self.A):
            raise ConfigError(f"QuadraticForm has A of {len(self.A)} entries, the model {x.size}")


NAMES: dict[str, type[Distance] | None] = {
    "euclidean": None,
    "entropy": Entropy,
    "p-norm": PNorm,
}


def as_distance(given: str | Distance) -> Distance | None:
    """Return the distance that a name or an object stands for; None for the Euclidean one.

    Raises
    ------
    ConfigError
        If it is neither.

    >>> as_distance("euclidean"), as_distance("p-norm")
    (None, PNorm(p=1.5))
    """
    if isinstance(given, Distance):
        return given
    if isinstance(given, str) and given in NAMES:
        kind = NAMES[given]
        return None if kind is None else kind()
    if isinstance(given, str):
        raise ConfigError(f"unknown distance {given!r}: {nearest(given, NAMES)}")
    raise ConfigError(
        f"distance must be one of {', '.join(map(repr, NAMES))}, PNorm(p=...), "
        f"QuadraticForm(A=...), or an object of your own class derived from "
        f"flower_fedcon.solvers.Distance, got {given!r}"
    )
