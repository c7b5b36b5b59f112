"""The engine with clients' data and states in arrays: one pass serves a whole cohort.

The step is the algorithm's client code; its objective, set and regularizer work on arrays with a
leading client axis. Cohorts, batches and iterates are those of the local engine, up to the rounding
of sums. Clients that differ in type or shape are served in groups.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flower_fedcon.arrays import as_column
from flower_fedcon.core.acknowledgements import Versions, state_before, stepped
from flower_fedcon.core.exchange import OF_ROUNDS, Site, exchange_of
from flower_fedcon.core.protocol import Reply, Request, RunInfo, Work
from flower_fedcon.engines.base import InProcess
from flower_fedcon.engines.selected import Selected
from flower_fedcon.engines.stacked_states import States, as_rows, every
from flower_fedcon.errors import AlgorithmError, is_divergence
from flower_fedcon.objectives.client_axis import Stackable
from flower_fedcon.objectives.cohorts import (
    Stack,
    alike,
    is_patched,
    stacks,
    unscaled,
    why_not_one_stack,
)
from flower_fedcon.objectives.foreign import as_seen
from flower_fedcon.objectives.many import representatives
from flower_fedcon.objectives.noisy import noise_of
from flower_fedcon.objectives.private_objective import for_steps
from flower_fedcon.registry import client_class
from flower_fedcon.regularizers.batched import BatchedRegularizer, BatchedSet
from flower_fedcon.runs.history import Record
from flower_fedcon.server.own_rates import OwnRate
from flower_fedcon.solvers.problem import ClientsError
from flower_fedcon.solvers.served import CohortSolver, why_one_at_a_time
from flower_fedcon.solvers.stochastic import SGD
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem
    from flower_fedcon.strategies.base import FedConStrategy


def why_not_stackable(
    strategy: FedConStrategy[Any], problem: FederatedProblem, kinds: int = 1
) -> str | None:
    """Return why this run cannot be stacked; None if it can, with at most `kinds` kinds."""
    title = strategy.title
    if "local_solver" in strategy.client_settings:
        reason = why_one_at_a_time(getattr(strategy, "local_solver", None))
        if reason is not None:
            return f"{title} has {reason}"
    if strategy.queries:
        return f"{title} queries its clients before the local step"
    if strategy.compression is not None:
        return f"{title} compresses each client's upload by its own random draws"
    own = getattr(strategy, "one_at_a_time", "")  # for this form of the method
    if reason := own or client_class(strategy.name).one_at_a_time:
        return f"{title} {reason}"
    standing = representatives(problem.objectives)
    if any(map(noise_of, standing)):
        solver = getattr(strategy, "local_solver", None)
        if solver is not None and not isinstance(solver, SGD):
            return f"{title} has the local solver {solver!r}, whose gradients are noisy"
        if isinstance(getattr(strategy, "client_lr", None), OwnRate):
            return f"{title} lets each client find its own steps, of gradients that are noisy"
    groups = alike(standing, pad=strategy.rows_each is None)
    if None in groups:
        other = standing[groups[None][0]]
        if problem.layout.layered and not isinstance(other, Stackable):
            return "the model is a list of arrays"
        core = unscaled(other)[0]
        if isinstance(core, Stackable) and is_patched(core):
            return f"an objective is a {type(core).__name__} of which a method was replaced"
        return f"an objective is a {type(other).__name__}, which has no stacked form"
    if len(groups) > max(kinds, len(standing) // 2):
        return f"the {len(standing)} clients differ: {len(groups)} types and shapes of objectives"
    reasons = (why_not_one_stack([standing[i] for i in own]) for own in groups.values())
    return next(filter(None, reasons), None)


class _Group(NamedTuple):
    """Clients with one stack of objectives."""

    stack: Stack
    clients: Array  # the clients' numbers, ascending


class _Passes(NamedTuple):
    """The clients that step together."""

    each: list[tuple[Array, Array]]  # clients, and their acknowledged rounds
    lost: list[int]  # clients that have lost their state
    alike: bool  # whether this is one pass over everyone


class StackedEngine(InProcess):
    """All clients in arrays, in this process."""

    answers_waves_together = True
    _apart = True  # whether clients with large models keep their data where they are

    def open(self, run: RunInfo) -> None:
        """Stack the objectives, and make one client object for all."""
        objectives, shape = self._problem.objectives, run.layout.shape
        self.check_batches(run)
        pad = run.rows_each is None
        found = stacks(objectives, pad=pad, apart=self._apart)
        self._groups = [_Group(*group) for group in found]
        self._run, self._everyone = run, np.arange(n := len(objectives))
        self._group_of, self._place = np.zeros(n, np.intp), np.arange(n)
        for number, group in enumerate(self._groups):
            self._group_of[group.clients] = number
            self._place[group.clients] = np.arange(len(group.clients))
        self._objective = Selected(run, objectives)
        self._client = self._serving(self._objective, run)
        self._incarnation, self._axes = run.incarnation, len(shape)
        self._form = self._axes, run.layout.array_dtype
        entries = min(group.stack.models_at_once for group in self._groups)
        self._models = max(1, entries // max(1, run.layout.size))
        kind = self._client.state_type
        self._states = None if kind is None else States(kind, n, self._axes)

    def _serving(self, objective: Any, run: RunInfo) -> Any:
        """Return a client object that takes the gradients of all clients from `objective`."""
        settings: dict[str, Any] = {}
        views = {"constraint": BatchedSet, "regularizer": BatchedRegularizer}
        for name, view in views.items():
            if run.settings.get(name) is not None:
                settings[name] = view(run.settings[name], len(run.layout.shape))
        solver = run.settings.get("local_solver")
        if solver is not None and not isinstance(solver, SGD):
            settings["local_solver"] = CohortSolver(solver)
        client = client_class(run.algorithm)(objective)
        client.configure(replace(run, settings={**run.settings, **settings}))
        return client

    # --- a round ---------------------------------------------------------------------------------

    def answer(self, request: Request) -> Iterable[Reply]:
        """Return the replies of a cohort; for a large one, pass by pass on demand."""
        replies = self._replies(request)
        return replies if len(request.clients) > self._models else list(replies)

    def _replies(self, request: Request) -> Iterator[Reply]:
        """Yield the replies; if a pass fails, the remaining clients are served one by one."""
        if request.phase not in OF_ROUNDS:
            yield from self._told_apart(request)
            return
        done: list[list[int]] = []
        try:
            passes = self._passes(request)
            for clients, acknowledged in passes.each:
                for reply in self._step(clients, request, acknowledged):
                    done.append(reply.clients)
                    yield reply
        except AlgorithmError:
            raise
        except Exception as error:  # perhaps from the user's own objective
            if len(request.clients) == 1:
                told = self._told(request.clients[0], error)
                diverged = is_divergence(error)
                yield Reply(request.clients, request.round, error=told, diverged=diverged)
                return
        else:
            yield from self._after(request, passes)
            return
        served = {client for clients in done for client in clients}
        for place, client in enumerate(request.clients):
            if client not in served:
                yield from self._replies(request.only([place]))

    def _passes(self, request: Request) -> _Passes:
        """Cut a cohort, without clients that lost their state, into groups with equal steps."""
        acknowledged, states = request.acknowledged, self._states
        whole = len(request.clients) == len(self._everyone)
        clients = self._everyone if whole else np.array(request.clients)
        keys: Array | None
        lost: list[int] = []
        forms = _forms_of(request, self._client.own_numbers)
        if states is None:
            keys = self._group_of[clients]
        elif states.acknowledge_everyone(acknowledged):
            keys = None  # everyone again, in equal states: no need to check each client
        else:
            here = states.acknowledge(clients, acknowledged)
            for place in np.flatnonzero(~here).tolist():
                here[place] = request.clients[place] in request.restore
            if not every(here):
                lost = clients[~here].tolist()
                clients, acknowledged = clients[here], acknowledged[here]
                forms = None if forms is None else forms[here]
            keys = states.keys(clients, acknowledged) if len(clients) else None
            if keys is not None and len(self._groups) > 1:
                keys = keys * len(self._groups) + self._group_of[clients]
        if forms is not None and len(clients):
            keys = forms if keys is None else forms * (1 + keys.max()) + keys
        classes = _classes_of(keys, len(clients))
        each: list[tuple[Array, Array]] = []
        for members in classes:
            mine = clients if members is None else clients[members]
            rounds = acknowledged if members is None else acknowledged[members]
            each += [(mine[part], rounds[part]) for part in self._parts(mine)]
        return _Passes(each, lost, alike=whole and not lost and len(classes) == 1)

    def _after(self, request: Request, passes: _Passes) -> list[Reply]:
        """Note all steps as pending; return which clients have lost their state."""
        if self._states is not None and passes.alike and request.rounds is None:
            self._states.all_pending(request.round)
        return [Reply(passes.lost, request.round, lost=True)] if passes.lost else []

    def _parts(self, clients: Array) -> Iterator[slice]:
        """Cut a list of clients into equal parts whose models fit into the cache."""
        number = -(-len(clients) // self._models)
        ends = [len(clients) * i // number for i in range(number + 1)]
        for first, last in pairwise(ends):
            yield slice(first, last)

    def _step(self, clients: Array, request: Request, acknowledged: Array) -> list[Reply]:
        """Do the step of clients in equal states, and hold the pending states.

        If local solves of some clients fail, each of these gets its error, and the others step
        again.
        """
        client, states, numbers = self._client, self._states, request.clients
        if len(clients) < len(numbers):
            numbers = clients.tolist()
        group = self._groups[self._group_of[numbers[0]]]
        whole = len(self._groups) == 1
        which = as_rows(clients if whole else self._place[clients])
        rounds: Any = request.round
        if request.rounds is not None:
            rounds = request.rounds[np.searchsorted(request.clients, clients)]
        self._objective.select(group.stack, which, clients, rounds)
        down = request.broadcast
        if numbers[0] in request.personal:
            sent = [request.personal[c] for c in numbers]
            down = down | _together_sent(sent) | _own_columns(sent, client.own_numbers, *self._form)
        state: Any = None
        rows = which if whole else as_rows(clients)
        if states is not None:
            given, last = None, int(acknowledged[0])  # for all clients, if there is one
            if numbers[0] in request.restore:
                given = _together_sent([request.restore[c] for c in numbers])
            state = state_before(client, last, down, given, lambda _: states.read(clients, rows))
            if last == 0 or given is not None:
                state = self._spread_state(state, len(numbers))
            if given is not None:
                states.readmit(clients, rows, acknowledged, state)
            if last:
                settled = client.on_acknowledged(state, down)
                if settled is not state:  # perhaps from the start, which all share
                    state = self._spread_state(settled, len(numbers))
        client.begin_round(request.round)  # a schedule depends on it
        try:
            payload, after = stepped(client, state, down)
        except ClientsError as failed:
            told = [
                Reply(
                    [numbers[place]],
                    request.round,
                    error=str(error),
                    diverged=is_divergence(error),
                )
                for place, error in sorted(failed.errors.items())
            ]
            rest = np.delete(np.arange(len(clients)), list(failed.errors))
            if not rest.size:
                return told
            return [*self._step(clients[rest], request, acknowledged[rest]), *told]
        if states is not None:
            states.set_pending(clients, rows, rounds, after, payload.values())
        columns = {name: self._spread(value, len(numbers)) for name, value in payload.items()}
        work = Work(client.work, len(numbers)) if client.work else ()
        everyone = len(clients) == len(self._everyone)
        left = after if everyone and client.is_followed(payload, after) else None
        return [Reply(numbers, request.round, columns, work=work, left=left)]

    def _spread_state(self, state: Any, count: int) -> Any:
        """Return a state of each client, also from one that all share."""
        return type(state)(*(self._spread(value, count) for value in state))

    def _spread(self, value: Any, count: int) -> Any:
        """Return a value with the shape of one model, such as a broadcast, for each client."""
        if isinstance(value, np.ndarray) and value.ndim == self._axes:
            return np.broadcast_to(value, (count, *value.shape))
        return value

    def _told_apart(self, request: Request) -> Iterator[Reply]:
        """Answer a request that is not part of a round like clients, one after the other."""
        rounds = zip(request.clients, request.acknowledged.tolist(), strict=True)
        for client, acknowledged in rounds:
            states, down = self._states, request.down(client)
            objective = self._problem.objectives[client]
            try:
                site = Site(
                    objective=objective,
                    seen=as_seen(for_steps(objective, 1.0), self._run.layout),
                    state=None if states is None else states.acknowledged(client, acknowledged),
                    run=self._run,
                    client=client,
                )
                told = exchange_of(request.phase, down).tell(site, down)
            except Exception as error:
                why, diverged = self._told(client, error), is_divergence(error)
                yield Reply([client], request.round, error=why, diverged=diverged)
                continue
            yield Reply([client], request.round, {name: [value] for name, value in told.items()})

    def evaluate(self, x: Array) -> Record:
        """Return the problem's record of a model."""
        values = [value for group in self._groups for value in group.stack.values(x).tolist()]
        return self._problem.evaluate(x, values)

    def save(self) -> Sequence[Versions] | None:
        """Return the clients' states, for a checkpoint; None if they keep none."""
        return None if self._states is None else self._states.save(self._incarnation)

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        if self._states is not None:
            self._states.load(states)


