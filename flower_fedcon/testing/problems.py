"""The small problems for checks of algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import Array

SIZE = 6


class Bounded(Quadratic):
    """A quadratic with the functional constraint g = -1, which never binds."""

    def constraint_value(self, x: Array) -> float:
        """Return g(x)."""
        return -1.0

    def constraint_gradient(self, x: Array) -> Array:
        """Return its gradient."""
        return np.zeros_like(x)


def default_problem(
    strategy: FedConStrategy[Any], objectives: list[Any] | None = None
) -> FederatedProblem:
    """Return three quadratics in six dimensions, with L = mu = 1, 2 and 3.

    They have the strategy's own constraint or regularizer, so that the two fit; and a functional
    constraint that never binds, if the strategy needs one.
    """
    psi = {"constraint": strategy.constraint}
    if strategy.constraint is None:
        psi = {"regularizer": strategy.regularizer}
    return FederatedProblem(objectives or quadratics(strategy), **psi)


def quadratics(strategy: FedConStrategy[Any], dtype: Any = np.float64) -> list[Quadratic]:
    """Return the clients' objectives."""
    rng = np.random.default_rng(3)
    kind = Bounded if strategy.constraints == "mean" else Quadratic
    return [
        kind((np.eye(SIZE) * (1 + j)).astype(dtype), rng.standard_normal(SIZE).astype(dtype))
        for j in range(3)
    ]


class Reshaped:
    """An objective on vectors in the form of one on matrices or lists of layers."""

    def __init__(self, objective: Any, shapes: list[tuple[int, ...]], *, layered: bool) -> None:
        self.objective, self.shapes, self.layered = objective, shapes, layered
        self.shape: Any = shapes if layered else shapes[0]

    def __getattr__(self, name: str) -> Any:
        if name == "constraint_value":
            bound = self.objective.constraint_value
            return lambda x: bound(self._flat(x))
        if name in ("constraint_gradient", "batch_gradient", "stochastic_gradient"):
            slope = getattr(self.objective, name)
            return lambda x, *rest: self._unflat(slope(self._flat(x), *rest))
        if name == "num_examples":
            return self.objective.num_examples
        if name == "hessian":
            hessian = self.objective.hessian
            return lambda x, columns=None: hessian(self._flat(x), columns)
        raise AttributeError(name)

    def value(self, x: Any) -> float:
        """Return f(x)."""
        return float(self.objective.value(self._flat(x)))

    def gradient(self, x: Any) -> Any:
        """Return the gradient at x, in the form of x."""
        return self._unflat(self.objective.gradient(self._flat(x)))

    def _flat(self, x: Any) -> Array:
        return np.concatenate([a.ravel() for a in x]) if self.layered else x.ravel()

    def _unflat(self, flat: Array) -> Any:
        ends = np.cumsum([int(np.prod(s)) for s in self.shapes])[:-1]
        parts = [p.reshape(s) for p, s in zip(np.split(flat, ends), self.shapes, strict=True)]
        return parts if self.layered else parts[0]
