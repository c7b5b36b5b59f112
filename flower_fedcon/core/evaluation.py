"""Evaluations of a model: which replies are used, and what a record may hold.

A loss or metric is used only if it is a finite number whose squares and sums are finite, too, and
if its name is not a column that every history has. Anything else is a fault of that client alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.arrays import exact_sum
from flower_fedcon.core.compressing import Remembering
from flower_fedcon.errors import ConfigError, DivergedError, printable
from flower_fedcon.objectives.curvatures import entry_curvatures
from flower_fedcon.validation import Array

Record: TypeAlias = dict[str, float]
"""The record of a model, or of a round: numbers by name."""
COLUMNS = frozenset(
    ["round", "objective", "residual", "violation", "uplink_bytes", "downlink_bytes", "seconds",
     "simulated_seconds", "late", "cohort", "replies", "dropped", "retries", "lost", "refused",
     "unheard", "kkt", "fw_gap", "consensus", "epsilon", "clip", "staleness", "most_staleness",
     "stale", "waves"]
)  # fmt: skip
"""The columns that the run itself writes."""
WEIGHT = "weight."
"""The prefix of the name under which a metric's weight is sent."""
_EACH = 100  # so many clients' own values are recorded at most
LARGEST = 5e102
"""The largest number accepted from a client: its square can still be summed and weighted."""
MOST_METRICS = 100
"""So many metrics are recorded of a client, by name."""
_LETTERS = 100  # characters of a metric's name


def usable(value: object) -> bool:
    """Return whether a value is a number that can be averaged.

    >>> [usable(v) for v in (1.5, float("nan"), 1.7e308, "1")]
    [True, False, False, False]
    """
    return isinstance(value, float | int) and abs(value) <= LARGEST


def check_metric_names(names: Iterable[str]) -> None:
    """Raise if a metric has the name of a column, or one that no column can have.

    Raises
    ------
    ConfigError
    """
    for name in names:
        if name in COLUMNS or name.startswith("local_"):
            raise ConfigError(
                f"a metric cannot be called {name!r}, which is a column of the history: choose "
                f"another name"
            )
        if not name.isprintable() or not 0 < len(name) <= _LETTERS:
            raise ConfigError(
                f"a metric's name must have 1 to {_LETTERS} printable letters, got "
                f"{printable(repr(name), _LETTERS)}"
            )


class MetricNames:
    """The names that each client's metrics have in a run: at most 100 of one."""

    def __init__(self) -> None:
        self._of: dict[int, set[str]] = {}

    def takes(self, client: int, name: str) -> bool:
        """Return whether a client's metric has a place in the history."""
        known = self._of.setdefault(client, set())
        if len(known) < MOST_METRICS:
            known.add(name)
        return name in known


def of_single_clients(names: Iterable[str], clients: Collection[str]) -> set[str]:
    """Return the metrics whose names are columns for one client's values of another metric.

    >>> sorted(of_single_clients(["loss", "loss/a", "loss/x", "top/a"], ["a", "b"]))
    ['loss/a']
    """
    heads, owners = {*names}, {*clients}
    return {
        name
        for name in heads
        for place, letter in enumerate(name)
        if letter == "/" and name[:place] in heads and name[place + 1 :] in owners
    }


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that have a value, as plain numbers.

    Raises
    ------
    ConfigError
        If one is not a number.

    >>> numbers({"nonzeros": np.int64(3), "none yet": None})
    {'nonzeros': 3.0}
    """
    values: dict[str, float] = {}
    for name, value in metrics.items():
        if value is None:
            continue
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            shown = printable(repr(value), 60)
            raise ConfigError(f"metric {name!r} is {shown}, expected a number or None") from None
    return values


def spread_out(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as plain numbers, each followed by its weight if it has one.

    >>> spread_out({"mae": (0.5, 20.0), "nonzeros": 3})
    {'mae': 0.5, 'weight.mae': 20.0, 'nonzeros': 3.0}
    """
    check_metric_names(metrics)
    values: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, tuple):
            values[name], values[WEIGHT + name] = map(float, value)
        else:
            values[name] = float(value)
    return values


