"""Compressed uploads: what clients send instead of an array, and how the server reads it.

A client compresses the difference of its upload from a value that both sides know. This value is 0
for a change and the model that was sent for a point; `EF21` adds a memory to it. The server reads
this value plus what was sent, and the method uses the result on both sides. A method whose uploads
are already differences from a memory (`own_memory`) gets no second memory.

A memory is part of the client's state, and changes with it: only if the reply was used. The server
holds the memory of each client, not their mean alone: it needs those of a cohort's members, and a
client that has lost its memory can start again from 0 without a bias.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.compressors import EF21, Compressor, Identity, dense
from flower_fedcon.core.method import Method
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.protocol import Reply
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

SETTING = "compression"


class Remembering(NamedTuple):
    """A client's state in a run with `EF21`."""

    state: Any  # the method's state; None if its clients keep none
    memory: dict[str, Array]  # m_i by the name of the upload, shape (..., *model); {} at first


class Form(NamedTuple):
    """How the arrays of a run are compressed."""

    compressor: Compressor
    feedback: bool  # whether there is a memory in addition to the method's
    scale: float  # of the values that are read

    @classmethod
    def of(cls, rule: EF21 | Compressor, size: int, own_memory: bool) -> Form:
        """Return the form of a rule, for models of `size` entries.

        Raises
        ------
        ConfigError
            If it is not a compression rule, or keeps more entries than the model has.
        """
        if not isinstance(rule, EF21 | Compressor):
            raise ConfigError(f"compression must be a compressor or EF21(...), got {rule!r}")
        if isinstance(rule, EF21):
            return cls(rule.compressor, not own_memory, rule.scale(size))
        rule.q(size)
        return cls(rule, False, 1.0)

    def moved(self, memory: Array | float, sent: Any) -> Array:
        """Return the value read from `sent`; with a memory, also the memory's new value."""
        read: Array = dense(sent)
        if self.scale != 1:
            read = self.scale * read
        return memory + read if self.feedback else read


class Received:
    """The server's side: it reads compressed uploads.

    Parameters
    ----------
    strategy : Method
        Bound to the run's setup, with `compression`.
    """

    def __init__(self, strategy: Method[Any]) -> None:
        setup = strategy.setup
        self._form = form_of(strategy)
        self._about, names = strategy.release.about, compressed(strategy)
        zeros = np.zeros(setup.layout.shape, setup.layout.array_dtype)
        self._mirror = Mirror({})
        if self._form.feedback:
            self._mirror = Mirror.of(setup.num_clients, **dict.fromkeys(names, zeros))
        self._names, self._moved = names, dict[int, Payload]()

    def replies(
        self, replies: Sequence[Reply], down: Payload, fresh: Collection[int]
    ) -> list[Reply]:
        """Return replies as if clients had sent the values that are read; no memory changes.

        Parameters
        ----------
        replies : sequence of Reply
        down : dict
            The broadcast.
        fresh : collection of int
            The clients that have lost their state, and with it their memory, in this round.
        """
        self._moved, received = {}, []
        for reply in replies:
            payload = dict(reply.payload)
            for name in self._names & payload.keys():
                center = down[self._about[name]] if name in self._about else None
                column: list[Array] = []
                for client, sent in zip(reply.clients, payload[name], strict=True):
                    held: Array | float = 0.0
                    if self._form.feedback and client not in fresh:
                        held = self._mirror.rows[name][client]
                    moved = self._form.moved(held, sent)
                    self._moved.setdefault(client, {})[name] = moved
                    column.append(moved if center is None else center + moved)
                payload[name] = column
            received.append(replace(reply, payload=payload, longest=math.inf))
        return received

    def one_by_one(
        self, pairs: Sequence[tuple[Reply, Payload]], fresh: Collection[int]
    ) -> list[Reply]:
        """Return `replies` of replies to different broadcasts, each given with its own."""
        moved: dict[int, Payload] = {}
        received = []
        for reply, down in pairs:
            received += self.replies([reply], down, fresh)
            moved |= self._moved
        self._moved = moved
        return received

    def keep(self) -> None:
        """Update the memories of the clients whose replies have been applied."""
        if self._form.feedback:
            for client, values in self._moved.items():
                self._mirror.put(client, **values)

    def snapshot(self) -> Mirror:
        """Return what a checkpoint holds: the memories."""
        return self._mirror

    def resume(self, mirror: Mirror) -> None:
        """Continue from a checkpoint."""
        self._mirror = mirror


def form_of(strategy: Method[Any]) -> Form:
    """Return how a run of this strategy compresses."""
    assert strategy.compression is not None  # noqa: S101  (the callers' case)
    own_memory = strategy.client_side().own_memory
    return Form.of(strategy.compression, strategy.setup.layout.size, own_memory)


def compressed(strategy: Method[Any]) -> set[str]:
    """Return the names of the uploads that are compressed: all except numbers."""
    return {name for name in strategy.uplink if name not in strategy.numbers}


def decoded(strategy: Method[Any], name: str, parts: Mapping[str, Array]) -> Any:
    """Return a compressed upload from its arrays on the wire.

    Raises
    ------
    ConfigError
        If the compressor does not send such arrays.
    """
    rule, layout = strategy.compression, strategy.setup.layout
    compressor = rule.compressor if isinstance(rule, EF21) else rule
    assert compressor is not None  # noqa: S101  (the caller's case)
    return compressor.decode(parts, strategy.upload_shape(name, layout), layout.array_dtype)


def check_argument(strategy: Method[Any]) -> None:
    """Raise unless `compression` is None or a rule that the method can use.

    Raises
    ------
    ConfigError
        With the reason, and the remedy if there is one.
    """
    rule, title = strategy.compression, strategy.title
    if rule is None:
        return
    if not isinstance(rule, EF21 | Compressor) or isinstance(rule, Identity):
        raise ConfigError(
            "compression must be a compressor of flower_fedcon.compressors, such as "
            "QSGD(levels=8), or error feedback with one, EF21(TopK(fraction=0.1)), or None, got "
            f"{rule!r}"
        )
    if strategy.needs_uncompressed:
        raise ConfigError(
            f"{title} takes no compression={rule!r}: {strategy.needs_uncompressed}; `fedcon info` "
            "says which methods take it"
        )
    if isinstance(rule, Compressor) and not rule.unbiased:
        raise ConfigError(
            f"compression={rule!r} is biased, and alone would drop the same entries in each round: "
            f"give error feedback, compression=EF21({rule!r})"
        )
    if isinstance(rule, Compressor) and strategy.client_side().state_type is not None:
        raise ConfigError(
            f"{title} takes no compression={rule!r} alone, since its errors would add up in the "
            f"states of clients and server: give compression=EF21({rule!r}), which damps them"
        )
    if strategy.aggregation is not None:
        raise ConfigError(
            f"{title} takes aggregation={strategy.aggregation!r} only without compression, got "
            f"{rule!r}: the errors of compression cancel only in the mean, or over the rounds"
        )
    if strategy.privacy is not None:
        raise ConfigError(
            f"{title} takes privacy=... only without compression, got {rule!r}: with a memory an "
            f"upload also reveals earlier rounds, which the accountant does not count"
        )


def check_setup(strategy: Method[Any]) -> None:
    """Raise unless a strategy that is bound to a run can compress its uploads.

    Raises
    ------
    ConfigError
    """
    if strategy.compression is None:
        return
    form_of(strategy)
    if strategy.setup.any_own_loop:
        raise ConfigError(
            f"{strategy.title} takes no compression=... here, since your own train loops send "
            f"their arrays uncompressed: give nodes an objective, such as a TorchObjective"
        )
