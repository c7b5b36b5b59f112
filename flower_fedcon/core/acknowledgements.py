"""Exactly-once client state: pending, acknowledged, kept or lost.

The state that a step leaves is *pending* until the server says, in a later message, that it used
the reply that came with it; then it is *acknowledged*, and the next step builds on it. A pending
state that is not acknowledged is dropped: a reply that was late, refused or lost changes nothing.
The acknowledged state that the server's last checkpoint refers to is *kept* as well, in case the
server falls back to that checkpoint. A client that does not have the state that the server refers
to has *lost* it.

A server refers to a state by the round of the reply that came with it, 0 for none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from flower_fedcon.errors import AlgorithmError
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

Rounds = TypeVar("Rounds", int, Array)
"""A round, or an array with one for each client."""


def stepped(client: Any, state: Any, down: Payload) -> tuple[Payload, Any]:
    """Return the upload and the next state of a client's step.

    Raises
    ------
    AlgorithmError
        If the step does not return a pair, as may happen in a client of your own.
    """
    done = client.step(state, down)
    if type(done) is tuple and len(done) == 2 and isinstance(done[0], Mapping):
        return done
    what = f"a tuple of {len(done)}" if isinstance(done, tuple) else f"a {type(done).__name__}"
    if isinstance(done, tuple) and len(done) == 2:
        what = f"a pair that begins with a {type(done[0]).__name__}"
    raise AlgorithmError(
        f"{type(client).__name__}.step returns {what}: let it return a pair, the upload as a dict "
        f'and the state to keep (None without state), such as `return {{"delta": v - w}}, None`'
    )


def confirms(acknowledged: Rounds, pending: Rounds) -> Any:
    """Return whether the server acknowledges the pending state.

    >>> confirms(3, 3), confirms(2, 3), confirms(0, 0)
    (True, False, False)
    """
    return (acknowledged == pending) & (acknowledged > 0)


def stands(acknowledged: Rounds, known: Rounds) -> Any:
    """Return whether the server refers to the state that is already acknowledged, or to none.

    >>> stands(2, 2), stands(3, 2), stands(0, 2)
    (True, False, True)
    """
    return (acknowledged == known) | (acknowledged == 0)


def in_one_round(server_round: int, count: int) -> Array:
    """Return a read-only array of `count` equal rounds that takes the memory of one number.

    >>> in_one_round(7, 3)
    array([7, 7, 7])
    """
    number = int(server_round).to_bytes(8, sys.byteorder)
    return np.ndarray((count,), np.int64, number, strides=(0,))


def are_in_one_round(rounds: Array, server_round: int) -> bool:
    """Return whether `in_one_round` made these rounds, of this round; takes no pass over them.

    >>> are_in_one_round(in_one_round(7, 3), 7), are_in_one_round(np.array([7, 7, 6]), 7)
    (True, False)
    """
    return rounds.strides == (0,) and bool(rounds[0] == server_round)


class Versions(NamedTuple):
    """One client's states.

    Attributes
    ----------
    round : int
        The round whose reply came with `acknowledged`; 0 before any was used.
    acknowledged : NamedTuple or None
    pending_round : int
        The round of `pending`; 0 if there is none.
    pending : NamedTuple or None
    held_round : int
        The round of `held`; 0 if there is none.
    held : dict or None
        What a query left for the step of the same round.
    kept_round : int
        The round of `kept`; 0 for none.
    kept : NamedTuple or None
    incarnation : int
        The server's incarnation that this client answered last.
    slot : int
        The place, 0 or 1, where the stacked engine stores `acknowledged`.
    """

    round: int = 0
    acknowledged: Any = None
    pending_round: int = 0
    pending: Any = None
    held_round: int = 0
    held: Any = None
    kept_round: int = 0
    kept: Any = None
    incarnation: int = 0
    slot: int = 0

    def at(self, acknowledged: int) -> Any:
        """Return the state that the server refers to; None if it is lost."""
        if 0 < acknowledged == self.pending_round:  # `confirms`, for one client
            return self.pending
        if acknowledged == self.round:
            return self.acknowledged
        return self.kept if acknowledged == self.kept_round else None

    def after_query(
        self, known: int, state: Any, server_round: int, held: Any, kept: int, incarnation: int
    ) -> Versions:
        """Return the versions after a query, whose values for the step are held."""
        old = self.at(kept) if kept else None
        return Versions(known, state, 0, None, server_round, held, kept, old, incarnation)

    def after_step(
        self, known: int, state: Any, server_round: int, pending: Any, kept: int, incarnation: int
    ) -> Versions:
        """Return the versions after a step: the state that it left is pending."""
        old, held = self.at(kept) if kept else None, self.held
        # By position, without a call of Versions: this runs once for each step of each client.
        held_round, slot = self.held_round, 0
        values = (
            known, state, server_round, pending, held_round, held, kept, old, incarnation, slot
        )  # fmt: skip
        return tuple.__new__(Versions, values)

    def outdated(self, server_round: int, incarnation: int) -> bool:
        """Return whether a request is older than one that was already answered.

        A restarted server may ask for earlier rounds; an older incarnation is always outdated.
        """
        if incarnation != self.incarnation:
            return incarnation < self.incarnation
        return server_round < self.pending_round


class Stateful(Protocol):
    """The functions that make the states of an algorithm's clients."""

    def initialize(self, down: Payload) -> Any:
        """Return the state of a client at its first contact."""

    def restore(self, down: Payload, given: Payload) -> Any:
        """Return the state of a client that is readmitted."""


