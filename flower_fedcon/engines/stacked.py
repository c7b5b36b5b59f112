"""In process, with the clients' data and states in arrays: one pass serves the whole cohort.

The step is the algorithm's own: a client object whose objective, set and regularizer work on a
leading client axis. Cohorts, batches and iterates are those of the local engine; sums may differ
by rounding. Clients that differ in type or shape are taken in groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flower_fedcon.core import rng as streams
from flower_fedcon.core.protocol import CERTIFY, Reply, Request, RunInfo, StackReply, StackRequest
from flower_fedcon.errors import FedConError
from flower_fedcon.flower.stores import Versions
from flower_fedcon.objectives.stacked import Stack, Which, key, stack
from flower_fedcon.registry import client_class
from flower_fedcon.regularizers.batched import BatchedRegularizer, BatchedSet
from flower_fedcon.sets.atoms import Atom, CoordinateAtom
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem
    from flower_fedcon.strategies.base import FedConStrategy

_AT_ONCE = 2**18  # entries of the models that one pass works on: two megabytes of doubles
_ARRAY = "array"


def why_not_stackable(strategy: FedConStrategy[Any], problem: FederatedProblem) -> str | None:
    """Return why this run cannot be stacked; None if it can."""
    title = strategy.sheet.title
    if "local_solver" in strategy.client_settings:
        return f"{title} has a local solver, which works on one client at a time"
    if strategy.queries:
        return f"{title} asks its clients before it trains them"
    if problem.layout.layered:
        return "the model is a list of arrays"
    keys = [key(objective) for objective in problem.objectives]
    if None in keys:
        other = problem.objectives[keys.index(None)]
        return f"an objective is a {type(other).__name__}, which has no stacked form"
    if len(set(keys)) > max(1, len(keys) // 2):
        return f"the {len(keys)} clients differ: {len(set(keys))} types and shapes of objectives"
    return None


class _Selected:
    """The objective of the clients that are being served."""

    def __init__(self, run: RunInfo) -> None:
        self._seed = run.seed
        self._batch_size: int | None = run.settings.get("batch_size")

    def select(self, stacked: Stack, which: Which, clients: Array, server_round: int) -> None:
        """Serve these clients now."""
        self._stack, self._which, self._clients = stacked, which, clients
        self._round = server_round
        self._order: Array | None = None

    def value(self, x: Array) -> float:
        """Raise: a step that needs values works on one client at a time."""
        raise NotImplementedError

    def gradient(self, x: Array) -> Array:
        """Return the gradients: full, or of each client's next minibatch."""
        size, stacked = self._batch_size, self._stack
        if size is None or size >= stacked.num_examples:
            return stacked.gradient(x, self._which)
        return stacked.batch_gradient(x, self._which, self._next_rows(size))

    def add_gradient(self, x: Array, out: Array, scale: float) -> None:
        """Add scale times the full gradients to `out` in place."""
        self._stack.add_gradient(x, out, scale, self._which)

    def pulled_gradient(self, x: Array, scale: float, center: Array, pull: float) -> Array:
        """Return scale times the full gradients plus pull * (x - center)."""
        return self._stack.pulled_gradient(x, scale, center, pull, self._which)

    def _next_rows(self, size: int) -> Array:
        """Return each client's next rows, from the streams that it has in every engine."""
        if self._order is None:
            self._streams = [
                streams.stream(self._seed, streams.BATCH, self._round, client)
                for client in self._clients.tolist()
            ]
            self._order, self._used = np.empty((0, 0), np.intp), 0
        if self._order.shape[1] - self._used < size:
            m = self._stack.num_examples
            self._order = np.stack([rng.permutation(m) for rng in self._streams])
            self._used = 0
        rows = self._order[:, self._used : self._used + size]
        self._used += size
        return rows


class _Group(NamedTuple):
    """Clients with one stack of objectives."""

    stack: Stack
    clients: Array  # their numbers, ascending


