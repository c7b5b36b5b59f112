"""What is alike in a request to many clients, and what one step cost each of them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedcon.arrays import as_column
from flower_fedcon.core.protocol import Request
from flower_fedcon.engines.stacked_states import every
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


def forms_of(request: Request, own_numbers: Collection[str]) -> Array | None:
    """Return numbers, equal for clients that are sent arrays and numbers alike; None if all are.

    Alike are arrays of the same names, and the same numbers: a step has one number for all, but for
    `own_numbers`, which it takes as columns.
    """
    if not request.personal and not request.restore:
        return None
    numbers: dict[Any, int] = {(None, None): 0}
    forms = []
    for client in request.clients:
        own, given = request.personal.get(client), request.restore.get(client)
        form = (_form(own, own_numbers), _form(given))
        forms.append(numbers.setdefault(form, len(numbers)))
    return np.array(forms) if len(set(forms)) > 1 else None


def _form(payload: Payload | None, own_numbers: Collection[str] = ()) -> Hashable:
    if payload is None:
        return None
    return tuple(
        (name, None if isinstance(value, np.ndarray) or name in own_numbers else value)
        for name, value in payload.items()
    )


def classes_of(keys: Array | None, count: int) -> list[Array | None]:
    """Return, for each key, the places where it stands; None for all places."""
    if count == 0:
        return []
    if keys is None or every(keys == keys[0]):
        return [None]
    return [np.flatnonzero(keys == one) for one in np.unique(keys)]


def work_of_each(work: Mapping[str, Any], count: int) -> list[dict[str, float]]:
    """Return what each client's step cost, from numbers of all; empty where nothing is counted."""
    if not work:
        return []
    lists = {name: np.broadcast_to(values, count).tolist() for name, values in work.items()}
    return [{name: values[i] for name, values in lists.items()} for i in range(count)]


def together_sent(payloads: Sequence[Any]) -> Payload:
    """Return payloads of one form as one, with a leading client axis; of numbers, the first's."""
    return {
        name: np.stack([payload[name] for payload in payloads])
        if isinstance(value, np.ndarray)
        else value
        for name, value in payloads[0].items()
    }


def own_columns(
    payloads: Sequence[Any], own_numbers: Collection[str], axes: int, dtype: Any
) -> Payload:
    """Return the numbers that each client has its own of, as columns."""
    names = [name for name in payloads[0] if name in own_numbers]
    return {name: as_column(np.array([p[name] for p in payloads]), axes, dtype) for name in names}
