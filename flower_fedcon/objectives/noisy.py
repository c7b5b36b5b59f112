"""An objective with noisy gradients in clients' steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.objectives.base import Scaled
from flower_fedcon.validation import Array, nonnegative

_SEEN = (
    "shape", "dtype", "num_examples", "smoothness", "strong_convexity", "constraint_value",
    "constraint_gradient", "constraint_sums", "constraint_counts", "constraint_sums_gradient",
)  # fmt: skip


class Noisy(Scaled):
    """The function f, with Gaussian noise added to the gradients of clients' steps.

    Every gradient of a client's step, full or of a minibatch, gets a new vector of N(0, std^2)
    numbers. It comes from the run's stream of this client and round, the same in every engine and
    after a resume. Values, this object's own gradients, those of certificates, and the optimum of a
    reference solver are exact. Constraints have no noise.

    A client's weight multiplies f and its noise. Local solvers with a tolerance are refused.

    Parameters
    ----------
    objective : object
        f.
    std : float
        >= 0, the standard deviation of each entry.

    Raises
    ------
    ConfigError
        If `std` is out of range.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.strategies import FedAvg
    >>> problem = FederatedProblem([Noisy(Quadratic(np.eye(1), np.ones(1)), std=0.1)] * 4)
    >>> history = simulate(FedAvg(client_lr=0.5, local_steps=1), problem, num_rounds=50)
    >>> 1e-4 < abs(history.x.item() - 1) < 0.1  # the noise stays
    True
    """

    def __init__(self, objective: Any, std: float) -> None:
        super().__init__(objective, 1.0)
        self.std = nonnegative("Noisy(std)", std)

    @property
    def metrics(self) -> Callable[[Any], Any]:
        """The metrics of f; missing if it has none."""
        return self.objective.metrics  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Noisy({self.objective!r}, {self.std!r})"


def noise_of(objective: Any) -> float:
    """Return the standard deviation of the noise in an objective's gradients.

    >>> from flower_fedcon.objectives import Quadratic
    >>> noise_of(Scaled(Noisy(Quadratic(np.eye(1), np.ones(1)), 0.1), 3.0))
    0.30000000000000004
    """
    factor, variance = 1.0, 0.0
    while isinstance(objective, Scaled):
        factor *= objective.factor
        if isinstance(objective, Noisy):
            variance += (factor * objective.std) ** 2
        objective = objective.objective
    return math.sqrt(variance)


class NoisySteps:
    """A noisy objective as local steps see it.

    Parameters
    ----------
    exact : object
        f, in the form that steps take.
    std : float
    rng : callable
        Returns the round's generator.
    """

    def __init__(self, exact: Any, std: float, rng: Callable[[], np.random.Generator]) -> None:
        self.exact, self._std, self._rng = exact, std, rng

    def __getattr__(self, name: str) -> Any:
        if name not in _SEEN:  # nothing that would give exact gradients
            raise AttributeError(name)
        return getattr(self.exact, name)

    def value(self, x: Array) -> float:
        """Return f(x), exactly."""
        return float(self.exact.value(x))

    def gradient(self, x: Array) -> Array:
        """Return the gradient with noise."""
        return self._noised(self.exact.gradient(x))

    @property
    def batch_gradient(self) -> Callable[[Array, Array], Array]:
        """The gradient over rows with noise; missing if f has none."""
        batch = self.exact.batch_gradient
        return lambda x, rows: self._noised(batch(x, rows))

    def stochastic_gradient(self, x: Array, rng: np.random.Generator, batch_size: int) -> Array:
        """Return f's own minibatch gradient with noise."""
        return self._noised(self.exact.stochastic_gradient(x, rng, batch_size))

    def _noised(self, gradient: Array) -> Array:
        noise = self._rng().standard_normal(gradient.shape)
        noised: Array = gradient + (self._std * noise).astype(gradient.dtype, copy=False)
        return noised
