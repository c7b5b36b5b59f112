"""Objectives of many clients, stacked along a leading client axis: one pass serves all."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from flower_fedcon.objectives.base import Scaled
from flower_fedcon.objectives.client_axis import Stack, Stackable, Which
from flower_fedcon.objectives.many import ManyClients
from flower_fedcon.objectives.stacked_objective import StackedObjective
from flower_fedcon.validation import Array

__all__ = ["Stack", "Which", "key", "stack", "stacks"]


def unscaled(objective: Any) -> tuple[Any, float]:
    """Return the objective below all that scale it, and the product of their factors."""
    factor = 1.0
    while type(objective) is Scaled:
        objective, factor = objective.objective, factor * objective.factor
    return objective, factor


def key(objective: Any) -> Hashable | None:
    """Return what objectives in one stack must share; None for one that cannot be stacked."""
    core, _ = unscaled(objective)
    own = core.stack_key() if isinstance(core, Stackable) else None
    return None if own is None else (type(core), own)


def stack(objectives: Sequence[Any]) -> Stack:
    """Return objectives with the same `key` as one stack."""
    if isinstance(objectives, ManyClients):
        return StackedObjective(objectives.whole, len(objectives))
    cores, factors = zip(*map(unscaled, objectives), strict=True)
    whole = type(cores[0]).along_axis(cores, factors)
    return whole if isinstance(whole, Stack) else StackedObjective(whole, len(cores))


def why_not_one_stack(objectives: Sequence[Any]) -> str | None:
    """Return why objectives with the same `key` are no stack after all; None if they are."""
    cores = [unscaled(objective)[0] for objective in objectives]
    reason: str | None = type(cores[0]).why_not_stacked(cores)
    return reason


def stacks(objectives: Sequence[Any]) -> list[tuple[Stack, Array]]:
    """Return all objectives in stacks, each with the places of those that are in it."""
    if isinstance(objectives, ManyClients):
        return [(stack(objectives), np.arange(len(objectives)))]
    groups = alike(objectives).values()
    return [(stack([objectives[c] for c in own]), np.array(own)) for own in groups]


def alike(objectives: Sequence[Any]) -> dict[Hashable | None, list[int]]:
    """Return the places of the objectives with each `key`."""
    by_key: dict[Hashable | None, list[int]] = {}
    for place, objective in enumerate(objectives):
        by_key.setdefault(key(objective), []).append(place)
    return by_key
