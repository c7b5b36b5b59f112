"""One round as a function of arrays: the code of strategy and client, traced by JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from flower_fedcon.arrays import as_column, is_array
from flower_fedcon.core.acknowledgements import stepped
from flower_fedcon.core.gate import column_bytes
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.engines.jax.parts import parts
from flower_fedcon.engines.jax.solvers import GivenSolver, TracedClients
from flower_fedcon.engines.jax.traced import (
    NotTraceableError,
    TracedArray,
    conditions,
    one_at_a_time,
    plain,
)
from flower_fedcon.engines.selected import Selected
from flower_fedcon.objectives.client_axis import Stack, Stackable
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.server.schedules import Schedule
from flower_fedcon.sets.atoms import Atom
from flower_fedcon.wire.payloads import payload_bytes

if TYPE_CHECKING:
    from flower_fedcon.clients.base import FedConClient


MET = " met"  # not a field's name: whether the server has heard from each client


class GivenRows(Selected):
    """The objective of a traced round: it takes given rows, or counts those that it needs."""

    rows: TracedArray | None = None
    asked = 0  # batches in a round
    size = 0
    add_gradient: Any = None  # in place

    @property
    def served(self) -> TracedClients:
        """The clients' functions, for local solvers."""
        return TracedClients(self._stack, self._which, len(self._clients))

    def select(self, stacked: Any, which: Any, clients: Any, rounds: Any) -> None:
        """Choose the clients to serve."""
        super().select(stacked, which, clients, rounds)
        self.asked = 0

    def _of_the_served(self, numbers: Any) -> Any:
        everyone = isinstance(self._clients, list)
        return TracedArray(jnp.asarray(numbers))[slice(None) if everyone else self._clients]

    def rows_alike(self) -> int:
        """Return the rows of each client, if all have the same number."""
        if isinstance(self._rows_of_all, np.ndarray):
            raise NotTraceableError("its clients have different numbers of rows, and of steps")
        return int(self._rows_of_all)

    def variate_steps(self, steps: LocalPass, next_rows: Any = None) -> None:
        """Return None: XLA updates them in the same pass as the following operations."""

    def _next_rows(self, size: int) -> Any:
        self.asked, self.size = self.asked + 1, size
        if self.rows is None:  # the number of batches is not known yet
            return TracedArray(jnp.zeros((len(self._clients), size), int))
        return self.rows[self.asked - 1]


class GivenRate(Schedule):
    """The schedule of a traced round, with a given step."""

    value: Any = None

    def at(self, server_round: int) -> Any:
        """Return the step."""
        return self.value

    @property
    def longest(self) -> float:
        """Raise, since only this round's step is known."""
        raise NotTraceableError("the mathematics asks for the longest step of a schedule")


class TracedRound(NamedTuple):
    """The result of tracing a round.

    Attributes
    ----------
    state : list
        The parts of the server's next state: JAX arrays, and numbers that do not change.
    clients : dict of array
        All clients' next states, by field; also `MET`, if that is given.
    holds : jax.Array
        Whether everything in the round is finite, and all assumptions are true.
    up, down : int
        Bytes.
    work : dict of jax.Array
        The total costs of the clients' steps.
    """

    state: list[Any]
    clients: dict[str, Any]
    holds: Any
    up: int
    down: int
    work: dict[str, Any]


class _AtLeast:
    """The round of each client's last used reply: this one, or a later one."""

    def __init__(self, least: int) -> None:
        self._least = least

    def __le__(self, other: Any) -> bool:
        if type(other) is TracedArray or self._least <= other:
            raise NotTraceableError("it asks which round was a client's last")
        return False


