"""The way of a reply: it passes the gate and goes to whoever needs it, or it is refused.

A reply that has passed is an `Admitted`, which goes to listeners in their order: those that count
bytes and work, the simulated clock, the audit log, and what collects uploads. A round's replies
(`core.dispatch`) and the answers to a question beside the rounds (`ask`) come in this way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from flower_fedcon.core.gate import Admitted
from flower_fedcon.core.protocol import Reply, Request
from flower_fedcon.core.server import Server
from flower_fedcon.errors import FedConError, printable
from flower_fedcon.wire.payloads import Payload, payload_bytes

Listener = Callable[[Admitted], None]


class Admission(ABC):
    """Admits replies, or refuses them.

    Parameters
    ----------
    listeners : sequence of callable
        Called in this order with every reply that is admitted.
    """

    fatal: ClassVar[tuple[type[FedConError], ...]] = ()
    """Errors that are not one reply's: they are raised."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def judge(self, reply: Reply) -> None:
        """Admit a reply, or refuse it."""
        try:
            columns = self.admit(reply)
        except self.fatal:
            raise
        except FedConError as error:
            self.refuse(reply, error)
            return
        if columns is None:
            return
        reply.payload = columns
        admitted = Admitted(reply)
        for listener in self._listeners:
            listener(admitted)
        self.keep(admitted)

    @abstractmethod
    def keep(self, admitted: Admitted) -> None:
        """Keep a reply that is used.

        As a listener of its own it would make a cycle, which holds all arrays of a round until
        Python collects it.
        """

    @abstractmethod
    def admit(self, reply: Reply) -> Payload | None:
        """Return the columns of a reply that is used; None if it has nothing to use.

        Raises
        ------
        FedConError
            If it must be refused.
        """

    @abstractmethod
    def refuse(self, reply: Reply, error: FedConError) -> None:
        """Note that a reply is not used."""


def ask(
    request: Request,
    server: Server,
    answer: Callable[[Request], Iterable[Reply]],
    admit: Callable[[Reply], Payload],
    refused: Callable[[int, FedConError], None],
    *,
    counted: bool = False,
) -> dict[int, Payload]:
    """Return the usable answers to a question that is not part of a round, by client.

    Parameters
    ----------
    request : Request
    server : Server
    answer : callable
        An engine's `answer`.
    admit : callable
        Returns the columns of one client's reply, or raises a FedConError.
    refused : callable
        Called with each client whose reply is not used, and the error.
    counted : bool
        Whether the bytes count as the run's.
    """
    question = _Question(request, server, admit, refused, counted=counted)
    server.audit.asked(request)
    if counted:
        server.count_bytes(down=len(request.clients) * payload_bytes(request.broadcast))
    for reply in answer(request):
        for one in reply.single() if reply.payload else [reply]:
            question.judge(one)
    return question.found


class _Question(Admission):
    """The answers to one request that is not part of a round, each of one client."""

    def __init__(
        self,
        request: Request,
        server: Server,
        admit: Callable[[Reply], Payload],
        refused: Callable[[int, FedConError], None],
        *,
        counted: bool,
    ) -> None:
        counts = [server.count_upload] if counted else []
        super().__init__([*server.audit.listeners, *counts])
        self._server, self._round = server, request.round
        self._asked = frozenset(request.clients)
        self._admit, self._refused = admit, refused
        self.found: dict[int, Payload] = {}

    def admit(self, reply: Reply) -> Payload | None:
        """Return the columns of a client that was asked."""
        self._server.gate.check_round(reply, self._round)
        columns = self._admit(reply)
        return columns if self._asked.issuperset(reply.clients) else None

    def refuse(self, reply: Reply, error: FedConError) -> None:
        """Pass on the error, and note it."""
        audit, reason = self._server.audit, printable(str(error))
        for client in reply.clients:
            self._refused(client, error)
            if reply.silent:
                audit.silent([client], reason)
            else:
                audit.dropped(client, reason)

    def keep(self, admitted: Admitted) -> None:
        """Keep a client's answer."""
        (client,) = admitted.clients
        self.found[client] = {name: value for name, (value,) in admitted.payload.items()}
