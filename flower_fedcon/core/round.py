"""One round under way: which clients it asks, and whether their replies suffice."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Self

import numpy as np

from flower_fedcon.core.clock import Timekeeper
from flower_fedcon.core.gate import column_bytes
from flower_fedcon.core.protocol import QUERY, TRAIN, Reply, Request, total_work
from flower_fedcon.core.server import Server
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
from flower_fedcon.wire.own_code import names_a_place
from flower_fedcon.wire.payloads import Payload, payload_bytes

_log = logging.getLogger("flwr")
_REASON = 1200  # characters of a reason in the log
_LOGGED = 10  # reasons for dropped replies in one log line
_ALIKE = 12  # attempts after which one fault of all clients ends a run: on nodes, six minutes
_BUGS = 3  # such attempts, where the fault names a line of the clients' own code
_REFUSALS = 2  # such attempts, where the fault is a rule of theirs, repeated word for word
_REFUSED = "refused: "  # how a `RefusedError` begins
_NOBODY: frozenset[int] = frozenset()


class Round:
    """A round, from its cohort to its uploads.

    `next_request` and `take` alternate until nothing more needs to be asked; `finish` then applies
    the round. A strategy that asks its clients before the step has two phases, the query and the
    step.

    Parameters
    ----------
    server : Server
        Its counts change as requests are made and replies come in; its state changes only where
        clients answer a query, or where one re-enters.
    cohort : list of int
        Ascending.
    """

    def __init__(self, server: Server, cohort: list[int]) -> None:
        self._server, self.cohort = server, cohort
        self.number, self._began = server.round, time.monotonic()
        self._left_behind: dict[int, str] = {}
        self._decision: Payload = {}
        self._held = _NOBODY
        self._restores: dict[int, Payload] = {}
        self._sent, self._got = Counter[int](), Counter[int]()  # bytes, for a clock alone
        self._passed, self._sizes = 0.0, (0, 0)
        self._start(QUERY if server.strategy.queries else TRAIN)
        self._rebroadcast()

    @classmethod
    def begin(cls, server: Server) -> Self:
        """Begin the next round of a run; see `Server.draw`."""
        return cls(server, server.draw())

    def finish(self) -> None:
        """Apply the round, and acknowledge the replies that were used."""
        clock, uploads = self._server.clock, self.uploads()
        self._server.apply(uploads)
        if clock is not None:
            self._end_exchange(clock, uploads.clients)
            clock.passed(self._passed, self._sizes)

    def _end_exchange(self, clock: Timekeeper, clients: list[int]) -> None:
        """Count the time of an exchange, which lasts as long as its slowest client."""
        if not clients:  # in a private round, the sum is noise alone
            return
        down, up = ([sizes[c] for c in clients] for sizes in (self._sent, self._got))
        times = clock.times(self.number, clients, down, up, work=self.phase == TRAIN)
        self._passed += float(times.max())
        self._sizes = self._sizes[0] + max(down), self._sizes[1] + max(up)
        self._sent.clear()
        self._got.clear()

    def _start(self, phase: str) -> None:
        """Begin a phase: nobody has been asked, nobody has replied."""
        self.phase, self._members = phase, _NOBODY
        self._quorum = self._server.strategy.quorum(len(self.cohort))
        self._attempt, self._ask_again = 0, False
        self._faults: dict[int, str] = {}
        self._repeated: set[str] = set()  # by all, in the attempt before
        self._diverged: set[int] = set()
        self._refusing: set[int] = set()

    def _forget_replies(self) -> None:
        self._used: list[Reply] = []
        self._count, self._heard = 0, set[int]()
        self._unheard: list[list[int]] = []  # further clients of used replies; see `_answered`

    def _rebroadcast(self) -> None:
        """Broadcast the current state; replies to an earlier broadcast no longer count."""
        server = self._server
        self._forget_replies()
        self._names = server.strategy.expects(server.state)
        self._broadcast = server.strategy.broadcast(server.state)
        if server.private is not None:
            self._broadcast = self._broadcast | server.private.instructions()
        self._broadcast_bytes = payload_bytes(self._broadcast) + server.setting_bytes

    # --- what is asked -------------------------------------------------------------------------

    def next_request(self) -> Request | None:
        """Return the next request; None if the round has all that it needs.

        Raises
        ------
        RoundError
            If replies are missing and every attempt is used up. The round is not applied.
        """
        while self.is_complete():
            if self.phase != TRAIN:
                self._begin_training()
            elif not self._drop_carriers():
                return None
        everyone = len(self._refusing) == len(self.cohort)
        self._repeated = {*self._faults.values()} if everyone else set()
        self._refusing.clear()
        server, repeated = self._server, self._attempt > 0 and not self._count
        self._attempt += not self._ask_again  # a re-entry is an answer, not a failed attempt
        self._ask_again = False
        if self._attempt > 1:
            server.counts["retries"] += 1
        if repeated and server.private is not None:
            server.private.again()
        clients = self.cohort if self._count == 0 else self._unanswered()
        after_query = bool(server.strategy.queries) and self.phase == TRAIN
        acknowledged, kept = server.acknowledgements.of(clients)
        one = server.tells_one or after_query  # rare; the check saves the calls below
        personal = self._personal_parts(clients, acknowledged, after_query) if one else {}
        new = self._restores or (server.greets and not acknowledged[acknowledged.argmin()])
        restore = self._restored_states(clients, acknowledged) if new else {}
        request = Request(
            clients,
            self.number,
            acknowledged,
            self._decision if after_query else self._broadcast,
            kept,
            personal=personal,
            restore=restore,
            phase=self.phase,
            held=self._held,
            names=server.strategy.queries if self.phase == QUERY else self._names,
            wanted=self.lacking,
            attempt=self._attempt,
            seconds_left=self._began + server.round_deadline - time.monotonic(),
        )
        common = self._broadcast_bytes
        if after_query:
            common = payload_bytes(self._decision) + server.setting_bytes
        own = sum(map(payload_bytes, (*personal.values(), *restore.values())))
        server.count_bytes(down=len(clients) * common + own)
        if server.clock is not None:
            for parts in (personal, restore):
                self._sent.update({c: payload_bytes(part) for c, part in parts.items()})
            self._sent.update(dict.fromkeys(clients, common))
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
                part = {**self._broadcast, **part}
            if part:
                parts[client] = part
        return parts

    def _restored_states(self, clients: list[int], acknowledged: Array) -> dict[int, Payload]:
        """Return states for clients at first contact, and for those that lost theirs."""
        strategy, state = self._server.strategy, self._server.state
        found = {c: self._restores[c] for c in clients if c in self._restores}
        if self._server.greets:
            for client, last in zip(clients, acknowledged.tolist(), strict=True):
                if last == 0 and client not in self._held and client not in found:
                    given = strategy.first_contact(state, client)
                    if given is not None:
                        found[client] = given
        return found

    @property
    def _answered(self) -> set[int]:
        """The clients whose replies are used; computed on demand, since few rounds need it."""
        if self._unheard:
            self._heard.update(*self._unheard)
            self._unheard = []
        return self._heard

    def _unanswered(self) -> list[int]:
        """Return the clients that have not given a usable reply yet."""
        answered = self._answered
        return [client for client in self.cohort if client not in answered]

    def missing(self) -> dict[int, str]:
        """Return the clients without a usable reply in this round, and why."""
        if self._count == len(self.cohort) and not self._left_behind:
            return {}
        now = {client: self._faults.get(client, "no reply") for client in self._unanswered()}
        return self._left_behind | now

    def _begin_training(self) -> None:
        """Go from the query to the step, with the clients that answered."""
        answers = self.uploads()
        if self._server.clock is not None:
            self._end_exchange(self._server.clock, answers.clients)
        self._left_behind = self.missing()
        self._decision = self._server.after_query(answers)
        self._held, self.cohort = frozenset(answers.clients), answers.clients
        self._start(TRAIN)
        self._forget_replies()

    # --- what comes back -----------------------------------------------------------------------

    def take(self, replies: Iterable[Reply]) -> None:
        """Take the usable replies; drop, count and log the others."""
        self._dropped: dict[int, str] = {}
        try:
            for reply in replies:
                if self._take(reply):
                    return  # the other replies answer a broadcast that no longer counts
        finally:
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        found = self._server.in_words(self._dropped) if self._dropped else []
        for line in found[:_LOGGED]:
            what = "replies" if line.startswith("clients ") else "reply"
            _log.warning("round %d: dropped the %s of %s", self.number, what, line)
        if len(found) > _LOGGED:
            rest = len(found) - _LOGGED
            _log.warning("round %d: and more, for %d other reasons", self.number, rest)

    def _drop_carriers(self) -> bool:
        """Drop uploads that would carry the model beyond what clients accept; return if any.

        In a private run the clip bounds them, and which are dropped would tell of the data.
        """
        server = self._server
        remote = bool(self._used) and all(reply.remote for reply in self._used)
        if server.private is not None or not remote:
            return False
        found = server.bound.carriers(server.state, self._names, self.uploads)
        self._used = [reply for reply in self._used if reply.clients[0] not in found]
        self._answered.difference_update(found)
        self._count -= len(found)
        self._dropped = {}
        for client in found:
            self._drop(client, DivergedError(server.bound.reason))
        self._tell_dropped()
        return bool(found)

    def _take(self, reply: Reply) -> bool:
        """Take one reply, or what can be used of a reply of many clients.

        Returns
        -------
        bool
            Whether the round starts over.
        """
        server, query = self._server, self.phase == QUERY
        try:
            if reply.remote and not self._waits_for(reply):
                raise RoundError("nothing was asked of this client")
            server.gate.check_round(reply, self.number)
            if reply.lost:
                return self._readmit(reply)
            names = server.strategy.queries if query else self._names
            columns = self._admitted(reply, names)
        except (StateLostError, AlgorithmError):
            raise  # no way back in, or an error in the program: asking again would not help
        except FedConError as error:
            if reply.silent:
                self._faults |= dict.fromkeys(reply.clients, reply.error)
                server.audit.silent(reply.clients, reply.error)
            elif len(reply.clients) == 1 or not reply.payload:
                for client in reply.clients:
                    self._drop(client, error)
            else:  # one of them is at fault
                for single in reply.single():
                    self._take(single)
            return False
        reply.payload = columns
        self._used.append(reply)
        server.audit.used(reply)
        self._count += len(reply.clients)
        self._unheard.append(reply.clients)
        if reply.work and server.private is None:  # what a step cost depends on the data
            server.count_work(total_work(reply.work))
        server.count_bytes(up=sum(map(column_bytes, columns.values())))
        if server.clock is not None:
            for column in columns.values():
                self._got.update(_each_bytes(column, reply.clients))
            if server.clock.counts_gradients:
                work = reply.work or [{}] * len(reply.clients)
                server.clock.took(reply.clients, [one.get("gradients", 0) for one in work])
        if server.sums_suffice and 1 < len(reply.clients) < len(self.cohort) and not query:
            reply.payload = {name: self._sum(name, c) for name, c in columns.items()}
        return False

    def _admitted(self, reply: Reply, names: tuple[str, ...]) -> Payload:
        """Return the columns of a reply, if it can be used.

        In a private run an upload that cannot be used counts as one that changes nothing. If it
        were dropped, or ended the run, this would reveal something about that client's data without
        noise.
        """
        server = self._server
        try:
            return server.gate.admit(reply, self.phase, names)
        except DivergedError as error:
            private, (client, *more) = server.private, reply.clients
            if private is None or not private.noisy or more:
                raise
            who, reason = server.client_name(client), printable(str(error), _REASON)
            _log.warning("round %d: the upload of %s counts as 0: %s", self.number, who, reason)
            return private.nothing(names, self._broadcast)

    def _sum(self, name: str, rows: Any) -> Any:
        """Return the sum of one of several array columns of a round, without more memory."""
        own = name in self._server.strategy.numbers or not isinstance(rows, np.ndarray)
        return rows if own else Summed.of(name, rows, column_bytes(rows[:1]))

    def _waits_for(self, reply: Reply) -> bool:
        """Return whether these clients were asked, and have not answered yet."""
        if not self._members:  # not needed if every reply comes from this process
            self._members = frozenset(self.cohort)
        answered = self._answered
        return not any(c in answered or c not in self._members for c in reply.clients)

    def _drop(self, client: int, error: FedConError) -> None:
        """Count and log a reply that is not used."""
        self._server.counts["dropped"] += 1
        reason = printable(str(error), _REASON)
        self._faults[client] = self._dropped[client] = reason
        if isinstance(error, DivergedError):
            self._diverged.add(client)
        else:
            self._diverged.discard(client)
        self._server.audit.dropped(client, reason)
        self._refusing.add(client)

    def _readmit(self, reply: Reply) -> bool:
        """Readmit clients that have lost their state; return whether the round starts over."""
        server = self._server
        for client in reply.clients:
            if client in self._held:  # it answered the query, and has lost it since
                self._held -= {client}
                self._ask_again = True
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
            self._ask_again = True
            name = server.client_name(client)
            _log.warning("round %d: %s has lost its state and re-enters", self.number, name)
            if state is not server.state:
                self._rebroadcast()
                return True
        return False

    # --- whether it is enough ------------------------------------------------------------------

    @property
    def lacking(self) -> int:
        """How many more usable replies the current phase needs."""
        return max(0, self._quorum - self._count)

    def is_complete(self) -> bool:
        """Return whether the current phase has enough usable replies.

        Raises
        ------
        RoundError
            If it does not, and every attempt is used up.
        """
        if self._count == len(self.cohort):
            return True
        if self._ask_again or self._attempt == 0:
            return False
        if self._overflows():
            reasons = "; ".join(self._server.in_words(self.missing()))
            raise DivergedError(
                f"round {self.number}: the numbers of {len(self._diverged)} of "
                f"{len(self.cohort)} clients are no longer finite ({reasons}): the run diverges. "
                f"Use smaller steps"
            )
        if not self.lacking:
            return True
        if self._is_hopeless():
            reasons = "; ".join(self._server.in_words(self.missing()))
            count = (
                f"{self._count} usable replies of {len(self.cohort)}, and {self._quorum} are needed"
            )
            told = f"{count}, after {self._attempt} attempts ({reasons})"
            if names_a_place(reasons):  # a bug of the clients' own code: the cause comes first
                told = f"{reasons}; so after {self._attempt} attempts there are {count}"
            raise (DivergedError if self._diverged else RoundError)(f"round {self.number}: {told}")
        return False

    def _is_hopeless(self) -> bool:
        """Return whether all attempts, or all the time, are used up."""
        most, deadline = self._server.max_retries, self._server.round_deadline
        late = time.monotonic() >= self._began + deadline
        return late or (most is not None and self._attempt > most) or self._is_everyones()

    def _overflows(self) -> bool:
        """Return whether steps are too long for the clients, so that asking again is no help.

        So it is if L is an estimate, and half of the cohort says so, or all clients without which
        the round cannot end.
        """
        lost = self._diverged & self._refusing
        if not lost or not self._server.setup.estimated or self._server.private is not None:
            return False
        blocked = self.lacking > 0 and lost.issuperset(self._unanswered())
        return blocked or 1 < len(lost) >= len(self.cohort) / 2

    def _is_everyones(self) -> bool:
        """Return whether all clients have repeatedly answered with the same error.

        Then no single node is at fault, and another attempt does not help.
        """
        faults = set(self._faults.values())
        alike = len(faults) == 1 or self._diverged.issuperset(self.cohort)
        everyone = 1 < len(self.cohort) == len(self._refusing) and alike
        enough = _BUGS if any(map(names_a_place, faults)) else _ALIKE
        if faults == self._repeated and self._are_rules(faults):
            enough = _REFUSALS
        return everyone and self._attempt >= enough

    def _are_rules(self, faults: set[str]) -> bool:
        """Return whether these faults are of rules that hold for the next attempt, too."""
        return all(f.startswith(_REFUSED) or f == self._server.bound.reason for f in faults)

    def uploads(self, without: Collection[int] = ()) -> Uploads:
        """Return the uploads of the current phase, without those of some clients."""
        server = self._server
        setup, examples, replies = server.setup, None, self._used
        if without:
            replies = [reply for reply in replies if reply.clients[0] not in without]
        if server.private is not None:
            return server.private.uploads(replies, self._names, self._broadcast, self.number)
        if server.received is not None and self.phase == TRAIN:
            replies = server.received.replies(replies, self._broadcast, self._restores)
        if setup.weighting == "examples" and setup.own_loops:
            known = {c: reply.num_examples for reply in replies for c in reply.clients}
            examples = [known.get(j, c.num_examples) for j, c in enumerate(setup.clients)]
        strategy = server.strategy
        aggregation, inclusion = strategy.aggregation, strategy.inclusion
        return Uploads(replies, setup.num_clients, aggregation, examples, inclusion=inclusion)


def _each_bytes(column: Any, clients: list[int]) -> dict[int, int]:
    """Return what each client has sent for a column."""
    if isinstance(column, list) and not isinstance(column[0], np.ndarray | float | int):
        return {c: column_bytes([value]) for c, value in zip(clients, column, strict=True)}
    return dict.fromkeys(clients, column_bytes(column) // len(clients))
