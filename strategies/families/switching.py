"""Switching between objective and constraint, by the value of the constraint."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple, Required, Self, TypeVar, Unpack

from flower_fedcon.compressors import Compressor
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.families.compression import CompressedMessages, CompressionOptions
from flower_fedcon.validation import Array, choice, count, optional, positive

State = TypeVar("State")
_log = logging.getLogger("flwr.strategies")


class SwitchingOptions(CompressionOptions, total=False):
    """The arguments of `Switching`."""

    client_lr: float | None
    local_steps: Required[int]
    tolerance: float | None
    distance: float | None
    lipschitz: float | None
    switching: str
    sharpness: float | None
    output: str


class SwitchingConstants(NamedTuple):
    """What follows from the setup."""

    uplink_compressor: Compressor
    downlink_compressor: Compressor
    feedback: bool  # whether this is the form with error feedback
    client_lr: float  # eta
    tolerance: float  # eps
    sharpness: float  # beta


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

    def value(self, last: Array, *, warn: bool = False) -> Array:
        """Return the mean, or the last model if no round counts."""
        if self.weight == 0 and warn:
            _log.warning(
                "the constraint was above the tolerance in every round: the average is the last "
                "model (more rounds, a larger client_lr or a larger tolerance would help)"
            )
        return self.total / self.weight if self.weight else last


class Switching(CompressedMessages[State]):
    """A constraint g <= 0 up to a tolerance, weighed by sigma.

    Parameters
    ----------
    client_lr : float, optional
        eta > 0; by default the theorem's.
    local_steps : int
        E >= 1.
    tolerance : float, optional
        eps > 0, what g may exceed 0 by; by default the theorem's.
    distance, lipschitz : float, optional
        D >= ||w_0 - w*|| and G, the Lipschitz constant of every f_j and g_j, for the theorem.
    switching : {"soft", "hard"} (default: "soft")
        Weigh the gradients of f and g near the tolerance, or take one of them.
    sharpness : float, optional
        beta > 0 of the soft switch; by default 2/eps, the least that the theory allows.
    output : {"last", "average"} (default: "last")
        The model: w_t, or w_bar.
    """

    constants: SwitchingConstants  # type: ignore[assignment]

    def __init__(
        self,
        *,
        client_lr: float | None = None,
        local_steps: int,
        tolerance: float | None = None,
        distance: float | None = None,
        lipschitz: float | None = None,
        switching: str = "soft",
        sharpness: float | None = None,
        output: str = "last",
        **common: Unpack[CompressionOptions],
    ) -> None:
        super().__init__(**common)
        self.client_lr = optional(positive, "client_lr", client_lr)
        self.local_steps = count("local_steps", local_steps)
        self.tolerance = optional(positive, "tolerance", tolerance)
        self.distance = optional(positive, "distance", distance)
        self.lipschitz = optional(positive, "lipschitz", lipschitz)
        self.switching = choice("switching", switching, ("soft", "hard"))
        self.sharpness = optional(positive, "sharpness", sharpness)
        self.output = choice("output", output, ("last", "average"))
        self.uses_num_rounds = self.by_theorem
        if self.by_theorem and (distance is None or lipschitz is None):
            lacking = "client_lr" if client_lr is None else "tolerance"
            raise ConfigError(
                f"{self.title} needs {lacking}, or distance and lipschitz (||w_0 - w*|| and the "
                "Lipschitz constant of every f_j and g_j), from which its theorem gives one"
            )

    @property
    def by_theorem(self) -> bool:
        """Whether the theorem gives the step or the tolerance."""
        return self.client_lr is None or self.tolerance is None

    def derive(self) -> SwitchingConstants:  # type: ignore[override]
        """Settle the compressors, and what is left to the theorem."""
        compression = super().derive()
        eta, eps = self.client_lr or 0.0, self.tolerance or 0.0
        if self.by_theorem:
            found = self._theorem(compression.uplink_compressor, compression.feedback)
            eta, eps = self.client_lr or found[0], self.tolerance or found[1]
        return SwitchingConstants(*compression, eta, eps, self.sharpness or 2 / eps)

    def _theorem(self, compressor: Compressor, feedback: bool) -> tuple[float, float]:
        if feedback:
            raise ConfigError(
                f"{self.title}: the theorem is for unbiased uplink compression without error "
                "feedback: give client_lr and tolerance"
            )
        return theorem_settings(
            distance=self.distance or 0.0,
            lipschitz=self.lipschitz or 0.0,
            local_steps=self.local_steps,
            rounds=self.setup.num_rounds,
            clients=self.setup.num_clients,
            variance=compressor.q(self.setup.layout.size),
            soft=self.switching == "soft",
        )

    def switch(self, z: float) -> float:
        """Return sigma(z), the weight of the constraint, z = ghat - eps."""
        if self.switching == "hard":
            return float(z > 0)
        return min(1.0, max(0.0, 1.0 + self.constants.sharpness * z))


def theorem_settings(
    *,
    distance: float,
    lipschitz: float,
    local_steps: int,
    rounds: int,
    clients: int,
    variance: float,
    soft: bool,
) -> tuple[float, float]:
    """Return eta and eps of Theorems 1 (hard) and 2 (soft).

    With Gamma = 2 E^2 + E q/(2 N): eta = sqrt(D^2/(2 G^2 E T Gamma)), and eps =
    sqrt(2 D^2 G^2 Gamma/(E T)), twice that for a soft switch.

    >>> found = theorem_settings(distance=4.0, lipschitz=1.0, local_steps=2, rounds=64, clients=1,
    ...                          variance=0.0, soft=False)
    >>> [round(number, 6) for number in found]
    [0.088388, 1.414214]
    """
    gamma = 2 * local_steps**2 + local_steps * variance / (2 * clients)
    steps = max(1, local_steps * rounds)
    eta = distance / (lipschitz * math.sqrt(2 * steps * gamma))
    eps = distance * lipschitz * math.sqrt(2 * gamma / steps)
    return eta, 2 * eps if soft else eps