class StackedExchange:
    """The exchange of a run in process, with all clients in arrays.

    A state has two places, in two arrays of all clients' states: one holds what is committed, the
    other takes what is pending, and the server's word turns them round.
    """

    def __init__(self, objectives: Sequence[Any], run: RunInfo) -> None:
        self._run, shape = run, run.layout.shape
        by_key: dict[Any, list[int]] = {}
        for client, objective in enumerate(objectives):
            by_key.setdefault(key(objective), []).append(client)
        self._groups = [
            _Group(stack([objectives[c] for c in clients]), np.array(clients))
            for clients in by_key.values()
        ]
        n = len(objectives)
        self._group_of, self._place = np.zeros(n, np.intp), np.arange(n)
        for number, group in enumerate(self._groups):
            self._group_of[group.clients] = number
            self._place[group.clients] = np.arange(len(group.clients))
        self._examples = [int(getattr(objective, "num_examples", 1)) for objective in objectives]

        own: dict[str, Any] = {"batch_size": None}  # batches are the objective's affair here
        views = {"constraint": BatchedSet, "regularizer": BatchedRegularizer}
        for name, view in views.items():
            if run.settings.get(name) is not None:
                own[name] = view(run.settings[name], len(shape))
        self._objective = _Selected(run)
        self._client = client_class(run.algorithm)(self._objective)
        self._client.configure(replace(run, settings={**run.settings, **own}))
        self._state_type = self._client.state_type
        self._axes = len(shape)
        self._models = max(1, _AT_ONCE // max(1, run.layout.size))

        # Of each client: rounds, which place is committed, and what its states are made of.
        self._version, self._pending_round = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._slot = np.zeros(n, np.int64)
        self._alike = 0  # the round whose replies, everyone's, wait for the server's word together
        self._kind = np.zeros((2, n), np.int64)
        self._kinds: list[tuple[Any, ...] | None] = [None]
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._arrays: tuple[dict[str, Array], dict[str, Array]] = ({}, {})

    # --- a round ---------------------------------------------------------------------------------

    def stack(self, request: StackRequest) -> tuple[list[StackReply], list[int]]:
        """Return the uploads of the cohort, and the clients whose state is gone."""
        clients, acks = request.clients, request.acks
        lost: list[int] = []
        if self._state_type is None:
            # Nothing to keep apart but the groups.
            classes = _classes(self._group_of[clients])
        elif self._alike and len(clients) == len(self._slot) and _all(acks == self._alike):
            self._slot ^= 1  # as ever, with everyone: no need to look at each
            self._version[:] = self._alike
            self._pending_round[:] = 0
            classes = [None]
        else:
            here = self._acknowledge(clients, acks)
            if not _all(here):
                lost = clients[~here].tolist()
                clients, acks = clients[here], acks[here]
            classes = _classes(self._keys(clients, acks, request.restore))
        replies = []
        self._alike = 0
        for members in classes:
            mine = clients if members is None else clients[members]
            for part in self._parts(mine):
                down, chosen = request.broadcast, mine[part]
                if request.own is not None:
                    asked = {int(c): i for i, c in enumerate(request.clients)}
                    down = down | _stacked([request.own[asked[int(c)]] for c in chosen])
                given = [request.restore.get(int(c)) for c in chosen] if request.restore else [None]
                ack = int(acks[0 if members is None else members[0]])
                restore = None if given[0] is None else _stacked(given)
                payload = self._step(chosen, request.round, ack, down, restore)
                replies.append(StackReply(chosen, payload))
        if len(classes) == 1 and len(clients) == len(self._slot):
            self._alike = request.round
        return replies, lost

    def __call__(self, requests: list[Request]) -> list[Reply]:
        """Return the replies of clients that are asked one by one."""
        replies = []
        self._alike = 0
        for request in requests:
            client = np.array([request.client])
            reply = Reply(request.client, request.round)
            reply.num_examples = self._examples[request.client]
            if request.phase == CERTIFY:
                reply.payload = self._certify(request)
                replies.append(reply)
                continue
            if (
                self._state_type is not None
                and request.restore is None
                and not self._acknowledge(client, np.array([request.ack])).all()
            ):
                reply.lost = True
            else:
                given = None if request.restore is None else _stacked([request.restore])
                down, ack = request.broadcast, request.ack
                try:
                    payload = self._step(client, request.round, ack, down, given)
                    reply.payload = StackReply(client, payload).part(0)
                except FedConError as error:
                    reply.error = str(error)
            replies.append(reply)
        return replies

    def _certify(self, request: Request) -> Payload:
        """Answer as a client does that is asked for a certificate; nothing moves."""
        x, client, ack = request.broadcast["x"], request.client, request.ack
        group, place = self._groups[self._group_of[client]], int(self._place[client])
        payload: Payload = {"gradient": group.stack.gradient(x, slice(place, place + 1))[0]}
        slot = int(self._slot[client]) ^ int(ack == self._pending_round[client])
        if ack and "x" in self._arrays[slot]:
            payload["distance"] = float(
                np.linalg.norm((self._arrays[slot]["x"][client] - x).ravel())
            )
        return payload

    def _acknowledge(self, clients: Array, acks: Array) -> Array:
        """Take the server's word on the last replies; return who has the state that it means."""
        rows = _run(clients)
        used: Array = (self._pending_round[rows] == acks) & (acks > 0)
        everyone = _all(used)
        mine = rows if everyone else clients[used]
        self._slot[mine] ^= 1
        self._version[mine] = acks if everyone else acks[used]
        self._pending_round[mine] = 0
        return used if everyone else (acks == 0) | (self._version[rows] == acks)

    def _keys(self, clients: Array, acks: Array, restore: dict[int, Payload]) -> Array:
        """Return numbers that are equal for clients whose states can be taken together."""
        rows = _run(clients)
        slot, kinds = self._slot[rows], len(self._kinds)
        kind = np.where(slot, self._kind[1, rows], self._kind[0, rows])
        keys = np.where(acks > 0, (kind * 2 + slot) * 2 + 1, 0)
        if restore:
            forms: dict[Any, int] = {}
            for i, client in enumerate(clients.tolist()):
                if client in restore:
                    form = tuple(restore[client])
                    keys[i] = 4 * kinds + forms.setdefault(form, len(forms))
        if len(self._groups) > 1:
            keys = keys * len(self._groups) + self._group_of[rows]
        return keys

    def _parts(self, clients: Array) -> Iterator[slice]:
        """Cut a list of clients into even parts whose models fit into the cache."""
        number = -(-len(clients) // self._models)
        ends = [len(clients) * i // number for i in range(number + 1)]
        for first, last in pairwise(ends):
            yield slice(first, last)

    def _step(
        self, clients: Array, server_round: int, ack: int, down: Payload, given: Payload | None
    ) -> Payload:
        """Do the step of clients whose states are alike, and keep what is pending."""
        client, group = self._client, self._groups[self._group_of[clients[0]]]
        whole = len(self._groups) == 1
        which = _run(clients if whole else self._place[clients])
        self._objective.select(group.stack, which, clients, server_round)
        state: Any = None
        slot = 0
        rows = which if whole else _run(clients)
        if self._state_type is not None:
            slot = int(self._slot[clients[0]])
            if given is not None:
                state = client.restore(down, given)
                self._write(slot, rows, state)
                self._version[rows] = ack
            elif ack == 0:
                state = client.initialize(down)
            else:
                state = self._read(slot, int(self._kind[slot, clients[0]]), rows)
            if ack:
                state = client.on_acknowledged(state, down)
            if not ack:
                state = type(state)(*(self._spread(value, len(clients)) for value in state))
        payload, after = client.step(state, down)
        if self._state_type is not None:
            self._write(1 - slot, rows, after, payload.values())
            self._pending_round[rows] = server_round
        return {name: self._spread(value, len(clients)) for name, value in payload.items()}

    def _spread(self, value: Any, count: int) -> Any:
        """Return a value of one model, such as the broadcast's, as that of each client."""
        if isinstance(value, np.ndarray) and value.ndim == self._axes:
            return np.broadcast_to(value, (count, *value.shape))
        return value

    # --- states ----------------------------------------------------------------------------------

    def _read(self, slot: int, kind: int, rows: Which) -> Any:
        """Return the states of some clients as one, its arrays stacked."""
        form, arrays = self._kinds[kind], self._arrays[slot]
        assert self._state_type is not None  # noqa: S101  (the caller's case)
        assert form is not None  # noqa: S101  (written before)
        names = self._state_type._fields
        pairs = zip(names, form, strict=True)
        return self._state_type(*(arrays[n][rows] if v is _ARRAY else v for n, v in pairs))

    def _write(self, slot: int, rows: Which, state: Any, uploads: Iterable[Any] = ()) -> None:
        """Keep the states of some clients, whose step also returned `uploads`."""
        arrays, form = self._arrays[slot], []
        everyone = isinstance(rows, slice) and rows.stop - rows.start == len(self._slot)
        for i, (name, value) in enumerate(zip(state._fields, state, strict=True)):
            if isinstance(value, np.ndarray):
                if name not in arrays:
                    model = value.shape if value.ndim == self._axes else value.shape[1:]
                    arrays[name] = np.zeros((len(self._slot), *model), value.dtype)
                others = (*uploads, *state[:i], *state[i + 1 :])
                if everyone and _may_replace(arrays[name], value, others):
                    arrays[name] = value
                else:
                    arrays[name][rows] = value
                form.append(_ARRAY)
            else:
                form.append(value)
        kind = tuple(form)
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        self._kind[slot, rows] = number

    def save(self) -> list[Versions]:
        """Return the clients' states, for a checkpoint: the same as the local engine's."""
        incarnation, found = self._run.incarnation, []
        for client in range(len(self._slot)):
            slot = int(self._slot[client])
            states = [
                None if kind == 0 else self._read(s, kind, client)  # type: ignore[arg-type]
                for s, kind in enumerate(self._kind[:, client].tolist())
            ]
            version, pending = int(self._version[client]), int(self._pending_round[client])
            committed = states[slot] if version else None
            waiting = states[1 - slot] if pending else None
            found.append(Versions(version, committed, pending, waiting, incarnation=incarnation))
        return found

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        self._alike = 0
        for client, versions in enumerate(states):
            self._version[client] = versions.version
            self._pending_round[client] = versions.pending_round
            self._slot[client] = 0
            for slot, state in enumerate((versions.committed, versions.pending)):
                if state is not None:
                    self._write(slot, np.array([client]), state)


def _all(flags: Array) -> bool:
    """Return whether all are true, faster than `all` finds it in a short array."""
    return bool(np.count_nonzero(flags) == flags.size)


def _run(places: Array) -> Which:
    """Return ascending places as a slice if none is left out."""
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places


def _may_replace(place: Array, value: Array, others: Iterable[Any]) -> bool:
    """Return whether a new array can be kept as it is: nothing else that is about lies in it."""
    return (
        value.base is None
        and value.shape == place.shape
        and value.dtype == place.dtype
        and value.flags.carray
        and not any(
            np.may_share_memory(value, other)
            if isinstance(other, np.ndarray)
            else isinstance(other, Atom) and not isinstance(other, CoordinateAtom)
            for other in others
        )
    )


def _classes(keys: Array) -> list[Array | None]:
    """Return the places of each key; None for all of them."""
    if len(keys) == 0:
        return []
    if _all(keys == keys[0]):
        return [None]
    return [np.flatnonzero(keys == one) for one in np.unique(keys)]


def _stacked(payloads: Sequence[Any]) -> Payload:
    """Return payloads of one form as one, with a leading client axis."""
    return {
        name: np.stack([payload[name] for payload in payloads])
        if isinstance(value, np.ndarray)
        else value
        for name, value in payloads[0].items()
    }
