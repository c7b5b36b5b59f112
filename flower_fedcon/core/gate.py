"""The gate: which replies are used.

A reply is used only if it comes from a client that was asked and has not answered yet (which the
round knows), answers this round, holds what the algorithm declares, in its shapes and types and
with finite numbers, and has a finite, positive weight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.core.protocol import CERTIFY, QUERY, TRAIN, Reply
from flower_fedcon.errors import AlgorithmError, ConfigError, RoundError
from flower_fedcon.layout import Layout, array_bytes
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import SCALAR_BYTES, Payload

if TYPE_CHECKING:
    from flower_fedcon.strategies.base import FedConStrategy


NUMBERS = ("distance",)  # what a certificate's answer holds beside the gradient


class Gate:
    """Decides which replies of one run are used.

    Parameters
    ----------
    strategy : FedConStrategy
        Bound to the run's setup.
    """

    def __init__(self, strategy: FedConStrategy[Any]) -> None:
        self._strategy = strategy
        self._layout: Layout = strategy.setup.layout

    def check_round(self, reply: Reply, server_round: int) -> None:
        """Raise unless a reply answers this round, without an error.

        Raises
        ------
        RoundError
        """
        if reply.error:
            raise RoundError(reply.error)
        if reply.round != server_round:
            raise RoundError(f"it is for round {reply.round}")

    def admit(self, reply: Reply, phase: str, names: tuple[str, ...]) -> Payload:
        """Return the columns of a reply that can be used.

        Parameters
        ----------
        reply : Reply
        phase : {"train", "query", "certify"}
        names : tuple of str
            What clients are to send.

        Raises
        ------
        ConfigError, RoundError
            If the reply cannot be used.
        AlgorithmError
            If a client of this process sends other names than the algorithm declares.
        """
        if not 0 < reply.num_examples < math.inf:
            raise RoundError(f"its weight is {reply.num_examples}")
        columns = reply.payload
        if reply.remote and phase == TRAIN:
            columns = self._decode(columns, names)
        if columns.keys() != set(names):
            self._refuse_names(sorted(columns), names, phase, reply.remote)
        for name, column in columns.items():
            if phase == QUERY or (phase == CERTIFY and name in NUMBERS):
                _check_numbers(name, column)
            else:
                self._check(name, column, len(reply.clients))
        return columns

    def _decode(self, parts: Payload, names: tuple[str, ...]) -> Payload:
        """Return the declared values from the arrays of a message ("atom.code", ...)."""
        found: dict[str, dict[str, Array]] = {}
        for key, (array,) in parts.items():
            if not isinstance(array, np.ndarray):
                raise ConfigError(f"{key!r} is {array!r}, expected an array")
            name, _, part = key.partition(".")
            found.setdefault(name, {})[part] = array
        if found.keys() != set(names):
            self._refuse_names(sorted(found), names, TRAIN, remote=True)
        return {name: [self._strategy.decode(name, found[name])] for name in names}

    def _refuse_names(
        self, found: list[str], names: tuple[str, ...], phase: str, remote: bool
    ) -> None:
        if remote:  # perhaps another program: it must not end the run
            raise ConfigError(f"it holds {found}, expected {sorted(names)}")
        kind, name = type(self._strategy).__name__, self._strategy.name
        verb, declared = ("answers", "queries") if phase == QUERY else ("uploads", "uplink")
        raise AlgorithmError(
            f"the client of {kind} {verb} {found}, and {kind} declares {sorted(names)}: "
            f"correct the names in clients/{name}.py, or `{declared}` in strategies/{name}.py"
        )

    def _check(self, name: str, column: Any, count: int) -> None:
        """Raise unless each value has the model's shape and type, and finite numbers."""
        shape, dtype = self._layout.shape, self._layout.array_dtype
        values, lead = column, 0
        if not isinstance(column, list):
            values, shape, lead = [column], (count, *shape), 1
        for value in values:
            if getattr(value, "shape", None) != shape or value.dtype != dtype:
                if not hasattr(value, "shape"):
                    raise ConfigError(f"{name!r} is {value!r}, expected an array")
                raise ConfigError(
                    f"{name!r} has shape {value.shape[lead:]} and dtype {value.dtype}, "
                    f"expected {self._layout.shape} and {self._layout.dtype}"
                )
            if isinstance(value, np.ndarray) and not np.isfinite(value).all():
                raise ConfigError(
                    f"{name!r} holds non-finite values: check the data, or take smaller steps"
                )


def _check_numbers(name: str, column: Any) -> None:
    """Raise unless the answers to a query are finite numbers."""
    for value in column:
        if not isinstance(value, float | int) or not math.isfinite(value):
            raise ConfigError(f"{name!r} is {value!r}, expected a finite number")


def column_bytes(column: Any) -> int:
    """Return the bytes of a column's values on the wire, each sent on its own.

    >>> column_bytes([1.0, 2.0]), column_bytes(np.zeros((3, 10)))
    (16, 624)
    """
    if isinstance(column, np.ndarray):
        return len(column) * array_bytes(column.shape[1:], column.dtype)
    if not isinstance(column, list):
        return int(column.stack_bytes)
    first = column[0]
    if isinstance(first, np.ndarray):  # the gate has seen that they are alike
        return len(column) * array_bytes(first.shape, first.dtype)
    if isinstance(first, float | int):
        return len(column) * SCALAR_BYTES
    return sum(value.nbytes for value in column)
