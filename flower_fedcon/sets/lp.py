"""The ball of any lp norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.sets.atoms import Atom, DenseAtom, each_atom
from flower_fedcon.sets.balls import L1Ball, L2Ball, LInfBall
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.shapes import each, expect_finite, only_array, size_of
from flower_fedcon.validation import Array, positive

_GAP = 1e-10


def lp_norm(x: Array, p: float) -> float:
    """Return ||x||_p, safe from under- and overflow."""
    magnitude = np.abs(x.reshape(-1)).astype(np.float64)
    largest = float(magnitude.max())
    if largest == 0.0:
        return 0.0
    return largest * math.exp(math.log(float(((magnitude / largest) ** p).sum())) / p)


@dataclass(frozen=True)
class LpBall(ConstraintSet):
    """The set ||x||_p <= radius, over all entries of the model.

    For p = 1, 2 and infinity it is `L1Ball`, `L2Ball` or `LInfBall`, with the same compact
    atoms. For other p its atoms are dense, and the projection is iterative, with a certificate.

    Parameters
    ----------
    p : float
        >= 1; infinity allowed.
    radius : float
        > 0.

    Examples
    --------
    >>> LpBall(p=3.0, radius=1.0).lmo(np.array([0.0, -2.0])).dense() + 0.0
    array([0., 1.])
    >>> LpBall(p=1.0, radius=2.0).project(np.array([3.0, -1.0]))
    array([2., 0.])
    """

    p: float
    radius: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("LpBall(radius)", self.radius))
        p = self.p
        if p != math.inf:
            p = positive("LpBall(p)", p)
        if p < 1:
            raise ConfigError(f"LpBall(p) must be >= 1 (else it is not convex), got {p!r}")
        object.__setattr__(self, "p", float(p))

    @cached_property
    def _closed(self) -> ConstraintSet | None:
        kinds: dict[float, Callable[[float], ConstraintSet]] = {
            1.0: L1Ball, 2.0: L2Ball, math.inf: LInfBall
        }  # fmt: skip
        return kinds[self.p](self.radius) if self.p in kinds else None

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def excess(self, x: Array) -> float:
        """Return ||x||_p - radius."""
        if self._closed is not None:
            return self._closed.excess(x)
        return lp_norm(x, self.p) - self.radius

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return 2 radius max(1, d^(1/2 - 1/p))."""
        return 2.0 * self.radius * max(1.0, math.pow(size_of(shape), 0.5 - 1.0 / self.p))

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Return the nearest point of the ball.

        For p other than 1, 2 and infinity, x_i (1 + theta |x_i|^(p-2)) = y_i, where Brent's method
        finds theta. The result is certified: <y - x, z - x> <= 1e-10 ||y - x||_q radius for every
        z in the ball.

        Raises
        ------
        FedConError
            If the certificate fails: p is too near to 1, or too large.
        """
        if self._closed is not None:
            return self._closed.project(x, batch=batch)
        expect_finite(self, x)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # the result is certified
                return each(x, batch, self._project)
        except (ValueError, OverflowError):  # no bracket: numbers overflow
            raise FedConError(
                f"the projection onto {self!r} of entries up to {float(np.abs(x).max()):.3g} "
                f"overflows: scale the model and the radius"
            ) from None

    def _project(self, x: Array) -> Array:
        from scipy.optimize import brentq  # slow to import

        if self.excess(x) <= 0:
            return x.copy()
        p, flat = self.p, x.reshape(-1).astype(np.float64)
        sign, target = np.sign(flat), np.abs(flat) / self.radius

        def log_norm(log_theta: float) -> float:
            norm: float = lp_norm(_shrunk(target, p, math.exp(log_theta)), p)
            return math.log(norm) if norm else -math.inf

        low, high = -1.0, 1.0
        while log_norm(low) < 0 and low > -700:
            low = max(2.0 * low, -700.0)
        while log_norm(high) > 0 and high < 700:
            high = min(2.0 * high, 700.0)
        if log_norm(low) <= 0:  # outside by rounding only
            solution = target
        else:
            root = brentq(log_norm, low, high, xtol=1e-15, rtol=1e-14, maxiter=500)
            solution = _shrunk(target, p, math.exp(root))
        solution = solution / max(lp_norm(solution, p), 1e-300)
        gap = target - solution
        dual = lp_norm(gap, p / (p - 1.0))
        if not dual - float(gap @ solution) <= _GAP * dual + 1e-14 * float(target.max()):
            raise FedConError(
                f"the projection onto {self!r} failed its certificate: use an algorithm that calls "
                "the linear minimisation oracle, or a p of 1, 2 or infinity"
            )
        return (self.radius * sign * solution).astype(x.dtype).reshape(x.shape)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return the s with s_i of the sign of -g_i and |s_i| proportional to |g_i|^(1/(p-1)).

        For g = 0 it is +radius in the first entry.
        """
        if self._closed is not None:
            return self._closed.lmo(g, batch=batch)
        expect_finite(self, g)
        return each_atom(g, batch, self._vertex)

    def _vertex(self, g: Array) -> DenseAtom:
        flat = g.reshape(-1).astype(np.float64)
        largest = float(np.abs(flat).max())
        if largest == 0.0:
            flat, largest = -np.eye(1, flat.size)[0], 1.0
        s = -np.sign(flat) * (np.abs(flat) / largest) ** (1.0 / (self.p - 1.0))
        s *= self.radius / lp_norm(s, self.p)
        return DenseAtom(s.astype(g.dtype).reshape(g.shape))

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the vertex, which must lie in the ball."""
        if self._closed is not None:
            return self._closed.decode_atom(arrays, shape, dtype)
        value = only_array(arrays, "value", shape, dtype)
        if self.excess(value) > 1e-6 * self.radius:
            raise ConfigError(f"an atom lies outside {self!r}")
        return DenseAtom(value)


def _shrunk(target: Array, p: float, theta: float) -> Array:
    """Return the t >= 0 with t + theta t^(p-1) = target, entry by entry, by Newton's method.

    The variable is t or t^(p-1), whichever makes the left side convex: steps from the right are
    then monotone.
    """
    power, a, b = (p - 1.0, 1.0, theta) if p >= 2 else (1.0 / (p - 1.0), theta, 1.0)
    # a w + b w^power = target, power >= 1
    with np.errstate(divide="ignore", over="ignore"):  # only the smaller of the two is used
        w = np.minimum(target / a, (target / b) ** (1.0 / power))
    for _ in range(100):
        slope = a + b * power * w ** (power - 1.0)
        step = (a * w + b * w**power - target) / slope
        w = np.maximum(w - step, 0.0)
        if (np.abs(step) <= 1e-16 * w).all():
            break
    shrunk: Array = w if p >= 2 else w**power
    return shrunk
