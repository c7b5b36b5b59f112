"""The gate: which replies are used.

A reply is used only if it comes from a client that was asked and has not answered yet (the round
checks this), answers this round, and has a finite, positive weight. It must hold the values that
the algorithm declares, with their shapes and types, and its numbers must be finite and so small
that their squares are finite. Counts of its work are taken under the names that a history knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NewType

import numpy as np

from flower_fedcon.compressors.values import Compressed
from flower_fedcon.core.evaluation import usable
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import (
    CERTIFY,
    MOST_EXAMPLES,
    QUERY,
    TRAIN,
    UNIFORM,
    Reply,
)
from flower_fedcon.core.summed import Summed
from flower_fedcon.errors import AlgorithmError, ConfigError, DivergedError, RoundError
from flower_fedcon.layout import Layout, array_bytes
from flower_fedcon.objectives.set_aside import is_ours
from flower_fedcon.sets.atoms import Atom
from flower_fedcon.validation import Array, squared_norm
from flower_fedcon.wire.payloads import SCALAR_BYTES, Payload

NUMBERS = ("distance", "steps")  # in a certificate's answer, and from a client's own loop
COUNTS = ("gradients", "examples_seen", "hessian_products", "proxes", "lmos")
WORK = ("iterations", "evaluations", "unconverged", *COUNTS)  # the names of a step's costs
_MOST_WORK = 2.0**53  # a larger count is not exact


Admitted = NewType("Admitted", Reply)
"""A reply that has passed the gate: its payload holds columns of the declared values."""


class Gate:
    """Decides which replies of one run are used.

    Parameters
    ----------
    strategy : Method
        Bound to the run's setup.
    hides : bool
        Whether it must not show that a client's numbers were not finite.
    """

    def __init__(self, strategy: Method[Any], *, hides: bool = False) -> None:
        self._strategy, self._hides = strategy, hides
        self._layout: Layout = strategy.setup.layout
        self._numbers = (*NUMBERS, *strategy.numbers)
        self._weighted = strategy.setup.weighting != UNIFORM
        bound = math.inf if strategy.norm_bound is None else strategy.norm_bound
        self._bounds = {TRAIN: bound, CERTIFY: math.inf}
        self._shapes = {n: strategy.upload_shape(n, self._layout) for n in strategy.uplink}
        self._largest = largest_norm(self._layout.array_dtype)

    def check_round(self, reply: Reply, server_round: int) -> None:
        """Raise unless a reply answers this round, without an error.

        Raises
        ------
        RoundError
        """
        if reply.error:
            told = reply.diverged and not self._hides
            raise (DivergedError if told else RoundError)(reply.error)
        if reply.round != server_round:
            raise RoundError(f"it is for round {reply.round}")

    def admit(self, reply: Reply, phase: str, names: tuple[str, ...]) -> Payload:
        """Return the columns of a reply, if it can be used.

        Parameters
        ----------
        reply : Reply
        phase : {"train", "query", "certify"}
        names : tuple of str
            What clients must send.

        Raises
        ------
        ConfigError, RoundError
            If the reply cannot be used.
        AlgorithmError
            If a client in this process does not send the names that the algorithm declares.
        """
        if not 0 < reply.num_examples < math.inf:
            raise RoundError(f"its weight is {reply.num_examples}")
        if self._weighted and reply.num_examples > MOST_EXAMPLES:
            raise RoundError(
                f"it states {reply.num_examples:.3g} examples, of which {MOST_EXAMPLES:g} count"
            )
        if reply.remote:
            reply.work = [_known(work) for work in reply.work]
        columns = reply.payload
        if reply.remote and phase == TRAIN:
            columns = self._decode(columns, names)
        if columns.keys() != set(names):
            self._refuse_names(sorted(columns), names, phase, reply.remote)
        bound = self._bounds.get(phase, math.inf)
        if reply.remote:  # values of this process's own clients have no limit
            bound = min(bound, self._largest)
        longest = 0.0
        for name, column in columns.items():
            if phase == QUERY or name in self._numbers:
                summed = isinstance(column, Summed)
                numbers = [float(column.total())] if summed else column
                _check_numbers(name, numbers)
                if reply.remote:
                    longest = max(longest, *map(abs, numbers))
            else:
                square = self._check(name, column, len(reply.clients), bound * bound)
                longest = max(longest, math.sqrt(square))
        if reply.remote:
            reply.longest = longest
        return columns

    def check_state(self, state: Any, server_round: int) -> None:
        """Raise unless the arrays of a new state are finite.

        Raises
        ------
        DivergedError
            If they are not finite; the round is then not applied.
        """
        for value in state:
            if not isinstance(value, np.ndarray) or squared_norm(value) < math.inf:
                continue
            if not np.isfinite(value).all():
                raise DivergedError(
                    f"round {server_round}: the replies lead to a model that is not finite, and "
                    f"are not applied. The run diverges: use smaller steps, or drop uploads that "
                    f"are too long (norm_bound)"
                )

    def _decode(self, parts: Payload, names: tuple[str, ...]) -> Payload:
        """Return the declared values from the arrays of a message ("atom.code", ...)."""
        encoded: dict[str, dict[str, Array]] = {}
        numbers = {name: parts[name] for name in names if name in self._numbers and name in parts}
        for key, (array,) in parts.items():
            if key in numbers:
                continue
            if not isinstance(array, np.ndarray):
                raise ConfigError(f"{key!r} is {array!r}, expected an array")
            name, _, part = key.partition(".")
            encoded.setdefault(name, {})[part] = array
        if encoded.keys() | numbers.keys() != set(names):
            self._refuse_names(sorted(encoded), names, TRAIN, remote=True)
        decode = self._strategy.decode
        return {**{name: [decode(name, part)] for name, part in encoded.items()}, **numbers}

    def _refuse_names(
        self, found: list[str], names: tuple[str, ...], phase: str, remote: bool
    ) -> None:
        if remote:  # perhaps from another program: it must not end the run
            raise ConfigError(f"it holds {found}, expected {sorted(names)}")
        kind, name = type(self._strategy).__name__, self._strategy.name
        verb, declared = ("answers", "queries") if phase == QUERY else ("uploads", "uplink")
        client = self._strategy.client_side()
        places = client.__name__, kind
        if is_ours(client):
            places = f"clients/{name}.py", f"strategies/{name}.py"
        raise AlgorithmError(
            f"the client of {kind} {verb} {found}, and {kind} declares {sorted(names)}: correct "
            f"the names in {places[0]}, or `{declared}` in {places[1]}"
        )

    def _check(self, name: str, column: Any, count: int, most: float) -> float:
        """Return the largest squared norm of single values, as far as it is computed.

        Raises
        ------
        ConfigError, DivergedError
            Unless each value has its shape and type, and `most` bounds its square.
        """
        largest = 0.0
        shape = self._shapes.get(name, self._layout.shape)
        dtype = self._layout.array_dtype
        values, lead, one, bounded = column, 0, shape, most < math.inf
        if not isinstance(column, list):
            values, shape, lead = [column], (count, *shape), 1
        for value in values:
            given = getattr(value, "dtype", None)
            # It is usually one object, and `is` is faster than ==; NumPy takes None for a dtype.
            alike = given is dtype or (given is not None and given == dtype)
            if not alike or value.shape != shape:
                if given is None:
                    raise ConfigError(f"{name!r} is {value!r}, expected an array")
                raise ConfigError(
                    f"{name!r} has shape {value.shape[lead:]} and dtype {value.dtype}, "
                    f"expected {one} and {self._layout.dtype}"
                )
            # One pass for both checks: if a value is not finite, its squared norm is not finite.
            if isinstance(value, np.ndarray):
                square = squared_norm(value)
                if not square < most:
                    square = _check_norms(name, value if lead else value[None], most)
                largest = max(largest, float(square))
            elif lead and isinstance(value, Summed):
                _check_norms(name, value.total()[None], math.inf)
            elif bounded and isinstance(value, Compressed):
                largest = max(largest, _check_norms(name, value.dense()[None], most))
        return largest


def largest_norm(dtype: np.dtype[Any]) -> float:
    """Return the largest norm accepted from another process: its cube is still finite.

    >>> f"{largest_norm(np.dtype('float64')):.2g}, {largest_norm(np.dtype('float32')):.2g}"
    '5.6e+102, 7e+12'
    """
    largest: float = float(np.finfo(dtype).max) ** (1 / 3)
    return largest


def _check_norms(name: str, values: Array, most: float) -> float:
    """Return the largest squared norm of stacked values, if they are finite and `most` bounds it.

    Raises
    ------
    DivergedError
    """
    if not np.isfinite(values).all():
        raise DivergedError(
            f"{name!r} holds non-finite values: check the data, or use smaller steps"
        )
    longest = max(float(squared_norm(value)) for value in values)
    if longest > most:
        raise DivergedError(
            f"{name!r} has norm {math.sqrt(longest):.3g}, more than {math.sqrt(most):.3g} "
            "(norm_bound, or the limit of arithmetic): check the data, or use smaller steps"
        )
    return longest


def _known(work: Mapping[str, Any]) -> dict[str, float]:
    """Return a client's counts of its work, those with a column in the history."""
    return {n: work[n] for n in WORK if usable(work.get(n)) and 0 <= work[n] <= _MOST_WORK}


def _check_numbers(name: str, column: Any) -> None:
    """Raise unless the answers to a query are numbers that can be averaged."""
    for value in column:
        if not usable(value):
            raise ConfigError(f"{name!r} is {value!r}, expected a finite number")
        if name == "steps" and value < 1:
            raise ConfigError(f"{name!r} is {value!r}, expected a number >= 1")


def column_bytes(column: Any) -> int:
    """Return the bytes of a column's values on the wire, each sent separately.

    >>> column_bytes([1.0, 2.0]), column_bytes(np.zeros((3, 10)))
    (16, 624)
    """
    if isinstance(column, np.ndarray):
        return len(column) * array_bytes(column.shape[1:], column.dtype)
    if not isinstance(column, list):
        return int(column.stack_bytes)
    first = column[0]
    if isinstance(first, np.ndarray):  # the gate has checked that they have the same form
        return len(column) * array_bytes(first.shape, first.dtype)
    if isinstance(first, float | int):
        return len(column) * SCALAR_BYTES
    if isinstance(first, Atom):
        return first.bytes_of(column)
    return sum([value.nbytes for value in column])
