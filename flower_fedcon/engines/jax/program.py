"""The engine in this process whose rounds between two records are compiled by JAX.

It derives from the stacked engine, which computes with NumPy all rounds that are not plain: the
first round (where mistakes in the settings show), first contacts with more than a first state, and
a round with numbers that are not finite, which then ends or continues as in every engine. The other
rounds are traced once, from the same code of strategy and client, and run as one compiled loop.
Cohorts and batches are drawn here, from the same streams.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import lax

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.audit import Audit
from flower_fedcon.core.protocol import Reply, Request, RunInfo
from flower_fedcon.engines.jax.parts import (
    Rebuild,
    fixed_parts,
    numbers_that_change,
    on_host,
    parts,
    place,
    shared,
    traced_or_number,
)
from flower_fedcon.engines.jax.solvers import GivenSolver
from flower_fedcon.engines.jax.traced import TracedArray
from flower_fedcon.engines.jax.tracer import MET, GivenRows, RoundTracer
from flower_fedcon.engines.joined import Joined
from flower_fedcon.engines.stacked import StackedEngine
from flower_fedcon.server.schedules import Schedule
from flower_fedcon.solvers.stochastic import SGD
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server

_log = logging.getLogger("flwr")
_DRAWN = 2**21  # random numbers (clients and rows) that are drawn ahead for one block
_SECONDS = 0.5  # seconds of a block: a signal or a checkpoint waits for its end
_FIRST = 64  # rounds in the first block
_FAILED = 10  # consecutive rounds that may turn out not to be plain


class _Block(NamedTuple):
    """Compiled rounds."""

    run: Callable[..., Any]
    varies: list[bool]  # which parts of the server's state are traced
    fixed: list[Any]  # the others
    batches: tuple[int, int]  # batches in a round, and their size; (0, 0) without
    capacity: int  # the largest number of rounds in a call, for which numbers are drawn
    most: int  # the largest capacity
    up: int
    down: int
    work: list[str]  # the counted costs of clients' steps


class JaxEngine(StackedEngine):
    """All clients in arrays, and the rounds between two records compiled by JAX."""

    _apart = False  # each stack is traced separately

    def open(self, run: RunInfo) -> None:
        """Stack the objectives, and make the client objects."""
        super().open(run)
        self._given = GivenRows(run, self._problem.objectives)
        groups = self._groups
        self._stack = groups[0].stack if len(groups) == 1 else Joined(groups)
        self._tracing_client = self._serving(self._given, run)
        solver = run.settings.get("local_solver")
        if solver is not None and not isinstance(solver, SGD):
            objectives = self._problem.objectives
            self._tracing_client.local_solver = GivenSolver(solver, self._stack, objectives)
        self._block: _Block | None = None
        self._length, self._refused = _FIRST, False
        self._waits = False  # until the server has heard from every client
        self._skips, self._failed = False, 0  # the next round; how many in a row have failed
        self._returned: Any = None  # the server's state after the last block
        self._on_device: list[Any] = []  # its traced parts
        self._client_arrays: dict[str, Any] | None = None  # newer than the stacked states
        self._client_form: Any = None
        self._client_fixed: list[Any] = []  # what a block assumes of these states
        self._rounds: Any = None  # of the clients' states there

    # --- what the stacked engine does ------------------------------------------------------------

    def answer(self, request: Request) -> Iterable[Reply]:
        """Return the replies of the cohort."""
        self._hold_states()
        return super().answer(request)

    def save(self) -> Sequence[Versions] | None:
        """Return the clients' states, for a checkpoint."""
        self._hold_states()
        return super().save()

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        self._client_arrays = None
        super().load(states)

    def _hold_states(self) -> None:
        """Copy the states after the last block into the stacked states."""
        if self._client_arrays is None or self._states is None:
            return
        arrays = {name: np.asarray(value) for name, value in self._client_arrays.items()}
        arrays.pop(MET, None)
        self._states.hold(self._client_form._replace(**arrays), self._rounds)
        self._client_arrays = None

    # --- blocks of rounds ------------------------------------------------------------------------

    def advance(self, server: Server, rounds: int) -> int:
        """Do up to `rounds` rounds as one compiled loop.

        Returns
        -------
        int
            The number of rounds done; 0 if the next one needs the stacked engine.
        """
        if not rounds or self._refused or self._skips or not self._is_plain(server):
            self._skips = False
            return 0
        began, new = time.perf_counter(), True
        try:
            with jax.enable_x64(True):
                if not self._take_over(server):
                    return 0
                block = self._block
                new = block is None or block.capacity < min(rounds, block.most)
                if block is None or new:
                    block = self._block = self._traced(server, rounds)
                done = self._play(server, block, min(rounds, self._length, block.capacity))
        except Exception as error:  # from code that was written for NumPy
            if not new:
                raise
            if MET in (self._client_arrays or {}):  # it may be what a first contact needs
                self._block, self._waits = None, True
                return 0
            what = str(error).partition("\n")[0] or type(error).__name__
            self._refuse(f"{server.strategy.title}: {what}{place(error)}")
            return 0
        if not new:
            faster = time.perf_counter() - began < _SECONDS / 2
            self._length = self._length * 2 if faster else max(1, self._length // 2)
        return done

    def _is_plain(self, server: Server) -> bool:
        """Return whether the coming rounds have the form of the last one."""
        if type(server.audit) is not Audit:
            self._refuse("an audit log notes every exchange")
            return False
        if server.clock is not None and server.clock.counts_gradients:
            self._refuse("a clock asks how many gradients each client took in each round")
            return False
        if self._states is None:
            return server.round > 0
        if self._waits or server.has_first_contact or not server.setup.sampled:
            return bool(server.acknowledgements.rounds.all())
        return server.round > 0

    def _take_over(self, server: Server) -> bool:
        """Copy the states of server and clients to the device; return whether it is possible."""
        if server.state is not self._returned:
            entries = parts(server.state)[0]
            block = self._block
            if block is not None:
                fixed = [x for v, x in zip(block.varies, entries, strict=False) if not v]
                if len(entries) != len(block.varies) or fixed != block.fixed:
                    self._block = block = None
            if block is not None:
                self._on_device = [x for v, x in zip(block.varies, entries, strict=True) if v]
        if self._states is not None and self._client_arrays is None:
            rounds = server.acknowledgements.rounds
            form = self._states.everyone(rounds)
            if form is None:
                return False
            arrays = {n: v for n, v in form._asdict().items() if isinstance(v, np.ndarray)}
            if not rounds.all():
                arrays[MET] = rounds > 0
            fixed = [MET in arrays, *fixed_parts(form)]
            if fixed != self._client_fixed:
                self._block = None
            self._client_form, self._client_fixed = form, fixed
            self._client_arrays = {n: jax.numpy.asarray(v) for n, v in arrays.items()}
            self._rounds = rounds
        return True

    def _refuse(self, reason: str) -> None:
        """Compile nothing in this run, and log why."""
        self._refused = True
        _log.warning('engine="jax": %s; running on the stacked engine', reason)

    def _traced(self, server: Server, rounds: int) -> _Block:
        """Trace a round and return the loop over it, which is compiled at its first call."""
        strategy, n = server.strategy, server.setup.num_clients
        tracer = RoundTracer(
            strategy,
            self._tracing_client,
            self._given,
            self._stack,
            self._form,
            server.setting_bytes,
            int(server.acknowledgements.rounds.min()),
        )
        entries, rebuild = parts(server.state)
        size = n if not server.setup.sampled else len(strategy.cohort(server.round + 1))
        cohort = np.arange(size) if server.setup.sampled else None
        counted: list[Any] = []

        def probe(values: Sequence[Any]) -> list[Any]:
            state = rebuild(iter([traced_or_number(v) for v in values]))
            clients = self._traced_clients(self._client_arrays)
            now, rate = jax.numpy.asarray(1), jax.numpy.ones((), self._form[1])
            met = (self._client_arrays or {}).get(MET)
            seen = tracer(state, clients, data, now, cohort, None, rate, met)
            counted[:] = [seen.up, seen.down, [*seen.work]]
            return seen.state

        data = {name: shared(value) for name, value in tracer.data.items()}
        varies = numbers_that_change(probe, entries)
        for name, value in tracer.data.items():  # what a local solver has asked for
            if name not in data:
                data[name] = shared(value)
        fixed = [x for v, x in zip(varies, entries, strict=True) if not v]
        batches = (self._given.asked, self._given.size)
        drawn = (size if server.setup.sampled else 0) + size * batches[0] * batches[1]
        most = max(1, _DRAWN // drawn) if drawn else _DRAWN
        # At least two: for a single round XLA would make different code.
        capacity = max(2, min(rounds, most)) if drawn or tracer.rate is not None else most
        loop = jax.jit(self._loop(tracer, varies, fixed, rebuild))
        self._on_device = [x for v, x in zip(varies, entries, strict=True) if v]

        def run(carry: Any, given: Any, first: int, count: int) -> Any:
            return loop(carry, data, given, first, count)

        return _Block(run, varies, fixed, batches, capacity, most, *counted)

    def _traced_clients(self, arrays: Any) -> Any:
        if self._states is None:
            return None
        fields = {n: TracedArray(v) for n, v in arrays.items() if n != MET}
        return self._client_form._replace(**fields)

    def _loop(
        self, tracer: RoundTracer, varies: list[bool], fixed: list[Any], rebuild: Rebuild
    ) -> Callable[..., Any]:
        """Return the loop over rounds, which ends early after a round whose conditions fail.

        Its carry is the number of rounds begun, whether all conditions hold, the states, and the
        costs of the clients' steps.
        """

        def once(carry: Any, data: Any, given: Any, first: Any) -> Any:
            count, _, state, clients, spent = carry
            here = {
                name: lax.dynamic_index_in_dim(drawn, count, keepdims=False)
                for name, drawn in given.items()
            }
            traced, numbers = iter(state), iter(fixed)
            values = [traced_or_number(next(traced if v else numbers)) for v in varies]
            seen = tracer(
                rebuild(iter(values)),
                self._traced_clients(clients),
                data,
                first + count,
                here.get("cohort"),
                here.get("rows"),
                here.get("rate"),
                clients.get(MET),
            )
            after = [x for v, x in zip(varies, seen.state, strict=True) if v]
            spent = {name: number + seen.work[name] for name, number in spent.items()}
            return count + 1, seen.holds, after, seen.clients, spent

        def loop(carry: Any, data: Any, given: Any, first: Any, count: Any) -> Any:
            return lax.while_loop(
                lambda c: (c[0] < count) & c[1],
                lambda c: once(c, data, given, first),
                (0, True, *carry),
            )

        return loop

    def _play(self, server: Server, block: _Block, count: int) -> int:
        """Do a number of rounds; stop before one whose conditions fail."""
        first = server.round + 1
        cohorts = [server.everyone] * count
        given: dict[str, Any] = {}
        if server.setup.sampled:
            cohorts = [server.strategy.cohort(first + i) for i in range(count)]
            given["cohort"] = np.zeros((block.capacity, len(cohorts[0])), np.intp)
            given["cohort"][:count] = cohorts
        batches, size = block.batches
        if batches:
            shape = (block.capacity, batches, len(cohorts[0]), size)
            given["rows"] = np.zeros(shape, np.intp)
            for i, cohort in enumerate(cohorts):
                given["rows"][i] = self._rows(np.array(cohort), first + i, batches, size)
        schedule = getattr(server.strategy, "client_lr", None)
        if isinstance(schedule, Schedule):
            given["rate"] = np.zeros(block.capacity, self._form[1])
            given["rate"][:count] = [schedule.at(first + i) for i in range(count)]
        clients = self._client_arrays or {}
        start = (self._on_device, clients, dict.fromkeys(block.work, np.int64(0)))
        begun, holds, state, clients, spent = block.run(start, given, first, count)
        if not holds:  # the stacked engine does this round, and reports what is wrong
            count = int(begun) - 1
            self._failed = 1 if count else self._failed + 1
            self._skips = count > 0
            if self._failed > _FAILED:
                self._refuse("what a compiled round assumes, such as finite values, does not hold")
            if count == 0:
                return 0
            _, _, state, clients, spent = block.run(start, given, first, count)
        self._on_device = state
        if self._states is not None:
            self._client_arrays = clients
        arrays, numbers = iter(state), iter(block.fixed)
        after = [on_host(next(arrays), self._axes) if v else next(numbers) for v in block.varies]
        self._returned = parts(server.state)[1](iter(after))
        work = {name: int(number) for name, number in spent.items()}
        server.applied(self._returned, cohorts[:count], block.up, block.down, work)
        self._rounds = server.acknowledgements.rounds
        return count

    def _rows(self, clients: Array, server_round: int, batches: int, size: int) -> Array:
        """Return the rows of each batch, with the draws of the stacked engine."""
        drawn = np.zeros((batches, len(clients), size), np.intp)
        for group in self._groups:
            mine = slice(None) if len(self._groups) == 1 else group.clients
            if size < group.stack.num_examples:
                self._objective.select(group.stack, mine, clients[mine], server_round)
                drawn[:, mine] = [self._objective._next_rows(size) for _ in range(batches)]
        return drawn
