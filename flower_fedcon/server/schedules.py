"""Step lengths that change from round to round, for the `client_lr` of methods that allow it.

A schedule has a length for round 1 and a rule for later rounds. It depends only on the number of
the round, so resumed runs and clients that are sampled late use the right length. `fedcon info`
says which strategies take a schedule, and why others do not.

>>> from flower_fedcon.schedules import InverseSqrt
>>> from flower_fedcon.strategies import FedAvg
>>> strategy = FedAvg(client_lr=InverseSqrt(0.1), local_steps=5)

In an experiment file: ``client_lr = {type = "InverseSqrt", initial = 0.1}``.

`DeltaSGD` and `AdaPGM` are not schedules: with them each client computes its own steps, each from
the one before; for proofs see `flower_fedcon.server.own_rates`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.server.own_rates import AdaPGM, DeltaSGD, OwnRate
from flower_fedcon.validation import count, nonnegative, positive, up_to_one

__all__ = [
    "AdaPGM", "Constant", "Cosine", "DeltaSGD", "Inverse", "InverseSqrt", "OwnRate", "Schedule",
    "StepDecay",
]  # fmt: skip


class Schedule(ABC):
    """A step length for each round."""

    @abstractmethod
    def at(self, server_round: int) -> float:
        """Return the length in a round, from 1; finite and > 0."""

    @property
    @abstractmethod
    def longest(self) -> float:
        """The longest step of all rounds."""


def rate_or_schedule(name: str, value: Any) -> float | Schedule:
    """Return a schedule, or a number as a float if it is finite and > 0.

    Raises
    ------
    ConfigError
        If it is neither.

    Examples
    --------
    >>> rate_or_schedule("client_lr", 1)
    1.0
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str) or callable(value):
        raise ConfigError(
            f"{name} must be a number > 0 or a schedule of flower_fedcon.schedules, such as "
            f"InverseSqrt(0.1), got {value!r}"
        )
    return positive(name, value)


def longest(rate: float | Schedule | OwnRate) -> float:
    """Return the longest step of a number or schedule; None for clients' own steps."""
    if isinstance(rate, OwnRate):
        return math.inf
    return rate.longest if isinstance(rate, Schedule) else rate


def at(rate: Any, server_round: int) -> float:
    """Return the step of a number or schedule in a round; for clients' own steps the first."""
    if type(rate) is float:  # the usual case; faster than a check of an abstract class
        return rate
    if isinstance(rate, OwnRate):
        rate = rate.initial
    return rate.at(server_round) if isinstance(rate, Schedule) else rate


_LEAST = 5e-324  # steps stay above 0 for any number of rounds


@dataclass(frozen=True)
class _Falling(Schedule):
    """A schedule that begins with its longest step."""

    initial: float

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "initial", positive(f"{name}(initial)", self.initial))

    @property
    def longest(self) -> float:
        """The first."""
        return self.initial


@dataclass(frozen=True)
class Constant(_Falling):
    """initial in every round, the same as the number itself.

    Examples
    --------
    >>> Constant(0.1).at(100)
    0.1
    """

    def at(self, server_round: int) -> float:
        """Return initial."""
        return self.initial


@dataclass(frozen=True)
class InverseSqrt(_Falling):
    """initial / sqrt(t) in round t = 1, 2, ...: for convex functions.

    Examples
    --------
    >>> InverseSqrt(0.1).at(4)
    0.05
    """

    def at(self, server_round: int) -> float:
        """Return initial / sqrt(t)."""
        return max(self.initial / math.sqrt(server_round), _LEAST)


@dataclass(frozen=True)
class Inverse(_Falling):
    """initial / (1 + decay (t - 1)) in round t = 1, 2, ...: for strongly convex functions.

    Parameters
    ----------
    initial : float
        > 0.
    decay : float (default: 1.0)
        > 0; 1 is initial / t.

    Examples
    --------
    >>> Inverse(0.1).at(4), Inverse(0.1, decay=0.5).at(3)
    (0.025, 0.05)
    """

    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "decay", positive("Inverse(decay)", self.decay))

    def at(self, server_round: int) -> float:
        """Return initial / (1 + decay (t - 1))."""
        return max(self.initial / (1.0 + self.decay * (server_round - 1)), _LEAST)


@dataclass(frozen=True)
class Cosine(_Falling):
    """From initial in round 1 along half a cosine to final in round `rounds`, and final after it.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017, without
    restarts.

    Parameters
    ----------
    initial : float
        > 0.
    rounds : int
        >= 2.
    final : float, optional
        In (0, initial]; by default initial/100.

    Examples
    --------
    >>> schedule = Cosine(1.0, rounds=5, final=0.2)
    >>> [round(schedule.at(t), 3) for t in (1, 3, 5, 9)]
    [1.0, 0.6, 0.2, 0.2]
    """

    rounds: int
    final: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rounds", count("Cosine(rounds)", self.rounds, minimum=2))
        if self.final is None:
            return
        final = positive("Cosine(final)", self.final)
        if final > self.initial:
            raise ConfigError(
                f"Cosine(final) must be at most initial = {self.initial:g}, got {final:g}"
            )
        object.__setattr__(self, "final", final)

    def at(self, server_round: int) -> float:
        """Return final + (initial - final) (1 + cos(pi (t - 1)/(rounds - 1))) / 2."""
        final = self.initial / 100 if self.final is None else self.final
        share = min(1.0, (server_round - 1) / (self.rounds - 1))
        return final + 0.5 * (self.initial - final) * (1.0 + math.cos(math.pi * share))


@dataclass(frozen=True)
class StepDecay(_Falling):
    """initial, multiplied by factor after every `every` rounds.

    Parameters
    ----------
    initial : float
        > 0.
    every : int
        >= 1.
    factor : float (default: 0.5)
        In (0, 1].
    smallest : float (default: 0.0)
        A lower bound of the steps, >= 0 and at most initial.

    Examples
    --------
    >>> schedule = StepDecay(0.8, every=10)
    >>> schedule.at(10), schedule.at(11), schedule.at(21)
    (0.8, 0.4, 0.2)
    """

    every: int
    factor: float = 0.5
    smallest: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "every", count("StepDecay(every)", self.every))
        object.__setattr__(self, "factor", up_to_one("StepDecay(factor)", self.factor))
        smallest = nonnegative("StepDecay(smallest)", self.smallest)
        object.__setattr__(self, "smallest", smallest)
        if smallest > self.initial:
            raise ConfigError(
                f"StepDecay(smallest) must be at most initial = {self.initial:g}, got {smallest:g}"
            )

    def at(self, server_round: int) -> float:
        """Return initial factor^floor((t - 1)/every), at least smallest."""
        times = (server_round - 1) // self.every
        return max(self.initial * self.factor**times, self.smallest, _LEAST)