class RoundTracer:
    """Traces the rounds of one run, for cohorts of one size.

    Parameters
    ----------
    strategy : FedConStrategy
        Bound.
    client : FedConClient
        A client object that serves all clients, with `objective`.
    objective : object
        The objective of `client`, with an attribute `rows` to set before a round.
    stack : Stack
        The clients' objectives.
    form : (int, dtype)
        The number of axes of the model, and its type.
    setting_bytes : int
        Bytes that each client is sent in addition to the broadcast.
    since : int
        A round; no client's last used reply is older.
    """

    def __init__(
        self,
        strategy: Method[Any],
        client: FedConClient[Any],
        objective: Any,
        stack: Stack,
        form: tuple[int, Any],
        setting_bytes: int,
        since: int,
    ) -> None:
        self.rate: GivenRate | None = None
        if isinstance(getattr(strategy, "client_lr", None), Schedule):
            self.rate, strategy = GivenRate(), copy(strategy)
            strategy.client_lr = client._schedule = self.rate  # type: ignore[attr-defined]
        self._strategy, self._client, self._objective = strategy, client, objective
        self._form, self._axes = form, form[0]
        self._setting_bytes, self._since = setting_bytes, since
        self._num_clients = strategy.setup.num_clients
        self._stack = stack
        solver = getattr(client, "local_solver", None)
        self._solver = solver if isinstance(solver, GivenSolver) else None

    @property
    def data(self) -> dict[str, Any]:
        """The arrays that a round takes; after tracing, all arrays that it used."""
        return _arrays(self._stack) | (self._solver.data if self._solver is not None else {})

    @one_at_a_time
    def __call__(
        self,
        state: Any,
        client_state: Any,
        data: Mapping[str, Any],
        number: Any,
        cohort: Any,
        rows: Any,
        rate: Any,
        met: Any = None,
    ) -> TracedRound:
        """Trace a round from a state of traced arrays.

        Parameters
        ----------
        state : NamedTuple
            The server's state.
        client_state : NamedTuple or None
            All clients' states, with stacked arrays.
        data : dict of jax.Array
            Replaces `self.data`.
        number : jax.Array
            The number of the round.
        cohort : jax.Array of int, or None for everyone
        rows : jax.Array of int, shape (gradients, cohort, batch size), or None
        rate : jax.Array
            The step of a schedule, if there is one.
        met : jax.Array of bool, shape (N,), optional
            Whether the server has heard from each client; it has from all by default.
        """
        strategy, client, n = self._strategy, self._client, self._num_clients
        conditions()
        if self.rate is not None:
            self.rate.value = TracedArray(rate)
        clients: Any = list(range(n)) if cohort is None else TracedArray(cohort)
        which = slice(0, n) if cohort is None else clients
        now: Any = TracedArray(number)
        self._objective.select(_with(self._stack, data), which, clients, now)
        self._objective.rows = None if rows is None else TracedArray(rows)
        if self._solver is not None:
            self._solver.given = data
        down = strategy.broadcast(state)
        sent = len(clients) * (payload_bytes(down) + self._setting_bytes)
        if strategy.says("personal"):
            # For the whole cohort at once.
            everyone: Any = np.arange(n) if cohort is None else clients
            last: Any = _AtLeast(self._since)
            personal = strategy.personal(state, everyone, last)
            for name in client.own_numbers & personal.keys():
                sent += len(clients) * payload_bytes({name: 0.0})
                down = down | {name: as_column(personal.pop(name), *self._form)}
            sent += sum(self._own_bytes(value, len(clients)) for value in personal.values())
            down = down | personal
        mine: Any = None
        if client_state is not None:
            mine = _map(client_state, lambda value: value if cohort is None else value[clients])
            mine = client.on_acknowledged(mine, down)
            if met is not None:
                mine = self._or_first(mine, client.initialize(down), TracedArray(met)[clients])
            mine = _map(mine, lambda value: self._spread(value, len(clients)))
        client.begin_round(now)
        payload, after = stepped(client, mine, down)
        columns = {name: self._spread(value, len(clients)) for name, value in payload.items()}
        if columns.keys() != set(strategy.expects(state)):
            raise NotTraceableError(f"its clients upload {sorted(columns)}")
        self._admit(columns)
        up = sum(map(column_bytes, columns.values()))
        rates = None if strategy.inclusion is None else TracedArray(jnp.asarray(strategy.inclusion))
        replies = [Reply(clients, now, columns)]
        uploads = Uploads(replies, n, strategy.aggregation, inclusion=rates)
        values, _ = parts(strategy.aggregate(state, uploads))
        for value in values:
            rows = cohort is not None and is_array(value) and value.ndim > self._axes
            _assume_finite(value[clients] if rows and len(value) == n else value)  # a mirror
        kept = {}
        if client_state is not None:
            kept = self._kept(client_state, after, cohort, len(clients))
            if met is not None:
                kept[MET] = met.at[cohort].set(True)
        holds = jnp.stack([jnp.asarray(True), *conditions()]).all()
        state_parts = [v.value if type(v) is TracedArray else v for v in values]
        work = {name: _total(value, len(clients)) for name, value in client.work.items()}
        return TracedRound(state_parts, kept, holds, up, sent, work)

    def _own_bytes(self, value: Any, count: int) -> int:
        """Return the bytes of a value of which each client is sent its own part."""
        if is_array(value) and value.ndim > self._axes:
            return count * payload_bytes({"": value[0]})
        return count * payload_bytes({"": value})

    def _or_first(self, known: Any, first: Any, met: Any) -> Any:
        """Return the known states of clients that were met, and the first states of others."""
        values = []
        for old, new in zip(known, first, strict=True):
            if is_array(old) and is_array(new):
                flags = met.reshape(-1, *[1] * self._axes)
                values.append(np.where(flags, old, new))
            elif is_array(old) or is_array(new) or old != new:
                raise NotTraceableError("its clients' first state has another form")
            else:
                values.append(old)
        return known._make(values)

    def _spread(self, value: Any, count: int) -> Any:
        """Return a value of one model's shape repeated for each client."""
        if is_array(value) and value.ndim == self._axes:
            return np.broadcast_to(value, (count, *value.shape))
        return value

    def _admit(self, columns: Mapping[str, Any]) -> None:
        """Assume that the uploads satisfy the gate's conditions."""
        bound = self._strategy.norm_bound
        for name, column in columns.items():
            if isinstance(column, Atom):
                continue
            if type(column) is not TracedArray or not column.ndim:
                raise NotTraceableError(f"its clients upload {name!r}, which is not an array")
            _assume_finite(column)
            if bound is not None:  # near the limit the gate decides
                axes = tuple(range(1, column.ndim))
                squares = (column * column).sum(axis=axes)
                (squares < bound * bound * (1 - 1e-6)).assume()

    def _kept(self, before: Any, after: Any, cohort: Any, count: int) -> dict[str, Any]:
        """Return all clients' states, by field, after the cohort's have changed."""
        kept = {}
        for name, old, new in zip(before._fields, before, after, strict=True):
            if type(old) is not TracedArray:
                if type(new) is TracedArray or new != old:
                    raise NotTraceableError(f"its clients' {name!r} changes and is not an array")
                continue
            value = self._spread(new, count)
            if type(value) is not TracedArray or value.dtype != old.dtype:
                raise NotTraceableError(f"its clients' {name!r} is an array in some rounds only")
            kept[name] = value.value if cohort is None else old.value.at[cohort].set(value.value)
        return kept


