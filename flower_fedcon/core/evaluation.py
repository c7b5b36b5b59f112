"""Evaluations of a model: which of the clients' are used, and what a record may hold.

A loss or metric is used only if it is a finite number that sums and squares can bear, under a name
that is no column of every history. Anything else is a fault of that client, and of no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, RoundError, printable
from flower_fedcon.validation import Array

COLUMNS = frozenset(
    ["round", "objective", "residual", "violation", "uplink_bytes", "downlink_bytes", "seconds",
     "cohort", "replies", "dropped", "retries", "lost", "refused", "kkt", "fw_gap", "consensus"]
)  # fmt: skip
"""The columns that a run itself may write."""
LARGEST = 5e102
"""The largest number that is taken from a client: its square can still be summed, and weighed."""
_METRICS, _LETTERS = 100, 100  # of one evaluation, and of a metric's name


class DivergedError(RoundError):
    """A loss that is no finite number, or too large to be one of a run that goes well."""


def usable(value: object) -> bool:
    """Return whether a value is a number that can be averaged.

    >>> [usable(v) for v in (1.5, float("nan"), 1.7e308, "1")]
    [True, False, False, False]
    """
    return isinstance(value, float | int) and abs(value) <= LARGEST


def check_metric_names(names: Iterable[str]) -> None:
    """Raise if a metric bears the name of a column, or one that no column can have.

    Raises
    ------
    ConfigError
    """
    for name in names:
        if name in COLUMNS or name.startswith("local_"):
            raise ConfigError(
                f"a metric cannot be called {name!r}, which is a column of the history: choose "
                "another name"
            )
        if not name.isprintable() or not 0 < len(name) <= _LETTERS:
            raise ConfigError(
                f"a metric's name must have 1 to {_LETTERS} printable letters, got "
                f"{printable(repr(name), _LETTERS)}"
            )


def admit(loss: object, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return one client's evaluation if it can be used.

    Raises
    ------
    ConfigError
        If there are too many metrics, one is no usable number, or bears no metric's name.
    DivergedError
        If the loss is no usable number.
    """
    if "error" in metrics:
        raise ConfigError(printable(str(metrics["error"])))
    if len(metrics) > _METRICS:
        raise ConfigError(f"it has {len(metrics)} metrics, at most {_METRICS} are recorded")
    check_metric_names(metrics)
    for name, value in metrics.items():
        if not usable(value):
            raise ConfigError(f"its {name} is {printable(repr(value), 100)}, not a usable number")
    if not usable(loss):
        raise DivergedError(f"its objective is {printable(repr(loss), 100)}")
    return {"objective": float(loss), **{k: float(v) for k, v in metrics.items()}}  # type: ignore[arg-type]


def own_distance(state: Any, x: Array) -> dict[str, float]:
    """Return how far a client's own iterate lies from the model, if its state has one."""
    own = getattr(state, "x", None)
    return {} if own is None else {"distance": float(np.linalg.norm((own - x).ravel()))}


def mean(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means of what all clients have measured, in client order."""
    shared = [name for name in answers[0] if all(name in answer for answer in answers)]
    return {name: math.fsum(a[name] for a in answers) / len(answers) for name in shared}
