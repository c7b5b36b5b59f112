"""Noise from the operating system, in whole numbers, so that no low bits reveal the sum.

If noise is added in floating point, the last bits of the result can reveal which of two
neighbouring sums it hides (Mironov, "On Significance of the Least Significant Bits for Differential
Privacy", CCS 2012). Here sums are whole multiples of one step, and so is the noise. It is the
discrete Gaussian, drawn by the algorithm of Canonne, Kamath and Steinke, "The Discrete Gaussian for
Differential Privacy", NeurIPS 2020, in integers throughout. Neither a seed nor a resumed run
repeats it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array

_FINEST = 31  # bits of the standard deviation: its squares then fit into 64
_SUM, _EXACT = 62, 52  # bits of an integer sum; bits that a float holds exactly
_bytes: ContextVar[Callable[[int], bytes]] = ContextVar("_bytes", default=secrets.token_bytes)


def discrete_gaussian(size: int, bits: int) -> Array:
    """Return independent draws k of all integers with probability ~ exp(-k^2 / (2 sigma^2)).

    Parameters
    ----------
    size : int
    bits : int
        sigma = 2^bits, in [1, 31].

    Returns
    -------
    array of int64, shape (size,)
    """
    numbers = np.empty(size, np.int64)
    done = 0
    while done < size:
        drawn = _attempt(2 * (size - done) + 8, bits)[: size - done]
        numbers[done : done + len(drawn)] = drawn
        done += len(drawn)
    return numbers


def uniform(shape: tuple[int, ...]) -> Array:
    """Return numbers in (0, 1) with 52 bits: with 53, the largest would round to 1."""
    drawn: Array = ((_words(math.prod(shape)) >> np.uint64(12)) + 0.5) * 2.0**-52
    return drawn.reshape(shape)


def drawn(size: int, rate: float) -> Array:
    """Return which of `size` are drawn, each independently with probability `rate`; ascending."""
    indices: Array = np.flatnonzero(uniform((size,)) < rate)
    return indices


def subset(size: int, count: int) -> Array:
    """Return a uniform subset of `count` (up to ties of 64-bit words), ascending."""
    if count == 0:
        return np.zeros(0, np.intp)
    indices: Array = np.sort(np.argpartition(_words(size), count - 1)[:count])
    return indices


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Draw from a seed in this block, not from the operating system: for audits only."""
    before = _bytes.set(np.random.default_rng(seed).bytes)
    try:
        yield
    finally:
        _bytes.reset(before)


class Grid:
    """The whole multiples of one step, on which a sum and its noise lie.

    Parameters
    ----------
    clip : float
        C, the largest norm of a summand.
    deviation : float
        Standard deviation of the noise: 2^bits steps.
    summands : float
        The largest number of summands.
    coarser : int (default: 0)
        Summands are multiples of 2^coarser steps, so that a matrix of whole multiples of
        2^-coarser makes whole steps of their sums.
    bits : int, optional
        By default as many as sums of 62 bits allow.

    Raises
    ------
    ConfigError
        If the noise is too small for so many summands.

    Examples
    --------
    >>> grid = Grid(clip=1.0, deviation=2.0, summands=10)
    >>> grid.bits, grid.value(grid.steps(np.array([[3.0, 4.0], [0.3, 0.4]]))).round(9)
    (31, array([[0.6, 0.8],
           [0.3, 0.4]]))
    """

    def __init__(
        self,
        clip: float,
        deviation: float,
        summands: float,
        coarser: int = 0,
        bits: int | None = None,
    ) -> None:
        self.clip, ratio = clip, deviation / clip
        room = _SUM - math.log2(max(1.0, summands))
        most = math.floor(math.log2(ratio) + min(room, _EXACT)) if bits is None else bits
        self.bits = min(_FINEST, most)
        if self.bits < 1:
            raise ConfigError(
                f"noise of {ratio:g} times the clip is too small for the grid, in a sum of "
                f"{summands:g}: give a larger noise_multiplier (0 with GaussianDP: no noise)"
            )
        self.step = deviation / 2.0**self.bits
        self._unit = self.step * 2.0**coarser
        self._radius = 2.0 ** (self.bits - coarser) / ratio

    def steps(self, values: Array) -> Array:
        """Return values as whole numbers of steps, each row with norm at most the clip.

        Parameters
        ----------
        values : array, shape (n, d)

        Returns
        -------
        array of int64, shape (n, d)
        """
        return self.whole(
            values.astype(np.float64, copy=False),
            lambda squares: squares.sum(axis=1),
            lambda row: row[:, None],
            values.shape[1],
        )

    def whole(
        self,
        values: Array,
        sums: Callable[[Array], Array],
        spread: Callable[[Array], Array],
        terms: int,
    ) -> Array:
        """Return values as whole numbers of steps; see `steps`, for any layout of rows.

        Norms are measured after rounding: longer rows are shortened and rounded towards 0. A row
        that is too long for arithmetic, or has an entry that is not finite, becomes 0.

        Parameters
        ----------
        values : array
        sums : callable
            Maps squared entries to a number for each row, computed from that row alone.
        spread : callable
            Spreads a number for each row over the layout of `values`.
        terms : int
            The largest number of terms of a sum.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            scaled = values / self._unit
            rounded = np.rint(scaled)
            margin = (terms + 64) * 2.0**-52  # of a norm in floating point
            fits = np.sqrt(sums(np.square(rounded))) <= self._radius * (1 - margin)
            if not fits.all():
                lengths = np.sqrt(sums(np.square(scaled)))
                factors = np.where(
                    np.isfinite(lengths), self._radius * (1 - 2 * margin) / lengths, 0.0
                )
                factors = spread(np.minimum(factors, 1.0))
                cut = np.where(factors > 0, np.trunc(scaled * factors), 0.0)
                rounded = np.where(spread(fits), rounded, cut)
        whole: Array = rounded.astype(np.int64)
        return whole

    def noise(self, size: int) -> Array:
        """Return noise for this number of entries, in steps."""
        return discrete_gaussian(size, self.bits)

    def release(self, total: Array) -> Array:
        """Return a sum in steps with noise in each entry, which may be released."""
        return self.value(total + self.noise(len(total)))

    def distance(self, entries: int) -> float:
        """Return a bound of the noise's variation distance from continuous noise."""
        return entries * 4.0**-self.bits / 24

    def value(self, steps: Array) -> Array:
        """Return the value of steps; rounding here reveals nothing more of a sum."""
        values: Array = steps * self.step
        return values


