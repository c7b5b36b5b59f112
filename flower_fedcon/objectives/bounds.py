"""Objectives with bounds on losses: on a client's own loss, or on those of shared groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.private_objective import PrivateObjective
from flower_fedcon.validation import Array, float_array, real


def _check_function(owner: str, function: Any) -> None:
    """Raise unless an argument has `value` and `gradient`; private examples have neither."""
    for method in ("value", "gradient"):
        if not callable(getattr(function, method, None)):
            raise ConfigError(f"{owner} needs an objective with {method}(x), got {function!r}")
    if isinstance(function, PrivateObjective):
        raise ConfigError(
            f"{owner} would reveal the loss of private examples (ExampleDP): leave one of the two "
            f"out"
        )


class _Bounded:
    """The base of objectives with a bound: other attributes are those of f."""

    def __init__(self, objective: Any) -> None:
        _check_function(type(self).__name__, objective)
        for attribute in ("constraint_value", "constraint_sums"):
            if hasattr(objective, attribute):
                raise ConfigError(
                    f"{type(self).__name__} would replace its objective's own constraint "
                    f"({attribute}): give the objective without the constraint, got {objective!r}"
                )
        self.objective = objective

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "objective":  # used by copy and pickle
            raise AttributeError(name)
        return getattr(self.objective, name)


class LossBound(_Bounded):
    """f, with the constraint loss(x) - bound <= 0 of this client's own.

    For `FederatedProblem(..., constraints="each")`: no client's loss may exceed the bound.

    Parameters
    ----------
    objective : object
        f.
    bound : float
    loss : object, optional
        By default f itself; another loss may leave out f's l2, say.

    Raises
    ------
    ConfigError
        If f or the loss has no `value` or `gradient`, f has a constraint already, or the bound is
        not finite.

    Examples
    --------
    >>> from flower_fedcon.objectives import LossBound, Quadratic
    >>> f = LossBound(Quadratic(np.eye(1), np.zeros(1)), 0.5)
    >>> f.constraint_value(np.array([2.0])), f.constraint_gradient(np.array([2.0]))
    (1.5, array([2.]))
    """

    def __init__(self, objective: Any, bound: float, loss: Any = None) -> None:
        super().__init__(objective)
        self.loss = objective if loss is None else loss
        _check_function("LossBound(loss)", self.loss)
        self.bound = real("LossBound(bound)", bound)

    def constraint_value(self, x: Any) -> float:
        """Return loss(x) - bound."""
        return float(self.loss.value(x)) - self.bound

    def constraint_gradient(self, x: Any) -> Any:
        """Return the gradient of the loss."""
        return self.loss.gradient(x)

    def __repr__(self) -> str:
        return f"LossBound({self.objective!r}, {self.bound!r})"


class GroupLossBounds(_Bounded):
    """f, with this client's part of m constraints that all clients share.

    For `FederatedProblem(..., constraints="groups")`: with n_jk rows of the group k on client j, on
    which its mean loss is l_jk, the constraints are sum_j n_jk l_jk(x) / sum_j n_jk <= bound_k.

    Parameters
    ----------
    objective : object
        f.
    losses : sequence of m objects
        The mean loss of this client's rows in each group; None for a group without rows.
    bound : float or array, shape (m,)
        bound_k, the same on all clients.
    counts : array, shape (m,), optional
        n_jk >= 0; by default each loss's `num_examples`.

    Raises
    ------
    ConfigError
        If f or a loss has no `value` or `gradient`, f has a constraint already, a bound is not
        finite, or the lengths differ.

    Examples
    --------
    >>> from flower_fedcon.objectives import GroupLossBounds, Quadratic
    >>> f, loss = (Quadratic(np.eye(1), np.array([b])) for b in (0.0, 1.0))
    >>> client = GroupLossBounds(f, [loss, None], 0.5, counts=[3, 0])
    >>> client.constraint_sums(np.zeros(1)), client.constraint_counts
    (array([-1.5,  0. ]), array([3., 0.]))
    >>> client.constraint_sums_gradient(np.zeros(1), np.array([2.0, 1.0]))
    array([-6.])
    """

    def __init__(
        self, objective: Any, losses: Sequence[Any], bound: Any, counts: Any = None
    ) -> None:
        super().__init__(objective)
        self.losses = list(losses)
        for loss in self.losses:
            if loss is not None:
                _check_function("GroupLossBounds(losses)", loss)
        m = len(self.losses)
        bounds = float_array("GroupLossBounds(bound)", bound)
        bounds = bounds if bounds.ndim else bounds.reshape(1)
        if not m or bounds.shape not in ((1,), (m,)):
            raise ConfigError(
                "GroupLossBounds needs a loss (or None) for each of m >= 1 groups, and one bound "
                f"or m, got {m} losses and {bounds.size} bounds"
            )
        self.bounds = np.broadcast_to(bounds.astype(np.float64), (m,))
        if counts is None:
            counts = [0 if loss is None else getattr(loss, "num_examples", 1) for loss in losses]
        self.constraint_counts = float_array("GroupLossBounds(counts)", counts, ndim=1).astype(
            float
        )
        here = np.array([loss is not None for loss in losses])
        if self.constraint_counts.shape != (m,) or ((self.constraint_counts > 0) != here).any():
            raise ConfigError(
                f"GroupLossBounds(counts) must be {m} numbers, > 0 for a loss and 0 for None, got "
                f"{counts!r}"
            )

    def constraint_sums(self, x: Any) -> Array:
        """Return n_k (l_k(x) - bound_k) for each group, shape (m,)."""
        sums = np.zeros(len(self.losses))
        for k, loss in enumerate(self.losses):
            if loss is not None:
                sums[k] = self.constraint_counts[k] * (float(loss.value(x)) - self.bounds[k])
        return sums

    def constraint_sums_gradient(self, x: Any, weights: Array) -> Any:
        """Return the gradient of sum_k weights_k n_k l_k at x, in the form of x."""
        layered = isinstance(x, list)
        total: Any = [np.zeros_like(layer) for layer in x] if layered else np.zeros_like(x)
        factors = (weights * self.constraint_counts).tolist()
        for loss, weight in zip(self.losses, factors, strict=True):
            if weight and loss is not None:
                g = loss.gradient(x)
                total = (
                    [t + weight * part for t, part in zip(total, g, strict=True)]
                    if layered
                    else total + weight * g
                )
        return total

    def __repr__(self) -> str:
        return f"GroupLossBounds({self.objective!r}, {len(self.losses)} groups)"


class ConstraintSums:
    """A client's part of several constraints, g_k = sum_j s_jk / sum_j n_jk.

    A client's own constraint, if it has one, is constraint k = j, with one sum and count 1.

    Parameters
    ----------
    objective : object
        With `constraint_value` and `constraint_gradient`, or neither ("each"); or with
        `constraint_sums`, `constraint_counts` and `constraint_sums_gradient` ("groups").
    constraints : {"each", "groups"}

    >>> from flower_fedcon.objectives import LossBound, Quadratic
    >>> client = ConstraintSums(LossBound(Quadratic(np.eye(1), np.zeros(1)), 0.5), "each")
    >>> client.counts, client.sums(np.array([2.0])), client.gradient(np.ones(1), np.array([3.0]))
    (array([1.]), array([1.5]), array([3.]))
    """

    counts: Array  # n_k, shape (m,)

    def __init__(self, objective: Any, constraints: str) -> None:
        if constraints == "groups":
            self.counts = np.asarray(objective.constraint_counts, dtype=np.float64)
            self.sums: Callable[[Array], Array] = objective.constraint_sums
            self.gradient: Callable[[Array, Array], Array] = objective.constraint_sums_gradient
            return
        bound = hasattr(objective, "constraint_value")
        self.counts = np.array([float(bound)])
        if bound:
            self.sums = lambda x: np.array([float(objective.constraint_value(x))])
            self.gradient = lambda x, weights: float(weights[0]) * objective.constraint_gradient(x)
        else:
            self.sums = lambda x: np.zeros(1)
            self.gradient = lambda x, weights: np.zeros_like(x)
