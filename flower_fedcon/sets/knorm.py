"""The ball of the vector k-norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.errors import FedConError
from flower_fedcon.sets.atoms import Atom, each_atom
from flower_fedcon.sets.balls import L1Ball, LInfBall
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.shapes import each, expect_finite, size_of
from flower_fedcon.sets.sparse import capped_projection
from flower_fedcon.validation import Array, count, positive


class EitherAtom(Atom):
    """A vertex of one of two forms: its arrays' names say which.

    Parameters
    ----------
    atom : Atom
        The atom of one client.
    """

    __slots__ = ("atom", "dtype", "shape")

    def __init__(self, atom: Atom) -> None:
        self.atom = atom
        self.shape = atom.shape
        self.dtype = atom.dtype

    def dense(self) -> Array:
        """Return s."""
        return self.atom.dense()

    def arrays(self) -> dict[str, Array]:
        """Return one signed index, or one bit for each entry."""
        return self.atom.arrays()

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return self.atom.nbytes

    def mix(self, x: Array, step: float) -> Array:
        """Return (1 - step) x + step s."""
        return self.atom.mix(x, step)

    def add_to(self, out: Array) -> None:
        """Add s to `out` in place."""
        self.atom.add_to(out)


@dataclass(frozen=True)
class KNormBall(ConstraintSet):
    """The set of x whose k largest |x_i| sum to at most radius.

    It is the hull of the l1 ball of this radius and the box |x_i| <= radius/k. With k = 1 it is the
    box, with k >= d the l1 ball. (`KSparsePolytope` is the ball of the dual norm.)

    Parameters
    ----------
    k : int
        >= 1.
    radius : float
        > 0.

    Examples
    --------
    >>> ball = KNormBall(k=2, radius=2.0)
    >>> ball.lmo(np.array([3.0, 1.0, 0.0])).dense(), ball.lmo(np.array([1.0, 1.0, -1.0])).dense()
    (array([-2.,  0.,  0.]), array([-1., -1.,  1.]))
    >>> ball.project(np.array([3.0, 2.0, 0.5]))
    array([1.5, 0.5, 0.5])
    """

    k: int
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", count("KNormBall(k)", self.k))
        object.__setattr__(self, "radius", positive("KNormBall(radius)", self.radius))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def excess(self, x: Array) -> float:
        """Return the sum of the k largest |x_i|, less the radius."""
        return _largest(np.abs(x.reshape(-1)), self.k) - self.radius

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return 2 radius max(1, sqrt(d)/k)."""
        d = size_of(shape)
        return 2.0 * self.radius * max(1.0, math.sqrt(d) / min(self.k, d))

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Reduce the largest |x_i| by one amount, the next ones to one level; leave the others.

        Newton's method on a piecewise linear function finds the amount exactly (Wu, Ding, Sun and
        Toh, "On the Moreau-Yosida regularization of the vector k-norm related functions", 2014,
        solve for the pieces by a search).
        """
        expect_finite(self, x)
        return each(x, batch, self._project)

    def _project(self, x: Array) -> Array:
        if self.excess(x) <= 0:
            return x.copy()
        flat = x.reshape(-1)
        size = np.abs(flat).astype(np.float64)
        unit = float(size.max())
        size = size / unit
        reduced = _reduced(size, min(self.k, size.size), self.radius / unit)
        projected: Array = np.copysign(unit * reduced, flat) + 0.0
        return projected.astype(x.dtype).reshape(x.shape)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return -radius sign(g_i) at the largest |g_i|, or -(radius/k) sign(g) everywhere.

        The vertex with the smaller <g, s> is returned, the first in a tie. At g_i = 0
        the sign is +.
        """
        expect_finite(self, g)
        return each_atom(g, batch, self._vertex)

    def _vertex(self, g: Array) -> EitherAtom:
        size = np.abs(g)
        largest = float(size.max())
        total = float((size / largest).sum(dtype=np.float64)) if largest else 0.0
        corner = total > self.k
        ball = LInfBall(self.radius / self.k) if corner else L1Ball(self.radius)
        return EitherAtom(ball.lmo(g))

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the vertex of the l1 ball, or of the box."""
        ball = L1Ball(self.radius) if "code" in arrays else LInfBall(self.radius / self.k)
        return EitherAtom(ball.decode_atom(arrays, shape, dtype))


def _largest(size: Array, k: int) -> float:
    """Return the sum of the k largest."""
    top = np.partition(size, size.size - k)[size.size - k :] if k < size.size else size
    return float(top.sum(dtype=np.float64))


def _solved(
    size: Array, away: Array, amount: float, k: int, radius: float, *, levelled: bool
) -> Array:
    """Return the reduced sizes, whose k largest sum to the radius, however large the sizes.

    The m full entries all lose one amount, and the s entries below them end at one level. Two
    linear equations, relative to the full entries' mean, determine both. If the level would be
    below 0, it is 0 and `levelled` is false.
    """
    if amount == 0:  # outside by rounding only
        return size * (radius / _largest(size, k))
    full, between = away >= amount, (away > 0) & (away < amount)
    m, s, level = int(full.sum()), int(between.sum()), 0.0
    if m == 0:
        level = radius / k
    elif levelled and s and m < k:
        mean, rest = float(size[full].mean()), k - m
        level = float(size[between].sum()) - rest * mean + rest * radius / m
        level = min(max(level / (rest * rest / m + s), 0.0), radius / k)
    out = np.where(between, level, size)
    if m:
        shift = (radius - max(k - m, 0) * level) / m
        out[full] = np.maximum(size[full] - size[full].mean() + shift, level)
    total = _largest(out, k)
    return out * (radius / total) if total > radius else out


def _reduced(size: Array, k: int, radius: float) -> Array:
    """Return the projection of sizes >= 0, of which the k largest sum to more than radius.

    By Moreau's identity it is size - w, where w is the projection onto {0 <= w <= amount, sum w <=
    k amount} and the amount is that at which the k largest sum to the radius. The amount determines
    which entries lose all of it and which end at one level; `_solved` computes the rest.
    """
    low, high = 0.0, float(max(size.max(), size.sum() / k))  # at `high` all is reduced to 0
    amount = 0.0
    for _ in range(200):
        clipped = np.minimum(size, amount)
        level = bool(clipped.sum() > k * amount and amount > 0)
        away = capped_projection(size, amount, k * amount) if level else clipped
        left = size - away
        rest = _largest(left, k) - radius
        if rest > 0:
            low = amount
        else:
            high = amount
        if abs(rest) <= 4e-16 * (radius + k * amount) or high - low <= 1e-16 * high:
            return _solved(size, away, amount, k, radius, levelled=level)
        # The slope of the sum: 1 for each full entry, the change of the level for those below.
        full = int(np.count_nonzero(away >= amount)) if amount else int(np.count_nonzero(left > 0))
        full, between = min(full, k), np.count_nonzero((away > 0) & (away < amount))
        slope = full + ((k - full) ** 2 / between if level and between else 0.0)
        following = amount + rest / slope if slope else low
        amount = following if low < following < high else 0.5 * (low + high)
    raise FedConError("a projection onto a KNormBall did not come to an end")
