"""Common parts of the checks: errors and comparisons."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.core.participation import Bernoulli, Full, Sample
from flower_fedcon.errors import (
    AlgorithmError,
    ParticipationError,
)
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.testing.open_run import OpenRun
from flower_fedcon.validation import Array

Strategy: TypeAlias = FedConStrategy[Any]


class CheckError(AlgorithmError):
    """An algorithm breaks a rule for every algorithm."""


def expect(holds: Any, text: str) -> None:
    """Raise `CheckError` with a text unless a condition holds."""
    if not holds:
        raise CheckError(text)


def changed(strategy: Strategy, **settings: Any) -> Any:
    """Return the same strategy with some of the common settings changed."""
    other = copy.copy(strategy)
    vars(other).update(settings)
    return other


def forms(strategy: Strategy, problem: FederatedProblem) -> Iterator[Any]:
    """Yield the strategy with each rule of participation that it accepts."""
    for rule in (Full(), Sample(fraction=0.5), Bernoulli(0.5)):
        made = changed(strategy, participation=rule)
        try:
            OpenRun(made, problem)
        except ParticipationError:
            continue
        yield made


def contents(value: Any) -> Any:
    """Return the present content of a value; two results are equal if nothing has changed."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: contents(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [type(value), *map(contents, value)]
    if isinstance(value, type | FunctionType) or not hasattr(value, "__dict__"):
        return value
    if is_dataclass(value):  # its fields; values derived from them may be cached
        return type(value), {f.name: contents(getattr(value, f.name)) for f in fields(value)}
    return type(value), contents(vars(value))


def model_bytes(model: Any) -> list[bytes]:
    """Return the bytes of a model's layers."""
    return [layer.tobytes() for layer in (model if isinstance(model, list) else [model])]


def same(one: Array, other: Array) -> bool:
    """Return whether two arrays are equal bit for bit."""
    return one.tobytes() == other.tobytes()


def close(one: Array, other: Array, tolerance: float) -> bool:
    """Return whether two arrays are equal up to rounding, or the tolerance."""
    return bool(np.allclose(one, other, rtol=1e-6, atol=tolerance))
