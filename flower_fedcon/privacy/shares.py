r"""Noise that clients add in shares: the server sees only the sum, and need not be trusted.

A client's release is rounded to whole steps and then clipped (`Grid`). The client adds independent
discrete Gaussian noise of variance sigma^2 / t to each entry, and secure aggregation reveals the
sum. The shares of t clients together have the variance sigma^2; further shares cost no privacy.

A sum of discrete Gaussians is not a discrete Gaussian. Let X and Y be discrete Gaussian with
variances a and b, and r = ab / (a + b). Then P(X + Y = z) is exp(-z^2 / (2 (a + b))) times a sum
over all integers x of exp(-(x - m)^2 / (2 r)), up to a constant, and that sum is within a factor 1
+- q of sqrt(2 pi r) for every m, by Poisson's summation formula, with q = 2 sum_{k >= 1} exp(-2
pi^2 r k^2). So X + Y is within a factor exp(+- 5 exp(-2 pi^2 r)) of the discrete Gaussian of
variance a + b at every point if a, b >= 1/4. The sum of t shares of variance s^2 is within exp(+-
eta) of that of variance t s^2, with

    eta = 5 sum_{k=1}^{t-1} exp(-2 pi^2 s^2 k / (k + 1)) = tau / 2,

tau of Theorem 1 in Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for
Federated Learning with Secure Aggregation", ICML 2021 (arXiv:2102.06387), whose proof this is. On
the grid here s >= 2, and eta is less than 1e-16 an entry.

The smaller of two bounds is reported. The first is that of the discrete Gaussian, whose Renyi
divergences are at most those of the continuous one, with eta for each entry. The second is exact
for rounded continuous noise Q: for the discrete Gaussian P with standard deviation sigma >= 2
steps,

    -k^2 / (24 sigma^4) - q <= log(P(k) / Q(k)) <= 1 / (24 sigma^2),

since the mean of exp(-(k u + u^2 / 2) / sigma^2) over |u| <= 1/2 is at most exp(k^2 / (24 sigma^4))
and, by Jensen, at least exp(-1 / (24 sigma^2)). For |k| <= 16 sigma this is within 11 / sigma^2, to
which eta is added; the probability of the rest is less than exp(-120).

Flower's masks hold integers below 2^32. With n clients, the number of levels times n must be below
that, so that the sum never wraps. The step is as fine as this allows for a release of at most the
clip plus noise of at most 16 s. Noise beyond that has probability at most 2 exp(-128); it is cut,
and this is counted, too. No rotation is needed, since an entry of a release is at most the clip,
which 32 bits can hold.
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

_FAR = 16.0  # in standard deviations: where a share is cut
_CHUNK = 2**20  # draws at a time


class NoiseShares:
    """The noise that clients add to their releases, and the grid of the sum.

    Parameters
    ----------
    clip : float
        C, the largest norm of a release.
    deviation : float
        sigma: the standard deviation of the summed noise of t clients.
    fewest : int
        t: the number of clients whose noise suffices.
    levels : int
        The number of values of an entry in a client's masked vector, a power of 2.

    Raises
    ------
    ConfigError
        If the noise is too small for this number of levels.

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
        """Return the shares of a run with rounds of this size."""
        deviation = rule.noise(rule.clip, cohort)
        levels = finest_levels(cohort if asked is None else asked)
        return cls(rule.clip, deviation, rule.suffice(cohort), levels)

    def masked(self, release: Array) -> Array:
        """Return a client's release in the form that is summed, with entries in [-1, 1].

        Flower's quantization maps each entry, times half the levels, to exactly its whole number.

        Parameters
        ----------
        release : array, shape (d,)

        Returns
        -------
        array of float, shape (d,)
        """
        noisy = self.grid.steps(release[None])[0] + self.grid.noise(len(release))
        entries: Array = np.clip(noisy, -self._half, self._half) / self._half
        return entries

    def total(self, mean: Array, count: int) -> Array:
        """Return the sum of `count` releases, from the mean of their masked forms."""
        return self.grid.value(np.rint(mean * (count * self._half)))

    def release(self, total: Array, count: int) -> Array:
        """Return a sum in steps with the shares of so many clients, as a server would see it."""
        noisy, size = total.copy(), len(total)
        each = max(1, _CHUNK // max(size, 1))
        for done in range(0, count, each):
            n = min(each, count - done)
            noisy += self.grid.noise(n * size).reshape(n, size).sum(axis=0)
        return self.grid.value(noisy)

    def multiplier(self, count: int) -> float:
        """Return z: the standard deviation of so many clients' noise (by default t) over C."""
        return self._ratio * math.sqrt(min(count, self.fewest) / self.fewest)

    def ratios(self, entries: int, count: int | None = None) -> tuple[float, float]:
        """Return L of so many entries, for the sum of so many clients' shares (by default t).

        It is relative to rounded continuous noise, and to discrete Gaussian noise (`accountant`).
        """
        counted = self.fewest if count is None else min(count, self.fewest)
        eta = log_ratio(2.0**self.grid.bits, counted)
        return entries * (11 / (counted * 4.0**self.grid.bits) + eta), entries * eta

    def distance(self, entries: int, clients: int) -> float:
        """Return the variation distance of the remaining part, for the shares of all clients."""
        return entries * (clients + 2) * math.exp(-120.0)


class Seen(NamedTuple):
    """How much a server sees of a client's answer.

    Attributes
    ----------
    summed : int
        The answer is part of a sum of at least so many clients; 1 if it is seen alone.
    shares : NoiseShares, optional
        The noise that these clients add.
    """

    summed: int = 1
    shares: NoiseShares | None = None

    @property
    def sure(self) -> int:
        """The number of shares guaranteed in the sum that no single server or client knows.

        Keys guarantee a number of clients; one of them may belong to the server, or knows its own
        share.
        """
        return 0 if self.shares is None else self.summed - 1

    @property
    def noise(self) -> float:
        """The noise multiplier that these shares guarantee in a sum."""
        return 0.0 if self.shares is None else self.shares.multiplier(self.sure)


def log_ratio(deviation: float, count: int) -> float:
    """Return eta, the largest difference of log probabilities at any point.

    It compares the sum of so many discrete Gaussians, each with this standard deviation of at least
    1/2, with the discrete Gaussian of the same variance.

    >>> f"{log_ratio(0.5, 10):.2g}, {log_ratio(2.0, 1000):.2g}"
    '1.2, 3.6e-17'
    """
    k = np.arange(1, count)
    return 5 * float(np.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)).sum())
