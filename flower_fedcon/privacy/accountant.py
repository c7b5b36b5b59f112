"""The accountant: the privacy cost of noisy sums, computed by dp-accounting.

Three bounds are valid, and the smallest is reported: the bound by privacy loss distributions, with
the method of Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy Loss
Distributions", PETS 2022; the bound by Renyi divergences; and the cost of the same noise if
everyone takes part (exact: Balle and Wang, "Improving the Gaussian Mechanism for Differential
Privacy", ICML 2018), which sampling never exceeds.

These bounds hold for continuous Gaussian noise. The noise that is added is discrete
(`privacy.noise`). In each entry its variation distance from rounded continuous noise is at most
1/(24 sigma^2), sigma in steps: with S(k) = exp(-k^2 / (2 sigma^2)), S(k) / (sigma sqrt(2 pi)) is at
least the discrete probability of k, and 1 - 1/(24 sigma^2) times it at most the continuous one of
[k - 1/2, k + 1/2]. A mechanism that is (epsilon, delta)-private with one noise is therefore
(epsilon, delta + (1 + exp(epsilon)) distance)-private with the other. The distance of all entries
of all rounds together is subtracted from delta first.

For sums of clients' shares (`privacy.shares`): let the probability of a noise be within a factor
exp(+- L) of another's at every point, except for a part of variation distance d. If a mechanism is
(epsilon, delta)-private with the other noise, it is (epsilon + 2 L, exp(L) delta + (1 + exp(epsilon
+ 2 L)) d)-private with this one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import needing

FULL, FIXED, POISSON = "full", "fixed", "poisson"
_EXACT = 32  # up to so many sums the number is exact; larger ones are rounded up by at most 1/32
_COARSE, _FINE = 5e-3, 1e-4  # discretisation of privacy losses
_LONGEST = 2**20  # largest number of steps in a distribution


def library() -> Any:
    """Return dp-accounting.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    with needing("privacy is counted by dp-accounting", "privacy"):
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    return dp_accounting


class Sampling(NamedTuple):
    """How a round's cohort is drawn.

    Attributes
    ----------
    kind : {"full", "fixed", "poisson"}
    num_clients : int
    size : float
        The size of a cohort, or its mean.
    """

    kind: str
    num_clients: int
    size: float

    @property
    def rate(self) -> float:
        """The probability that a client takes part."""
        return self.size / self.num_clients


class NoisySum(NamedTuple):
    """A sum of vectors with norms of at most C, plus Gaussian noise.

    Attributes
    ----------
    noise_multiplier : float
        z: the noise's standard deviation divided by C.
    sampling : Sampling
        With "full" and "poisson", neighbours differ in the presence of one summand. With "fixed"
        (drawn without replacement) they differ in its value, so the sum changes by up to 2 C.
    """

    noise_multiplier: float
    sampling: Sampling

    @property
    def ratio(self) -> float:
        """The largest change of a sum, in standard deviations of the noise."""
        return (2.0 if self.sampling.kind == FIXED else 1.0) / self.noise_multiplier


def noisy_gradient(noise_multiplier: float, rate: float) -> NoisySum:
    """Return the kind of a noisy gradient on rows that are drawn independently, at a rate."""
    return NoisySum(noise_multiplier, Sampling(FULL if rate == 1 else POISSON, 1, rate))


