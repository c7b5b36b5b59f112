"""Step lengths that each client computes itself, from the changes of its gradients.

They are values of `client_lr` for methods that allow different steps at clients: FedAvg and FedMiD.

>>> from flower_fedcon.strategies import FedAvg
>>> strategy = FedAvg(client_lr=DeltaSGD(), local_steps=5)  # or client_lr="adaptive"

Each round begins with `initial`, by default the method's default. After each local step from w to
w', let g and g' be the gradients of f_j there (of one minibatch, the next one: two gradients in a
step), and theta the last step divided by the one before it (1 at first):

    DeltaSGD:   eta := min{gamma ||w' - w|| / (2 ||g' - g||),  sqrt(1 + delta theta) eta}
    AdaPGM:     eta := eta min{sqrt(1 + theta),  1/(2 sqrt([D]_+))}
                D = eta (eta ||g' - g||^2 - <g' - g, w' - w>) / ||w' - w||^2

A step at the level of rounding, below the square root of the precision relative to w, does not
change eta.

Proofs: AdaPGM with all rows converges for one convex f_j + psi whose gradient is locally Lipschitz,
without L (Latafat et al., Theorem 1.1); for Delta-SGD, FedAvg's mean squared gradient is bounded if
clients' gradients differ by a bounded amount, also for nonconvex objectives. This needs gamma of
order 1/K and eta_0 of order gamma, unlike the gamma = 2 of the paper's experiments. Under
heterogeneity neither converges to the optimum: clients have weights in proportion to their steps
T_i, so in the limit approximately sum_i T_i grad f_i = 0, in addition to the bias of local steps.
Sampling only adds noise, since clients keep nothing between rounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from flower_fedcon.arrays import dot, pick, root, smaller
from flower_fedcon.validation import Array, optional, positive

ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class OwnRate(ABC):
    """A step length that each client adapts from step to step.

    Parameters
    ----------
    initial : float, optional
        > 0, the first step of each round; by default the method's default for `client_lr`.
    """

    initial: float | None = None

    def __post_init__(self) -> None:
        name = f"{type(self).__name__}(initial)"
        object.__setattr__(self, "initial", optional(positive, name, self.initial))

    @abstractmethod
    def after(self, rate: Any, theta: Any, moved: Array, turned: Array, axes: int) -> Any:
        """Return the next step length of each client.

        Parameters
        ----------
        rate, theta : float, or array of shape (clients,)
            The last step, and its ratio to the one before.
        moved, turned : array
            The changes of the point and of the gradient of f_j.
        axes : int
            The number of axes of a model.
        """


@dataclass(frozen=True)
class DeltaSGD(OwnRate):
    """Steps of about the inverse of a client's local smoothness.

    Kim, Toghani, Uribe, Kyrillidis, "Adaptive Federated Learning with Auto-Tuned Clients", ICLR
    2024 (arXiv 2306.11201), Algorithm 1.

    Parameters
    ----------
    initial : see `OwnRate`
    gamma : float (default: 2.0)
        > 0; 2, as in their experiments, gives steps of 1/L_i.
    delta : float (default: 0.1)
        > 0; limits the growth of steps.

    Examples
    --------
    >>> import numpy as np
    >>> DeltaSGD().after(0.1, 1.0, np.array([2.0]), np.array([40.0]), 1)
    0.05
    """

    gamma: float = 2.0
    delta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "delta"):
            object.__setattr__(self, name, positive(f"DeltaSGD({name})", getattr(self, name)))

    def after(self, rate: Any, theta: Any, moved: Array, turned: Array, axes: int) -> Any:
        """Return the smaller of gamma/(2 L), L the local smoothness, and the bound of growth."""
        steepness = _ratio(dot(turned, turned, axes), dot(moved, moved, axes))
        safe = 0.5 * self.gamma / root(pick(steepness > 0, steepness, 1.0))
        return smaller(pick(steepness > 0, safe, math.inf), root(1 + self.delta * theta) * rate)


@dataclass(frozen=True)
class AdaPGM(OwnRate):
    """Steps of the adaptive proximal gradient method.

    Latafat, Themelis, Stella, Patrinos, "Adaptive proximal algorithms for convex optimization under
    local Lipschitz continuity of the gradient", 2023 (arXiv 2301.04431), adaPGM.

    Examples
    --------
    >>> import numpy as np
    >>> AdaPGM().after(0.1, 1.0, np.array([2.0]), np.array([40.0]), 1)  # D = .1 (.1 400 - 20)
    0.035355339059327376
    """

    def after(self, rate: Any, theta: Any, moved: Array, turned: Array, axes: int) -> Any:
        """Return the smaller of both bounds."""
        length = dot(moved, moved, axes)
        steep, along = (_ratio(dot(turned, v, axes), length) for v in (turned, moved))
        excess = rate * (rate * steep - along)
        safe = 0.5 / root(pick(excess > 0, excess, 1.0))
        return rate * smaller(pick(excess > 0, safe, math.inf), root(1 + theta))


def _ratio(a: Any, b: Any) -> Any:
    """Return a/b; 0 for b = 0, which the caller ignores."""
    return pick(b > 0, a / pick(b > 0, b, 1.0), 0.0)


def own_rate(value: Any, usual: type[OwnRate]) -> Any:
    """Return a method's default rule if `client_lr` is "adaptive", otherwise the value.

    >>> own_rate("adaptive", AdaPGM), own_rate(0.1, AdaPGM)
    (AdaPGM(initial=None), 0.1)
    """
    return usual() if isinstance(value, str) and value == ADAPTIVE else value