def admit(loss: object, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return one client's usable evaluation; a metric with a weight is a pair.

    Raises
    ------
    ConfigError
        If there are too many metrics, or one has an unusable value or name.
    DivergedError
        If the loss is not a usable number.
    """
    if "error" in metrics:
        raise ConfigError(printable(str(metrics["error"])))
    weights = {k.removeprefix(WEIGHT): v for k, v in metrics.items() if k.startswith(WEIGHT)}
    metrics = {k: v for k, v in metrics.items() if not k.startswith(WEIGHT)}
    if len(metrics) > MOST_METRICS:
        raise ConfigError(f"it has {len(metrics)} metrics, and at most {MOST_METRICS} are recorded")
    check_metric_names(metrics)
    for name, value in metrics.items():
        if not usable(value):
            raise ConfigError(f"its {name} is {printable(repr(value), 100)}, not a usable number")
    for name, weight in weights.items():
        if name not in metrics or not usable(weight) or weight < 0:
            raise ConfigError(f"the weight of its {printable(name, 100)} cannot be used")
    if not usable(loss):
        raise DivergedError(f"its objective is {printable(repr(loss), 100)}")
    answer: dict[str, Any] = {"objective": float(loss)}  # type: ignore[arg-type]
    for name, value in metrics.items():
        answer[name] = (float(value), float(weights[name])) if name in weights else float(value)
    return answer


def own_distance(state: Any, x: Array) -> dict[str, float]:
    """Return how far a client's own iterate lies from the model, if its state has one."""
    iterate = getattr(state.state if isinstance(state, Remembering) else state, "x", None)
    return {} if iterate is None else {"distance": float(np.linalg.norm((iterate - x).ravel()))}


def spread_of(objective: Any, x: Array) -> dict[str, Array]:
    """Return roots of an objective's curvatures along the entries, roughly, if it knows them."""
    curvatures = entry_curvatures(objective)
    if curvatures is None or curvatures.shape != x.shape:
        return {}
    return {"spread": np.sqrt(np.abs(curvatures)).astype(x.dtype)}


def pooled(
    answers: Sequence[Mapping[str, Any] | None], names: Sequence[str], *, each: bool = False
) -> dict[str, float]:
    """Return what all clients have measured, pooled, in client order.

    A client that has not answered is None here. Then only the others' own values are returned,
    since a mean over some clients is not the mean over all.

    A number that all clients have is averaged with equal weights. Pairs (value, weight) are
    averaged by weight, over the clients that have one with a weight above 0; each client's own
    value is returned as well, as "metric/client". With `each`, "constraint" is the largest value
    over the clients that have one.

    >>> pooled([{"mae": (0.5, 1.0)}, {"mae": (1.0, 3.0)}], ["a", "b"])
    {'mae': 0.875, 'mae/a': 0.5, 'mae/b': 1.0}
    >>> pooled([{}, {"mae": (1.0, 3.0)}, {"mae": (0.0, 0.0)}], ["a", "b", "c"])
    {'mae': 1.0, 'mae/b': 1.0}
    >>> pooled([{"constraint": -1.0}, {"constraint": 2.0}, {}], ["a", "b", "c"], each=True)
    {'constraint': 2.0}
    >>> pooled([{"mae": (0.5, 1.0), "objective": 1.0}, None], ["a", "b"])
    {'mae/a': 0.5}
    """
    record: dict[str, float] = {}
    heard = [answer for answer in answers if answer is not None]
    whole = len(heard) == len(answers)
    measured = dict.fromkeys(name for answer in heard for name in answer)
    columns = of_single_clients(measured, names) if any("/" in name for name in measured) else ()
    for name in measured:
        if name in columns:
            continue
        values = [None if answer is None else answer.get(name) for answer in answers]
        if not any(isinstance(value, tuple) for value in values):
            if None not in values:
                record[name] = exact_sum(map(float, values)) / len(values)  # type: ignore[arg-type]
            continue
        none = (0.0, 0.0)
        pairs = [none if v is None else v if isinstance(v, tuple) else (v, 1.0) for v in values]
        total = exact_sum(weight for _, weight in pairs)
        if total and whole:
            record[name] = exact_sum(value * weight for value, weight in pairs) / total
        if len(names) <= _EACH:
            named = zip(names, pairs, strict=True)
            record |= {f"{name}/{client}": float(v) for client, (v, weight) in named if weight}
    bound = [answer["constraint"] for answer in heard if "constraint" in answer]
    if each and whole and bound:
        record["constraint"] = float(max(bound))
    return record
