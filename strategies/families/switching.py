"""Switching between objective and constraint, by the value of the constraint."""

from __future__ import annotations

import logging
from typing import NamedTuple, Required, Self, TypeVar, Unpack

from flower_fedcon.strategies.families.compression import CompressedMessages, CompressionOptions
from flower_fedcon.validation import Array, choice, positive

State = TypeVar("State")
_log = logging.getLogger("flwr.strategies")


class SwitchingOptions(CompressionOptions, total=False):
    """The arguments of `Switching`."""

    tolerance: Required[float]
    switching: str
    sharpness: float | None


class Switch(NamedTuple):
    """What the queries so far have given."""

    estimate: float = 0.0  # ghat of the last query
    sigma: float = 0.0  # the weight of the constraint that it gave
    violations: int = 0  # rounds that began with ghat > eps


class WeightedMean(NamedTuple):
    """The mean of the models so far, each with its weight."""

    total: Array  # sum of weight * model, shape of x0
    weight: float = 0.0

    def add(self, model: Array, weight: float) -> Self:
        """Return the mean with one more model."""
        return self._replace(total=self.total + weight * model, weight=self.weight + weight)

    def value(self, last: Array) -> Array:
        """Return the mean, or the last model if no round counts."""
        if self.weight == 0:
            _log.warning(
                "the constraint was above the tolerance in every round: the average is the last "
                "model (more rounds, a larger client_lr or a larger tolerance would help)"
            )
            return last
        return self.total / self.weight


class Switching(CompressedMessages[State]):
    """A constraint g <= 0 up to a tolerance, weighed by sigma.

    Parameters
    ----------
    tolerance : float
        eps > 0, what g may exceed 0 by.
    switching : {"soft", "hard"} (default: "soft")
        Weigh the gradients of f and g near the tolerance, or take one of them.
    sharpness : float, optional
        beta > 0 of the soft switch; by default 2/eps, the least that the theory allows.
    """

    def __init__(
        self,
        *,
        tolerance: float,
        switching: str = "soft",
        sharpness: float | None = None,
        **common: Unpack[CompressionOptions],
    ) -> None:
        super().__init__(**common)
        self.tolerance = positive("tolerance", tolerance)
        self.switching = choice("switching", switching, ("soft", "hard"))
        self.sharpness = positive(
            "sharpness", 2 / self.tolerance if sharpness is None else sharpness
        )

    def switch(self, z: float) -> float:
        """Return sigma(z), the weight of the constraint, z = ghat - eps."""
        if self.switching == "hard":
            return float(z > 0)
        return min(1.0, max(0.0, 1.0 + self.sharpness * z))
