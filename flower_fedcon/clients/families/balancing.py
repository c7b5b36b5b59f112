"""Residuals that clients report if their penalty is balanced."""

from __future__ import annotations

from typing import Any

from flower_fedcon.arrays import dot, told
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


def penalty_of(down: Payload, usual: float) -> float:
    """Return the round's penalty: the server's, or the default.

    >>> penalty_of({"penalty": 2.0}, 1.0), penalty_of({}, 1.0)
    (2.0, 1.0)
    """
    penalty: float = down.get("penalty", usual)
    return penalty


def residuals(client: Any, down: Payload, apart: Array, multiplier: Array) -> Payload:
    """Return the squared lengths of x_i - x_S and of g_i, if the penalty is balanced."""
    if "penalty" not in down:
        return {}
    axes = len(client.model_axes)
    pairs = ("gap", apart), ("pull", multiplier)
    return {name: told(dot(v, v, axes)) for name, v in pairs}
