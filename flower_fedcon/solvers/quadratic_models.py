"""Second-order models of objectives, as one array; and the minimiser of such a model plus psi."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flower_fedcon.regularizers import Regularizer
from flower_fedcon.validation import Array

_STEPS = 20_000
_STEADY = 1e-10  # of the mean curvature: what keeps a singular system solvable, see `minimizer`


class QuadraticModel(NamedTuple):
    """z'Hz/2 - b'z + c, in the flattened model z.

    Attributes
    ----------
    H : array, shape (d, d)
    b : array, shape (d,)
    c : float
    """

    H: Array
    b: Array
    c: float

    def value(self, x: Array) -> float:
        """Return the model's value at x."""
        z = x.reshape(-1)
        return float((0.5 * (self.H @ z) - self.b) @ z) + self.c


def packed_size(d: int) -> int:
    """Return how many numbers a model of d variables takes."""
    return (d + 1) * (d + 2) // 2


def taylor(x: Array, value: float, gradient: Array, hessian: Array) -> Array:
    """Return the second-order model about x, packed: the upper triangle of [[H, -b], [-b', 2c]].

    Where the Hessian is block-diagonal, its blocks in an array of shape (blocks, d, d), it is that
    of each block after the other, with the value in the first.

    >>> taylor(np.array([2.0]), 4.0, np.array([4.0]), np.array([[2.0]]))  # of x^2
    array([2., 0., 0.])
    """
    if hessian.ndim == 3:
        each = zip(x, [value, *[0.0] * (len(x) - 1)], gradient, hessian, strict=True)
        return np.concatenate([taylor(*one) for one in each])
    z, g = x.reshape(-1), gradient.reshape(-1)
    Hz = hessian @ z
    square = np.empty((z.size + 1, z.size + 1), x.dtype)
    square[:-1, :-1], square[:-1, -1] = hessian, g - Hz
    square[-1, -1] = 2 * value - 2 * float(g @ z) + float(Hz @ z)
    packed: Array = square[_triangle(z.size + 1)]
    return packed


def unpack(packed: Array, d: int) -> QuadraticModel:
    """Return a packed model of d variables."""
    square = np.zeros((d + 1, d + 1))
    square[_triangle(d + 1)] = packed
    H = square[:-1, :-1]
    H = H + np.triu(H, 1).T
    return QuadraticModel(H, -square[:-1, -1], 0.5 * float(square[-1, -1]))


@lru_cache(maxsize=8)
def _triangle(n: int) -> tuple[Array, Array]:
    return np.triu_indices(n)


def minimizer(model: QuadraticModel, psi: Regularizer, start: Array) -> Array:
    """Return argmin of the model plus psi, to rounding.

    Where H (with psi's squares) is all but singular, a pull to `start`, 1e-10 of the mean
    curvature, makes it regular. It does not move the points that are minimisers already, which are
    those that a method that repeats this finds.

    Parameters
    ----------
    model : QuadraticModel
        Convex.
    psi : Regularizer
        If it acts entry by entry, its support is found by solving linear systems; else by
        accelerated proximal steps.
    start : array of the model's shape

    Examples
    --------
    >>> from flower_fedcon.regularizers import L1
    >>> model = QuadraticModel(np.eye(2), np.array([3.0, 0.5]), 0.0)
    >>> minimizer(model, L1(1.0), np.zeros(2)).round(8)
    array([2., 0.])
    """
    z, diagonal = start.reshape(-1).astype(np.float64), np.diag_indices_from(model.H)
    weights = psi.entrywise(start.shape)
    l1, l2 = (np.zeros(1), np.zeros(1)) if weights is None else weights
    H, b = model.H.copy(), model.b
    H[diagonal] += l2.reshape(-1)
    pull = _STEADY * float(np.trace(H)) / len(H)
    if not _is_definite(H, pull):
        H[diagonal] += pull
        b = b + pull * z
    if weights is not None and (found := _by_support(H, b, l1.reshape(-1), z)) is not None:
        return found.reshape(start.shape).astype(start.dtype, copy=False)
    H[diagonal] -= l2.reshape(-1)
    steps = _by_steps(H, b, psi, start.astype(np.float64))
    return steps.astype(start.dtype, copy=False)


def _is_definite(H: Array, least: float) -> bool:
    """Return whether all eigenvalues are larger than `least`."""
    try:
        np.linalg.cholesky(H - least * np.eye(len(H)))
    except np.linalg.LinAlgError:
        return False
    return True


def _by_support(H: Array, b: Array, l1: Array, x: Array) -> Array | None:
    """Minimise x'Hx/2 - b'x + sum l1 |x|: solve on a support, and correct the support.

    This is feature-sign search (Lee, Battle, Raina and Ng, NIPS 2006). None if it does not end, as
    may be by rounding.
    """
    free, signs = l1 == 0, np.sign(x)
    tolerance = 1e-12 * max(1.0, float(np.abs(b).max()))
    many = True  # entries join the support together, as long as that leads on
    for _ in range(20 + 10 * len(b)):
        before = x
        x, signs = _on_support(H, b, l1, x, signs, free)
        slope = b - H @ x
        excess = np.where((signs != 0) | free, 0.0, np.abs(slope) - l1)
        worst = int(excess.argmax())
        if excess[worst] <= tolerance:
            return x
        many = many and not np.array_equal(before, x)
        joining = excess > tolerance if many else np.arange(len(b)) == worst
        signs = np.where(joining, np.sign(slope), signs)
    return None


def _on_support(
    H: Array, b: Array, l1: Array, x: Array, signs: Array, free: Array
) -> tuple[Array, Array]:
    """Minimise over the entries with a sign, which they keep, or are taken out at 0."""
    while True:
        support = np.flatnonzero((signs != 0) | free)
        target = np.zeros_like(x)
        if support.size:
            system = H[support[:, None], support]
            target[support] = np.linalg.solve(system, (b - l1 * signs)[support])
        wrong = (target * signs < 0) & ~free
        if not wrong.any():
            return target, np.where(free, signs, np.sign(target))
        # Up to where the first entry would change its sign.
        shares = np.where(wrong, x / np.where(wrong, x - target, 1.0), np.inf)
        share = float(shares.min())
        x = x + share * (target - x)
        out = shares <= share
        x, signs = np.where(out, 0.0, x), np.where(out, 0.0, signs)


def _by_steps(H: Array, b: Array, psi: Regularizer, x: Array) -> Array:
    """Minimise z'Hz/2 - b'z + psi(z) by accelerated proximal steps with restarts."""
    L = float(np.linalg.eigvalsh(H)[-1]) or 1.0
    shape, y, momentum = x.shape, x, 1.0
    tolerance = 1e-13 * max(1.0, float(np.linalg.norm(b)))
    for _ in range(_STEPS):
        gradient = (H @ y.reshape(-1) - b).reshape(shape)
        new = psi.prox(y - gradient / L, 1.0 / L)
        back = (y - new).reshape(-1)
        if L * float(np.linalg.norm(back)) <= tolerance:
            return new
        move = new - x
        if float(back @ move.reshape(-1)) > 0:
            momentum, y = 1.0, new
        else:
            following = 0.5 * (1.0 + (1.0 + 4.0 * momentum * momentum) ** 0.5)
            y = new + ((momentum - 1.0) / following) * move
            momentum = following
        x = new
    return x
