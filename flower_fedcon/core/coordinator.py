"""The server's side of one run: cohorts, requests, the gate, acknowledgements, counts."""

from __future__ import annotations

import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.core import rng as streams
from flower_fedcon.core.protocol import (
    QUERY,
    TRAIN,
    Exchange,
    Reply,
    Request,
    RunInfo,
    Setup,
    StackReply,
    StackRequest,
)
from flower_fedcon.core.uploads import StackedUploads, Uploads
from flower_fedcon.errors import FedConError, RoundError, StateLostError
from flower_fedcon.flower.codec import RequestEncoder
from flower_fedcon.layout import array_bytes
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload, payload_bytes

if TYPE_CHECKING:
    from flower_fedcon.strategies.base import FedConStrategy

_log = logging.getLogger("flwr")


class Coordinator:
    """One run of a strategy, apart from what carries its messages.

    A round is `begin`, then `requests` and `absorb` until `complete`, then `finish`; a strategy
    that asks its clients first does that twice, with `proceed` in between. `play` does it all.
    Nothing of a round is applied before it is complete.

    Parameters
    ----------
    strategy : FedConStrategy
        Bound to `setup` here; the caller's object is left alone.
    setup : Setup
    x0 : array
        The start, of the layout's shape.
    max_retries : int
        How many more times the clients without a usable reply are asked.
    run_id, incarnation
        Of a run that goes on from a checkpoint; see `RunInfo`.
    """

    def __init__(
        self,
        strategy: FedConStrategy[Any],
        setup: Setup,
        x0: Array,
        *,
        max_retries: int = 3,
        run_id: str | None = None,
        incarnation: int = 1,
    ) -> None:
        self.setup = setup
        self.strategy = strategy.bind(setup)
        self.state = self.strategy.initialize(x0)
        self.info = RunInfo(
            algorithm=self.strategy.name,
            seed=setup.seed,
            layout=setup.layout,
            num_clients=setup.num_clients,
            settings=self.strategy.settings(),
            run_id=run_id or secrets.token_hex(16),
            incarnation=incarnation,
        )
        self.encoder = RequestEncoder(self.info)
        self._setting_bytes = sum(
            array_bytes(a.shape, a.dtype) for a in self.encoder.setting_arrays.values()
        )
        self.round = 0
        self.max_retries = max_retries
        self.acks = [0] * setup.num_clients
        self.kept = [0] * setup.num_clients
        self.uplink_bytes = self.downlink_bytes = 0
        self.counts: Counter[str] = Counter()
        self.work: Counter[str] = Counter()
        self.cohort: list[int] = []
        self._member_list: list[int] | None = None
        self._member_set: frozenset[int] = frozenset()
        self._everyone = list(range(setup.num_clients))
        self._places = np.arange(setup.num_clients)
        self._personal = strategy.has_personal()
        self.replies = 0
        self._warned = False

    @property
    def x(self) -> Array:
        """The current global model."""
        return self.strategy.model(self.state)

    def play(self, exchange: Exchange) -> None:
        """Do the next round."""
        self.begin()
        self.go_on(exchange)

    def go_on(self, exchange: Exchange) -> None:
        """Bring the round that has begun to its end."""
        asks = bool(self.strategy.queries)
        stack = None if asks else getattr(exchange, "stack", None)
        quick = None if asks or self._personal else getattr(exchange, "quick", None)
        while True:
            if stack is not None and not self.complete():
                self._play_stack(stack)
            if quick is not None and not self.complete():
                self._absorb_quick(
                    quick(self.cohort, self.round, self.acks, self.kept, self._broadcast)
                )
            while not self.complete():
                self.absorb(exchange(self.requests()))
            if not self.proceed():
                break
        self.finish()

    def begin(self) -> None:
        """Draw the cohort of the next round."""
        self.round += 1
        participation, n = self.strategy.participation, self.setup.num_clients
        if self.setup.sampled:
            self.cohort = participation.draw(
                n, streams.stream(self.setup.seed, streams.COHORT, self.round)
            )
        else:
            self.cohort = self._everyone
        self._phase = QUERY if self.strategy.queries else TRAIN
        self._decision: Payload = {}
        self._held: set[int] = set()
        self._restores: dict[int, Payload] = {}
        self._restart()
        self._ask()

    def _ask(self) -> None:
        """Start a phase: nobody has replied yet."""
        self._attempt, self._ask_again = 0, False
        self._faults: dict[int, str] = {}

    def _restart(self) -> None:
        """Take the state's broadcast, with no upload yet."""
        self._uploads: dict[int, Payload] = {}
        self._stacked: list[StackReply] | None = None
        self._broadcast = self.strategy.broadcast(self.state)
        self._broadcast_bytes = payload_bytes(self._broadcast) + self._setting_bytes

    def proceed(self) -> bool:
        """Turn from the query to the step; return whether there is one still to do."""
        if self._phase == TRAIN:
            return False
        answers = Uploads(self._uploads, self.setup.num_clients)
        self.state, self._decision = self.strategy.after_query(self.state, answers)
        self._held = set(answers.clients)
        self.cohort = answers.clients
        self._phase, self._uploads = TRAIN, {}
        self._ask()
        return True

    def requests(self) -> list[Request]:
        """Return what to ask the members of the cohort whose reply is still missing."""
        self._attempt += not self._ask_again  # a re-entry is an answer, not a failed attempt
        self._ask_again = False
        if self._attempt > 1:
            self.counts["retries"] += 1
        missing = (client for client in self.cohort if client not in self._uploads)
        return [self._request(client) for client in missing]

    def _play_stack(
        self, stack: Callable[[StackRequest], tuple[list[StackReply], list[int]]]
    ) -> None:
        """Ask an engine that holds its clients in arrays; if one fails, all are asked singly."""
        sent = self.downlink_bytes
        request = self._stack_request()
        try:
            answer = stack(request)
        except FedConError:
            self.downlink_bytes = sent
            self._attempt -= 1
        else:
            self._absorb_stack(*answer)

    def _stack_request(self) -> StackRequest:
        """Return what to ask the whole cohort, of an engine that holds it in arrays."""
        self._attempt += 1
        strategy, state, cohort = self.strategy, self.state, self.cohort
        everyone = len(cohort) == len(self.acks)
        clients = self._places if everyone else np.array(cohort)
        acks = np.array(self.acks if everyone else [self.acks[client] for client in cohort])
        request = StackRequest(clients, self.round, acks, self._broadcast)
        self.downlink_bytes += len(cohort) * self._broadcast_bytes
        if np.count_nonzero(acks) < len(acks):
            for client in clients[acks == 0].tolist():
                given = strategy.first_contact(state, client)
                if given is not None:
                    request.restore[client] = given
                    self.downlink_bytes += payload_bytes(given)
        if self._personal:
            asked = zip(cohort, acks.tolist(), strict=True)
            request.own = [strategy.personal(state, client, ack) for client, ack in asked]
            self.downlink_bytes += sum(map(payload_bytes, request.own))
        return request

    def _absorb_stack(self, replies: list[StackReply], lost: list[int]) -> None:
        """Take a cohort's replies, all of them; where one is not usable, one by one."""
        strategy = self.strategy
        names = strategy.expects(self.state)
        try:
            if lost:
                raise RoundError("a state is gone")
            for reply in replies:
                strategy.accept(reply.payload, names, (len(reply.clients),))
        except FedConError:
            single = [Reply(client, self.round, lost=True) for client in lost]
            for reply in replies:
                for i, client in enumerate(reply.clients.tolist()):
                    single.append(Reply(client, self.round, reply.part(i)))
            self.absorb(sorted(single, key=lambda one: one.client))
            return
        self._stacked = replies
        for reply in replies:
            for value in reply.payload.values():
                if isinstance(value, np.ndarray):
                    self.uplink_bytes += len(value) * array_bytes(value.shape[1:], value.dtype)
                else:
                    self.uplink_bytes += value.stack_bytes

    def _absorb_quick(self, answers: Iterable[tuple[int, Payload, dict[str, float]]]) -> None:
        """Take the uploads of clients of this process to whom nothing special was said."""
        uploads, accept, answered = self._uploads, self.strategy.accept, 0
        names = self.strategy.expects(self.state)
        for client, payload, work in answers:
            answered += 1
            self.downlink_bytes += self._broadcast_bytes
            try:
                uploads[client] = accept(payload, names)
            except FedConError as error:
                self._drop(client, error)
                continue
            self.uplink_bytes += payload_bytes(payload)
            if work:
                self.work.update(work)
        self._attempt += answered == len(self.cohort)  # else the others are asked now

    def _request(self, client: int) -> Request:
        ack, given = self.acks[client], self._restores.get(client)
        follow_up = client in self._held
        if follow_up:
            down, size = self._decision, payload_bytes(self._decision) + self._setting_bytes
        else:
            if given is None and ack == 0:
                given = self.strategy.first_contact(self.state, client)
            down, size = self._broadcast, self._broadcast_bytes
            own = self.strategy.personal(self.state, client, ack) if self._personal else {}
            if own or self._decision:
                down = {**down, **own, **self._decision}
                size = payload_bytes(down) + self._setting_bytes
        self.downlink_bytes += size + (payload_bytes(given) if given else 0)
        keep = self.kept[client]
        return Request(client, self.round, ack, down, given, self._phase, follow_up, keep)

    def absorb(self, replies: Iterable[Reply]) -> None:
        """Take the usable replies; drop, count and log the others."""
        uploads, members, server_round = self._uploads, self._members(), self.round
        strategy, query = self.strategy, self._phase == QUERY
        names = () if query else strategy.expects(self.state)
        for reply in replies:
            client = reply.client
            try:
                if client not in members or client in uploads:
                    raise RoundError("nothing was asked of this client")
                if reply.error:
                    raise RoundError(reply.error)
                if reply.round != server_round:
                    raise RoundError(f"it is for round {reply.round}")
                if reply.lost:
                    if self._reenter(client):
                        return  # the other replies answer a broadcast that no longer holds
                    continue
                if not 0 < reply.num_examples < math.inf:
                    raise RoundError(f"its weight is {reply.num_examples}")
                payload = reply.payload
                if query:
                    payload = strategy.accept_answer(payload)
                else:
                    if reply.encoded:
                        payload = strategy.decode_upload(payload, names)
                    payload = strategy.accept(payload, names)
                uploads[client] = payload
                if reply.work:
                    self.work.update(reply.work)
                self.uplink_bytes += payload_bytes(payload)
            except StateLostError:
                raise  # no way back in: to go on without it would be another problem
            except FedConError as error:
                self._drop(client, error)

    def _drop(self, client: int, error: FedConError) -> None:
        """Count and log a reply that is not used."""
        self.counts["dropped"] += 1
        self._faults[client] = str(error)
        name = self.client_name(client)
        _log.warning("round %d: dropped the reply of %s: %s", self.round, name, error)

    def _members(self) -> frozenset[int]:
        """Return the cohort as a set, made once for each list."""
        if self._member_list is not self.cohort:
            self._member_list, self._member_set = self.cohort, frozenset(self.cohort)
        return self._member_set

    def _reenter(self, client: int) -> bool:
        """Let a client whose state is gone come back; return whether the round starts over."""
        name = self.client_name(client)
        if client in self._held:  # it answered the query, and has forgotten it since
            self._held.discard(client)
            self._ask_again = True
            return False
        if client in self._restores:
            raise RoundError("it says again that its state is gone")
        state, self._restores[client] = self.strategy.readmit(self.state, client)
        self.counts["lost"] += 1
        self._ask_again = True
        _log.warning("round %d: %s has lost its state and re-enters", self.round, name)
        if state is self.state:
            return False
        self.state = state
        self._restart()
        return True

    def complete(self) -> bool:
        """Return whether the round has enough usable replies.

        Raises
        ------
        RoundError
            If it has not, and every attempt is spent. The state is the last round's.
        """
        if self._stacked is not None:
            return True
        wanted = self.strategy.quorum(len(self.cohort))
        missing = len(self.cohort) - len(self._uploads)
        if missing == 0:
            return True
        if self._ask_again or self._attempt == 0:
            return False
        if len(self._uploads) >= wanted:
            return True
        if self._attempt > self.max_retries:
            missed = [c for c in self.cohort if c not in self._uploads]
            raise RoundError(
                f"round {self.round}: {len(self._uploads)} usable replies of {len(self.cohort)}, "
                f"{wanted} needed, after {self._attempt} attempts ({self._reasons(missed)})"
            )
        return False

    @property
    def lacking(self) -> int:
        """How many usable replies the phase under way still needs."""
        return max(0, self.strategy.quorum(len(self.cohort)) - len(self._uploads))

    def _reasons(self, clients: list[int]) -> str:
        """Return why these clients have no usable reply, each reason once."""
        by_reason: dict[str, list[str]] = {}
        for client in clients:
            reason = self._faults.get(client, "no reply")
            by_reason.setdefault(reason, []).append(self.setup.clients[client].name)
        return "; ".join(
            f"client{'s' if len(names) > 1 else ''} {', '.join(names)}: {reason}"
            for reason, names in by_reason.items()
        )

    def finish(self) -> None:
        """Apply the round and acknowledge the replies that were used."""
        if self._stacked is not None:
            uploads: Uploads = StackedUploads(self._stacked, self.setup.num_clients)
        else:
            uploads = Uploads(self._uploads, self.setup.num_clients)
        self.state = self.strategy.aggregate(self.state, uploads)
        self._stacked = None
        self.replies = len(uploads)
        if self.replies == len(self.acks):
            self.acks = [self.round] * self.replies
        else:
            for client in uploads.clients:
                self.acks[client] = self.round
        if "unconverged" in self.work and not self._warned:
            self._warned = True
            _log.warning(
                "round %d: a local solver did not reach its tolerance: raise its iterations, or "
                "loosen it (said once)",
                self.round,
            )

    def snapshot(self) -> dict[str, Any]:
        """Return what a later start needs to go on from the last complete round."""
        return {
            "run_id": self.info.run_id,
            "incarnation": self.info.incarnation,
            "round": self.round,
            "state": self.state,
            "acks": list(self.acks),
            "uplink_bytes": self.uplink_bytes,
            "downlink_bytes": self.downlink_bytes,
            "counts": dict(self.counts),
            "work": dict(self.work),
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self.round, self.state = snapshot["round"], snapshot["state"]
        self.acks, self.kept = list(snapshot["acks"]), list(snapshot["acks"])
        self.uplink_bytes = snapshot["uplink_bytes"]
        self.downlink_bytes = snapshot["downlink_bytes"]
        self.counts, self.work = Counter(snapshot["counts"]), Counter(snapshot["work"])

    def client_name(self, client: int) -> str:
        """Return a client's name, for messages."""
        known = 0 <= client < self.setup.num_clients
        return f"client {self.setup.clients[client].name}" if known else f"unknown client {client}"
