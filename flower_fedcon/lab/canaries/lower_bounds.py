"""Lower bounds of epsilon from an attacker's scores of many runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import stats

from flower_fedcon.privacy.accountant import FIXED, FULL, NoisySum, spent_epsilon
from flower_fedcon.validation import Array

_THRESHOLDS = 400


def by_counts(absent: Array, present: Array, delta: float, alpha: float) -> float:
    """Return a lower bound of epsilon from counts of an attacker's errors (Clopper-Pearson).

    An attacker who says "present" above a threshold makes errors whose probabilities satisfy, at
    (epsilon, delta), 1 - delta - fnr <= exp(epsilon) fpr, and the same the other way round. The
    threshold is chosen on the first half of the scores, and the errors are counted on the second.

    Parameters
    ----------
    absent, present : array, shape (runs,)
        Scores of runs without and with the canary; larger scores suggest the canary.
    delta : float
    alpha : float
        The probability that the bound is too high.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.standard_normal(4000)
    >>> round(by_counts(scores[:2000], scores[2000:], 0.01, 0.05), 2)
    0.0
    >>> round(by_counts(scores[:2000], scores[2000:] + 4.0, 0.01, 0.05), 1)
    5.4
    """
    half = len(absent) // 2
    first, second = (absent[:half], present[:half]), (absent[half:], present[half:])
    levels = np.quantile(np.concatenate(first), np.linspace(0.001, 0.999, _THRESHOLDS))
    best = levels[int(np.argmax(_bounds(*first, levels, delta, alpha)))]
    return float(_bounds(*second, np.array([best]), delta, alpha)[0])


def _bounds(absent: Array, present: Array, levels: Array, delta: float, alpha: float) -> Array:
    """Return the bound at each threshold."""
    alarms = len(absent) - np.searchsorted(np.sort(absent), levels, side="right")
    misses = np.searchsorted(np.sort(present), levels, side="right")
    fpr, fnr = _at_most(alarms, len(absent), alpha / 2), _at_most(misses, len(present), alpha / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = [np.log((1 - delta - a) / b) for a, b in ((fnr, fpr), (fpr, fnr))]
    best: Array = np.fmax(np.fmax(*bounds), 0.0)
    return best


def _at_most(hits: Array, n: int, alpha: float) -> Array:
    """Return an upper confidence bound of a probability."""
    bounds: Array = np.where(
        hits >= n, 1.0, stats.beta.ppf(1 - alpha, hits + 1, np.maximum(n - hits, 1))
    )
    return bounds


def ratio_at_least(low: Array, high: Array, alpha: float) -> float:
    """Return a lower bound of the shift of normal numbers, in standard deviations.

    It is infinite for numbers that do not vary.

    >>> noise = np.random.default_rng(0).standard_normal(20000)
    >>> round(ratio_at_least(noise[:10000], noise[10000:] + 1.0, 0.025), 2)
    0.97
    """
    m, n = len(low), len(high)
    if min(m, n) < 2:
        return 0.0
    shift = float(high.mean() - low.mean())
    spread = math.sqrt((m * float(low.var()) + n * float(high.var())) / (m + n - 2))
    if spread <= 1e-9 * abs(shift):
        return math.inf
    ratio = shift / spread
    error = math.sqrt(1 / m + 1 / n + ratio**2 / (2 * (m + n - 2)))
    return max(0.0, ratio - float(stats.norm.ppf(1 - alpha)) * error)


def by_fit(
    kinds: Sequence[NoisySum],
    absent: Array,
    present: Array,
    there: Array,
    delta: float,
    alpha: float,
) -> float:
    """Return a lower bound of epsilon, for normal noise and independent cohorts.

    Two quantities are measured: the shift of a sum by a canary that takes part, in standard
    deviations, and how often it takes part. The accountant computes epsilon from them.

    Parameters
    ----------
    kinds : sequence of NoisySum
        The stated kind of each release.
    absent, present : array, shape (releases, runs)
    there : array of bool, shape (releases, runs)
        Whether the canary took part, in runs with it.
    delta, alpha : float
    """
    groups = Counter(kinds)
    each = alpha / (1 + len(groups))
    ratio = ratio_at_least(np.concatenate([absent.ravel(), present[~there]]), present[there], each)
    if ratio in (0.0, math.inf):
        return ratio
    counts = {}
    for kind, n in groups.items():
        sampling = kind.sampling
        if sampling.kind != FULL:
            rows = there[[other == kind for other in kinds]]
            hits = int(rows.sum())
            rate = float(stats.beta.ppf(each, hits, rows.size - hits + 1)) if hits else 0.0
            if rate == 0.0:
                continue
            sampling = sampling._replace(size=rate * sampling.num_clients)
        noise = (2.0 if sampling.kind == FIXED else 1.0) / ratio
        counts[NoisySum(noise, sampling)] = n
    return spent_epsilon(counts, delta)
