"""Robust alternatives to the mean over the cohort, which limit the effect of false uploads.

A strategy takes one as `aggregation=`. Strategies whose server step must be the plain mean refuse
it and say why (`fedcon info`).

They have a price under heterogeneity, even if no upload is false: the limit is a different point.
On the tests' six heterogeneous quadratics F* is 0.544 below the start. FedAvg with one local step
reaches F* with the mean, and ends above it by 0.10 with `TrimmedMean(0.1)`, 0.24 with
`CoordinateMedian()`, 0.12 with `GeometricMedian()` and with `NormClipping(0.1)`, and 0 with
`NormClipping(1.0)`.

>>> from flower_fedcon.aggregation import TrimmedMean
>>> from flower_fedcon.strategies import FedAvg
>>> strategy = FedAvg(client_lr=0.1, local_steps=5, aggregation=TrimmedMean(0.2))
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, count, nonnegative, positive

__all__ = ["Aggregation", "CoordinateMedian", "GeometricMedian", "NormClipping", "TrimmedMean"]


class Aggregation(ABC):
    """A rule that replaces the mean over the cohort, for any order of the clients."""

    @abstractmethod
    def combine(self, values: Array) -> Array:
        """Return the combined value.

        Parameters
        ----------
        values : array, shape (n, *shape)
            One finite value for each of n >= 1 clients, in client order.

        Returns
        -------
        array, shape (*shape)
        """

    def combine_numbers(self, values: Sequence[float]) -> float:
        """Return the combined value of a number that each client has sent."""
        return float(self.combine(np.array(values, dtype=np.float64)))


def as_aggregation(value: object) -> Aggregation | None:
    """Return `value` if it is a rule, or None for the mean.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if value is None or isinstance(value, Aggregation):
        return value
    raise ConfigError(
        "aggregation must be TrimmedMean(fraction), CoordinateMedian(), GeometricMedian() or "
        f"NormClipping(bound) of flower_fedcon.aggregation, or None for the mean, got {value!r}"
    )


_SLACK = 1e-9  # 0.1 * 30 is 3.0000000000000004


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """In each coordinate, the mean without the largest and the smallest values.

    It tolerates arbitrary uploads of a share of at most `fraction` of the cohort (Yin, Chen,
    Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning", ICML 2018).

    Parameters
    ----------
    fraction : float
        beta in [0, 1/2): of n values, beta n at each end are left out, rounded up, as long as at
        least one remains.

    Raises
    ------
    ConfigError
        If it is out of range.

    Examples
    --------
    >>> TrimmedMean(0.2).combine(np.array([[1.0], [2.0], [3.0], [4.0], [1e9]]))
    array([3.])
    """

    fraction: float

    def __post_init__(self) -> None:
        if nonnegative("TrimmedMean(fraction)", self.fraction) >= 0.5:
            raise ConfigError(f"TrimmedMean(fraction) must be in [0, 0.5), got {self.fraction!r}")

    def combine(self, values: Array) -> Array:
        """Return the trimmed mean of each coordinate."""
        n = len(values)
        cut = min(math.ceil(self.fraction * n - _SLACK), (n - 1) // 2)
        kept: Array = np.sort(values, axis=0)[cut : n - cut]
        return kept.mean(axis=0)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CoordinateMedian(Aggregation):
    """The median of each coordinate; for an even number, the mean of the two middle values.

    It tolerates arbitrary uploads of fewer than half of the cohort (Yin et al., as for
    `TrimmedMean`).

    Examples
    --------
    >>> CoordinateMedian().combine(np.array([[1.0, 5.0], [2.0, -1e9], [1e9, 4.0]]))
    array([2., 4.])
    """

    def combine(self, values: Array) -> Array:
        """Return the median of each coordinate."""
        median: Array = np.median(values, axis=0)
        return median


@dataclass(frozen=True)
class GeometricMedian(Aggregation):
    """argmin_v sum_i ||v - u_i||, by the smoothed Weiszfeld algorithm.

    Each step is a mean with weights 1/max(nu, ||v - u_i||), from the coordinate-wise median. It
    tolerates arbitrary uploads of fewer than half of the cohort, in any coordinates (Pillutla,
    Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022, Algorithm 2).
    Uploads that are all within nu of each other give their mean.

    Parameters
    ----------
    smoothing : float (default: 1e-6)
        nu > 0.
    iterations : int (default: 32)
        The fixed number of steps. The paper finds 3 enough for learning; more are more exact.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Examples
    --------
    >>> corners = np.array([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0], [30.0, 0.0]])
    >>> GeometricMedian().combine(corners).round(3)  # the mean: 6, 0
    array([0.577, 0.   ])
    """

    smoothing: float = 1e-6
    iterations: int = 32

    def __post_init__(self) -> None:
        positive("GeometricMedian(smoothing)", self.smoothing)
        count("GeometricMedian(iterations)", self.iterations)

    def combine(self, values: Array) -> Array:
        """Return the geometric median."""
        v: Array = np.median(values, axis=0)
        for _ in range(self.iterations):
            weights = 1.0 / np.maximum(_norms(values - v), self.smoothing)
            weights /= weights.sum()
            v = np.tensordot(weights.astype(values.dtype), values, axes=1)
        return v


@dataclass(frozen=True)
class NormClipping(Aggregation):
    """The mean of uploads that are scaled to a norm of at most `bound`.

    A single client moves it by at most bound/n. For methods that upload a model instead of a
    change, its distance from the server's model is clipped. If uploads are not 0 at the optimum
    even for equal clients (with a regularizer; in `FastFedDA`), a bound below their length moves
    the limit.

    Parameters
    ----------
    bound : float
        tau > 0, for the Euclidean norm.

    Raises
    ------
    ConfigError
        If it is out of range.

    Examples
    --------
    >>> NormClipping(1.0).combine(np.array([[0.5, 0.0], [0.0, 300.0]]))
    array([0.25, 0.5 ])
    """

    bound: float

    def __post_init__(self) -> None:
        positive("NormClipping(bound)", self.bound)

    def combine(self, values: Array) -> Array:
        """Return the mean of the clipped values."""
        factors = self.bound / np.maximum(_norms(values), self.bound)
        mean: Array = np.tensordot(factors.astype(values.dtype), values, axes=1) / len(values)
        return mean

    def combine_numbers(self, values: Sequence[float]) -> float:
        """Return the median of the numbers, since the bound is meant for models."""
        return float(np.median(values))


def _norms(values: Array) -> Array:
    """Return the norm of each value, in double precision."""
    flat = values.reshape(len(values), -1).astype(np.float64, copy=False)
    norms: Array = np.sqrt(np.einsum("ij,ij->i", flat, flat))
    return norms