def spent_epsilon(
    counts: Mapping[NoisySum, int],
    delta: float,
    distance: float = 0.0,
    ratios: Sequence[float] = (),
) -> float:
    """Return epsilon at delta, for numbers of noisy sums of each kind.

    A number above 32 may be rounded up by 1 in 32, so that a long run needs few distributions.

    Parameters
    ----------
    counts : dict
    delta : float
    distance : float (default: 0.0)
        The variation distance of all their noise together from continuous noise.
    ratios : sequence of float
        For sums of shares: L of all of them together, relative to continuous and to discrete
        Gaussian noise. `distance` is then the rest.

    Examples
    --------
    >>> third = NoisySum(1.0, Sampling(POISSON, 100, 10.0))
    >>> round(spent_epsilon({third: 100}, 1e-5), 2), round(spent_epsilon({third: 1}, 1e-5), 2)
    (7.05, 1.68)
    """
    items = tuple(sorted((kind, n) for kind, n in counts.items() if n))
    if not items:
        return 0.0
    if any(kind.noise_multiplier == 0 for kind, _ in items):
        return math.inf
    if ratios:
        epsilon = math.inf
        bounds = partial(_epsilon, items), partial(_discrete, items)
        for bound, ratio in zip(bounds, ratios, strict=True):
            shrunk, beyond = delta * math.exp(-ratio), distance * math.exp(min(ratio, 700.0))
            near = _moved(bound, shrunk, beyond) if shrunk > 0 else None
            epsilon = epsilon if near is None else min(epsilon, near + 2 * ratio)
        return epsilon
    moved = _moved(partial(_epsilon, items), delta, distance)
    return _discrete(items, delta) if moved is None else moved


def _moved(bound: Callable[[float], float], delta: float, distance: float) -> float | None:
    """Return epsilon for noise at a distance from that of a bound; None if delta is too small."""
    epsilon = bound(delta)
    if not distance:
        return epsilon
    for more in (0.01, 0.1, 1.0):
        shifted = delta - (1 + math.exp(min(epsilon + more, 700.0))) * distance
        if shifted > 0 and (moved := bound(shifted)) <= epsilon + more:
            return moved
    return None


class Accountant:
    """Differential privacy of rounds with equal noise and sampling.

    Parameters
    ----------
    noise_multiplier : float
    delta : float
    sampling : Sampling
    distance : float (default: 0.0)
        The distance of a round's noise; see `spent_epsilon`.

    Raises
    ------
    ConfigError
        If dp-accounting is not installed.

    Examples
    --------
    >>> round(Accountant(4.0, 1e-5, Sampling("full", 100, 100)).epsilon(10), 3)
    3.341
    """

    def __init__(
        self, noise_multiplier: float, delta: float, sampling: Sampling, distance: float = 0.0
    ) -> None:
        self.delta, self._distance = delta, distance
        self._kind = NoisySum(noise_multiplier, sampling)
        library()

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after a number of rounds."""
        return spent_epsilon({self._kind: rounds}, self.delta, rounds * self._distance)


_Items = tuple[tuple[NoisySum, int], ...]


@lru_cache(maxsize=4096)
def _epsilon(items: _Items, delta: float) -> float:
    """Return the smallest of the bounds."""
    ratio = math.sqrt(sum(n * kind.ratio**2 for kind, n in items))
    with np.errstate(all="ignore"):  # almost no noise
        epsilon = float(library().get_epsilon_gaussian(1 / ratio, delta))
    if all(kind.sampling.kind == FULL for kind, _ in items):
        return epsilon
    epsilon = min(epsilon, _renyi(items, delta))
    return min(epsilon, _by_distribution(items, delta, epsilon))


def _discrete(items: _Items, delta: float) -> float:
    """Return a bound without distance: by Renyi divergences of the discrete Gaussian.

    They are at most those of the continuous one (Canonne, Kamath, Steinke 2020, Proposition 5).
    """
    everyone = tuple(
        (NoisySum(1 / kind.ratio, Sampling(FULL, 1, 1.0)), n) for kind, n in items
    )  # without sampling: then the divergence of the noise is known
    return _renyi(everyone, delta)


def _renyi(items: _Items, delta: float) -> float:
    """Return the bound by Renyi divergences."""
    orders, total = None, 0.0
    for kind, n in items:
        orders, divergences = _divergences(kind)
        total = total + n * divergences
    with np.errstate(all="ignore"):  # almost no noise
        epsilon, _ = library().rdp.compute_epsilon(orders, total, delta)
    return float(epsilon)


@cache
def _divergences(kind: NoisySum) -> tuple[Any, Any]:
    """Return Renyi orders, and one noisy sum's divergence at each."""
    dp, sampling = library(), kind.sampling

    class One(dp.rdp.RdpAccountant):  # type: ignore[misc, name-defined, unused-ignore]
        """The accountant with access to its divergences, which are the same in all rounds."""

        def divergences(self) -> tuple[Any, Any]:
            return self._orders, self._rdp

    relation, event = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.GaussianDpEvent(1 / kind.ratio)
    if sampling.kind == POISSON:
        event = dp.PoissonSampledDpEvent(sampling.rate, event)
    elif sampling.kind == FIXED:
        relation = dp.NeighboringRelation.REPLACE_ONE
        event = dp.SampledWithoutReplacementDpEvent(
            sampling.num_clients, round(sampling.size), event
        )
    accountant = One(neighboring_relation=relation)
    with _quiet():
        accountant.compose(event)
    return accountant.divergences()


