"""A round's uploads, as an algorithm's `aggregate` sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.arrays import exact_sum, is_array
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.summed import Summed
from flower_fedcon.errors import AlgorithmError
from flower_fedcon.server.aggregation import Aggregation
from flower_fedcon.sets.atoms import Atom, StackedAtom
from flower_fedcon.validation import PIECE, Array, pieces
from flower_fedcon.wire.payloads import Payload


class Staleness(NamedTuple):
    """How old the models are to which uploads answer, in client order; see `core.flow`."""

    steps: Sequence[int]  # how many steps were done since
    weights: Sequence[float]  # of the uploads in means
    sent: Sequence[Payload]  # what each client was sent
    about: Mapping[str, str]  # for uploads that are points: the name of what was sent


class Uploads:
    """The uploads of a round that are used, in client order.

    Parameters
    ----------
    replies : sequence of Reply
        Those that passed the gate.
    num_clients : int
        N, all clients.
    aggregation : Aggregation, optional
        The rule that replaces the mean over the cohort.
    examples : sequence of float, optional
        Every client's number of examples, if means are weighted by them.
    denominator : float, optional
        The divisor of means, known before the round. A client that does not reply counts as one
        that changed nothing.
    inclusion : array, shape (N,), optional
        Each client's probability of being in the cohort, used to weight its upload in means.
    about : dict of array
        For uploads that are points: their reference point, by name. A client that did not reply
        counts as if it had sent this point.

    Attributes
    ----------
    clients : list of int
        The clients that sent them, ascending.
    num_clients : int
    late : Staleness, optional
        If some answer to earlier models.
    """

    late: Staleness | None = None

    def __init__(
        self,
        replies: Sequence[Reply],
        num_clients: int,
        aggregation: Aggregation | None = None,
        examples: Sequence[float] | None = None,
        denominator: float | None = None,
        about: Mapping[str, Array] | None = None,
        inclusion: Any = None,
    ) -> None:
        self._replies, self.num_clients = replies, num_clients
        self._inclusion = inclusion
        self._denominator, self._about = denominator, about or {}
        self._aggregation, self._examples = aggregation, examples
        if len(replies) == 1:
            self.clients, self._order = replies[0].clients, None
            return
        clients = [client for reply in replies for client in reply.clients]
        self._order = None
        if any(a.clients[-1] >= b.clients[0] for a, b in pairwise(replies)):
            self._order = sorted(range(len(clients)), key=clients.__getitem__)
        self.clients = sorted(clients)

    @property
    def round(self) -> int:
        """The round, from 1."""
        return self._replies[0].round

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of one name, in client order.

        Raises
        ------
        AlgorithmError
            If clients upload nothing under that name.
        """
        for reply in self._replies:
            if name not in reply.payload:
                raise AlgorithmError(
                    f"the strategy asks for {name!r}, and the uploads hold "
                    f"{sorted(reply.payload)}: correct the name, or the strategy's `uplink`"
                )
        if len(self._replies) == 1 and isinstance(column := self._replies[0].payload[name], list):
            return column
        values: list[Any] = []
        for reply in self._replies:
            column = reply.payload[name]
            if isinstance(column, list) or is_array(column):
                values += list(column)
            else:
                values += [column.part(i) for i in range(len(reply.clients))]
        return values if self._order is None else [values[i] for i in self._order]

    def items(self, name: str) -> Iterator[tuple[int, Any]]:
        """Yield (client, value)."""
        return zip(self.clients, self[name], strict=True)

    def sum(self, name: str) -> Array:
        """Return the sum over the cohort as an array, added in client order.

        Stacked columns are summed in the order in which the engine took its clients.

        Raises
        ------
        AlgorithmError
            If the strategy's `aggregation` replaces the mean: a sum would ignore it.
        """
        if self._aggregation is not None:
            raise AlgorithmError(
                f"aggregation={self._aggregation!r} replaces uploads.mean, and this strategy asks "
                f"for uploads.sum({name!r}): use mean, or state in `needs_mean` why not"
            )
        if self._inclusion is not None:
            raise AlgorithmError(
                f"uploads.mean weighs uploads by how often clients take part, and this strategy "
                f"asks for uploads.sum({name!r}): use mean, or state in `needs_uniform` why not"
            )
        return self._sum(name)

    def _sum(self, name: str) -> Array:
        columns = [reply.payload.get(name, []) for reply in self._replies]
        kinds = {*map(type, columns)}
        if list not in kinds or Summed in kinds:
            if len(columns) == 1:
                return _total(columns[0])
            # A client alone in its reply has a long model: no copy of each until they are added.
            return _add([c[0] if is_array(c) and len(c) == 1 else _total(c) for c in columns])
        values = self[name]
        if isinstance(values[0], Atom):
            return type(values[0]).sum(values)
        return _add(values)

    def stacked(self, name: str) -> Any:
        """Return the values of one name with a leading client axis: an array, or atoms.

        Nothing is copied if an engine has already stacked them.
        """
        if len(self._replies) == 1:
            column = self._replies[0].payload.get(name)
            if is_array(column) or isinstance(column, Atom):
                return column
        values = self[name]
        if isinstance(values[0], Atom):
            return StackedAtom(values, (len(values),))
        return np.stack(values)

    def are_apart(self, name: str) -> bool:
        """Whether the values of one name are long arrays, each in a reply of its own."""
        columns = [reply.payload.get(name) for reply in self._replies]
        return all(isinstance(c, list) and all(map(_is_long, c)) for c in columns)

    def held(self, name: str, like: Array) -> Array | None:
        """Return a field of all clients' states after these uploads, as rows.

        None if clients are in other processes, are computed one by one, or do not all take part;
        also None if their states are not known to follow from their uploads.
        """
        left = self._replies[0].left
        if left is None or not self.everyone or len(self._replies) > 1:
            return None
        rows = getattr(left, name, None)
        if not isinstance(rows, np.ndarray) or rows.base is not None or not rows.flags.carray:
            return None
        return rows if rows.shape == like.shape and rows.dtype == like.dtype else None

    @property
    def longest(self) -> float:
        """At least the largest absolute value in the uploads; infinity if it is not known."""
        return max(reply.longest for reply in self._replies)

    @property
    def staleness(self) -> list[int]:
        """How many steps the server has done since each client was asked, in client order."""
        return [0] * len(self.clients) if self.late is None else [*self.late.steps]

    @property
    def progress(self) -> float:
        """The mean of the weights that uploads have for their age: 1 if none is discounted."""
        return 1.0 if self.late is None else exact_sum(self.late.weights) / len(self.clients)

    def sent(self, name: str, now: Array) -> Array:
        """Return what clients were sent by this name: `now`, or a row for each if some is older."""
        if self.late is None:
            return now
        return np.stack([payload[name] for payload in self.late.sent])

    def _reference(self, name: str, about: Array | None) -> Array | None:
        """Return the reference points of uploads that are points: one, or one for each client."""
        if self.late is None or about is None or name not in self.late.about:
            return about
        return self.sent(self.late.about[name], about)

    @property
    def everyone(self) -> bool:
        """Whether every client's upload is here."""
        return len(self.clients) == self.num_clients

    @property
    def unweighted(self) -> bool:
        """Whether means have equal weights, so that every client's `share` is its change."""
        return self._examples is None

    def shares(self, changes: Array) -> Array:
        """Return the `share` of each client of the cohort, stacked in the order of `changes`."""
        if self._examples is None:
            return changes
        return np.stack([self.share(j, c) for j, c in zip(self.clients, changes, strict=True)])

    def aged(self, changes: Array) -> Array:
        """Return changes, stacked in client order, times the weights for their age in means."""
        if self.late is None:
            return changes
        weights = np.array(self.late.weights, changes.dtype).reshape(-1, *[1] * changes[0].ndim)
        weighted: Array = weights * changes
        return weighted

    def share(self, client: int, change: Array) -> Array:
        """Return a client's weighted change: the mean is the sum of these over N clients, by N."""
        if self._examples is None:
            return change
        scale = self.num_clients * self._examples[client] / exact_sum(self._examples)
        return scale * change

    def moved(self, name: str, about: Array | None = None) -> Array:
        """Return the sum over the cohort of each client's `share` of (its upload - `about`)."""
        if self.late is not None and about is not None:
            changes = np.stack(self[name]) - self._reference(name, about)
            since: Array = self.shares(changes).sum(axis=0)
            return since
        columns: list[Any] = [reply.payload.get(name) for reply in self._replies]
        if isinstance(columns[0], Summed):
            if len(columns) == 1 and columns[0].about is about is not None:
                return columns[0].moved()
            total = self._sum(name)
            return total if about is None else total - len(self.clients) * about
        if self.unweighted and all(map(is_array, columns)):
            return _add([(c if about is None else c - about).sum(axis=0) for c in columns])
        if self.unweighted and about is None and self.are_apart(name):
            return _add(self[name])
        shares = (self.share(c, v if about is None else v - about) for c, v in self.items(name))
        total = np.array(next(shares))
        for share in shares:
            total += share
        return total

    def _weighted(self, name: str) -> Iterator[tuple[float, Any]]:
        assert self._examples is not None  # noqa: S101  (the callers' case)
        return ((self._examples[client], value) for client, value in self.items(name))

    def _total(self) -> float:
        """Return the cohort's number of examples."""
        assert self._examples is not None  # noqa: S101  (the callers' case)
        return exact_sum(self._examples[client] for client in self.clients)

    def mean_number(self, name: str, of: Callable[[Any], float] = float) -> float:
        """Return the mean over the cohort of a number, or of `of(value)`.

        If the strategy has an `aggregation`, this rule replaces the mean.
        """
        if of is float and any(isinstance(r.payload.get(name), Summed) for r in self._replies):
            return float(self._sum(name)) / len(self.clients)
        if self._aggregation is not None:
            return self._aggregation.combine_numbers([of(value) for value in self[name]])
        if self._inclusion is not None:
            scales = self._scales()
            return exact_sum(s * of(v) for s, v in zip(scales, self[name], strict=True))
        if self._examples is not None:
            return exact_sum(n * of(v) for n, v in self._weighted(name)) / self._total()
        return exact_sum(map(of, self[name])) / len(self.clients)

    def mean(self, name: str, about: Array | None = None) -> Array:
        """Return the mean over the cohort (mean_S), or the result of the strategy's `aggregation`.

        `about` is the reference point of uploads that are not changes: the model that was sent.
        """
        if self.late is not None:
            return self._discounted(self.late, name, about)
        if self._inclusion is not None:
            return self._unbiased(name, about)
        if self._examples is not None:
            return _add([n * value for n, value in self._weighted(name)]) / self._total()
        one = self._replies[0].payload.get(name) if len(self._replies) == 1 else None
        if self._denominator and isinstance(one, Summed) and one.about is not None:
            return np.asarray(one.about + one.moved() / self._denominator, dtype=one.dtype)
        if self._denominator is not None and self._denominator != len(self.clients):
            absent, center = self._denominator - len(self.clients), self._about.get(name)
            total = self._sum(name) + (0.0 if center is None else absent * center)
            return np.asarray(total / self._denominator, dtype=total.dtype)
        if self._aggregation is None:
            mean = self._sum(name)
            if not self.are_apart(name):
                return mean / len(self.clients)
            mean /= len(self.clients)  # a new array
            return mean
        values = np.stack([v if is_array(v) else v.dense() for v in self[name]])
        if about is None:
            return self._aggregation.combine(values)
        return about + self._aggregation.combine(values - about)

    def _discounted(self, late: Staleness, name: str, about: Array | None) -> Array:
        """Return a mean whose terms have weights by their age; points count from what was sent."""
        about_each = self._reference(name, about)
        values = self[name] if about_each is None else [*(np.stack(self[name]) - about_each)]
        total: float = len(self.clients)
        weights = list(late.weights)
        if self._examples is not None:
            total = self._total()
            weights = [w * self._examples[j] for w, j in zip(weights, self.clients, strict=True)]
        if any(weight != 1.0 for weight in weights):
            values = [weight * value for weight, value in zip(weights, values, strict=True)]
        moved = _add(values)
        mean: Array = moved / total
        return mean if about is None else about + mean

    @property
    def scales(self) -> Array:
        """The weight of each upload in a mean over all clients: 1/(N p), or 1/|S|."""
        if self._inclusion is not None:
            return self._scales()
        return np.full(len(self.clients), 1.0 / len(self.clients))

    def _scales(self) -> Array:
        """Return the weight of each of the cohort's uploads in a mean over all clients: 1/(N p)."""
        shares: Any = np.array(self._examples or np.ones(self.num_clients))
        scales: Array = (1.0 / self._inclusion * (shares / shares.sum()))[self.clients]
        return scales

    def _unbiased(self, name: str, about: Array | None) -> Array:
        """Return the cohort's estimate of the mean over all clients."""
        scales = self._scales()
        values = self.stacked(name)
        if not is_array(values):
            values = np.stack([value.dense() for value in self[name]])
        scales = scales.astype(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
        moved: Array = (scales * (values if about is None else values - about)).sum(axis=0)
        return moved if about is None else about + moved


def _total(column: Any) -> Array:
    """Return the sum of a column's values."""
    if isinstance(column, list):
        return _add(column)
    total: Array = column.sum(axis=0) if is_array(column) else column.total()
    return total


def _add(values: Sequence[Any]) -> Array:
    """Return the sum of arrays and compact values, one after another, as a new array."""
    first, *others = values
    if others and all(_is_long(value) for value in values):
        return _added_in_pieces(values)
    total: Array = first.copy() if is_array(first) else first.dense().copy()
    for value in others:
        if is_array(value):
            total += value
        else:
            value.add_to(total)
    return total


def _is_long(value: Any) -> bool:
    """Return whether a value is an array that is better taken in pieces, and not copied."""
    return type(value) is np.ndarray and value.size > PIECE and value.flags.c_contiguous


def _added_in_pieces(values: Sequence[Array]) -> Array:
    """Return the sum of long arrays, in one pass over their memory."""
    first, *others = (value.reshape(-1) for value in values)
    total = np.empty_like(first)
    for piece in pieces(total.size):
        part = total[piece]
        part[...] = first[piece]
        for value in others:
            part += value[piece]
    return total.reshape(values[0].shape)
