"""Nodes of a Flower grid: which client each of them is, and how messages reach them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flwr.app import Message
from flwr.serverapp import Grid

from flower_fedcon.core.protocol import ClientInfo
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower import codec, messages

_log = logging.getLogger("flwr")
POLL = 0.05, 0.5  # seconds between polls for replies: at first, and at most
_WATCH = 5.0  # seconds between checks of which nodes are still online


class Nodes:
    """Which node is which client: names are stable, Flower's node ids are not."""

    def __init__(self, grid: Grid, algorithm: str, timeout: float) -> None:
        self._grid = grid
        self._algorithm = algorithm
        self._timeout = timeout
        self._names: dict[int, str] = {}
        self.infos: dict[str, ClientInfo] = {}
        self._told: set[int] = set()
        self.partitions = 0
        """The number of partitions that the nodes know of."""

    def online(self) -> dict[str, int]:
        """Return the node id of each client that is online; new nodes are asked who they are."""
        ids = set(self._grid.get_node_ids())
        new = sorted(ids - self._names.keys())
        config = {"action": codec.DESCRIBE, "algorithm": self._algorithm, "round": 0, "client": 0}
        asked = [messages.instruction(messages.TRAIN, [], config, node) for node in new]
        for message in exchange(self._grid, asked, min(60.0, self._timeout)):
            node = message.metadata.src_node_id
            try:
                _, _, _, answer = messages.read_reply(message, messages.TRAIN)
                if "error" in answer:
                    raise ConfigError(str(answer["error"]))
                info, partitions = codec.decode_info(answer, node)
            except (FedConError, KeyError, ValueError) as error:
                raise ConfigError(f"node {node} cannot take part: {error}") from None
            self._names[node] = info.name
            self.infos.setdefault(info.name, info)
            self.partitions = max(self.partitions, partitions or 0)
        found: dict[str, int] = {}
        for node, name in self._names.items():  # in the order of meeting: the latest one counts
            if node not in ids:
                continue
            if name in found and node not in self._told:
                self._told.add(node)
                _log.warning("client %s is on a new node: the earlier one is no longer asked", name)
            found[name] = node
        return found

    def name(self, node_id: int) -> str:
        """Return the client's name, "" if the node is unknown."""
        return self._names.get(node_id, "")

    def wait(self, expected: int | None, timeout: float) -> list[ClientInfo]:
        """Return all clients, sorted by name, once every expected one has answered."""
        deadline = time.monotonic() + timeout
        told = False
        while True:
            online = self.online()
            wanted = expected or self.partitions or 1
            if len(online) >= wanted:
                return [self.infos[name] for name in sorted(online, key=natural)]
            if time.monotonic() > deadline:
                raise FedConError(
                    f"{len(online)} of {wanted} clients are online after {timeout:g} s "
                    f"({', '.join(sorted(online, key=natural)) or 'none'}): start the missing "
                    "SuperNodes, or set num_clients"
                )
            if not told:
                _log.info("waiting for %d clients, %d are online", wanted, len(online))
                told = True
            time.sleep(POLL[1])


@dataclass(frozen=True)
class Waiting:
    """Whom a round waits for, and for how long once it has enough replies.

    Attributes
    ----------
    there : callable
        Returns the nodes that are still online.
    enough : int
        The replies that the round needs.
    grace : float, optional
        Seconds to wait for the others after that; None for as long as the round may take.
    """

    there: Callable[[], set[int]]
    enough: int
    grace: float | None


def exchange(
    grid: Grid,
    outgoing: Sequence[Message],
    timeout: float,
    how: Waiting | None = None,
) -> list[Message]:
    """Send messages and return the replies that come in time.

    Unlike `Grid.send_and_receive` this polls often, and does not wait for a node that has gone.
    """
    if not outgoing:
        return []
    waiting = dict(
        zip(grid.push_messages(outgoing), (m.metadata.dst_node_id for m in outgoing), strict=True)
    )
    received: list[Message] = []
    now = time.monotonic()
    deadline, look, pause = now + timeout, now + _WATCH, POLL[0]
    while True:
        for message in grid.pull_messages(list(waiting)):
            waiting.pop(message.metadata.reply_to_message_id, None)
            received.append(message)
            pause = POLL[0]
        now = time.monotonic()
        if how is not None and how.grace is not None and len(received) >= how.enough:
            deadline, how = min(deadline, now + how.grace), replace(how, grace=None)
        if not waiting or now >= deadline:
            return received
        if now > look:
            left = set(grid.get_node_ids()) if how is None else how.there()
            waiting = {key: node for key, node in waiting.items() if node in left}
            look = time.monotonic() + _WATCH
            continue
        time.sleep(pause)
        pause = min(2 * pause, POLL[1])


def natural(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts partition ids as numbers, before other names."""
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name)
