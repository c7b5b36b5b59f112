"""Objectives of many clients, stacked along a leading client axis: one pass serves all."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from flower_fedcon.objectives.base import Scaled
from flower_fedcon.objectives.client_axis import Stack, Stackable, Which
from flower_fedcon.objectives.many import ManyClients
from flower_fedcon.objectives.noisy import Noisy
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.objectives.stacked_objective import StackedObjective
from flower_fedcon.validation import Array

__all__ = ["Stack", "Which", "key", "stack", "stacks"]
_WASTE = 2  # padding multiplies a client's rows by this at most
_FEW = 4  # clients of one length, on average, from which they form their own stacks


def unscaled(objective: Any) -> tuple[Any, float]:
    """Return the objective without its factors, and their product."""
    factor = 1.0
    while type(objective) in (Scaled, Noisy):
        objective, factor = objective.objective, factor * objective.factor
    return objective, factor


def key(objective: Any, patched: dict[type, bool] | None = None) -> Hashable | None:
    """Return what objectives must share to form one stack; None for one that cannot be stacked."""
    core, _ = unscaled(objective)
    kind, checked = type(core), {} if patched is None else patched
    if not isinstance(core, Stackable) or is_patched(core):
        return None
    if kind not in checked:
        checked[kind] = _is_patched_kind(kind)
    shared = None if checked[kind] else core.stack_key()
    return None if shared is None else (kind, shared)


def is_patched(objective: Any) -> bool:
    """Return whether an object itself overrides methods of its class.

    A stack uses the methods of the class.
    """
    kind = type(objective)
    return any([callable(getattr(kind, name, None)) for name in vars(objective)])  # noqa: C419


def _is_patched_kind(kind: type) -> bool:
    """Return whether methods of this package's classes were replaced."""
    here = f"{__name__.partition('.')[0]}."
    return any(
        isinstance(member, FunctionType) and not (member.__module__ or "").startswith(here)
        for one in kind.__mro__
        if one.__module__.startswith(here)
        for member in vars(one).values()
    )


def stack(objectives: Sequence[Any]) -> Stack:
    """Return objectives with the same `key` as one stack."""
    if isinstance(objectives, ManyClients):
        return StackedObjective(objectives.whole, len(objectives))
    cores, factors = zip(*map(unscaled, objectives), strict=True)
    lengths = {getattr(core, "num_examples", 1) for core in cores}
    if len(lengths) > 1 and cores[0].padded_key() is not None:
        cores = tuple(core.padded(max(lengths)) for core in cores)
    whole = type(cores[0]).along_axis(cores, factors)
    return whole if isinstance(whole, Stack) else StackedObjective(whole, len(cores))


def why_not_one_stack(objectives: Sequence[Any]) -> str | None:
    """Return why objectives that are `alike` still form no stack; None if they do."""
    cores = [unscaled(objective)[0] for objective in objectives]
    reason: str | None = type(cores[0]).why_not_stacked(cores)
    return reason


def stacks(
    objectives: Sequence[Any], *, pad: bool = False, apart: bool = False
) -> list[tuple[Stack, Array]]:
    """Return all objectives in stacks, each with the places of its members; see `alike`.

    With `apart`, a client whose pass serves it alone, since its model fills the cache, has a stack
    of its own, which holds no copy of its data.
    """
    if isinstance(objectives, ManyClients):
        return [(stack(objectives), np.arange(len(objectives)))]
    groups = [*alike(objectives, pad=pad).values()]
    if apart:
        groups = [part for places in groups for part in _passes(objectives, places)]
    return [(stack([objectives[c] for c in places]), np.array(places)) for places in groups]


def _passes(objectives: Sequence[Any], places: list[int]) -> list[list[int]]:
    """Return each place alone if models are so large; else all of them together."""
    core, _ = unscaled(objectives[places[0]])
    alone = isinstance(core, LinearModel) and 2 * math.prod(core.shape) > Stack.models_at_once
    return [[place] for place in places] if alone else [places]


def alike(objectives: Sequence[Any], *, pad: bool = False) -> dict[Hashable | None, list[int]]:
    """Return the places of the objectives with each `key`.

    With `pad`, objectives of many different lengths share a stack: rows of weight 0 make them
    equally long, which changes no sum over all rows.
    """
    by_key: dict[Hashable | None, list[int]] = {}
    patched: dict[type, bool] = {}  # checked once a type, since it takes as long as all else
    for place, objective in enumerate(objectives):
        by_key.setdefault(key(objective, patched), []).append(place)
    if not pad:
        return by_key
    families: dict[Hashable, list[Hashable]] = {}
    for name, places in by_key.items():
        core, _ = unscaled(objectives[places[0]])
        padded = None if name is None else core.padded_key()
        if padded is not None:
            families.setdefault((type(core), padded), []).append(name)
    for family, names in families.items():
        if len(names) * _FEW <= sum(len(by_key[name]) for name in names):
            continue
        length = {name: objectives[by_key[name][0]].num_examples for name in names}
        longest, bucket = 0, list[int]()
        for name in sorted(names, key=lambda name: -length[name]):
            if length[name] * _WASTE < longest or not longest:
                longest, bucket = length[name], []
                by_key[family, longest] = bucket
            bucket += by_key.pop(name)
    return {name: sorted(places) for name, places in by_key.items()}
