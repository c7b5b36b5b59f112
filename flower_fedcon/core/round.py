"""One round under way: which clients it asks, and whether their replies suffice."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Self

from flower_fedcon.core.dispatch import Dispatch
from flower_fedcon.core.protocol import TRAIN, Reply, Request
from flower_fedcon.core.server import Server
from flower_fedcon.core.stopwatch import Stopwatch, Untimed
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import DivergedError, RoundError
from flower_fedcon.wire.own_code import names_a_place

_ALIKE = 12  # attempts after which one fault of all clients ends a run: on nodes, six minutes
_BUGS = 3  # such attempts, where the fault names a line of the clients' own code
_REFUSALS = 2  # such attempts, where the fault is a rule of theirs, repeated word for word
_REFUSED = "refused: "  # how a `RefusedError` begins


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
        self._server = server
        self.number, self._began = server.round, time.monotonic()
        clock, number = server.clock, self.number
        self._stopwatch = Untimed() if clock is None else Stopwatch(clock, number)
        self.dispatch = Dispatch(server, number, cohort, self._stopwatch)
        self._left_behind: dict[int, str] = {}
        self._start()

    @classmethod
    def begin(cls, server: Server) -> Self:
        """Begin the next round of a run; see `Server.draw`."""
        return cls(server, server.draw())

    def _start(self) -> None:
        """Begin a phase."""
        self._quorum, self._attempt = self._server.strategy.quorum(len(self.cohort)), 0
        self._repeated: set[str] = set()  # faults of all, in the attempt before

    @property
    def cohort(self) -> list[int]:
        """The clients that are asked: those that were drawn, and in the step those with answers."""
        return self.dispatch.clients

    def finish(self) -> None:
        """Apply the round, and acknowledge the replies that were used."""
        uploads = self.uploads()
        self._server.apply(uploads)
        self._end_exchange(uploads)
        self._stopwatch.end_round()

    def _end_exchange(self, uploads: Uploads) -> None:
        self._stopwatch.end_exchange(uploads.clients, work=self.dispatch.phase == TRAIN)

    # --- what is asked -------------------------------------------------------------------------

    def next_request(self) -> Request | None:
        """Return the next request; None if the round has all that it needs.

        Raises
        ------
        RoundError
            If replies are missing and every attempt is used up. The round is not applied.
        """
        dispatch = self.dispatch
        while self.is_complete():
            if dispatch.phase != TRAIN:
                self._begin_training()
            elif not self._drop_carriers():
                return None
        everyone = len(dispatch.refusing) == len(self.cohort)
        self._repeated = {*dispatch.faults.values()} if everyone else set()
        repeated = self._attempt > 0 and not dispatch.count
        self._attempt += not dispatch.reentered  # a re-entry is an answer, not a failed attempt
        if self._attempt > 1:
            self._server.counts["retries"] += 1
        if repeated:
            self._server.private.again()
        return dispatch.request(
            dispatch.clients if dispatch.count == 0 else dispatch.unanswered(),
            wanted=self.lacking,
            attempt=self._attempt,
            seconds_left=self._began + self._server.round_deadline - time.monotonic(),
        )

    def missing(self) -> dict[int, str]:
        """Return the clients without a usable reply in this round, and why."""
        dispatch = self.dispatch
        if dispatch.count == len(self.cohort) and not self._left_behind:
            return {}
        now = {client: dispatch.faults.get(client, "no reply") for client in dispatch.unanswered()}
        return self._left_behind | now

    def _begin_training(self) -> None:
        """Go from the query to the step, with the clients that answered."""
        answers = self.uploads()
        self._end_exchange(answers)
        self._left_behind = self.missing()
        self.dispatch.begin_step(self._server.after_query(answers), answers.clients)
        self._start()

    def take(self, replies: Iterable[Reply]) -> None:
        """Take the usable replies; drop, count and log the others."""
        self.dispatch.take(replies)

    def _drop_carriers(self) -> bool:
        """Drop uploads that would carry the model beyond what clients accept; return if any.

        In a private run the clip bounds them, and which are dropped would tell of the data.
        """
        server, dispatch = self._server, self.dispatch
        remote = bool(dispatch.used) and all(reply.remote for reply in dispatch.used)
        if server.private.hides or not remote:
            return False
        carriers = server.bound.carriers(server.state, dispatch.names, dispatch.uploads)
        if carriers:
            server.bound.dropped.update(carriers)
            dispatch.drop(carriers, DivergedError(server.bound.reason))
        return bool(carriers)

    def uploads(self) -> Uploads:
        """Return the uploads of the current phase."""
        return self.dispatch.uploads()

    # --- whether it is enough ------------------------------------------------------------------

    @property
    def lacking(self) -> int:
        """How many more usable replies the current phase needs."""
        return max(0, self._quorum - self.dispatch.count)

    def is_complete(self) -> bool:
        """Return whether the current phase has enough usable replies.

        Raises
        ------
        RoundError
            If it does not, and every attempt is used up.
        """
        dispatch = self.dispatch
        if dispatch.count == len(dispatch.clients):
            return True
        if dispatch.reentered or self._attempt == 0:
            return False
        if self._overflows():
            reasons = "; ".join(self._server.in_words(self.missing()))
            raise DivergedError(
                f"round {self.number}: the numbers of {len(self.dispatch.diverged)} of "
                f"{len(self.cohort)} clients are no longer finite ({reasons}): the run diverges. "
                f"Use smaller steps"
            )
        if not self.lacking:
            return True
        if self._is_hopeless():
            reasons = "; ".join(self._server.in_words(self.missing()))
            usable, cohort = self.dispatch.count, len(self.cohort)
            count = f"{usable} usable replies of {cohort}, and {self._quorum} are needed"
            tried = f"after {self._attempt} attempts"
            if self._is_late():
                tried += f" and a round_deadline of {self._server.round_deadline:g} s"
            told = f"{count}, {tried} ({reasons})"
            if names_a_place(reasons):  # a bug of the clients' own code: the cause comes first
                told = f"{reasons}; so {tried} there are {count}"
            error = DivergedError if self.dispatch.diverged else RoundError
            raise error(f"round {self.number}: {told}")
        return False

    def _is_hopeless(self) -> bool:
        """Return whether all attempts, or all the time, are used up."""
        most = self._server.max_retries
        tried = most is not None and self._attempt > most
        return self._is_late() or tried or self._is_everyones()

    def _is_late(self) -> bool:
        return time.monotonic() >= self._began + self._server.round_deadline

    def _overflows(self) -> bool:
        """Return whether steps are too long for the clients, so that asking again is no help.

        So it is if L is an estimate, and half of the cohort says so, or all clients without which
        the round cannot end.
        """
        server, dispatch = self._server, self.dispatch
        lost = dispatch.diverged & dispatch.refusing
        if not lost or not server.setup.estimated or server.private.hides:
            return False
        blocked = self.lacking > 0 and lost.issuperset(dispatch.unanswered())
        return blocked or 1 < len(lost) >= len(self.cohort) / 2

    def _is_everyones(self) -> bool:
        """Return whether all clients have repeatedly answered with the same error.

        Then no single node is at fault, and another attempt does not help.
        """
        dispatch = self.dispatch
        faults = set(dispatch.faults.values())
        alike = len(faults) == 1 or dispatch.diverged.issuperset(self.cohort)
        everyone = 1 < len(self.cohort) == len(dispatch.refusing) and alike
        enough = _BUGS if any(map(names_a_place, faults)) else _ALIKE
        if faults == self._repeated and self._are_rules(faults):
            enough = _REFUSALS
        return everyone and self._attempt >= enough

    def _are_rules(self, faults: set[str]) -> bool:
        """Return whether these faults are of rules that hold for the next attempt, too."""
        return all(f.startswith(_REFUSED) or f == self._server.bound.reason for f in faults)
