"""The nodes of a Flower grid, and the client of each."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import compare_digest

from flower_fedcon.core.protocol import ClientInfo, RunInfo
from flower_fedcon.errors import ConfigError, FedConError, first_few, number_of
from flower_fedcon.flower import codec, incoming, mail, messages
from flower_fedcon.flower.incoming import Description, Fault
from flower_fedcon.flower.mail import Arrival, Known, Post
from flower_fedcon.flower.refusals import explained_mod
from flower_fedcon.layout import Layout

_log = logging.getLogger("flwr")
_SILENCE = 60.0  # seconds after which a node that has not introduced itself is named in the log
_AGAIN = 5.0, 300.0  # seconds until an unusable node is asked again: at first, at most
_GIVEN_UP = 120.0  # seconds until the SuperLink no longer lists a dead node
_HOPELESS = 10.0  # seconds after which a run ends if no node can take part
_TELL = 60.0  # seconds until the log says again who is missing
_SHOWN = 20  # names in one log line


@dataclass
class _Node:
    """The known facts on a node that is online."""

    since: float  # when it came online
    name: str = ""  # its client's name, once it has been accepted
    says: Description | None = None
    wrong: str = ""  # why it cannot take part
    failures: int = 0
    again: float = 0.0  # when it is asked (again) for its description
    told: bool = False  # whether its silence is in the log
    replaced: float = math.inf  # when its client came back on a different node

    @property
    def silent(self) -> bool:
        return self.says is None and not self.failures


def _other_data(before: ClientInfo, now: ClientInfo) -> str:
    """Return how a client's data differ from those at the start of a run; "" if not.

    A table before its preparation is not compared with one after it.
    """
    if before.schema != now.schema:
        return ""
    if before.num_examples != now.num_examples:
        return f": {number_of(now.num_examples, 'row')}, then {before.num_examples}"
    if before.digest and now.digest and before.digest != now.digest:
        return f": digest {now.digest[:12]}, then {before.digest[:12]}"
    return ""


class Nodes:
    """The client of each node: names are stable, while Flower's node ids may change.

    New nodes are asked for a description, and the run does not wait for the answer. A node that is
    silent, fails or sends anything else is left out, named in the log, and asked again at growing
    intervals.

    A client's name is the first of these that exists: the name under which its node was registered
    with the SuperLink (``flwr supernode register KEY --name NAME``); the name that it states (the
    node's "name", or its partition-id); with authenticated nodes, a name made from its key;
    otherwise the node's id, which does not outlive the node.

    A client's name belongs to the first node that claims it, as long as the SuperLink lists that
    node; with `authenticated`, to the node's key, for the whole run. Another node that claims it is
    refused and counted. A client that keeps state on its disk gets a pass. With the pass it is
    recognised at once on another node, even before the SuperLink has noticed that the first is
    gone.

    Parameters
    ----------
    post : Post
    algorithm : str
    authenticated : bool

    Attributes
    ----------
    infos : dict
        The clients' descriptions, by name.
    refused : int
        How often a node was refused the name that it claimed.
    """

    def __init__(self, post: Post, algorithm: str, *, authenticated: bool) -> None:
        self._post, self._authenticated = post, authenticated
        self._question: codec.Config = {
            "action": codec.DESCRIBE, "algorithm": algorithm, "round": 0, "client": 0
        }  # fmt: skip
        self._nodes: dict[int, _Node] = {}
        self._asked: dict[str, int] = {}
        self._holders: dict[str, int] = {}
        self._keys: dict[str, bytes] = {}  # by the holders
        self._known: dict[int, Known] = {}
        self._passes: dict[str, str] = {}
        self._members: frozenset[str] | None = None
        self._wanted: int | None = None  # the number of clients that the server has been given
        self._layout: Layout | None = None
        self._hopeless_since = math.inf
        self._untold: list[int] = []  # refused nodes that the log does not name yet
        self.infos: dict[str, ClientInfo] = {}
        self.refused = 0

    def online(self) -> dict[str, int]:
        """Return the node of each client that is online; ask new nodes who they are."""
        ids = self._post.node_ids()
        if new := ids - self._nodes.keys():
            registered = self._post.known_nodes()
            ids -= new - registered.keys()  # gone offline meanwhile
            self._known |= {node: registered[node] for node in new & ids}
        now = time.monotonic()  # one time for all nodes that are new together
        self._nodes = {n: self._nodes.get(n) or _Node(since=now) for n in sorted(ids)}
        self._asked = {key: node for key, node in self._asked.items() if node in ids}
        self._ask()
        for arrival in self._post.collect(self._asked):
            self._hear(arrival)
        now = time.monotonic()
        for node, about in self._nodes.items():
            if about.says is not None and not about.name:
                self._accept(node, about)
            elif now > about.replaced + _GIVEN_UP:
                other = self._holders[about.name]
                self._refuse(node, about, f"client {about.name} is also on node {other}")
        self._tell_refused()
        return {name: node for name, node in self._holders.items() if node in ids}

    def _ask(self) -> None:
        """Ask the nodes without a description, each when it is due."""
        now = time.monotonic()
        due = [n for n, about in self._nodes.items() if about.says is None and now >= about.again]
        for node in due:
            self._nodes[node].again = now + _AGAIN[1]
        kind = messages.TRAIN
        asks = [messages.instruction(kind, [], self._question, node) for node in due]
        waiting, unsent = self._post.send(asks)
        self._asked |= waiting
        for arrival in unsent:
            self._hear(arrival)
        late = [
            n
            for n, a in self._nodes.items()
            if a.silent and now > a.since + _SILENCE and not a.told
        ]
        for node in late:
            self._nodes[node].told = True
        if late:  # in one line for all: many nodes may start slowly
            _log.warning(
                "%d of %d nodes have not answered in %.0f s, and may still be starting: %s",
                len(late), len(self._nodes), _SILENCE, first_few([*map(str, late)], _SHOWN),
            )  # fmt: skip

    def _hear(self, arrival: Arrival) -> None:
        node, about = arrival.node, self._nodes[arrival.node]
        answer: Description | Fault
        if isinstance(arrival.content, Fault):
            answer = arrival.content
        else:
            reply = arrival.content
            key = self._key(node)
            answer = incoming.description(
                lambda: messages.reply_parts(reply, messages.TRAIN),
                sha256(key).hexdigest()[:12] if key else node,
            )
        if isinstance(answer, Description):
            registered = self._known[node].name
            if registered:
                answer = replace(answer, info=replace(answer.info, name=registered))
            about.says = about.says or answer
            return
        about.failures += 1
        about.again = time.monotonic() + mail.pause(about.failures, *_AGAIN)
        self._refuse(node, about, answer.reason)

    def _accept(self, node: int, about: _Node) -> None:
        """Give a node the name that it claims, unless another node has it."""
        assert about.says is not None  # noqa: S101  (the caller's case)
        info = about.says.info
        holder = self._holders.get(info.name)
        given = self._passes.get(info.name)
        proved = given is not None and compare_digest(about.says.password.encode(), given.encode())
        if holder in self._nodes and holder != node and not proved:
            reason = f"it claims to be client {info.name}, which is on node {holder}"
        elif self._key(node) != self._keys.get(info.name, self._key(node)):
            reason = f"it claims to be client {info.name}, which has another key"
        elif self._members is not None and info.name not in self._members:
            reason = (
                f"client {info.name} joined after this run began, and can take part in a later run"
            )
            if self._wanted is not None and len(self._members) >= self._wanted:
                reason = (
                    f"the run takes {number_of(self._wanted, 'client')} "
                    f"(num_clients={self._wanted}), and client {info.name} is one too many: give "
                    f"a larger num_clients to a later run"
                )
        elif self._layout and info.layout and info.layout.shapes != self._layout.shapes:
            reason = f"client {info.name} has a model of shape {info.layout.shapes}"
        elif (
            self._members is not None
            and (before := self.infos.get(info.name)) is not None
            and (other := _other_data(before, info))
        ):
            reason = (
                f"client {info.name} came back with different data than at the start of this "
                f"run{other}"
            )
        else:
            if holder is not None and holder != node:
                _log.warning("client %s is on another node now: %s", info.name, node)
            if holder in self._nodes and holder != node:
                self._nodes[holder].replaced = time.monotonic()
            about.name, about.wrong = info.name, ""
            self._holders[info.name] = node
            self._keys[info.name] = self._key(node)
            self.infos.setdefault(info.name, info)
            return
        self._refuse(node, about, reason)

    def password(self, name: str) -> str:
        """Return the pass of a client, by which it is recognised next time."""
        return self._passes.setdefault(name, secrets.token_hex(16))

    def _refuse(self, node: int, about: _Node, reason: str) -> None:
        if reason != about.wrong:
            about.wrong = reason
            self.refused += 1
            self._untold.append(node)

    def _tell_refused(self) -> None:
        """Log the nodes that were refused since the last time, in one line for each reason."""
        alike: dict[str, list[int]] = {}
        for node in self._untold:
            alike.setdefault(explained(self._nodes[node].wrong), []).append(node)
        for reason, those in alike.items():
            _log.warning("%s cannot take part: %s", _nodes_in_words(those), reason)
        self._untold.clear()

    def _key(self, node: int) -> bytes:
        """Return a node's public key; empty if nodes are not authenticated."""
        return self._known[node].key if self._authenticated and node in self._known else b""

    # --- the start -----------------------------------------------------------------------------

    def wait(
        self,
        expected: int | None,
        least: int | None,
        timeout: float,
        known: Mapping[str, ClientInfo] | None = None,
    ) -> list[ClientInfo]:
        """Return the clients of a run, sorted by name.

        Parameters
        ----------
        expected : int, optional
            The number of clients to wait for; by default the number of partitions that the nodes
            state.
        least : int, optional
            The number of clients that suffices after the timeout; by default all expected ones.
        timeout : float
            Seconds.
        known : dict of ClientInfo, optional
            The clients of a run that goes on. `least` of them suffice at once: the others are taken
            as they were, and take part as soon as they have answered.

        Raises
        ------
        FedConError
            If there are fewer.
        """
        known, self._wanted = known or {}, expected
        if known:
            self._members = frozenset(known)
            expected = least = min(least or 1, len(known))
        began, deadline = time.monotonic(), time.monotonic() + timeout
        told: set[str] | None = None
        again = math.inf
        while True:
            online = self.online()
            stated = expected or self._partitions()
            wanted = stated or least or 1
            if len(online) >= wanted and (stated or not self._answering()):
                break
            self._give_up_if_hopeless()
            if time.monotonic() > deadline:
                if online and len(online) >= (least or wanted):
                    _log.warning("starting without %s", self._absent(online, wanted))
                    break
                raise FedConError(
                    f"{len(online)} of {wanted} clients are online after {timeout:g} s "
                    f"({sorted_names(online)}){self._reasons()}: start the missing SuperNodes, "
                    "raise start_timeout if they are slow, or set num_clients or "
                    "min_clients_to_start"
                )
            now = time.monotonic()
            if told != online.keys() or now > again:
                repeated, told, again = told == online.keys(), set(online), now + _TELL
                if stated:
                    missing = f"{len(online)} of {wanted} clients have answered; missing: "
                    missing += self._absent(online, wanted)
                else:  # no node has stated the number yet
                    some = f"{len(online)} of at least {wanted} clients have answered"
                    missing = some if online else "no client has answered yet"
                    missing += self._reasons() if repeated else ""  # told when they were refused
                if repeated:
                    missing += f". {_patience(least, now - began, timeout)}"
                _log.info("%s", missing)
            time.sleep(mail.POLL[1])
        if not stated and not known:
            _log.warning(
                "no node states num-partitions, so the run takes the %s that are there: to wait "
                "for a number of them, give num_clients, or num-partitions to the nodes",
                number_of(len(online), "client"),
            )
        if not known:
            self._tell_numbers(least, len(online))
        if later := known.keys() - online.keys():
            _log.info(
                "going on with %d of %d clients; client %s will take part once it has answered",
                len(online),
                len(known),
                sorted_names(later),
            )
        self.infos = {**known, **self.infos}
        return [self.infos[name] for name in sorted({*known, *online}, key=natural)]

    def close(self, names: Iterable[str], run: RunInfo) -> None:
        """From now on accept only these clients, with models of the run's layout."""
        self._members, self._layout = frozenset(names), run.layout
        self._question["run-id"] = run.run_id

    def _give_up_if_hopeless(self) -> None:
        """Raise if all nodes have given the same reason for a while why they cannot take part.

        They run one app, which then has to be changed.
        """
        reasons = {about.wrong for about in self._nodes.values()}
        if len(reasons) != 1 or "" in reasons:
            self._hopeless_since = math.inf
            return
        self._hopeless_since = min(self._hopeless_since, time.monotonic())
        if time.monotonic() - self._hopeless_since >= _HOPELESS:
            raise ConfigError(f"no node can take part: {explained(reasons.pop())}")

    def _answering(self) -> bool:
        """Return whether a node may still answer with its description."""
        since = time.monotonic() - _SILENCE
        return any(about.silent and about.since > since for about in self._nodes.values())

    def _partitions(self) -> int:
        """Return the number of partitions that most nodes state; 0 if none does."""
        said = Counter(about.says.partitions for about in self._nodes.values() if about.says)
        said.pop(None, None)
        return max(said, key=lambda n: (said[n], n), default=0) or 0

    def _tell_numbers(self, least: int | None, there: int) -> None:
        """Warn of numbers of clients that do not fit those that are there when a run starts."""
        said: dict[int, list[int]] = {}
        for node in sorted(self._holders.values()):
            about = self._nodes.get(node)
            if about is not None and about.says is not None and about.says.partitions is not None:
                said.setdefault(about.says.partitions, []).append(node)
        if len(said) > 1 or (said and max(said) < there):
            words = "; ".join(f"{n} on {_nodes_in_words(those)}" for n, those in said.items())
            _log.warning(
                "the run has %s, and the nodes state num-partitions = %s: correct it in their "
                "configuration, if their data are divided by it",
                number_of(there, "client"), words,
            )  # fmt: skip
        if least is not None and least > there:
            _log.warning(
                "min_clients_to_start is %d, and the nodes state %d clients, which is all that "
                "the run waits for: lower it, or give num_clients",
                least, there,
            )  # fmt: skip

    def _absent(self, online: Iterable[str], wanted: int) -> str:
        """Return which clients are missing, by name if names are partition numbers."""
        there = set(online)
        numbers = {str(j) for j in range(wanted)} if wanted <= 10 * len(there) + 1000 else set()
        if numbers and there <= numbers:
            return f"client {sorted_names(numbers - there)}{self._reasons()}"
        return f"{wanted - len(there)} clients{self._reasons()}"

    def _reasons(self) -> str:
        """Return why nodes that are online cannot take part."""
        wrong = [
            f"node {n}: {explained(about.wrong)}" for n, about in self._nodes.items() if about.wrong
        ]
        more = [f"and {len(wrong) - 3} more"] if len(wrong) > 3 else []
        return "".join(f"; {reason}" for reason in wrong[:3] + more)


def _nodes_in_words(nodes: Sequence[int]) -> str:
    """Return nodes in words.

    >>> _nodes_in_words([7]), _nodes_in_words([7, 8])
    ('node 7', 'nodes 7, 8')
    """
    return f"node{'s' if len(nodes) > 1 else ''} {first_few([*map(str, nodes)], _SHOWN)}"


def _patience(least: int | None, waited: float, timeout: float) -> str:
    """Return how long a start still waits, and by which arguments.

    >>> _patience(None, 60.0, 3600.0)
    'Waiting for 3540 s more (start_timeout=3600); then fewer suffice with min_clients_to_start'
    >>> _patience(2, 60.0, 300.0)
    'Waiting for 240 s more (start_timeout=300); then 2 suffice (min_clients_to_start=2)'
    """
    left = max(timeout - waited, 0.0)
    then = "then fewer suffice with min_clients_to_start"
    if least is not None:
        then = f"then {least} suffice (min_clients_to_start={least})"
    return f"Waiting for {left:.0f} s more (start_timeout={timeout:g}); {then}"


def explained(reason: str) -> str:
    """Return why a node gives no description; for a different app, what to change.

    >>> explained("the client failed: KeyError('arrays')")[:60]
    'its app is not a client of this package (it looks for Flower'
    """
    if (mod := explained_mod(reason)) is not None:
        return mod
    if "KeyError" not in reason or not any(key in reason for key in ("arrays", "config")):
        return reason
    return (
        "its app is not a client of this package (it looks for Flower's own records, such as "
        '"arrays", in a question of this server): write @train_step (from flower_fedcon.torch, or '
        "flower_fedcon) under its @app.train(), or use flower_fedcon.client_app"
    )


def alike(infos: list[ClientInfo], least: int | None) -> list[ClientInfo]:
    """Return the clients with the most frequent model, if there are enough to start."""
    shapes = Counter(info.layout.shapes for info in infos if info.layout is not None)
    if len(shapes) < 2 or least is None:
        return infos  # where they differ, `common_layout` says so
    most, _ = shapes.most_common(1)[0]
    agreeing = [info for info in infos if info.layout is None or info.layout.shapes == most]
    if len(agreeing) < least:
        return infos
    others = [info.name for info in infos if info not in agreeing]
    _log.warning("starting without client %s: most clients have a model of shape %s, and these "
                 "another",
                 sorted_names(others), most)  # fmt: skip
    return agreeing


def sorted_names(names: Iterable[str]) -> str:
    """Return the first twenty names in order.

    >>> sorted_names(["10", "9", "b"]), sorted_names([])
    ('9, 10, b', 'none')
    """
    return first_few(sorted(names, key=natural), _SHOWN) or "none"


def in_words(reasons: Mapping[str, str]) -> str:
    """Return clients by name, grouped by their reasons.

    >>> in_words({"2": "no reply in 5 s", "a": "its node has gone", "1": "no reply in 5 s"})
    'client 1, 2 (no reply in 5 s), a (its node has gone)'
    """
    by_reason: dict[str, list[str]] = {}
    for name in sorted(reasons, key=natural):
        by_reason.setdefault(reasons[name], []).append(name)
    parts = [f"{sorted_names(names)} ({reason})" for reason, names in by_reason.items()]
    return "client " + ", ".join(parts)


def natural(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts partition ids as numbers, before other names.

    >>> sorted(["b", "10", "9", "²"], key=natural)
    ['9', '10', 'b', '²']
    """
    number = name.isascii() and name.isdecimal() and len(name) < 19
    return (not number, int(name) if number else 0, name)
