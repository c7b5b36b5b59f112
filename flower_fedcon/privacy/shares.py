r"""Noise that clients add by shares, so that a server that sees the sum alone need not be trusted.

A client's release is rounded to whole steps and measured after that, as everywhere (`Grid`). It
adds independent discrete Gaussian noise of variance sigma^2 / t to each entry, and secure
aggregation shows the sum. The shares of t clients have the variance sigma^2 together; what those of
more add is no further release.

A sum of discrete Gaussians is none. Let X and Y be discrete Gaussian of variances a and b, and
r = ab / (a + b). Then P(X + Y = z) is exp(-z^2 / (2 (a + b))) times a sum over all integers x of
exp(-(x - m)^2 / (2 r)), up to a constant, and that sum is within a factor 1 +- q of sqrt(2 pi r)
whatever the point m is, by Poisson's summation formula, with q = 2 sum_{k >= 1} exp(-2 pi^2 r k^2).
So X + Y is within a factor exp(+- 5 exp(-2 pi^2 r)) of the discrete Gaussian of variance a + b at
every point, where a, b >= 1/4; and the sum of t shares of variance s^2 within exp(+- eta) of that
of variance t s^2, with

    eta = 5 sum_{k=1}^{t-1} exp(-2 pi^2 s^2 k / (k + 1)) = tau / 2,

tau of Theorem 1 in Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for
Federated Learning with Secure Aggregation", ICML 2021 (arXiv:2102.06387), whose proof this is. On
the grid here s >= 2, and eta is less than 1e-16 an entry.

Of two bounds the lesser is stated. The one is that of the discrete Gaussian, at most the Renyi
divergences of the continuous one, with eta for each entry. The other is exact for continuous noise
that is rounded, Q: for the discrete Gaussian P of deviation sigma >= 2 steps,

    -k^2 / (24 sigma^4) - q <= log(P(k) / Q(k)) <= 1 / (24 sigma^2),

since the mean of exp(-(k u + u^2 / 2) / sigma^2) over |u| <= 1/2 is at most exp(k^2 / (24 sigma^4))
and, by Jensen, at least exp(-1 / (24 sigma^2)). For |k| <= 16 sigma that is within 11 / sigma^2,
to which eta is added; the rest is less than exp(-120).

Flower's masks hold integers below 2^32. With n clients each may send levels of which n are less
than that, and the sum never wraps. The step is as fine as that allows for a release of at most the
clip and noise of at most 16 s; noise beyond that, of probability at most 2 exp(-128), is cut, and
counted as well. No rotation is needed: an entry of a release is at most the clip, for which 32 bits
have room.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy.gaussian import GaussianDP
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.privacy.secure_aggregation import finest_levels
from flower_fedcon.validation import Array

_FAR = 16.0  # standard deviations of a share beyond which it is cut
_CHUNK = 2**20  # draws at a time


class NoiseShares:
    """What clients add to their releases, and the grid on which these are summed.

    Parameters
    ----------
    clip : float
        C, the longest that a release may be.
    deviation : float
        sigma: the standard deviation of the sum of the noise that suffices.
    fewest : int
        t: of how many clients it suffices.
    levels : int
        How many values an entry of a client's masked vector may have: a power of 2.

    Raises
    ------
    ConfigError
        If the noise is too small for so few levels.

    Examples
    --------
    >>> shares = NoiseShares(clip=1.0, deviation=2.0, fewest=4, levels=2**28)
    >>> shares.grid.bits, f"{shares.grid.step:.2g}"
    (22, '2.4e-07')
    """

    def __init__(self, clip: float, deviation: float, fewest: int, levels: int) -> None:
        self.fewest, self._half, self._ratio = fewest, levels // 2, deviation / clip
        share = deviation / math.sqrt(fewest)
        bits = math.floor(math.log2(self._half / (_FAR + clip / share)))
        if bits < 1:
            raise ConfigError(
                f"noise of {deviation / clip:g} times the clip, in shares of which {fewest} "
                f"suffice, is too little for the {levels} values that secure aggregation has for "
                "an entry: give a larger noise_multiplier, fewer clients, or a smaller fewest"
            )
        self.grid = Grid(clip, share, 1, bits=bits)

    @classmethod
    def of(cls, rule: GaussianDP, cohort: int, asked: int | None = None) -> Self:
        """Return the shares of a run whose rounds have so many clients, of which some are asked."""
        deviation = rule.noise(rule.clip, cohort)
        levels = finest_levels(cohort if asked is None else asked)
        return cls(rule.clip, deviation, rule.suffice(cohort), levels)

    def masked(self, release: Array) -> Array:
        """Return what a client lets be summed of its release: entries in [-1, 1].

        Flower's quantization takes each to the whole number that it is by half the levels, exactly.

        Parameters
        ----------
        release : array, shape (d,)

        Returns
        -------
        array of float, shape (d,)
        """
        noisy = self.grid.steps(release[None])[0] + self.grid.noise(len(release))
        found: Array = np.clip(noisy, -self._half, self._half) / self._half
        return found

    def total(self, mean: Array, count: int) -> Array:
        """Return the sum of so many releases, from the mean of what `masked` has made of them."""
        return self.grid.value(np.rint(mean * (count * self._half)))

    def release(self, total: Array, count: int) -> Array:
        """Return a sum, given in steps, with the shares of so many clients: what would be seen."""
        noisy, size = total.copy(), len(total)
        each = max(1, _CHUNK // max(size, 1))
        for done in range(0, count, each):
            n = min(each, count - done)
            noisy += self.grid.noise(n * size).reshape(n, size).sum(axis=0)
        return self.grid.value(noisy)

    def multiplier(self, count: int) -> float:
        """Return z: by how many times the clip the noise of so many clients deviates, or of t."""
        return self._ratio * math.sqrt(min(count, self.fewest) / self.fewest)

    def ratios(self, entries: int, count: int | None = None) -> tuple[float, float]:
        """Return L of so many entries, for the sum of the shares of so many clients, by default t.

        To continuous noise that is rounded, and to discrete Gaussian noise (`accountant`).
        """
        counted = self.fewest if count is None else min(count, self.fewest)
        eta = log_ratio(2.0**self.grid.bits, counted)
        return entries * (11 / (counted * 4.0**self.grid.bits) + eta), entries * eta

    def distance(self, entries: int, clients: int) -> float:
        """Return the variation distance of what is beyond that, of the shares of all clients."""
        return entries * (clients + 2) * math.exp(-120.0)


class Seen(NamedTuple):
    """What a server sees of a client's answer.

    Attributes
    ----------
    summed : int
        It is part of a sum of at least so many clients; 1 where it is seen alone.
    shares : NoiseShares, optional
        The noise that they add.
    """

    summed: int = 1
    shares: NoiseShares | None = None

    @property
    def sure(self) -> int:
        """The shares that are surely in the sum, and of whom no one server or client knows any.

        Of the clients that keys make sure of, one may be the server's, or know its own share.
        """
        return 0 if self.shares is None else self.summed - 1

    @property
    def noise(self) -> float:
        """The noise multiplier of a sum that they make sure of."""
        return 0.0 if self.shares is None else self.shares.multiplier(self.sure)


def log_ratio(deviation: float, count: int) -> float:
    """Return eta: by how much the logarithms of probabilities differ, at most, at any point.

    Of the sum of so many discrete Gaussians, each of this standard deviation, at least 1/2, and the
    discrete Gaussian of as large a variance.

    >>> f"{log_ratio(0.5, 10):.2g}, {log_ratio(2.0, 1000):.2g}"
    '1.2, 3.6e-17'
    """
    k = np.arange(1, count)
    return 5 * float(np.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)).sum())
