"""The interface of a rule that aggregates a cohort's uploads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array


class Aggregation(ABC):
    """A rule that takes the place of the mean over the cohort, whatever the clients' order."""

    @abstractmethod
    def combine(self, values: Array) -> Array:
        """Return what stands for all of them.

        Parameters
        ----------
        values : array, shape (n, *shape)
            One finite value for each of n >= 1 clients, in client order.

        Returns
        -------
        array, shape (*shape)
        """

    def combine_numbers(self, values: Sequence[float]) -> float:
        """Return what stands for a number that each client has sent."""
        return float(self.combine(np.array(values, dtype=np.float64)))


def as_aggregation(value: object) -> Aggregation | None:
    """Return `value` if it is a rule, or None for the mean.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if value is None or isinstance(value, Aggregation):
        return value
    raise ConfigError(
        "aggregation must be TrimmedMean(fraction), CoordinateMedian(), GeometricMedian() or "
        f"NormClipping(bound) of flower_fedcon.aggregation, or None for the mean, got {value!r}"
    )