def _map(state: Any, function: Callable[[Any], Any]) -> Any:
    """Return a NamedTuple with a function applied to each array."""
    return state._make([function(v) if is_array(v) else v for v in state])


def _total(value: Any, count: int) -> Any:
    """Return the sum over clients of a number, or of one that all share."""
    return jnp.broadcast_to(jnp.asarray(plain(value)), (count,)).sum()


def _assume_finite(value: Any) -> None:
    """Assume that a traced array is finite, tested by its sum.

    The sum over clients is taken first: the server usually needs it, too, and XLA computes it once.
    """
    if type(value) is TracedArray and value.ndim and value.dtype.kind == "f":
        TracedArray(jnp.isfinite(value.value.sum(axis=0))).assume()


def _arrays(stack: Any, prefix: str = "") -> dict[str, Any]:
    """Return the arrays of a stack of objectives, by name."""
    arrays = {}
    for name, value in vars(stack).items():
        if isinstance(value, np.ndarray):
            arrays[prefix + name] = value
        for part, inner in _inner(name, value):
            arrays |= _arrays(inner, f"{prefix}{part}.")
    return arrays


def _inner(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the stacks in an attribute, or their objective, with a name for each."""
    if isinstance(value, Stack | Stackable):  # its objective is for all clients
        return [(name, value)]
    whole = isinstance(value, tuple) and value and isinstance(value[0], Stack)
    return [(f"{name}{i}", part) for i, part in enumerate(value)] if whole else []


def _with(stack: Any, data: Mapping[str, Any], prefix: str = "") -> Any:
    """Return a stack with traced arrays in place of its arrays; a pass uses all of them."""
    new = copy(stack)
    if isinstance(new, Stack):
        new.entries, new.whole = 1, (stack, slice(None))
    for name, value in vars(stack).items():
        if prefix + name in data:
            setattr(new, name, TracedArray(data[prefix + name]))
        stacks = _inner(name, value)
        inner = [_with(part, data, f"{prefix}{key}.") for key, part in stacks]
        if inner:
            setattr(new, name, tuple(inner) if isinstance(value, tuple) else inner[0])
    return new
