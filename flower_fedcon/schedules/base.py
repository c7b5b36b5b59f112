"""The interface of a schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import positive


class Schedule(ABC):
    """A step length for each round."""

    @abstractmethod
    def at(self, server_round: int) -> float:
        """Return the length in a round, from 1; finite and > 0."""

    @property
    @abstractmethod
    def longest(self) -> float:
        """The longest of all rounds."""


def rate_or_schedule(name: str, value: Any) -> float | Schedule:
    """Return a schedule as it is, or a number as a float if it is finite and > 0.

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


def longest(rate: float | Schedule) -> float:
    """Return the longest step of a number or schedule."""
    return rate.longest if isinstance(rate, Schedule) else rate


def at(rate: float | Schedule, server_round: int) -> float:
    """Return the step of a number or schedule in a round."""
    if type(rate) is float:  # nearly always, and sooner than to ask an abstract class
        return rate
    return rate.at(server_round) if isinstance(rate, Schedule) else rate
