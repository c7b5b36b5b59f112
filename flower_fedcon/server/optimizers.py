"""Server optimizers, which apply the clients' mean change: momentum, Adagrad, Adam, Yogi.

A strategy takes one as `server_optimizer=`, if its server step is w := w + server_lr mean(delta);
others refuse it and say why (`fedcon info`). The step is then w := w + server_lr times the
direction below. The optimizer's state is part of the server's state, and is saved and resumed with
it.

With Delta the mean, entry by entry, from m = 0 and v = tau^2:

    m := beta_1 m + (1 - beta_1) Delta                            and the step is
    m                                                             Momentum
    m / (sqrt(v) + tau),  v := v + Delta^2                        Adagrad (beta_1 = 0 by default)
    m / (sqrt(v) + tau),  v := beta_2 v + (1 - beta_2) Delta^2    Adam
    m / (sqrt(v) + tau),  v := v - (1 - beta_2) Delta^2 sign(v - Delta^2)    Yogi

with the new v. As in the paper, there is no bias correction at the start: use a large tau for a
cautious start.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive federated
optimization", ICLR 2021, Algorithm 2.

>>> from flower_fedcon.optimizers import Adam
>>> from flower_fedcon.strategies import FedAvg
>>> strategy = FedAvg(client_lr=0.1, local_steps=5, server_lr=0.03, server_optimizer=Adam())

In an experiment file: ``server_optimizer = {type = "Adam", tau = 1e-3}``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, nonnegative, positive

__all__ = [
    "Adagrad",
    "Adam",
    "Momentum",
    "OptimizerState",
    "ServerOptimizer",
    "Yogi",
    "as_optimizer",
]


class OptimizerState(NamedTuple):
    """The state of an optimizer."""

    m: Array  # mean of the changes, shape of the model
    v: Array | None = None  # of their squares, shape of the model; None without scaling


class ServerOptimizer(ABC):
    """A rule that computes the server's direction from the clients' mean change."""

    entrywise: ClassVar[bool]
    """Whether each entry of the model has its own step length."""

    @abstractmethod
    def direction(self, mean: Array, state: OptimizerState | None) -> tuple[Array, OptimizerState]:
        """Return the direction that replaces the mean change, and the new state.

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
        If it is neither.
    """
    if value is None or isinstance(value, ServerOptimizer):
        return value
    raise ConfigError(
        "server_optimizer must be Momentum(), Adagrad(), Adam() or Yogi() of "
        f"flower_fedcon.optimizers, or None for the mean itself, got {value!r}"
    )


def _share(name: str, value: object) -> float:
    """Return a number in [0, 1)."""
    number = nonnegative(name, value)
    if number >= 1:
        raise ConfigError(f"{name} must be in [0, 1), got {value!r}")
    return number


def _moved(beta: float, mean: Array, state: OptimizerState | None) -> Array:
    """Return the new m, which starts at 0."""
    fresh: Array = (1.0 - beta) * mean
    return fresh if state is None else beta * state.m + fresh


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """m := beta m + (1 - beta) Delta, and the step is m.

    With server_lr/(1 - beta) as server_lr it is the heavy ball of FedAvgM, FedAvg's
    `server_momentum`.

    Parameters
    ----------
    beta : float (default: 0.9)
        In [0, 1).

    Examples
    --------
    >>> direction, state = Momentum(0.5).direction(np.array([2.0]), None)
    >>> direction, Momentum(0.5).direction(np.array([0.0]), state)[0]
    (array([1.]), array([0.5]))
    """

    beta: float = 0.9
    entrywise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", _share("Momentum(beta)", self.beta))

    def direction(self, mean: Array, state: OptimizerState | None) -> tuple[Array, OptimizerState]:
        """Return m and the state."""
        m = _moved(self.beta, mean, state)
        return m, OptimizerState(m)


@dataclass(frozen=True)
class _Adaptive(ServerOptimizer):
    """The step is m / (sqrt(v) + tau)."""

    beta_1: float = 0.9
    tau: float = 1e-3
    entrywise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "beta_1", _share(f"{name}(beta_1)", self.beta_1))
        object.__setattr__(self, "tau", positive(f"{name}(tau)", self.tau))

    @abstractmethod
    def _squares(self, v: Array, squared: Array) -> Array:
        """Return the new v, from the squared mean change."""

    def direction(self, mean: Array, state: OptimizerState | None) -> tuple[Array, OptimizerState]:
        """Return m / (sqrt(v) + tau) and the state."""
        m = _moved(self.beta_1, mean, state)
        before = None if state is None else state.v
        v = np.full_like(mean, self.tau * self.tau) if before is None else before
        v = self._squares(v, mean * mean)
        return m / (np.sqrt(v) + self.tau), OptimizerState(m, v)


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """v := v + Delta^2, and the step is m / (sqrt(v) + tau): FedAdagrad.

    Parameters
    ----------
    beta_1 : float (default: 0.0)
        In [0, 1).
    tau : float (default: 1e-3)
        > 0.

    Examples
    --------
    >>> Adagrad(tau=1.0).direction(np.array([0.0, 3.0]), None)[0].round(3)
    array([0.   , 0.721])
    """

    beta_1: float = 0.0

    def _squares(self, v: Array, squared: Array) -> Array:
        return v + squared


@dataclass(frozen=True)
class _Forgetting(_Adaptive):
    beta_2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        object.__setattr__(self, "beta_2", _share(f"{name}(beta_2)", self.beta_2))


@dataclass(frozen=True)
class Adam(_Forgetting):
    """v := beta_2 v + (1 - beta_2) Delta^2, and the step is m / (sqrt(v) + tau): FedAdam.

    Parameters
    ----------
    beta_1 : float (default: 0.9)
        In [0, 1).
    tau : float (default: 1e-3)
        > 0.
    beta_2 : float (default: 0.99)
        In [0, 1).

    Examples
    --------
    >>> Adam(beta_1=0.0, tau=1.0, beta_2=0.5).direction(np.array([1.0]), None)[0]
    array([0.5])
    """

    def _squares(self, v: Array, squared: Array) -> Array:
        return self.beta_2 * v + (1.0 - self.beta_2) * squared


@dataclass(frozen=True)
class Yogi(_Forgetting):
    """v := v - (1 - beta_2) Delta^2 sign(v - Delta^2), the step m / (sqrt(v) + tau): FedYogi.

    Parameters
    ----------
    beta_1 : float (default: 0.9)
        In [0, 1).
    tau : float (default: 1e-3)
        > 0.
    beta_2 : float (default: 0.99)
        In [0, 1).

    Examples
    --------
    >>> Yogi(beta_1=0.0, tau=1.0, beta_2=0.75).direction(np.array([2.0]), None)[0].round(3)
    array([0.828])
    """

    def _squares(self, v: Array, squared: Array) -> Array:
        moved: Array = v - (1.0 - self.beta_2) * squared * np.sign(v - squared)
        return moved
