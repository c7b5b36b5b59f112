"""The functional constraints of a federated problem: their kinds, values and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.arrays import exact_sum
from flower_fedcon.errors import ConfigError, clients_by_name
from flower_fedcon.objectives.base import Scaled
from flower_fedcon.objectives.bounds import ConstraintSums, GroupLossBounds, LossBound
from flower_fedcon.validation import Array, choice

# The attributes of an objective with such constraints.
_CONSTRAINT = {
    "mean": "constraint_value", "each": "constraint_value", "groups": "constraint_sums"
}  # fmt: skip


class FunctionalConstraints:
    """The constraints g <= 0 of the clients' objectives.

    Parameters
    ----------
    clients : sequence
        The objectives, as the algorithms see them.
    kind : {"mean", "each", "groups"}
        Which constraints must hold; see `FederatedProblem`.
    names : sequence of str
        The clients' names, for errors.

    Raises
    ------
    ConfigError
        If an objective has only constraints of another kind, no objective has one of the requested
        kind, only some have a part of the mean, or the groups differ between clients.

    Examples
    --------
    >>> from flower_fedcon.objectives import LossBound, Quadratic
    >>> f = Quadratic(np.eye(1), np.zeros(1))
    >>> g = FunctionalConstraints([LossBound(f, 0.5), f], "each", ["a", "b"])
    >>> g.any, g.values(np.array([2.0])), g.gradients(np.array([2.0]))
    (True, array([1.5]), array([[2.]]))
    """

    groups = 0
    """The number of groups with a constraint, m; 0 for another kind."""

    def __init__(self, clients: Sequence[Any], kind: str, names: Sequence[str]) -> None:
        self.kind = choice("constraints", kind, tuple(_CONSTRAINT))
        self.clients, self._names = list(clients), names
        self.any = self._check_kind()
        if kind == "groups":
            self.groups = self._number_of_groups()
        self._sums = [ConstraintSums(c, kind) for c in clients] if kind != "mean" else []

    def values(self, x: Array) -> Array:
        """Return the constraints at x: their mean, each client's, or each group's."""
        if not self.any:
            return np.array([])
        if not self._sums:
            values = [c.constraint_value(x) for c in self.clients]
            return np.array([exact_sum(values) / len(values)])
        sums = np.array([client.sums(x) for client in self._sums])
        counts = np.array([client.counts for client in self._sums])
        if self.kind == "groups":
            return sums.sum(axis=0) / counts.sum(axis=0)  # type: ignore[no-any-return]
        return sums[counts > 0]

    def gradients(self, x: Array) -> Array:
        """Return the gradients of `values`, one after another."""
        if not self._sums:
            gradients = [c.constraint_gradient(x) for c in self.clients]
            return np.sum(gradients, axis=0, keepdims=True) / len(gradients)  # type: ignore[no-any-return]
        if self.kind == "each":
            return np.array([c.gradient(x, np.ones(1)) for c in self._sums if c.counts.all()])
        each = np.eye(self.groups) / np.sum([c.counts for c in self._sums], axis=0)
        return np.array([sum(c.gradient(x, row) for c in self._sums) for row in each])

    def _check_kind(self) -> bool:
        """Return whether objectives have constraints; raise if some would be silently ignored."""
        kind, names, needed = self.kind, self._names, _CONSTRAINT[self.kind]
        have = [name for name, c in zip(names, self.clients, strict=True) if hasattr(c, needed)]
        for other in ("each", "groups"):
            attribute = _CONSTRAINT[other]
            if attribute == needed:
                continue
            strays = [
                name
                for name, c in zip(names, self.clients, strict=True)
                if hasattr(c, attribute) and not hasattr(c, needed)
            ]
            if strays:
                others = '"each" or "mean"' if other == "each" else '"groups"'
                raise ConfigError(
                    f'constraints="{kind}" ignores the constraints ({attribute}) of '
                    f"{clients_by_name(strays)}: give constraints={others}, or remove these "
                    f"constraints"
                )
        if kind == "mean" and 0 < len(have) < len(names):
            raise ConfigError(
                f'constraints="mean", the default, needs a constraint ({needed}) of all '
                f"{len(names)} clients or of none, got it only of {clients_by_name(have)}: give "
                f'constraints="each" to bind these alone'
            )
        if kind == "each" and not have:
            raise ConfigError(
                f'constraints="each" needs a constraint ({needed}, as in LossBound) of at least '
                f"one client, got none: bound a client, or leave constraints out"
            )
        return bool(have)

    def _number_of_groups(self) -> int:
        """Return m, after a check that all clients have the same groups, each with some rows."""
        for name, client in zip(self._names, self.clients, strict=True):
            for needed in ("constraint_sums", "constraint_counts", "constraint_sums_gradient"):
                if not hasattr(client, needed):
                    raise ConfigError(
                        f'constraints="groups" needs {needed} of every objective, client {name} '
                        "has none: use GroupLossBounds"
                    )
        counts = [np.asarray(client.constraint_counts, np.float64) for client in self.clients]
        shapes = {array.shape for array in counts}
        if len(shapes) > 1 or counts[0].ndim != 1 or not counts[0].size:
            raise ConfigError(
                "constraint_counts must be of one shape (m,) on all clients, a number for each "
                f"group, got {sorted(shapes)}"
            )
        total = np.sum(counts, axis=0)
        if min(array.min() for array in counts) < 0 or not np.isfinite(total).all():
            raise ConfigError("constraint_counts must be finite and >= 0")
        if not total.all():
            raise ConfigError(
                f"the group {int(np.argmin(total))} has no rows on any client, so its mean is "
                f"undefined: leave it out on all clients"
            )
        return len(total)


def check_bounds(objectives: Sequence[Any], names: Sequence[str]) -> None:
    """Raise if two clients with rows of a group have different bounds for it.

    Raises
    ------
    ConfigError
    """
    first: dict[int, tuple[str, float]] = {}
    for name, objective in zip(names, objectives, strict=True):
        if not isinstance(objective, GroupLossBounds):
            continue
        for k in np.flatnonzero(objective.constraint_counts).tolist():
            own = float(objective.bounds[k])
            other, bound = first.setdefault(k, (name, own))
            if own != bound:
                raise ConfigError(
                    f"the group {k} needs one bound for all clients, got {bound:g} of client "
                    f"{other} and {own:g} of client {name}: give GroupLossBounds the same bound on "
                    f"all clients"
                )


def check_convex(objectives: Sequence[Any]) -> None:
    """Raise if an objective, or the loss that it bounds, says that it is not convex.

    Raises
    ------
    ConfigError
    """
    for objective in objectives:
        parts = [objective]
        for part in parts:
            if getattr(part, "convex", True) is False:
                raise ConfigError(
                    f"{part!r} is not convex, so no solver certifies a minimum: run without F* "
                    f"(reference = false), and use certificates, whose kkt is 0 at stationary "
                    f"points"
                )
            if isinstance(part, Scaled | LossBound | GroupLossBounds):
                parts.append(part.objective)
            if isinstance(part, LossBound):
                parts.append(part.loss)
            if isinstance(part, GroupLossBounds):
                parts += [loss for loss in part.losses if loss is not None]
