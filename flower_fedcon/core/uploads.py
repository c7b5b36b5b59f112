"""The uploads of a round that are used, as an algorithm's `aggregate` sees them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flower_fedcon.core.protocol import StackReply
from flower_fedcon.sets.atoms import Atom
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class Uploads:
    """The uploads of a round that are used, in client order.

    Attributes
    ----------
    clients : list of int
        Who sent them, ascending.
    num_clients : int
        N, all clients.
    """

    def __init__(self, uploads: dict[int, Payload], num_clients: int) -> None:
        self.clients = sorted(uploads)
        self.num_clients = num_clients
        self._uploads = uploads

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of one name, in client order."""
        return [self._uploads[client][name] for client in self.clients]

    def items(self, name: str) -> Iterator[tuple[int, Any]]:
        """Yield (client, value)."""
        return zip(self.clients, self[name], strict=True)

    def sum(self, name: str) -> Array:
        """Return the sum over the cohort, in client order; compact forms give a dense sum."""
        values = self[name]
        if isinstance(values[0], Atom):
            return type(values[0]).sum(values)
        first, *others = values
        total: Array = first.copy() if isinstance(first, np.ndarray) else first.dense().copy()
        for value in others:
            if isinstance(value, np.ndarray):
                total += value
            else:
                value.add_to(total)
        return total

    def mean_number(self, name: str) -> float:
        """Return the mean over the cohort of numbers."""
        return math.fsum(self[name]) / len(self.clients)

    def mean(self, name: str) -> Array:
        """Return the mean over the cohort (mean_S)."""
        return self.sum(name) / len(self.clients)


class StackedUploads(Uploads):
    """The uploads of a round as they leave an engine that holds its clients in arrays."""

    def __init__(self, replies: Sequence[StackReply], num_clients: int) -> None:
        self._replies = replies
        self.num_clients = num_clients
        self.clients: list[int] = []
        for reply in replies:
            self.clients += reply.clients.tolist()
        self._sorted = all(a.clients[-1] < b.clients[0] for a, b in pairwise(replies))
        if not self._sorted:
            self._order = np.argsort(self.clients)
            self.clients.sort()

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of one name, in client order."""
        values: list[Any] = []
        for reply in self._replies:
            value = reply.payload[name]
            if isinstance(value, np.ndarray):
                values += list(value)
            else:
                values += [value.part(i) for i in range(len(reply.clients))]
        return values if self._sorted else [values[i] for i in self._order]

    def sum(self, name: str) -> Array:
        """Return the sum over the cohort."""
        values = (reply.payload[name] for reply in self._replies)
        sums = [v.sum(axis=0) if isinstance(v, np.ndarray) else v.total() for v in values]
        total: Array = sums[0]
        for other in sums[1:]:
            total += other
        return total