def state_before(
    client: Stateful,
    acknowledged: int,
    down: Payload,
    given: Payload | None,
    known: Callable[[int], Any],
) -> Any:
    """Return the state that a step builds on; None if it is lost.

    If the server hands a state back (`given`), it is that one. For a client that the server has not
    heard from, it is the initial state. Otherwise it is the state that the server refers to.
    """
    if given is not None:
        return client.restore(down, given)
    if acknowledged == 0:
        return client.initialize(down)
    return known(acknowledged)


class Acknowledgements:
    """The server's side: the round of each client's last reply that was used.

    Attributes
    ----------
    kept : array of int, shape (N,)
        `rounds` as of the last checkpoint; 0 for a client none of whose replies was used.
    """

    def __init__(self, num_clients: int) -> None:
        self._rounds = self.kept = np.zeros(num_clients, np.int64)
        self._given = True  # whether `_rounds` has been handed out, and must not change

    @property
    def rounds(self) -> Array:
        """The round of each client's last reply that was used; an array that never changes."""
        self._given = True
        return self._rounds

    @rounds.setter
    def rounds(self, rounds: Array) -> None:
        self._rounds, self._given = rounds, True

    def used(self, clients: list[int], rounds: int | Sequence[int]) -> None:
        """Acknowledge replies that were used: of one round, or of one for each client."""
        if isinstance(rounds, int) and len(clients) == len(self._rounds):
            self._rounds, self._given = in_one_round(rounds, len(clients)), True
            return
        if self._given:
            self._rounds = self._rounds.copy()
        self._rounds[clients] = rounds
        self._given = False

    def of(self, clients: list[int]) -> tuple[Array, Array]:
        """Return `rounds` and `kept` of some clients, ascending; these arrays never change."""
        if len(clients) == len(self._rounds):
            return self.rounds, self.kept
        return self._rounds[clients], self.kept[clients]

    def keep(self) -> None:
        """Note that a checkpoint has been written, to which a later start may fall back."""
        self.kept = self.rounds

    def restore(self, rounds: Sequence[int] | Array) -> None:
        """Continue from a checkpoint."""
        self.rounds = np.array(rounds, dtype=np.int64)
        self.keep()
