"""A client's state, and its place in `Context.state`, where Flower keeps it between messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context

from flower_fedcon.protocol import RunInfo

_META = "fedcon"


class Versions(NamedTuple):
    """A client's state: the committed one, and the one that waits for the server's word.

    Attributes
    ----------
    version : int
        The round whose reply produced `committed`; 0 before any was used.
    committed : NamedTuple or None
    pending_round : int
        The round of `pending`; 0 if there is none.
    pending : NamedTuple or None
    held_round : int
        The round of `held`; 0 if there is none.
    held : dict or None
        What a query left for the step of the same round.
    """

    version: int = 0
    committed: Any = None
    pending_round: int = 0
    pending: Any = None
    held_round: int = 0
    held: Any = None


def load(context: Context, run: RunInfo, state_type: type[Any] | None) -> Versions:
    """Return the client's versions, empty if the context holds none of this algorithm."""
    records = context.state
    if _META not in records:
        return Versions()
    meta = records[_META]
    if not isinstance(meta, ConfigRecord) or meta.get("algorithm") != run.algorithm:
        return Versions()

    def fields(which: str) -> dict[str, Any]:
        arrays, numbers = records[f"{_META}.{which}"], records[f"{_META}.{which}.numbers"]
        found = {key: value.numpy() for key, value in arrays.items()}  # type: ignore[union-attr]
        return {**found, **numbers}

    def state(which: str) -> Any:
        if state_type is None:
            return None
        return state_type(**{**dict.fromkeys(state_type._fields), **fields(which)})

    version, pending, held = (int(meta[key]) for key in ("version", "pending", "held"))  # type: ignore[arg-type]
    return Versions(
        version=version,
        committed=state("committed"),
        pending_round=pending,
        pending=state("pending") if pending else None,
        held_round=held,
        held=fields("held") if held else None,
    )


def save(context: Context, run: RunInfo, versions: Versions) -> None:
    """Put the client's versions into the context."""
    records = context.state
    parts = {which: getattr(versions, which) for which in ("committed", "pending")}
    named = {which: {} if v is None else v._asdict() for which, v in parts.items()}
    named["held"] = versions.held or {}
    for which, fields in named.items():
        arrays = {k: FlowerArray(v) for k, v in fields.items() if isinstance(v, np.ndarray)}
        numbers: dict[str, Any] = {k: v for k, v in fields.items() if isinstance(v, int | float)}
        records[f"{_META}.{which}"] = ArrayRecord(arrays)
        records[f"{_META}.{which}.numbers"] = ConfigRecord(numbers)
    records[_META] = ConfigRecord(
        {
            "algorithm": run.algorithm,
            "version": versions.version,
            "pending": versions.pending_round,
            "held": versions.held_round,
        }
    )
