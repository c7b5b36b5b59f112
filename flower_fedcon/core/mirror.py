"""The server's copy of what every client holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from flower_fedcon.arrays import added, placed
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class Mirror(NamedTuple):
    """The server's copy of client states: for each name, an array with a row for each client.

    It is part of a strategy's state, and saved with it. `put` and `add` change its rows in place,
    so `aggregate` calls them last, when nothing can fail any more.

    Attributes
    ----------
    rows : dict of array
        Name -> rows, shape (N, *x0).

    Examples
    --------
    >>> mirror = Mirror.of(2, c=np.zeros(3))
    >>> mirror.add([1], c=np.ones((1, 3)))
    >>> mirror.rows["c"][1], mirror.row(0)
    (array([1., 1., 1.]), {'c': array([0., 0., 0.])})
    """

    rows: dict[str, Array]

    @classmethod
    def of(cls, num_clients: int, **start: Array) -> Self:
        """Return the mirror of clients that all start from these arrays, of x0's shape."""
        return cls({name: np.repeat(x[None], num_clients, axis=0) for name, x in start.items()})

    def put(self, clients: int | Sequence[int], **values: Array) -> None:
        """Replace the values of one client, or the stacked values of several."""
        for name, value in values.items():
            rows = self.own(name)
            everyone = not isinstance(clients, int) and len(clients) == len(rows)
            self.rows[name] = placed(rows, slice(None) if everyone else clients, value)

    def add(self, clients: Sequence[int], **changes: Array) -> None:
        """Add changes to the values of some clients: by name, stacked over these clients."""
        for name, change in changes.items():
            rows = self.own(name)
            everyone = len(clients) == len(rows)
            self.rows[name] = added(rows, slice(None) if everyone else clients, change)

    def follow(self, uploads: Uploads, **names: str) -> None:
        """Add to each client's values what it has uploaded by these names."""
        for name, uploaded in names.items():
            if not uploads.are_apart(uploaded):
                self.add(uploads.clients, **{name: uploads.stacked(uploaded)})
                continue
            rows = self.own(name)
            for client, change in uploads.items(uploaded):
                rows[client] += change

    def take(self, **rows: Array) -> None:
        """Take the arrays of all clients' states without a copy; both sides only read them now.

        A side that needs to write makes its own copy first.
        """
        for name, taken in rows.items():
            taken.flags.writeable = False
            self.rows[name] = taken

    def copy(self) -> Self:
        """Return a mirror with the same values, and rows of its own."""
        return type(self)({name: rows.copy() for name, rows in self.rows.items()})

    def own(self, name: str) -> Array:
        """Return the rows of one name to change: a copy, if an engine shares them."""
        rows = self.rows[name]
        if not rows.flags.writeable:
            rows = self.rows[name] = rows.copy()
        return rows

    def some(self, name: str, clients: Sequence[int]) -> Array:
        """Return the rows of some clients (ascending) for reading."""
        rows = self.rows[name]
        return rows if len(clients) == len(rows) else rows[clients]

    def row(self, client: int) -> Payload:
        """Return what one client holds, in the form that is sent to a client that has lost it."""
        return {name: rows[client].copy() for name, rows in self.rows.items()}
