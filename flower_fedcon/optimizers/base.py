"""The interface of a server optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array


class OptimizerState(NamedTuple):
    """What an optimizer remembers."""

    m: Array  # mean of the changes, shape of the model
    v: Array | None = None  # of their squares, shape of the model; None where there is no scaling


class ServerOptimizer(ABC):
    """A rule that makes the server's direction of the clients' mean change."""

    entrywise: ClassVar[bool]
    """Whether it gives each entry of the model a step length of its own."""

    @abstractmethod
    def direction(self, mean: Array, state: OptimizerState | None) -> tuple[Array, OptimizerState]:
        """Return what takes the place of the mean change, and the state after it.

        Parameters
        ----------
        mean : array
            The mean change Delta of the clients' models.
        state : OptimizerState, optional
            None in the first round.
        """


def as_optimizer(value: object) -> ServerOptimizer | None:
    """Return `value` if it is an optimizer, or None for the mean itself.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if value is None or isinstance(value, ServerOptimizer):
        return value
    raise ConfigError(
        "server_optimizer must be Momentum(), Adagrad(), Adam() or Yogi() of "
        f"flower_fedcon.optimizers, or None for the mean itself, got {value!r}"
    )