# --- what is alike in a request ------------------------------------------------------------------


def _forms_of(request: Request, own_numbers: Collection[str]) -> Array | None:
    """Return a number for each client, equal for equal forms of requests; None if all are equal.

    Requests have equal forms if their arrays have the same names and their numbers are the same: a
    step has one number for all, except `own_numbers`, which it takes as columns.
    """
    if not request.personal and not request.restore:
        return None
    numbers: dict[Any, int] = {(None, None): 0}
    known: dict[tuple[int, int], int] = {}  # by the payloads, which many clients may share
    forms = []
    for client in request.clients:
        personal, given = request.personal.get(client), request.restore.get(client)
        key = id(personal), id(given)
        if key not in known:
            form = (_form(personal, own_numbers), _form(given))
            known[key] = numbers.setdefault(form, len(numbers))
        forms.append(known[key])
    return np.array(forms) if len(set(forms)) > 1 else None


def _form(payload: Payload | None, own_numbers: Collection[str] = ()) -> Hashable:
    if payload is None:
        return None
    return tuple(
        (name, None if isinstance(value, np.ndarray) or name in own_numbers else value)
        for name, value in payload.items()
    )


def _classes_of(keys: Array | None, count: int) -> list[Array | None]:
    """Return the positions of each key; None for all positions."""
    if count == 0:
        return []
    if keys is None or every(keys == keys[0]):
        return [None]
    return [np.flatnonzero(keys == one) for one in np.unique(keys)]


def _together_sent(payloads: Sequence[Any]) -> Payload:
    """Return payloads of one form as one with a leading client axis; numbers from the first."""
    return {
        name: np.stack([payload[name] for payload in payloads])
        if isinstance(value, np.ndarray)
        else value
        for name, value in payloads[0].items()
    }


def _own_columns(
    payloads: Sequence[Any], own_numbers: Collection[str], axes: int, dtype: Any
) -> Payload:
    """Return the numbers that differ between clients, as columns."""
    names = [name for name in payloads[0] if name in own_numbers]
    return {name: as_column(np.array([p[name] for p in payloads]), axes, dtype) for name in names}
