"""A dispatch: one broadcast to some clients, and what becomes of their replies."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from flower_fedcon.core.admission import Admission
from flower_fedcon.core.gate import Admitted, column_bytes
from flower_fedcon.core.protocol import QUERY, TRAIN, Reply, Request
from flower_fedcon.core.server import Server
from flower_fedcon.core.stopwatch import Untimed
from flower_fedcon.core.summed import Summed
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import (
    AlgorithmError,
    DivergedError,
    FedConError,
    RoundError,
    StateLostError,
    printable,
)
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload, payload_bytes

_log = logging.getLogger("flwr")
_REASON = 1200  # characters of a reason in the log
_LOGGED = 10  # reasons for dropped replies in one log line
_NOBODY: frozenset[int] = frozenset()


class Dispatch(Admission):
    """The exchange of messages with some clients about one broadcast.

    `request` and `take` alternate as often as the caller likes: it decides whom to ask again, and
    whether the replies suffice (`core.round`).

    Parameters
    ----------
    server : Server
        Its counts change as requests are made and replies come in; its state changes only where a
        client re-enters.
    number : int
        The round that the replies answer.
    clients : list of int
        Ascending.
    stopwatch : Untimed
        Measures the round.
    restores : dict, optional
        By client that has lost its state: what it is handed back. It changes as clients re-enter.

    Attributes
    ----------
    phase : {"query", "train"}
        What clients are asked for.
    clients : list of int
        Those that may reply.
    broadcast : dict
        What is sent to all of them. In the step after a query, `decision` is sent instead.
    names : tuple of str
        What they upload, by name.
    used : list of Reply
        The replies that are used.
    count : int
        The number of clients with such a reply.
    faults : dict of str
        By client: why its last reply is not used.
    refusing, diverged : set of int
        The clients whose reply to the last request was dropped, and those whose numbers were not
        finite in their last reply.
    reentered : bool
        Whether clients have been given back what they had lost, and must be asked again.
    sent_anew : bool
        Whether the last replies have changed the state, so that replies to the broadcast before
        no longer count.
    """

    fatal: ClassVar = (
        StateLostError,  # no way back in
        AlgorithmError,  # an error in the program: asking again would not help
    )

    word: ClassVar = "round"
    """What `number` counts, for the log."""

    def __init__(
        self,
        server: Server,
        number: int,
        clients: list[int],
        stopwatch: Untimed,
        restores: dict[int, Payload] | None = None,
    ) -> None:
        self._server, self.number, self.clients = server, number, clients
        self._stopwatch = stopwatch
        self.phase = QUERY if server.strategy.queries else TRAIN
        self.decision: Payload = {}
        self._held = _NOBODY
        self._restores = {} if restores is None else restores
        self._start()
        self._send_anew()

    def _start(self) -> None:
        """Begin a phase: nobody has been asked, nobody has replied."""
        server = self._server
        super().__init__([*server.listeners, *self._stopwatch.listeners])
        self._adds_up = server.sums_suffice and self.phase == TRAIN
        self._members = _NOBODY
        self.reentered, self.diverged, self.refusing = False, set[int](), set[int]()
        self.faults: dict[int, str] = {}

    def _forget_replies(self) -> None:
        self.used: list[Reply] = []
        self.count, self._heard = 0, set[int]()
        self._unheard: list[list[int]] = []  # further clients of used replies; see `answered`

    def _send_anew(self) -> None:
        """Broadcast the current state; replies to an earlier broadcast no longer count."""
        server = self._server
        self.sent_anew = True
        self._forget_replies()
        self.names = server.strategy.expects(server.state)
        self.broadcast = server.private.instructed(server.strategy.broadcast(server.state))
        self._broadcast_bytes = payload_bytes(self.broadcast) + server.setting_bytes

    def begin_step(self, decision: Payload, clients: list[int]) -> None:
        """Go from a query to the step, with the clients that answered it."""
        self.decision, self.clients, self._held = decision, clients, frozenset(clients)
        self.phase = TRAIN
        self._start()
        self._forget_replies()

    # --- what is asked ---------------------------------------------------------------------------

    def request(
        self, clients: list[int], *, wanted: int, attempt: int, seconds_left: float
    ) -> Request:
        """Return a request to some of the clients, and count it; see `Request`."""
        server = self._server
        self.reentered = False
        self.refusing.clear()
        after_query = bool(server.strategy.queries) and self.phase == TRAIN
        acknowledged, kept = server.acknowledgements.of(clients)
        one = server.has_personal or after_query  # rare; the check saves the calls below
        personal = self._personal_parts(clients, acknowledged, after_query) if one else {}
        new = self._restores or (
            server.has_first_contact and not acknowledged[acknowledged.argmin()]
        )
        restore = self._restored_states(clients, acknowledged) if new else {}
        request = Request(
            clients,
            self.number,
            acknowledged,
            self.decision if after_query else self.broadcast,
            kept,
            personal=personal,
            restore=restore,
            phase=self.phase,
            held=self._held,
            names=server.strategy.queries if self.phase == QUERY else self.names,
            wanted=wanted,
            attempt=attempt,
            seconds_left=seconds_left,
        )
        common = self._broadcast_bytes
        if after_query:
            common = payload_bytes(self.decision) + server.setting_bytes
        extra = sum(map(payload_bytes, (*personal.values(), *restore.values())))
        server.count_bytes(down=len(clients) * common + extra)
        self._stopwatch.sent(clients, common, (personal, restore))
        server.audit.asked(request)
        return request

    def _personal_parts(
        self, clients: list[int], acknowledged: Array, after_query: bool
    ) -> dict[int, Payload]:
        """Return what individual clients are sent in addition to the broadcast."""
        strategy, state = self._server.strategy, self._server.state
        parts = {}
        for client, last in zip(clients, acknowledged.tolist(), strict=True):
            if client in self._held:
                continue
            part = strategy.personal(state, client, last)
            if after_query:  # it no longer holds what came with the query
                part = {**self.broadcast, **part}
            if part:
                parts[client] = part
        return parts

    def _restored_states(self, clients: list[int], acknowledged: Array) -> dict[int, Payload]:
        """Return states for clients at first contact, and for those that lost theirs."""
        strategy, state = self._server.strategy, self._server.state
        states = {c: self._restores[c] for c in clients if c in self._restores}
        if self._server.has_first_contact:
            for client, last in zip(clients, acknowledged.tolist(), strict=True):
                if last == 0 and client not in self._held and client not in states:
                    given = strategy.first_contact(state, client)
                    if given is not None:
                        states[client] = given
        return states

    @property
    def answered(self) -> set[int]:
        """The clients whose replies are used; computed on demand, since few rounds need it."""
        if self._unheard:
            self._heard.update(*self._unheard)
            self._unheard = []
        return self._heard

    def unanswered(self) -> list[int]:
        """Return the clients that have not given a usable reply yet."""
        answered = self.answered
        return [client for client in self.clients if client not in answered]

    # --- what comes back -------------------------------------------------------------------------

    def take(self, replies: Iterable[Reply]) -> None:
        """Take the usable replies; drop, count and log the others."""
        self._dropped: dict[int, str] = {}
        self.sent_anew = False
        try:
            for reply in replies:
                self.judge(reply)
                if self.sent_anew:
                    return  # the other replies answer a broadcast that no longer counts
        finally:
            self._tell_dropped()

    def drop(self, clients: Sequence[int], error: FedConError) -> None:
        """Drop the replies of some clients that were used so far."""
        self.used = [reply for reply in self.used if reply.clients[0] not in clients]
        self.answered.difference_update(clients)
        self.count -= len(clients)
        self._dropped = {}
        for client in clients:
            self._drop(client, error)
        self._tell_dropped()

    def _tell_dropped(self) -> None:
        lines = self._server.in_words(self._dropped) if self._dropped else []
        for line in lines[:_LOGGED]:
            what = "replies" if line.startswith("clients ") else "reply"
            _log.warning("%s %d: dropped the %s of %s", self.word, self.number, what, line)
        if len(lines) > _LOGGED:
            rest = len(lines) - _LOGGED
            _log.warning("%s %d: and more, for %d other reasons", self.word, self.number, rest)

    def admit(self, reply: Reply) -> Payload | None:
        """Return the columns of a reply, if it can be used; None from clients without state."""
        server = self._server
        if reply.remote and not self._waits_for(reply):
            raise RoundError("nothing was asked of this client")
        server.gate.check_round(reply, self.number)
        if reply.lost:
            self._readmit(reply)
            return None
        names = server.strategy.queries if self.phase == QUERY else self.names
        try:
            return server.gate.admit(reply, self.phase, names)
        except DivergedError as error:
            columns = server.private.instead(reply, names, self.broadcast)
            if columns is None:
                raise
            who, reason = server.client_name(reply.clients[0]), printable(str(error), _REASON)
            _log.warning("round %d: the upload of %s counts as 0: %s", self.number, who, reason)
            return columns

    def refuse(self, reply: Reply, error: FedConError) -> None:
        """Drop a reply, or the unusable ones of a reply of many clients."""
        if reply.silent:
            self.faults |= dict.fromkeys(reply.clients, reply.error)
            self._server.audit.silent(reply.clients, reply.error)
        elif len(reply.clients) == 1 or not reply.payload:
            for client in reply.clients:
                self._drop(client, error)
        else:  # one of them is at fault
            for single in reply.single():
                self.judge(single)

    def keep(self, admitted: Admitted) -> None:
        """Use a reply: its columns, or their sums if they are not all of the round's."""
        clients = admitted.clients
        self.used.append(admitted)
        self.count += len(clients)
        self._unheard.append(clients)
        if self._adds_up and 1 < len(clients) < len(self.clients):
            columns = admitted.payload.items()
            admitted.payload = {name: self._sum(name, column) for name, column in columns}

    def _sum(self, name: str, rows: Any) -> Any:
        """Return the sum of one of several array columns of a round, without more memory."""
        unchanged = name in self._server.strategy.numbers or not isinstance(rows, np.ndarray)
        return rows if unchanged else Summed.of(name, rows, column_bytes(rows[:1]))

    def _waits_for(self, reply: Reply) -> bool:
        """Return whether these clients were asked, and have not answered yet."""
        if not self._members:  # not needed if every reply comes from this process
            self._members = frozenset(self.clients)
        answered = self.answered
        return not any(c in answered or c not in self._members for c in reply.clients)

    def _drop(self, client: int, error: FedConError) -> None:
        """Count and log a reply that is not used."""
        self._server.counts["dropped"] += 1
        reason = printable(str(error), _REASON)
        self.faults[client] = self._dropped[client] = reason
        if isinstance(error, DivergedError):
            self.diverged.add(client)
        else:
            self.diverged.discard(client)
        self._server.audit.dropped(client, reason)
        self.refusing.add(client)

    def _readmit(self, reply: Reply) -> None:
        """Readmit clients that have lost their state; they are asked again."""
        server = self._server
        for client in reply.clients:
            if client in self._held:  # it answered the query, and has lost it since
                self._held -= {client}
                self.reentered = True
                continue
            if not server.strategy.clients_keep_state or not server.acknowledgements.rounds[client]:
                self._drop(client, RoundError("it reports the loss of a state that it never had"))
                continue
            if client in self._restores:
                self._drop(client, RoundError("it reports again that its state is lost"))
                continue
            state = server.state
            self._restores[client] = server.readmit(client)
            server.counts["lost"] += 1
            server.audit.lost(client)
            self.reentered = True
            name = server.client_name(client)
            _log.warning("%s %d: %s has lost its state and re-enters", self.word, self.number, name)
            if state is not server.state:
                self._send_anew()
                return

    def uploads(self, without: Collection[int] = ()) -> Uploads:
        """Return the uploads of the current phase, without those of some clients."""
        server, replies = self._server, self.used
        if without:
            replies = [reply for reply in replies if reply.clients[0] not in without]
        if server.received is not None and self.phase == TRAIN:
            replies = server.received.replies(replies, self.broadcast, self._restores)
        return server.private.uploads(replies, self.names, self.broadcast, self.number)
