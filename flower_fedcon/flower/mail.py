"""Messages to nodes; each has exactly one arrival: a reply, or a fault instead."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from flower_fedcon.errors import RoundError, printable
from flower_fedcon.flower.incoming import Fault, readable

_log = logging.getLogger("flwr")
_Answer = TypeVar("_Answer")
POLL = 0.05, 0.5  # seconds between polls for replies: at first, and at most
OUTAGE = 1.0, 30.0  # seconds between attempts to reach the SuperLink: at first, and at most
_WATCH = 5.0  # seconds between checks of which nodes are still online
_REFUSED = 401, 403  # HTTP: a token that is no longer valid; a run without permission
_NOT_RUNNING = "RunNotRunningException"  # Flower's text for the second
_NAME = 200  # characters of a node's name
_OUTAGE = 3  # so many unreadable replies and no readable one: the cause is not the nodes


@dataclass(frozen=True)
class Arrival:
    """The result of a message to a node.

    Attributes
    ----------
    node : int
        The node to which it was sent, even if the reply names a different sender.
    content : Message or Fault
    """

    node: int
    content: Message | Fault

    @property
    def failed(self) -> bool:
        """Whether there is no reply, or one that only reports an error."""
        return isinstance(self.content, Fault) or self.content.has_error()


@dataclass(frozen=True)
class Waiting:
    """Which nodes an exchange waits for, and how long.

    Attributes
    ----------
    timeout : float
        Seconds until the exchange ends, even if replies are missing.
    there : callable
        Returns the nodes that are still online.
    enough : int
        The number of replies that are enough.
    grace : float, optional
        Seconds to wait for the others once there are enough; None for the whole timeout.
    poll : tuple of float, optional
        Seconds between polls for replies, at first and at most; by default `POLL`.
    """

    timeout: float
    there: Callable[[], set[int]]
    enough: int
    grace: float | None
    poll: tuple[float, float] | None = None


class Known(NamedTuple):
    """A SuperLink's data on a node.

    Attributes
    ----------
    name : str
        The registered name (``flwr supernode register KEY --name NAME``); "" without one.
    key : bytes
        Its public key; b"" without one.
    """

    name: str
    key: bytes


class _Gone(logging.Handler):
    """Keeps what Flower's log says of a reply whose objects cannot be pulled."""

    said = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the last line of this kind."""
        if "objects unavailable" in str(record.msg):
            self.said = readable(record.getMessage())


class Post:
    """Sends messages over a grid and collects the replies.

    An unavailable SuperLink, for example during a restart, does not end a run: work continues once
    it is back. A SuperLink that no longer knows the run ends it at once.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    deadline : float
        How many seconds the SuperLink may be unavailable.
    """

    def __init__(self, grid: Grid, deadline: float) -> None:
        self._grid, self._deadline = grid, deadline

    def node_ids(self) -> set[int]:
        """Return the nodes that are online."""
        return self._patiently(lambda: set(self._grid.get_node_ids()))

    def known_nodes(self) -> dict[int, Known]:
        """Return the SuperLink's data on the nodes that are online."""
        nodes = self._patiently(lambda: list(self._grid.get_nodes()))
        return {n.node_id: Known(printable(n.name, _NAME), n.public_key) for n in nodes}

    def _push(self, messages: Sequence[Message]) -> list[str]:
        """Send messages, and return the ids of those sent; Flower sends none of them twice."""
        return self._patiently(lambda: list(self._grid.push_messages(messages)))

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Return the SuperLink's answer; wait while it is unavailable.

        Raises
        ------
        RoundError
            If it has not answered by the deadline, or no longer knows the run.
        """
        began, failures = time.monotonic(), 0
        while True:
            try:
                answer = _answered(ask)
            except RoundError:
                raise
            except Exception as error:  # each grid may raise errors of any type here
                reason = readable(repr(error))
                away = time.monotonic() - began
                if away >= self._deadline:
                    raise RoundError(
                        f"the SuperLink has not answered for {away:.0f} s ({reason}): start it "
                        f"again, and then this run with resume=True; round_deadline sets how long "
                        f"to wait for it"
                    ) from error
            else:
                if failures:
                    _log.info("the SuperLink answers again")
                return answer
            if not failures:
                _log.warning("waiting for the SuperLink, at most %.0f s: %s",
                             self._deadline, reason)  # fmt: skip
            failures += 1
            time.sleep(min(pause(failures, *OUTAGE), max(0.0, self._deadline - away)))

    def send(self, messages: Sequence[Message]) -> tuple[dict[str, int], list[Arrival]]:
        """Send messages; return the node of each, and the messages that cannot be sent."""
        sent = self._push(messages) if messages else []
        if not sent:  # too much at once; Flower's log says so
            sent = [key for message in messages for key in self._push([message])]
        waiting, unsent = {}, []
        for message in messages:
            key, node = message.metadata.message_id, message.metadata.dst_node_id
            if key and key in sent:  # for one that is not sent Flower gives None, or ""
                waiting[key] = node
            else:
                fault = Fault("the message to it could not be sent: see Flower's log", silent=True)
                unsent.append(Arrival(node, fault))
        return waiting, unsent

    def collect(self, waiting: dict[str, int]) -> list[Arrival]:
        """Return the replies that have come, and remove them from `waiting`."""
        arrivals = []
        for come in self._pull(waiting):
            if isinstance(come, tuple):
                key, fault = come
                arrivals.append(Arrival(waiting.pop(key), fault))
                continue
            key, source = come.metadata.reply_to_message_id, come.metadata.src_node_id
            if key not in waiting:
                continue  # a second reply
            if come.has_error() or source == waiting[key]:
                arrivals.append(Arrival(waiting.pop(key), come))
            else:
                _log.warning(
                    "node %s answered in place of node %s: its reply is not used",
                    source,
                    waiting[key],
                )
        return arrivals

    def _pull(self, waiting: dict[str, int]) -> list[Message | tuple[str, Fault]]:
        """Return the replies that have come; a fault for one that Flower cannot read."""
        if not waiting:
            return []
        replies: list[Message | tuple[str, Fault]] = []
        try:
            come, missing = self._read(list(waiting))
            if not missing:
                return [*come]
            replies += come
        except RoundError:
            raise
        except Exception as error:  # for one reply, or the whole grid: ask for each separately
            missing = readable(repr(error))
        _log.warning("replies cannot be read: %s", missing)
        known = {one.metadata.reply_to_message_id for one in replies if isinstance(one, Message)}
        heard = len(waiting) == 1 or bool(known)
        for key in waiting:
            if key in known:
                continue
            one = self._pull_one(key)
            heard |= not isinstance(one, Fault)
            replies += [(key, one)] if isinstance(one, Fault) else one
            if not heard and len(replies) == _OUTAGE:
                break
        return replies if heard else []  # otherwise it is the grid, which may come back

    def _read(self, keys: list[str]) -> tuple[list[Message], str]:
        """Return the readable replies to these messages that have come.

        A reply whose objects are gone Flower leaves out, from version 1.43 on, and says so only in
        its log. What it says is returned, too.
        """
        gone = _Gone(logging.ERROR)
        log = logging.getLogger("flwr")
        log.addHandler(gone)
        try:
            replies = _answered(lambda: list(self._grid.pull_messages(keys)))
        finally:
            log.removeHandler(gone)
        return replies, gone.said

    def _pull_one(self, key: str) -> list[Message] | Fault:
        """Return the reply to one message; a fault if it cannot be read twice."""
        for _ in range(2):
            self.node_ids()  # an error of the SuperLink: wait until it is back
            try:
                replies, missing = self._read([key])
            except RoundError:
                raise
            except Exception as error:
                missing = readable(repr(error))
            else:
                if not missing:
                    return replies
            fault = Fault(f"its reply cannot be read: {missing}")
        return fault

    def exchange(self, messages: Sequence[Message], how: Waiting) -> list[Arrival]:
        """Send messages and return for each a reply in time, or the reason for none.

        Unlike `Grid.send_and_receive`, this polls often, does not wait for nodes that have gone
        offline, and names the silent nodes.
        """
        waiting, arrivals = self.send(messages)
        now, (first, longest) = time.monotonic(), how.poll or POLL
        why = ""
        began, deadline, look, delay = now, now + how.timeout, now + _WATCH, first
        while waiting:
            arrived = self.collect(waiting)
            arrivals += arrived
            now = time.monotonic()
            if arrived:
                delay = first
            good = sum(not arrival.failed for arrival in arrivals)
            if how.grace is not None and good >= how.enough:
                if now + how.grace < deadline:
                    deadline, why = now + how.grace, f": grace={how.grace:g} after {good} replies"
                how = replace(how, grace=None)
            if not waiting or now >= deadline:
                break
            if now > look:
                there = how.there()
                gone = [key for key, node in waiting.items() if node not in there]
                fault = Fault("its node has gone", silent=True)
                arrivals += [Arrival(waiting.pop(key), fault) for key in gone]
                look = time.monotonic() + _WATCH
                continue
            time.sleep(delay)
            delay = min(2 * delay, longest)
        late = Fault(f"no reply in {now - began:.3g} s{why}", silent=True)
        return arrivals + [Arrival(node, late) for node in waiting.values()]


def _answered(ask: Callable[[], _Answer]) -> _Answer:
    """Return the SuperLink's answer.

    Raises
    ------
    RoundError
        If it no longer takes requests of this run. A ServerApp learns of `flwr stop`, and of a
        SuperLink that has forgotten the run, only in this way.
    """
    try:
        return ask()
    except BaseException as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status not in _REFUSED and type(error).__name__ != _NOT_RUNNING:
            raise
        raise RoundError(
            "the SuperLink accepts no further requests of this run: it was stopped (`flwr stop`), "
            "or the SuperLink has forgotten it. To continue from its run directory, call the same "
            "`flwr run` with resume=true in the --run-config, or in Python start(resume=True)"
        ) from error


def pause(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after so many failures in a row, which double each time.

    >>> [pause(failures, 5.0, 300.0) for failures in (1, 2, 3, 10**6)]
    [5.0, 10.0, 20.0, 300.0]
    """
    return min(first * 2.0 ** min(failures - 1, 50), longest)
