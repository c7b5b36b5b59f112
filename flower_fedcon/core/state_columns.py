"""The states of many clients in arrays, for an engine and for a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

import numpy as np

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.validation import Array

ARRAY = "array"
"""Marks an array in a state's form; everything else has the same value for all clients."""
_ROUNDS = ("round", "pending_round", "slot")


class StateColumns(Sequence[Versions]):
    """The `Versions` of many clients: one array for each field of their states.

    A client's states lie in two places, 0 and 1; `slot` says which one is acknowledged. The arrays
    of a place have rows for the clients with a state there, in client order.

    Parameters
    ----------
    state_type : type
        The state of one client, a NamedTuple.
    incarnation : int
        The server's incarnation that the clients answered last.
    round, pending_round, slot : array of int, shape (N,)
        For each client, as in `Versions`.
    kind : array of int, shape (2, N)
        For each place and client, which of `forms` its state has, counted from 1; 0 for no state.
    forms : sequence of tuple
        The forms that states have: for each field `ARRAY`, or a plain value.
    arrays : pair of dict
        For each place, the arrays of the clients that have a state there, by field.

    Examples
    --------
    >>> from flower_fedcon.clients.mifa import MIFAClientState
    >>> rounds, none = np.array([3, 0]), np.zeros(2, int)
    >>> form, g = (ARRAY, 0.0), np.ones((1, 2))
    >>> kind, arrays = np.array([[1, 0], [0, 0]]), ({"g": g}, {})
    >>> columns = StateColumns(MIFAClientState, 1, rounds, none, none, kind, [form], arrays)
    >>> columns[0].acknowledged, columns[1].round
    (MIFAClientState(g=array([1., 1.]), resets=0.0), 0)
    """

    def __init__(
        self,
        state_type: type[Any],
        incarnation: int,
        round: Array,
        pending_round: Array,
        slot: Array,
        kind: Array,
        forms: Sequence[tuple[Any, ...]],
        arrays: tuple[dict[str, Array], dict[str, Array]],
    ) -> None:
        self.state_type, self.incarnation = state_type, incarnation
        self.round, self.pending_round, self.slot, self.kind = round, pending_round, slot, kind
        self.forms, self.arrays = list(forms), arrays
        self._place = [np.cumsum(row > 0) - 1 for row in kind]  # of each client, in the arrays

    def __len__(self) -> int:
        return len(self.round)

    @overload
    def __getitem__(self, client: int) -> Versions: ...
    @overload
    def __getitem__(self, client: slice) -> list[Versions]: ...
    def __getitem__(self, client: int | slice) -> Versions | list[Versions]:
        if isinstance(client, slice):
            return [self[one] for one in range(len(self))[client]]
        last, pending = int(self.round[client]), int(self.pending_round[client])
        slot = int(self.slot[client])
        return Versions(
            round=last,
            acknowledged=self._state(slot, client) if last else None,
            pending_round=pending,
            pending=self._state(1 - slot, client) if pending else None,
            incarnation=self.incarnation,
            slot=slot,
        )

    def _state(self, place: int, client: int) -> Any:
        kind = int(self.kind[place, client])
        if kind == 0:
            return None
        row, arrays = int(self._place[place][client]), self.arrays[place]
        pairs = zip(self.state_type._fields, self.forms[kind - 1], strict=True)
        return self.state_type(*(arrays[n][row] if v is ARRAY else v for n, v in pairs))

    def to_tree(self) -> dict[str, Any]:
        """Return the content of a state file, in which each form is a state without its arrays."""
        forms = self.forms or [(ARRAY,) * len(self.state_type._fields)]  # it gives the type
        return {
            **{name: getattr(self, name) for name in (*_ROUNDS, "kind", "incarnation")},
            "forms": [self.state_type(*([] if v is ARRAY else v for v in form)) for form in forms],
            "arrays": list(self.arrays),
        }

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> Self:
        """Return the columns that `to_tree` described; any error means that they do not fit."""
        rounds, kind = [tree[name] for name in _ROUNDS], tree["kind"]
        states, arrays = tree["forms"], tree["arrays"]
        n, types = len(rounds[0]), {type(state) for state in states}
        whole = all(array.dtype == np.int64 and array.min() >= 0 for array in (*rounds, kind))
        shapes = [array.shape for array in rounds] == [(n,)] * 3 and kind.shape == (2, n)
        if not (whole and shapes and len(types) == 1 and rounds[2].max() <= 1):
            raise ValueError("the clients' rounds are inconsistent")
        forms = [tuple(ARRAY if v == [] else v for v in state) for state in states]
        if kind.max() > len(forms) or len(arrays) != 2:
            raise ValueError("the clients' states are inconsistent")
        (state_type,) = types
        fields = state_type._fields
        for row, columns in zip(kind, arrays, strict=True):
            used = [forms[i - 1] for i in np.unique(row).tolist() if i]
            names = {n for form in used for n, v in zip(fields, form, strict=True) if v is ARRAY}
            counts = {len(array) for array in columns.values()}
            if columns.keys() != names or counts - {np.count_nonzero(row)}:
                raise ValueError("the clients' arrays are not as many as their states")
        incarnation, pair = int(tree["incarnation"]), (arrays[0], arrays[1])
        last, pending, slot = rounds
        return cls(state_type, incarnation, last, pending, slot, kind, forms, pair)
