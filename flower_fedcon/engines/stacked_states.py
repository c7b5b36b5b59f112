"""The states of all clients, in arrays.

A client's state has two places, in two arrays of all clients' states: one for the acknowledged
state, the other for the pending one. An acknowledgement swaps the two. If everyone takes part in
each round, the notes on clients are the same for all, and kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flower_fedcon.core.acknowledgements import Versions, are_in_one_round, confirms, stands
from flower_fedcon.core.state_columns import ARRAY, StateColumns
from flower_fedcon.objectives.cohorts import Which
from flower_fedcon.sets.atoms import Atom, CoordinateAtom
from flower_fedcon.validation import Array


class _Alike:
    """The notes on clients, if they are the same for everyone."""

    def __init__(self, slot: int, kinds: list[int]) -> None:
        self.round = self.pending_round = 0
        self.slot, self.kinds = slot, kinds


class States:
    """Versions of all clients' states.

    Parameters
    ----------
    state_type : type
        The state of one client, a NamedTuple; here its arrays have a leading client axis.
    num_clients : int
    axes : int
        Number of axes of the model.
    """

    def __init__(self, state_type: type[Any], num_clients: int, axes: int) -> None:
        n = num_clients
        self._type, self._axes, self._num_clients = state_type, axes, n
        # For each client: rounds, the acknowledged place, and the kinds of its states.
        self._round, self._pending_round = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._slot = np.zeros(n, np.int64)
        self._mixed = False  # whether the acknowledged places of served clients differ
        self._awaited = 0  # the round in which everyone replied, not acknowledged yet
        self._alike: _Alike | None = None  # replaces the arrays above, which are older
        self._kind = np.zeros((2, n), np.int64)
        self._kinds: list[tuple[Any, ...] | None] = [None]
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._arrays: tuple[dict[str, Array], dict[str, Array]] = ({}, {})

    # --- rounds ----------------------------------------------------------------------------------

    def acknowledge_everyone(self, acknowledged: Array) -> bool:
        """Acknowledge the last round's replies, if everyone replied from equal states.

        Returns
        -------
        bool
            Whether this holds; the clients can then be served together.
        """
        last, self._awaited = self._awaited, 0
        if not last or len(acknowledged) < self._num_clients:
            return False
        if not are_in_one_round(acknowledged, last) and not every(acknowledged == last):
            return False
        alike = self._alike
        if alike is None:
            if self._mixed:
                self._slot ^= 1
                self._round.fill(last)
                self._pending_round.fill(0)
                return True
            alike = self._alike = _Alike(int(self._slot[0]), self._kind[:, 0].tolist())
        self._arrays[alike.slot].clear()  # outdated; the next pending state may reuse it
        alike.slot ^= 1
        alike.round, alike.pending_round = last, 0
        return True

    def _note_each(self) -> None:
        """Copy the notes on everyone to each client."""
        if (alike := self._alike) is not None:
            self._alike = None
            self._slot.fill(alike.slot)
            self._round.fill(alike.round)
            self._pending_round.fill(alike.pending_round)
            self._kind[:] = np.reshape(alike.kinds, (2, 1))

    def acknowledge(self, clients: Array, acknowledged: Array) -> Array:
        """Acknowledge single replies; return which clients have the state referred to."""
        self._note_each()
        rows = as_rows(clients)
        used = confirms(acknowledged, self._pending_round[rows])
        everyone = every(used)
        mine = rows if everyone else clients[used]
        self._slot[mine] ^= 1
        self._round[mine] = acknowledged if everyone else acknowledged[used]
        self._pending_round[mine] = 0
        here: Array = used if everyone else stands(acknowledged, self._round[rows])
        return here

    def all_pending(self, server_round: int) -> None:
        """Note that everyone has done a round's step, from equal states."""
        self._awaited = server_round

    def keys(self, clients: Array, acknowledged: Array) -> Array:
        """Return numbers that are equal for clients whose states can be stacked."""
        rows = as_rows(clients)
        slot = self._slot[rows]
        self._mixed = not every(slot == slot[0])
        kind = np.where(slot, self._kind[1, rows], self._kind[0, rows])
        keys: Array = np.where(acknowledged > 0, kind, 0)
        return keys

    # --- states ----------------------------------------------------------------------------------

    def read(self, clients: Array, rows: Which) -> Any:
        """Return the acknowledged states of equal clients as one, with stacked arrays."""
        if (alike := self._alike) is not None:
            return self._read(alike.slot, alike.kinds[alike.slot], rows)
        slot = int(self._slot[clients[0]])
        kind = int(self._kind[slot, clients[0]])
        if not self._mixed:
            return self._read(slot, kind, rows)
        slots = self._slot[clients]
        if every(slots == slot):
            return self._read(slot, kind, rows)
        first, second = (self._read(place, kind, rows) for place in (0, 1))
        return self._type(*(_chosen(slots, a, b) for a, b in zip(first, second, strict=True)))

    def acknowledged(self, client: int, acknowledged: int) -> Any:
        """Return the state of one client that the server refers to, without a change."""
        self._note_each()
        slot = int(self._slot[client]) ^ int(confirms(acknowledged, self._pending_round[client]))
        kind = int(self._kind[slot, client])
        return None if not acknowledged or kind == 0 else self._read(slot, kind, client)

    def everyone(self, acknowledged: Array) -> Any:
        """Return all clients' states that the server refers to as one, with stacked arrays.

        A client that the server has not heard from has any entries in them. None if a state is
        missing, or they differ in more than their arrays' entries.
        """
        self._note_each()
        used = confirms(acknowledged, self._pending_round)
        slot = self._slot ^ used
        kind = np.where(slot, self._kind[1], self._kind[0])
        known = acknowledged > 0
        first = int(known.argmax())
        here = ~known | ((used | (acknowledged == self._round)) & (kind == kind[first]))
        if not known[first] or not every(here) or kind[first] == 0:
            return None
        slot, kind = np.where(known, slot, slot[first]), kind[first:]
        rows = slice(0, self._num_clients)
        if every(slot == slot[0]):
            return self._read(int(slot[0]), int(kind[0]), rows)
        first, second = (self._read(s, int(kind[0]), rows) for s in (0, 1))
        pairs = zip(first, second, strict=True)
        return self._type(*(_chosen(slot, a, b) for a, b in pairs))

    def hold(self, state: Any, acknowledged: Array) -> None:
        """Hold all clients' stacked states as acknowledged in these rounds."""
        self._note_each()
        self._awaited = 0
        self._slot.fill(0)
        self._pending_round.fill(0)
        self._round[:] = acknowledged
        self._kind[0] = self._write(0, slice(0, self._num_clients), state)

    def readmit(self, clients: Array, rows: Which, acknowledged: Array, state: Any) -> None:
        """Take states that the server hands back."""
        self._note_each()
        for place, which, part in self._by_place(clients, rows, state):
            self._kind[place, which] = self._write(place, which, part)
        self._round[rows] = acknowledged

    def set_pending(
        self, clients: Array, rows: Which, rounds: int | Array, state: Any, uploads: Iterable[Any]
    ) -> None:
        """Hold the states after a step as pending, of one round or of one for each client.

        The step also returned `uploads`.
        """
        if (alike := self._alike) is not None:
            if isinstance(rounds, int) and self._is_everyone(rows):
                place = 1 - alike.slot
                alike.kinds[place] = self._write(place, rows, state, uploads)
                alike.pending_round = rounds
                return
            self._note_each()
        for place, which, part in self._by_place(clients, rows, state):
            self._kind[1 - place, which] = self._write(1 - place, which, part, uploads)
        self._pending_round[rows] = rounds

    def _by_place(
        self, clients: Array, rows: Which, state: Any
    ) -> Iterable[tuple[int, Which, Any]]:
        """Yield each acknowledged place with its clients and their states."""
        if not self._mixed:
            yield int(self._slot[clients[0]]), rows, state
            return
        for place in (0, 1):
            mine = np.flatnonzero(self._slot[clients] == place)
            if mine.size:
                arrays = [isinstance(v, np.ndarray) and v.ndim > self._axes for v in state]
                values = [v[mine] if each else v for v, each in zip(state, arrays, strict=True)]
                yield place, as_rows(clients[mine]), self._type(*values)

    def save(self, incarnation: int) -> StateColumns:
        """Return the clients' states for a checkpoint; they are valid until the next round."""
        self._note_each()
        acknowledged, pending = self._round > 0, self._pending_round > 0
        here = [np.where(self._slot == place, acknowledged, pending) for place in (0, 1)]
        kind = np.where(here, self._kind, 0)
        forms = [form for form in self._kinds if form is not None]
        arrays: list[dict[str, Array]] = []
        for kinds, held in zip(kind, self._arrays, strict=True):
            rows = as_rows(np.flatnonzero(kinds)) if kinds.any() else slice(0, 0)
            arrays.append({name: held[name][rows] for name in self._names(kinds)})
        return StateColumns(
            self._type, incarnation, self._round, self._pending_round, self._slot, kind, forms,
            (arrays[0], arrays[1]),
        )  # fmt: skip

    def _names(self, kind: Array) -> set[str]:
        """Return the fields that are arrays in any of these kinds of states."""
        forms = [self._kinds[number] for number in np.unique(kind).tolist()]
        pairs = (zip(self._type._fields, form, strict=True) for form in forms if form is not None)
        return {name for pair in pairs for name, value in pair if value is ARRAY}

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        self._note_each()
        self._awaited = 0
        if isinstance(states, StateColumns):
            self._load_columns(states)
            return
        for client, versions in enumerate(states):
            self._round[client] = versions.round
            self._pending_round[client] = versions.pending_round
            self._slot[client] = slot = versions.slot
            for place, state in ((slot, versions.acknowledged), (1 - slot, versions.pending)):
                if state is not None:
                    self._kind[place, client] = self._write(place, np.array([client]), state)

    def _load_columns(self, states: StateColumns) -> None:
        self._round[:], self._pending_round[:] = states.round, states.pending_round
        self._slot[:] = states.slot
        self._kinds = [None, *states.forms]
        self._numbers = {form: i for i, form in enumerate(self._kinds) if form is not None}
        self._kind[:] = states.kind
        for kinds, held, saved in zip(states.kind, self._arrays, states.arrays, strict=True):
            rows = np.flatnonzero(kinds)
            held.clear()
            for name, values in saved.items():
                held[name] = np.zeros((self._num_clients, *values.shape[1:]), values.dtype)
                held[name][rows] = values

    def _read(self, slot: int, kind: int, rows: Which | int) -> Any:
        form, arrays = self._kinds[kind], self._arrays[slot]
        assert form is not None  # noqa: S101  (written before)
        values, names = list(form), self._type._fields
        for place, value in enumerate(form):
            if value is ARRAY:
                values[place] = arrays[names[place]][rows]
        return self._type._make(values)

    def _write(self, slot: int, rows: Which, state: Any, uploads: Iterable[Any] = ()) -> int:
        """Put states in their place; return their kind."""
        arrays, form, everyone = self._arrays[slot], list(state), self._is_everyone(rows)
        for place, value in enumerate(state):
            if not isinstance(value, np.ndarray):
                continue
            form[place], name = ARRAY, state._fields[place]
            if everyone and self._may_keep(place, state, uploads):
                arrays[name] = value
                continue
            if name not in arrays:
                model = value.shape if value.ndim == self._axes else value.shape[1:]
                arrays[name] = np.zeros((self._num_clients, *model), value.dtype)
            elif not arrays[name].flags.writeable:  # the server's mirror shares it
                arrays[name] = arrays[name].copy()
            arrays[name][rows] = value
        kind = tuple(form)
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        return number

    def _is_everyone(self, rows: Which) -> bool:
        return isinstance(rows, slice) and rows.stop - rows.start == self._num_clients

    def _may_keep(self, place: int, state: Any, uploads: Iterable[Any]) -> bool:
        """Return whether a field's new array needs no copy: nothing else has its memory."""
        new = state[place]
        alone = new.base is None and new.ndim > self._axes and new.flags.carray
        if not alone or len(new) != self._num_clients:
            return False
        for field, other in enumerate(state):
            if field != place and _may_share(new, other):
                return False
        for other in uploads:  # noqa: SIM110  (no generator: faster)
            if _may_share(new, other):
                return False
        return True


_NUMBERS = (int, float)


def every(flags: Array) -> bool:
    """Return whether all entries are true; faster than `all` for a short array."""
    return bool(np.count_nonzero(flags) == flags.size)


def as_rows(places: Array) -> Which:
    """Return ascending positions, as a slice if none is left out."""
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places


def _chosen(slot: Array, first: Any, second: Any) -> Any:
    """Return the first or the second value of each client."""
    if not isinstance(first, np.ndarray):
        return first
    return np.where(slot.reshape(-1, *[1] * (first.ndim - 1)), second, first)


def _may_share(new: Array, other: Any) -> bool:
    """Return whether another value may share the memory of an array that is not a view."""
    if isinstance(other, np.ndarray):
        return other is new or (other.base is not None and np.may_share_memory(new, other))
    if type(other) in _NUMBERS:  # faster than a check of an abstract class
        return False
    return isinstance(other, Atom) and not isinstance(other, CoordinateAtom)
