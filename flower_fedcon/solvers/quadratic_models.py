"""Second-order models of objectives, as one array; and the minimiser of such a model plus psi."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers.units import units_of
from flower_fedcon.validation import Array

_STEPS = 20_000
_STEADY = 1e-13  # of the entries' curvature: keeps a singular system solvable
_PULLS = 20  # at most
_ALIKE = 1e-10  # the share (see `apart`) that leaves 5 digits
_NEAR = 1e-4  # relative: no step follows one this short
_NEGATIVE = 1e-6  # of the entries' curvature: below it a negative one is rounding


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

    def size(self, x: Array) -> float:
        """Return the sum of the sizes of the value's terms: rounding is relative to it."""
        z = np.abs(x.reshape(-1))
        return float((0.5 * (np.abs(self.H) @ z) + np.abs(self.b)) @ z) + abs(self.c)


def packed_size(d: int) -> int:
    """Return how many numbers a model of d variables takes."""
    return (d + 1) * (d + 2) // 2


def taylor(x: Array, value: float, gradient: Array, hessian: Array) -> Array:
    """Return the second-order model about x, packed: the upper triangle of [[H, -b], [-b', 2c]].

    A block-diagonal Hessian is an array of its blocks, shape (blocks, d, d). The models of the
    blocks then follow one another, with the value in the first.

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

    It is found in units in which H has ones on its diagonal. If H (with psi's squares) is nearly
    singular there, a proximal term around `start`, of weight d times the machine epsilon, makes it
    regular. The step is repeated from each result until the result no longer moves, so that the
    term does not shift the minimiser.

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
    units = units_of(psi, np.diag(model.H).reshape(start.shape), start.shape, exact=True)
    sizes = units.sizes.reshape(-1)
    H, b, z = model.H * sizes * sizes[:, None], model.b * sizes, start.reshape(-1) / sizes
    weights = units.psi.entrywise(start.shape)
    diagonal, point = np.diag_indices_from(H), None
    pull = max(_STEADY, len(b) * float(np.finfo(np.float64).eps))
    l1, l2 = (None, np.zeros(1)) if weights is None else (each.reshape(-1) for each in weights)
    H[diagonal] += l2
    regular = definite(H, pull)
    if not regular:
        H[diagonal] += pull
    for _ in range(1 if regular else _PULLS):
        linear = b if regular else b + pull * z
        point = None if l1 is None else _by_support(H, linear, l1, z)
        if point is None:
            H[diagonal] -= l2
            point = _by_steps(H, linear, units.psi, z.reshape(start.shape)).reshape(-1)
            H[diagonal] += l2
        moved, z = point - z, point
        if np.abs(moved).max() <= _NEAR * np.abs(z).max():
            break
    return (sizes * z).reshape(start.shape).astype(start.dtype, copy=False)


def definite(H: Array, least: float) -> bool:
    """Return whether all eigenvalues of a symmetric matrix are larger than `least`.

    >>> definite(np.eye(2), 0.5), definite(np.ones((2, 2)), 0.5)
    (True, False)
    """
    try:
        np.linalg.cholesky(H - least * np.eye(len(H)))
    except np.linalg.LinAlgError:
        return False
    return True


def convex(H: Array) -> Array:
    """Return a symmetric matrix whose eigenvalues below 0 have the other sign.

    They are those in units in which the diagonal has entries of size 1. A matrix without such
    eigenvalues, up to rounding, is returned as it is.

    >>> H = np.array([[4.0, 0.0], [0.0, -9.0]])
    >>> convex(H)
    array([[4., 0.],
           [0., 9.]])
    """
    sizes = np.sqrt(np.abs(np.diag(H)))
    sizes = np.where((sizes > 0) & np.isfinite(sizes), sizes, 1.0)
    scaled = H / sizes / sizes[:, None]
    if not np.isfinite(scaled).all() or definite(scaled, -_NEGATIVE):
        return H
    roots, axes = np.linalg.eigh(scaled)
    turned: Array = (axes * np.maximum(np.abs(roots), _NEGATIVE)) @ axes.T * sizes * sizes[:, None]
    return turned


def apart(H: Array, weights: tuple[Array, Array], x: Array) -> Array:
    """Return the share of each entry's square that the others do not explain.

    In a regression it is 1 - R^2 of a column on the others. Rounding leaves about 15 digits at a
    share of 1, and one digit less for each factor of 10 below.

    Parameters
    ----------
    H : array, shape (d, d)
        The Hessian, without the penalty.
    weights : tuple of two arrays
        The weights of |x_i| and of x_i^2/2 in the penalty.
    x : array of d entries
        Entries that the penalty holds at 0 do not count: their share is 1.

    Examples
    --------
    >>> none = np.zeros(2), np.zeros(2)
    >>> apart(np.array([[4.0, 2.0], [2.0, 4.0]]), none, np.array([1.0, 0.0]))
    array([0.75, 0.75])
    """
    l1, l2 = (each.reshape(-1) for each in weights)
    H = _identified(H, l1 + l2, x.shape) + np.diag(l2)
    shares, sizes = np.ones(len(H)), np.sqrt(np.diag(H))
    chosen = np.flatnonzero(((x.reshape(-1) != 0) | (l1 == 0)) & (sizes > 0))
    if not chosen.size:
        return shares
    block = H[np.ix_(chosen, chosen)] / sizes[chosen] / sizes[chosen, None]
    block[np.diag_indices_from(block)] += len(block) * float(np.finfo(np.float64).eps)
    inverse = np.diag(np.linalg.inv(block))
    shares[chosen] = np.where(inverse > 0, 1.0 / np.where(inverse > 0, inverse, 1.0), 0.0)
    return shares


def _identified(H: Array, penalty: Array, shape: tuple[int, ...]) -> Array:
    """Return a Hessian in which classes' common change of a row without a penalty is curved.

    Softmax ignores such a change by design, so that only differences of classes are judged.
    """
    if len(shape) < 2:
        return H
    rows, classes = shape[0], math.prod(shape[1:])
    common = np.kron(np.eye(rows), np.ones((classes, 1)) / math.sqrt(classes))
    sizes = np.diag(H).reshape(rows, classes).mean(axis=1)
    bent = np.linalg.norm(H @ common, axis=0) > 1e-8 * max(float(sizes.max()), 1e-300)
    free = (penalty.reshape(rows, classes) == 0).all(axis=1) & ~bent
    added: Array = H + (common * np.where(free, sizes, 0.0)) @ common.T
    return added


def hardly_apart(shares: Array | None, names: Sequence[str] = ()) -> str:
    """Return a text that names the entries that rounding can hardly tell apart; "" without any.

    >>> hardly_apart(np.array([1.0, 1e-13, 1e-12]), ["age", "left", "right"])[:48]
    'rounding is the limit: of left, right only 1e-13'
    """
    alike = np.flatnonzero(() if shares is None else shares < _ALIKE)
    if shares is None or not alike.size:
        return ""
    first = np.sort(alike[np.argsort(shares[alike], kind="stable")][:5]).tolist()
    listed = ", ".join(names[j] if names else f"entry {j}" for j in first)
    least = float(shares.min())
    digits = max(0, math.floor(math.log10(max(least, 1e-300) / np.finfo(np.float64).eps)))
    return (
        f"rounding is the limit: of {listed} only {least:.0e} is not a combination of the others, "
        f"which leaves about {digits} digits: centre columns, leave some out, or use a penalty"
    )


def _by_support(H: Array, b: Array, l1: Array, x: Array) -> Array | None:
    """Minimise x'Hx/2 - b'x + sum l1 |x|: solve on a support, and correct the support.

    This is feature-sign search (Lee, Battle, Raina and Ng, NIPS 2006). None if it does not end,
    which rounding can cause.
    """
    free, signs = l1 == 0, np.sign(x)
    tolerance = 1e-12 * float(np.abs(b).max())
    many = True  # several entries join the support at once, while that makes progress
    for _ in range(20 + 10 * len(b)):
        before = x
        x, signs = _on_support(H, b, l1, x, signs, free)
        slope = b - H @ x
        tolerance = max(tolerance, 1e-15 * float(np.abs(x).sum()))
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
    """Minimise over the entries with a sign; an entry that would change it is set to 0."""
    while True:
        support = np.flatnonzero((signs != 0) | free)
        target = np.zeros_like(x)
        if support.size:
            system = H[support[:, None], support]
            target[support] = np.linalg.solve(system, (b - l1 * signs)[support])
        wrong = (target * signs < 0) & ~free
        if not wrong.any():
            return target, np.where(free, signs, np.sign(target))
        # Up to the point where the first entry would change its sign.
        shares = np.where(wrong, x / np.where(wrong, x - target, 1.0), np.inf)
        share = float(shares.min())
        x = x + share * (target - x)
        out = shares <= share
        x, signs = np.where(out, 0.0, x), np.where(out, 0.0, signs)


def _by_steps(H: Array, b: Array, psi: Regularizer, x: Array) -> Array:
    """Minimise z'Hz/2 - b'z + psi(z) by accelerated proximal steps with restarts."""
    L = float(np.linalg.eigvalsh(H)[-1]) or 1.0
    shape, y, momentum = x.shape, x, 1.0
    tolerance = 1e-13 * float(np.linalg.norm(b))
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