# --- the algorithm: every probability is met exactly, by integers from the operating system ------


def _words(count: int) -> Array:
    """Return random 64-bit words."""
    return np.frombuffer(_bytes.get()(8 * count), np.uint64)


def _attempt(count: int, bits: int) -> Array:
    """Return the accepted draws of `count` attempts at a discrete Gaussian, sigma = t = 2^bits.

    A discrete Laplace number of scale t, y = sign (u + t v), is kept with probability
    exp(-(|y| - t)^2 / (2 t^2)) (Algorithms 2 and 3 of the paper).
    """
    t, whole = 1 << bits, 2 * bits + 1
    words = _words(count)
    u = (words >> np.uint64(64 - bits)).astype(np.int64)
    negative = (words & np.uint64(1)).astype(bool)
    kept = _exp(u.astype(np.uint64) << np.uint64(bits + 1), whole)
    u, negative = u[kept], negative[kept]
    v = _geometric(len(u))
    kept = ~(negative & (u == 0) & (v == 0))
    u, v, negative = u[kept], v[kept], negative[kept]
    # (|y| - t)^2 / (2 t^2), as a whole part and a fraction of 2 bits + 1 bits
    far = np.abs((v - 1) * t + u)
    a, b = (far >> bits).astype(np.uint64), (far & (t - 1)).astype(np.uint64)
    cross, shift = 2 * a * b, np.uint64(2 * bits)
    low = ((cross & np.uint64(t - 1)) << np.uint64(bits)) + b * b
    twice = a * a + (cross >> np.uint64(bits)) + (low >> shift)
    fraction = ((twice & np.uint64(1)) << shift) + (low & np.uint64((1 << 2 * bits) - 1))
    kept = _exp(fraction, whole)
    kept[kept] = _whole_exp((twice >> np.uint64(1))[kept].astype(np.int64))
    numbers = u + v * t
    numbers[negative] *= -1
    drawn: Array = numbers[kept]
    return drawn


def _exp(fractions: Array, bits: int) -> Array:
    """Return draws of Bernoulli(exp(-f)), for f = fractions / 2^bits in [0, 1).

    The first k for which a draw of Bernoulli(f / k) fails is odd with that probability
    (Algorithm 1); Bernoulli(f / k) is one of f and one of 1 / k.
    """
    draws = np.zeros(len(fractions), bool)
    going, k = np.arange(len(fractions)), 1
    while going.size:
        on = (_words(going.size) >> np.uint64(64 - bits)) < fractions[going]
        on &= _one_in(k, going.size)
        draws[going[~on]] = k % 2 == 1
        going, k = going[on], k + 1
    return draws


def _exp_one(count: int) -> Array:
    """Return draws of Bernoulli(exp(-1)), as `_exp` does."""
    draws = np.zeros(count, bool)
    going, k = np.arange(count), 1
    while going.size:
        on = _one_in(k, going.size)
        draws[going[~on]] = k % 2 == 1
        going, k = going[on], k + 1
    return draws


def _one_in(k: int, count: int) -> Array:
    """Return draws of Bernoulli(1 / k)."""
    if k == 1:
        return np.ones(count, bool)
    words = _words(count)
    most = np.uint64(2**64 // k * k - 1)  # beyond it, remainders would not be equally likely
    while (beyond := words > most).any():
        words = words.copy()
        words[beyond] = _words(int(beyond.sum()))
    draws: Array = words % np.uint64(k) == 0
    return draws


def _geometric(count: int) -> Array:
    """Return how many draws of Bernoulli(exp(-1)) succeed before one fails."""
    counts, going = np.zeros(count, np.int64), np.arange(count)
    while going.size:
        going = going[_exp_one(going.size)]
        counts[going] += 1
    return counts


def _whole_exp(numbers: Array) -> Array:
    """Return draws of Bernoulli(exp(-n)), for whole numbers n."""
    draws = np.ones(len(numbers), bool)
    left = numbers.copy()
    going = np.flatnonzero(left)
    while going.size:
        on = _exp_one(going.size)
        draws[going[~on]] = False
        left[going] -= 1
        going = going[on & (left[going] > 0)]
    return draws
