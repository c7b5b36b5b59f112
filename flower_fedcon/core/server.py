"""The server's side of one run: the strategy, its state, and the counts."""

from __future__ import annotations

import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedcon.core.acknowledgements import Acknowledgements
from flower_fedcon.core.audit import Audit
from flower_fedcon.core.batches import ORDER, ORDERS
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.clock import Clock, Deadline, Timekeeper
from flower_fedcon.core.compressing import SETTING, Received
from flower_fedcon.core.estimated import Estimated, Gaps
from flower_fedcon.core.gate import Admitted, Gate, column_bytes
from flower_fedcon.core.method import Method
from flower_fedcon.core.model_bound import ModelBound
from flower_fedcon.core.private import protection_of
from flower_fedcon.core.protocol import CERTIFY, Request, RunInfo, Setup, total_work
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError, clients_by_name, grouped
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload, payload_bytes
from flower_fedcon.wire.settings import encode

_log = logging.getLogger("flwr")


class Server:
    """The server's side of one run: its state between two rounds.

    A `Round` draws its cohort here (`draw`) and hands over its uploads at the end (`apply`). Only
    the answers to a query (`after_query`), and the re-entry of a client that has lost its state
    (`readmit`), change the state earlier.

    Parameters
    ----------
    strategy : Method
        A copy of it is bound to `setup`; the caller's object is not changed.
    setup : Setup
    x0 : array
        The start, of the layout's shape.
    run_id, incarnation
        Of a run that is resumed from a checkpoint; see `RunInfo`.
    max_retries : int, optional
        How often clients without a usable reply are asked again; None for no limit.
    round_deadline : float
        Seconds after its beginning at which a round without enough replies ends the run.
    clock : Clock, optional
        The simulated speeds of the clients.
    draws : bool
        Whether it draws cohorts. One that only asks all clients a question needs no clock.

    Attributes
    ----------
    state : NamedTuple
        The strategy's state.
    round : int
        The last round that has begun.
    replies : int
        How many replies were used in the last complete round.
    private : Protection
        What makes its rounds private, if they are private.
    received : Received, optional
        What reads its uploads, if they are compressed.
    has_personal, has_first_contact : bool
        Whether the strategy has something for one client alone, in every round or at its first
        contact.
    sums_suffice : bool
        Whether each upload may be added to a sum as soon as it has passed the gate.
    clock : Timekeeper, optional
        The simulated time.
    audit : Audit
        Notes every exchange.
    buffers : list of arrays
        Parts of the model that are not optimised, if the clients' apps have any.
    counts : Counter
        Replies dropped, attempts repeated, and clients that lost their state, so far.
    work : Counter
        What the clients' steps have cost so far.
    columns : dict
        Further columns of the coming row of the history.
    cohorts : list, optional
        If somebody wants them: of each round its number, who was drawn, and whose uploads were
        used.
    """

    def __init__(
        self,
        strategy: Method[Any],
        setup: Setup,
        x0: Array,
        *,
        run_id: str | None = None,
        incarnation: int = 1,
        max_retries: int | None = 3,
        round_deadline: float = math.inf,
        clock: Clock | None = None,
        draws: bool = True,
    ) -> None:
        self.setup, self.max_retries, self.round_deadline = setup, max_retries, round_deadline
        self.strategy = strategy.bind(setup)
        self.state = self.strategy.initialize(x0.copy())  # the caller's stays as it is
        method, self.private = self.strategy, protection_of(self.strategy)
        rule = {} if method.compression is None else {SETTING: method.compression}
        order = {} if method.batch_order == ORDERS[0] else {ORDER: method.batch_order}
        self.info = RunInfo(
            algorithm=method.name,
            seed=setup.seed,
            layout=setup.layout,
            num_clients=setup.num_clients,
            settings=method.settings() | rule | order,
            about=method.release.about if self.private.hides or rule else {},
            run_id=run_id or secrets.token_hex(16),
            incarnation=incarnation,
            factors=setup.factors,
            attached={} if setup.preparation is None else setup.preparation.payload,
        )
        _, arrays = encode(self.info.settings)
        self.setting_bytes = payload_bytes(arrays)
        self.gate = Gate(self.strategy, hides=self.private.hides)
        self.bound = ModelBound(self.strategy)
        self.has_personal = method.says("personal")
        self.has_first_contact = method.says("first_contact")
        self.received = Received(self.strategy) if rule else None
        release = method.release
        self.sums_suffice = not (
            release.single
            or release.form
            or method.aggregation
            or self.private.hides
            or rule
            or method.inclusion is not None
        )
        self.audit, self.clock = Audit(), None
        if clock is not None:
            steps = getattr(method, "local_steps", None)
            n, seed = setup.num_clients, setup.seed
            self.clock = Timekeeper(clock, n, seed, steps)
            if self.clock.counts_gradients and self.private.hides:
                raise ConfigError(
                    f"Clock(gradient) needs the number of gradients that clients of {method.title} "
                    f"took, which runs with privacy hide: give Clock(compute=...)"
                )
            if self.clock.events is not None and not isinstance(method.participation, Buffered):
                raise ConfigError(
                    f"Clock(events={str(self.clock.events)!r}) repeats a run with participation="
                    f"Buffered(...): give the strategy the same"
                )
        self.acknowledgements = Acknowledgements(setup.num_clients)
        self.everyone = list(range(setup.num_clients))
        self.round = self.replies = 0
        self.cohort: list[int] = []
        self.cohorts: list[tuple[int, Sequence[int], Sequence[int]]] | None = None
        self._drawn: list[int] = []
        self.uplink_bytes = self.downlink_bytes = 0
        if setup.preparation is not None:
            self.setting_bytes += setup.preparation.nbytes
            self.uplink_bytes = setup.preparation.uplink_bytes
            self.downlink_bytes = setup.preparation.downlink_bytes
        self.buffers: list[Array] = []
        self.buffer_names: Sequence[str] = ()
        self.counts: Counter[str] = Counter()
        self.work: Counter[str] = Counter()
        self.columns: dict[str, float] = {}
        self._warned = False
        self._late = 0
        self._gaps: Gaps | None = None
        asks = method.participation
        if isinstance(asks, Estimated):
            self._gaps, asks = Gaps(setup.num_clients, asks.cutoff), asks.among
        if draws and isinstance(asks, Deadline):
            if self.clock is None:
                raise ConfigError(
                    f"{asks!r} needs a clock for the clients' times: give clock=Clock(...), in "
                    f"a file a table [clock]"
                )
            self._within = self.clock.most = asks.seconds
            method.draws.keep = self._in_time
            self._check_deadline()

    @property
    def x(self) -> Array:
        """The current global model."""
        return self.strategy.model(self.state)

    @property
    def exhausted(self) -> bool:
        """Whether one more round would exceed the budget of a private run."""
        return self.private.exhausted

    def draw(self) -> list[int]:
        """Begin the next round and return its cohort.

        Raises
        ------
        BudgetError
            If a round would cost more privacy than is left.
        """
        self.private.begin()
        self.round += 1
        self.cohort = self.everyone
        if self.setup.sampled:
            drawn = self.private.cohort()
            self.cohort = self.strategy.cohort(self.round) if drawn is None else drawn
            if self._late:
                self.counts["late"] += self._late
        self._drawn = self.cohort = self.private.kept(self.cohort, self.round)
        return self.cohort

    def _expected_bytes(self) -> tuple[int, int]:
        """Return the bytes each client will be sent and will send: as in the round before.

        Before the first round, the size of uploads more compact than the model is not known.
        """
        assert self.clock is not None  # noqa: S101  (only with a deadline)
        if self.clock.sizes[0]:
            return self.clock.sizes
        method, dtype = self.strategy, self.x.dtype
        names = [] if method.compact or method.compression else method.expects(self.state)
        shapes = [method.upload_shape(name, self.setup.layout) for name in names]
        down = payload_bytes(method.broadcast(self.state)) + self.setting_bytes
        up = sum(
            payload_bytes({name: 0.0 if name in method.numbers else np.zeros(shape, dtype)})
            for name, shape in zip(names, shapes, strict=True)
        )
        return down, up

    @property
    def _exchanges(self) -> int:
        """How many exchanges a round has."""
        return 2 if self.strategy.queries else 1

    def _in_time(self, server_round: int, vain: int, cohort: list[int]) -> list[int]:
        """Return the clients of a cohort that would be in time; note how many would not."""
        assert self.clock is not None  # noqa: S101  (only with a deadline)
        self.clock.anew(vain)
        sizes, exchanges = self._expected_bytes(), self._exchanges
        times = self.clock.times(server_round, cohort, *sizes, exchanges=exchanges)
        times = self.clock.with_pauses(self.clock.seconds, cohort, times)
        kept = [c for c, time in zip(cohort, times.tolist(), strict=True) if time <= self._within]
        self._late = (self._late if vain else 0) + len(cohort) - len(kept)
        return kept

    def _check_deadline(self) -> None:
        """Refuse a deadline that no client can meet; name the clients that never will."""
        assert self.clock is not None  # noqa: S101  (only with a deadline)
        times = self.clock.least_times(*self._expected_bytes(), exchanges=self._exchanges)
        if times.min() > self._within:
            raise ConfigError(
                f"Deadline(seconds={self._within:g}): the fastest client takes at least "
                f"{times.min():.4g} seconds: give a longer deadline, or a faster Clock"
            )
        late = [self.setup.names[j] for j in np.flatnonzero(times > self._within).tolist()]
        if late:
            _log.warning(
                "participation: within %g seconds %d of %d clients never take part (%s), so the "
                "model favours the others",
                self._within, len(late), len(times), clients_by_name(late),
            )  # fmt: skip

    def after_query(self, answers: Uploads) -> Payload:
        """Apply the answers to a query, and return the broadcast to the clients that answered."""
        self.state, decision = self.strategy.after_query(self.state, answers)
        self.cohort = answers.clients
        return decision

    def apply(self, uploads: Uploads, numbers: Sequence[int] | None = None) -> None:
        """Apply a round's uploads and acknowledge their replies.

        `numbers` are those of the requests that each client has answered, if not of this round.
        """
        state = self.strategy.aggregate(self.state, uploads)
        self.gate.check_state(state, self.round)
        self.bound.check(state, self.round)
        self.state = state
        if self.received is not None:
            self.received.keep()
        self.replies = len(uploads)
        if self._gaps is not None:
            self._gaps.note(uploads.clients)
            self.strategy.inclusion = self._gaps.shares
        self.acknowledgements.used(uploads.clients, self.round if numbers is None else numbers)
        self.audit.applied(uploads.clients)
        if self.cohorts is not None:
            self.cohorts.append((self.round, self._drawn, uploads.clients))
        self._tell_unconverged()

    def applied(
        self,
        state: Any,
        cohorts: Sequence[list[int]],
        bytes_up: int,
        bytes_down: int,
        work: Mapping[str, int],
    ) -> None:
        """Take over the result of rounds that an engine has done by itself.

        Parameters
        ----------
        state : NamedTuple
            The strategy's state after these rounds.
        cohorts : sequence of list of int
            The cohort of each round; every reply was used.
        bytes_up, bytes_down : int
            Of each round.
        work : dict
            The costs of the clients' steps.
        """
        if self.clock is not None:
            for number, cohort in enumerate(cohorts, start=self.round + 1):
                n = len(cohort)
                self.clock.played(number, cohort, bytes_down // n, bytes_up // n)
        if self.cohorts is not None:
            rounds = enumerate(cohorts, start=self.round + 1)
            self.cohorts += [(number, cohort, cohort) for number, cohort in rounds]
        self.state, self.cohort, self.replies = state, cohorts[-1], len(cohorts[-1])
        for cohort in cohorts if self.setup.sampled else cohorts[-1:]:
            self.round += 1 if self.setup.sampled else len(cohorts)
            self.acknowledgements.used(cohort, self.round)
        self.count_bytes(up=len(cohorts) * bytes_up, down=len(cohorts) * bytes_down)
        self.count_work({name: number for name, number in work.items() if number})
        self._tell_unconverged()

    def start_buffers(self, buffers: list[Array], names: Sequence[str]) -> None:
        """Start from these buffers, unless a checkpoint has some."""
        self.buffers = self.buffers or buffers
        self.buffer_names = names

    def move_buffers(self, buffers: list[Array]) -> None:
        """Continue with the clients' new values of the buffers."""
        self.buffers = buffers

    @property
    def listeners(self) -> list[Callable[[Admitted], None]]:
        """What counts a round's uploads."""
        if self.private.hides:  # what a step cost depends on the data
            return [*self.audit.listeners, self.count_upload]
        return [*self.audit.listeners, self._count_step]

    def count_upload(self, admitted: Admitted) -> None:
        """Count the bytes that clients have sent."""
        self.uplink_bytes += sum(map(column_bytes, admitted.payload.values()))

    def _count_step(self, admitted: Admitted) -> None:
        """Count the bytes that clients have sent, and what their steps have cost."""
        self.uplink_bytes += sum(map(column_bytes, admitted.payload.values()))
        if admitted.work:
            self.count_work(total_work(admitted.work))

    def count_work(self, work: Mapping[str, float]) -> None:
        """Count what clients' steps have cost."""
        for name, number in work.items():
            self.work[name] += number  # type: ignore[assignment]

    def count_bytes(self, *, up: int = 0, down: int = 0) -> None:
        """Count what clients have sent, or were sent."""
        self.uplink_bytes += up
        self.downlink_bytes += down

    def _tell_unconverged(self) -> None:
        """Log, once, that a local solver has not reached its tolerance."""
        if "unconverged" in self.work and not self._warned:
            self._warned = True
            _log.warning(
                "round %d: a local solver did not reach its tolerance: allow more iterations, or a "
                "larger tolerance (reported once)",
                self.round,
            )

    def certificate_request(self, x: Array | None = None, *, units: bool = False) -> Request:
        """Return a request to everyone for the gradient at the model, or at another one.

        With `units` it also asks for the values that determine the units of the model's entries.
        """
        at = self.x if x is None else x
        return self.question(CERTIFY, {"x": at, "units": 1.0} if units else {"x": at})

    def question(self, phase: str, down: Payload, clients: Sequence[int] | None = None) -> Request:
        """Return a request to everyone, or to some, that is not part of a round."""
        asked = self.everyone if clients is None else list(clients)
        rounds = self.acknowledgements.rounds[asked]
        none = np.zeros_like(rounds)
        return Request(asked, self.round, rounds, down, none, phase=phase, wanted=len(asked))

    def spent(self) -> dict[str, float]:
        """Return the privacy spent by the rounds so far; empty if they are not private."""
        return self.private.record()

    def simulated(self) -> dict[str, float]:
        """Return the simulated time of the rounds so far; empty without a clock."""
        if self.clock is None:
            return {}
        late = {"late": self.counts["late"]} if self.clock.most < math.inf else {}
        return {"simulated_seconds": self.clock.seconds, **late}

    def readmit(self, client: int) -> Payload:
        """Return what a client without state needs; may change the strategy's state."""
        given: Payload = {}
        if self.strategy.client_side().state_type is not None:  # otherwise only its memory
            self.state, given = self.strategy.readmit(self.state, client)
        return given

    def client_name(self, client: int) -> str:
        """Return a client's name, for messages."""
        known = 0 <= client < self.setup.num_clients
        return f"client {self.setup.names[client]}" if known else f"unknown client {client}"

    def in_words(self, reasons: Mapping[int, str]) -> list[str]:
        """Return the reasons as text, each once, with the names of its clients."""
        names = self.setup.names
        clients = range(self.setup.num_clients)
        return grouped(
            {names[c] if c in clients else f"{c} (unknown)": why for c, why in reasons.items()}
        )

    def continued(self, strategy: Method[Any]) -> Server:
        """Return this run's server, to continue with the method for another regularizer.

        Clients keep their states: for them it is the same run.
        """
        info = self.info
        server = Server(
            strategy,
            self.setup,
            self.x,
            run_id=info.run_id,
            incarnation=info.incarnation,
            max_retries=self.max_retries,
            round_deadline=self.round_deadline,
        )
        server.resume(self.snapshot())
        server.state = server.strategy.renew(server.state)
        return server

    def anew(
        self, strategy: Method[Any], setup: Setup, x0: Array, clock: Clock | None = None
    ) -> Server:
        """Return a server that starts from x0 in the coming round, with new clients' states.

        The number of the round and all counts continue.
        """
        server = Server(
            strategy,
            setup,
            x0,
            incarnation=self.info.incarnation,
            max_retries=self.max_retries,
            round_deadline=self.round_deadline,
            clock=clock,
        )
        server.round, server.audit, server.cohorts = self.round, self.audit, self.cohorts
        if self.clock is not None and server.clock is not None:
            server.clock.resume(self.clock.snapshot())
        if self._gaps is not None:
            server._resume_gaps(self._gaps.snapshot())
        server.cohort, server.replies = self.cohort, self.replies
        server.counts, server.work = self.counts, self.work
        server.buffers, server.buffer_names = self.buffers, self.buffer_names
        server.count_bytes(
            up=self.uplink_bytes - server.uplink_bytes,
            down=self.downlink_bytes - server.downlink_bytes,
        )
        return server

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs in order to continue from the last complete round."""
        received = {} if self.received is None else {SETTING: self.received.snapshot()}
        draws = self.strategy.draws
        memory = {"participation": draws.memory(self.round)} if draws.remembers else {}
        gaps = {} if self._gaps is None else {"gaps": self._gaps.snapshot()}
        clock = {} if self.clock is None else {"clock": self.clock.snapshot()}
        scales = self.setup.scales
        estimated = {} if scales is None else {"scales": [*scales]}
        return (
            self.private.snapshot()
            | received
            | memory
            | gaps
            | clock
            | estimated
            | {
                "run_id": self.info.run_id,
                "incarnation": self.info.incarnation,
                "round": self.round,
                "state": self.state,
                "buffers": self.buffers,
                "acknowledged": self.acknowledgements.rounds,
                "uplink_bytes": self.uplink_bytes,
                "downlink_bytes": self.downlink_bytes,
                "counts": dict(self.counts),
                "work": dict(self.work),
            }
        )

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""
        self.round, self.state = snapshot["round"], snapshot["state"]
        self.buffers = snapshot["buffers"]
        self.acknowledgements.restore(snapshot["acknowledged"])
        self.uplink_bytes = snapshot["uplink_bytes"]
        self.downlink_bytes = snapshot["downlink_bytes"]
        self.counts, self.work = Counter(snapshot["counts"]), Counter(snapshot["work"])
        if self.strategy.draws.remembers:
            self.strategy.draws.resume(self.round, snapshot["participation"])
        if self._gaps is not None and "gaps" in snapshot:
            self._resume_gaps(snapshot["gaps"])
        if self.clock is not None and "clock" in snapshot:
            self.clock.resume(snapshot["clock"])
        self.private.resume(snapshot)
        if self.received is not None:
            self.received.resume(snapshot[SETTING])

    def _resume_gaps(self, snapshot: Array) -> None:
        """Continue with the gaps of an earlier time."""
        assert self._gaps is not None  # noqa: S101  (the callers' case)
        self._gaps.resume(snapshot)
        self.strategy.inclusion = self._gaps.shares