def _by_distribution(items: _Items, delta: float, about: float) -> float:
    """Return the bound by privacy loss distributions; infinity if they would be too long."""
    deviations = [_deviation(kind) for kind, _ in items]
    step = min(_COARSE, max(_FINE, min(deviations) / 10))
    spread = math.sqrt(sum(n * d**2 for (_, n), d in zip(items, deviations, strict=True)))
    if not (about + 20 * spread) / step < _LONGEST:
        return math.inf
    losses: Any = None
    for kind, n in items:
        composed = _composed(kind, _rounded(n), step)
        losses = composed if losses is None else losses.compose(composed)
    try:
        with np.errstate(all="ignore"):
            return float(losses.get_epsilon_for_delta(delta))
    except OverflowError:  # almost no noise: losses beyond exp's range
        return math.inf


def _rounded(n: int) -> int:
    """Return n, or a larger number with few digits, whose bound also holds for n.

    >>> [_rounded(n) for n in (32, 65, 1000)]
    [32, 66, 1008]
    """
    unit = 1 << max(0, n.bit_length() - _EXACT.bit_length())
    return -(-n // unit) * unit


def _deviation(kind: NoisySum) -> float:
    """Return the approximate standard deviation of one loss."""
    ratio, rate = kind.ratio, _rate(kind)
    return max(1e-3, min(ratio, rate * math.sqrt(math.expm1(min(ratio**2, 50.0)))))


def _rate(kind: NoisySum) -> float:
    return 1.0 if kind.sampling.kind == FULL else kind.sampling.rate


@lru_cache(maxsize=64)
def _composed(kind: NoisySum, n: int, step: float) -> Any:
    """Return the privacy loss distribution of n noisy sums."""
    return _distribution(kind, step).self_compose(n)


@lru_cache(maxsize=64)
def _distribution(kind: NoisySum, step: float) -> Any:
    """Return the privacy loss distribution of one noisy sum.

    For a cohort of fixed size: let b and c be the values of one summand in two neighbours, and a
    the summand that is drawn in its place otherwise. By joint convexity, the distance of the two
    outputs is at most that of (1 - q) N(a) + q N(b) and (1 - q) N(a) + q N(c), for the worst a, b,
    c with norms up to C. By advanced joint convexity, the distance of these at exp(epsilon) >= 1 is
    at most q times that of N(0) and N(2 C) at 1 + (exp(epsilon) - 1) / q. A Poisson sample of rate
    q has the same distance when one summand of norm 2 C is left out. Either output may be the
    first, so the profile is symmetric (Zhu, Dong and Wang, "Optimal Accounting of Differential
    Privacy via Characteristic Function", AISTATS 2022, on sampling without replacement).
    """
    pld = library().pld
    made = pld.privacy_loss_distribution.from_gaussian_mechanism(
        1 / kind.ratio, sampling_prob=_rate(kind), value_discretization_interval=step
    )
    if kind.sampling.kind != FIXED:
        return made
    longest = float(made.get_epsilon_for_delta(1e-16))
    places = min(math.ceil(longest / step) + 1, _LONGEST)
    up = np.asarray(made.get_delta_for_epsilon(np.arange(places + 1) * step))
    factor = np.exp(-np.arange(places, 0, -1) * step)  # exp(epsilon) for those below 0
    down = 1 - factor + factor * up[:0:-1]
    deltas = np.clip(np.concatenate([down, up]), 0.0, 1.0)
    pmf = pld.pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -places, places, deltas)
    return pld.privacy_loss_distribution.PrivacyLossDistribution(pmf)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's messages about orders that it leaves out."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
