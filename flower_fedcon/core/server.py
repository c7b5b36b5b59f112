"""The server's side of one run: the strategy, its state, and the counts."""

from __future__ import annotations

import logging
import math
import secrets
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.core.acknowledgements import Acknowledgements
from flower_fedcon.core.audit import Audit
from flower_fedcon.core.compressing import SETTING, Received
from flower_fedcon.core.gate import Gate
from flower_fedcon.core.protocol import CERTIFY, Request, RunInfo, Setup
from flower_fedcon.core.round import Round
from flower_fedcon.core.server_privacy import Private
from flower_fedcon.errors import grouped
from flower_fedcon.registry import client_class
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload, payload_bytes
from flower_fedcon.wire.settings import encode

if TYPE_CHECKING:
    from flower_fedcon.strategies.base import FedConStrategy

_log = logging.getLogger("flwr")


class Server:
    """A run, apart from the engine that holds its clients.

    A round is `begin`, then requests and replies until there is nothing more to ask, then
    `finish`. Nothing of a round is applied before that, except the answers to a query, and the
    re-entry of a client that has lost its state.

    Parameters
    ----------
    strategy : FedConStrategy
        Bound to `setup` here; the caller's object is not changed.
    setup : Setup
    x0 : array
        The start, of the layout's shape.
    run_id, incarnation
        Of a run that is resumed from a checkpoint; see `RunInfo`.

    Attributes
    ----------
    state : NamedTuple
        The strategy's state.
    round : int
        The last round that has begun.
    replies : int
        How many were used in the last complete round.
    private : Private, optional
        What makes its rounds private, if anything does.
    received : Received, optional
        What reads its uploads, if they are compressed.
    tells_one, greets : bool
        Whether the strategy has something for one client alone, in every round or at its first
        contact.
    sums_suffice : bool
        Whether each upload may go into a sum as soon as it is let in.
    audit : Audit
        Hears of every exchange.
    buffers : list of arrays
        What belongs to the model and is not optimised, if the clients' apps have any.
    counts : Counter
        Replies dropped, attempts repeated, and clients that lost their state, so far.
    work : Counter
        What the clients' steps have cost so far.
    """

    max_retries: int | None = 3
    """How many more times the clients without a usable reply are asked; None for any number."""
    round_deadline = math.inf
    """Seconds after its beginning at which a round without enough replies ends the run."""

    def __init__(
        self,
        strategy: FedConStrategy[Any],
        setup: Setup,
        x0: Array,
        *,
        run_id: str | None = None,
        incarnation: int = 1,
    ) -> None:
        self.setup = setup
        self.strategy = strategy.bind(setup)
        self.state = self.strategy.initialize(x0)
        known = self.strategy
        rule = {} if known.compression is None else {SETTING: known.compression}
        self.info = RunInfo(
            algorithm=known.name,
            seed=setup.seed,
            layout=setup.layout,
            num_clients=setup.num_clients,
            settings=known.settings() | rule,
            about=known.release.about if known.privacy or rule else {},
            run_id=run_id or secrets.token_hex(16),
            incarnation=incarnation,
            preparation=setup.preparation,
        )
        _, arrays = encode(self.info.settings)
        self.setting_bytes = payload_bytes(arrays)
        self.gate = Gate(self.strategy)
        self.tells_one, self.greets = known.says("personal"), known.says("first_contact")
        self.private = None if self.strategy.privacy is None else Private(self.strategy)
        self.received = Received(self.strategy) if rule else None
        release = known.release
        self.sums_suffice = not (
            release.single or release.form or known.aggregation or known.privacy or rule
        )
        self.audit = Audit()
        self.acknowledgements = Acknowledgements(setup.num_clients)
        self.everyone = list(range(setup.num_clients))
        self.round = self.replies = 0
        self.cohort: list[int] = []
        self.uplink_bytes = self.downlink_bytes = 0
        if setup.preparation is not None:
            self.setting_bytes += setup.preparation.nbytes
            self.uplink_bytes = setup.preparation.uplink_bytes
            self.downlink_bytes = setup.preparation.downlink_bytes
        self.buffers: list[Array] = []
        self.counts: Counter[str] = Counter()
        self.work: Counter[str] = Counter()
        self._warned = False

    @property
    def x(self) -> Array:
        """The current global model."""
        return self.strategy.model(self.state)

    def begin(self) -> Round:
        """Draw the cohort of the next round.

        Raises
        ------
        BudgetError
            If a round would cost more privacy than is left.
        """
        if self.private is not None:
            self.private.begin()
        self.round += 1
        self.cohort = self.everyone
        if self.setup.sampled:
            drawn = None if self.private is None else self.private.cohort()
            self.cohort = self.strategy.cohort(self.round) if drawn is None else drawn
        return Round(self, self.cohort)

    def finish(self, round_: Round) -> None:
        """Apply a round, and acknowledge the replies that were used."""
        uploads = round_.uploads()
        state = self.strategy.aggregate(self.state, uploads)
        self.gate.check_state(state, self.round)
        self.state = state
        if self.received is not None:
            self.received.keep()
        self.replies = len(uploads)
        self.acknowledgements.used(uploads.clients, self.round)
        self.audit.applied(uploads.clients)
        self.tell_unconverged()

    def tell_unconverged(self) -> None:
        """Log once that a local solver has not reached its tolerance."""
        if "unconverged" in self.work and not self._warned:
            self._warned = True
            _log.warning(
                "round %d: a local solver did not reach its tolerance: allow it more iterations, "
                "or a larger tolerance (reported once)",
                self.round,
            )

    def certificate_request(self) -> Request:
        """Return what asks everyone for the gradient at the model."""
        rounds, everyone = self.acknowledgements.rounds, self.everyone
        none = np.zeros_like(rounds)
        down = {"x": self.x}
        return Request(
            everyone, self.round, rounds, down, none, phase=CERTIFY, wanted=len(everyone)
        )

    def spent(self) -> dict[str, float]:
        """Return what privacy the rounds have cost so far; nothing where they are not private."""
        return {} if self.private is None else self.private.record()

    def readmit(self, client: int) -> Payload:
        """Return what lets a client without state come back; the strategy's state may change."""
        given: Payload = {}
        if client_class(self.strategy.name).state_type is not None:  # else its memory alone
            self.state, given = self.strategy.readmit(self.state, client)
        return given

    def client_name(self, client: int) -> str:
        """Return a client's name, for messages."""
        known = 0 <= client < self.setup.num_clients
        return f"client {self.setup.names[client]}" if known else f"unknown client {client}"

    def in_words(self, reasons: Mapping[int, str]) -> list[str]:
        """Return reasons by client, each once, with the names of the clients that have it."""
        names = self.setup.names
        known = range(self.setup.num_clients)
        return grouped(
            {names[c] if c in known else f"{c} (unknown)": why for c, why in reasons.items()}
        )

    def continued(self, strategy: FedConStrategy[Any]) -> Server:
        """Return this run as far as it is, to go on with the same method for another regularizer.

        What clients hold stays theirs: they see the same run.
        """
        info = self.info
        server = Server(
            strategy, self.setup, self.x, run_id=info.run_id, incarnation=info.incarnation
        )
        server.resume(self.snapshot())
        server.state = server.strategy.renew(server.state)
        return server

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs to continue from the last complete round."""
        private = {} if self.private is None else {"privacy": self.private.snapshot()}
        received = {} if self.received is None else {SETTING: self.received.snapshot()}
        return (
            private
            | received
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
        if self.private is not None:
            self.private.resume(snapshot["privacy"])
        if self.received is not None:
            self.received.resume(snapshot[SETTING])
