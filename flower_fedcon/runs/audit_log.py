"""The audit log: a line of JSON for each exchange of a run, in its directory.

    {"event": "start", "run": ..., "incarnation": 1, "round": 0, "algorithm": ..., "clients":
     {"0": {"examples": 20, "weight": 0.25, "data": digest, "version": "0.1.0"}, ...}}
    {"event": "exchange", "round": 1, "phase": "train", "attempt": 1, "asked": ["0", "1", "2"],
     "used": {"0": bytes}, "dropped": {"1": reason}, "lost": [], "silent": {"2": why}}
    {"event": "applied", "round": 1, "used": ["0"], "uplink_bytes": ..., "downlink_bytes": ...}
    {"event": "end", "round": 1, "error": ""}

In a run that does not wait for its clients, "round" of an exchange is a wave, and its line comes
once all its clients have been heard, or at the end without those that are still at work.

Each line has "time", in UTC. In a private run the first line says "private": false, since noise
does not cover the log: who was asked, who replied, digests and bytes stay with the server. A run
that is resumed continues the file with the next incarnation; rounds after the checkpoint are then
in it twice. At 64 MiB the file is renamed to ``audit.1.jsonl``, an earlier one of that name to
``audit.2.jsonl``, and so on up to ``audit.9.jsonl``: the latest 640 MiB are kept.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.core.audit import Audit
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.gate import Admitted, column_bytes
from flower_fedcon.core.protocol import TRAIN, UNIFORM, Request, Setup, entry
from flower_fedcon.core.summed import Summed
from flower_fedcon.errors import printable
from flower_fedcon.wire.whole_files import storage

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server

NAME = "audit.jsonl"
_KINDS = ("used", "dropped", "lost", "silent")
_LARGEST = 64 * 2**20  # bytes of a file
EARLIER = 9
"""The number of earlier files that are kept."""


def runs_of(folder: Path) -> set[str]:
    """Return the identifiers of the runs that a folder's audit log has; none without one."""
    path, found = folder / NAME, set[str]()
    if not path.is_file():
        return found
    with storage(f"read {path}"), path.open("rb") as file:
        for line in file:
            if b'"start"' in line:
                with suppress(ValueError):  # a line that a killed process left, or was altered
                    note = json.loads(line)
                    if isinstance(note, dict) and note.get("event") == "start":
                        found.add(str(note.get("run")))
    return found


class AuditLog(Audit):
    """The log of one start of a run.

    Parameters
    ----------
    path : Path
        The file, to which lines are appended.
    server : Server
        The run that is audited.
    digests : sequence of str
        Digests of the clients' data, in client order; empty if they are not known.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """

    def __init__(self, path: Path, server: Server, digests: Sequence[str] = ()) -> None:
        self._path, self._server = path, server
        self._names = [client.name for client in server.setup.clients]
        self._exchange: dict[str, Any] | None = None
        self._waves = isinstance(server.strategy.participation, Buffered)
        self._at_work: dict[int, dict[str, Any]] = {}  # by client, the wave that waits for it
        with storage(f"write {path}"):
            self._file = path.open("a+b")
            if self._file.tell() and _last_byte(self._file) != b"\n":
                self._file.write(b"\n")  # the part of a line that a killed process left
        weights = _weights(server.setup)
        clients = {
            client.name: {
                "examples": client.num_examples,
                "weight": weights[j],
                "data": digests[min(j, len(digests) - 1)] if digests else "",  # or one of all
                "version": client.version,
            }
            for j, client in enumerate(server.setup.clients)
        }
        info = server.info
        self._write(
            "start",
            run=info.run_id,
            incarnation=info.incarnation,
            round=server.round,
            algorithm=info.algorithm,
            seed=info.seed,
            clients=clients,
            **({"private": False} if server.private.hides else {}),  # of these notes
        )

    # --- what happens --------------------------------------------------------------------------

    def follow(self, server: Server) -> None:
        """Write another server's counts from now on, as in a race."""
        self._server = server

    def asked(self, request: Request) -> None:
        """Begin the line of an exchange."""
        self._write_exchange()
        names = [self._names[client] for client in request.clients]
        exchange = _begun(request.round, request.phase, request.attempt, names)
        if self._waves and request.phase == TRAIN:
            self._at_work |= dict.fromkeys(request.clients, exchange)
        else:
            self._exchange = exchange

    @property
    def listeners(self) -> Sequence[Callable[[Admitted], None]]:
        """What notes the replies that passed the gate."""
        return (self._used,)

    def _used(self, admitted: Admitted) -> None:
        """Note the bytes of each client's upload."""
        for i, client in enumerate(admitted.clients):
            size = sum(_bytes_of(column, i) for column in admitted.payload.values())
            self._note("used", client, self._names[client], size)

    def dropped(self, client: int, reason: str) -> None:
        """Note why a reply is not used."""
        name = self._server.client_name(client) if client < 0 else self._names[client]
        self._note("dropped", client, name, reason)

    def silent(self, clients: list[int], reason: str) -> None:
        """Note why some clients have not answered."""
        for client in clients:
            self._note("silent", client, self._names[client], printable(reason))

    def lost(self, client: int) -> None:
        """Note which clients came back without state."""
        self._note("lost", client, self._names[client])

    def applied(self, clients: list[int]) -> None:
        """End the round."""
        self._write_exchange()
        server = self._server
        self._write(
            "applied",
            round=server.round,
            used=[self._names[client] for client in clients],
            uplink_bytes=server.uplink_bytes,
            downlink_bytes=server.downlink_bytes,
        )

    # --- the file ------------------------------------------------------------------------------

    def sync(self) -> None:
        """Flush the lines to disk."""
        with storage(f"write {self._path}"):
            os.fsync(self._file.fileno())

    def ended(self, error: str = "") -> None:
        """Write the last line, and close the file."""
        try:
            self._write_exchange()
            for wave in {id(wave): wave for wave in self._at_work.values()}.values():
                self._write("exchange", **wave)
            self._write("end", round=self._server.round, error=printable(error))
        finally:
            self._file.close()

    def _note(self, what: str, client: int, name: str, value: Any = None) -> None:
        """Note what became of a client's answer; write the line of a wave that is answered."""
        exchange = self._of(client, name)
        if what == "lost":
            exchange[what].append(name)
        else:
            exchange[what][name] = value
        if exchange is self._exchange:
            return
        self._at_work.pop(client, None)
        if sum(len(exchange[kind]) for kind in _KINDS) >= len(exchange["asked"]):
            self._write("exchange", **exchange)

    def _of(self, client: int, name: str) -> dict[str, Any]:
        """Return the exchange that waits for a client, or one of its own if none does."""
        now, wave = self._exchange, self._at_work.get(client)
        if now is None:
            return _begun(self._server.round, TRAIN, 1, []) if wave is None else wave
        waits = name in now["asked"] and not any(name in now[kind] for kind in _KINDS)
        return now if waits or wave is None else wave

    def _write_exchange(self) -> None:
        if self._exchange is not None:
            now, self._exchange = self._exchange, None
            heard = {*now["used"], *now["dropped"], *now["lost"]}
            rest = [name for name in now["asked"] if name not in heard]
            now["silent"] = {name: now["silent"].get(name, "no reply") for name in rest}
            self._write("exchange", **now)

    def _write(self, event: str, **content: Any) -> None:
        line: Mapping[str, Any] = {"event": event, "time": _now_utc(), **content}
        with storage(f"write {self._path}"):
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            if self._file.tell() >= _LARGEST:
                self._rotate()

    def _rotate(self) -> None:
        """Begin a new file; rename the earlier ones and delete the oldest beyond the limit."""
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._path
        names = [path, *(path.with_suffix(f".{i}{path.suffix}") for i in range(1, EARLIER + 1))]
        for younger, older in reversed(list(pairwise(names))):
            with suppress(FileNotFoundError):
                younger.replace(older)
        self._file = path.open("a+b")


def _begun(number: int, phase: str, attempt: int, asked: list[str]) -> dict[str, Any]:
    """Return the line of an exchange that nobody has answered yet."""
    return {
        "round": number,
        "phase": phase,
        "attempt": attempt,
        "asked": asked,
        "used": {},
        "dropped": {},
        "lost": [],
        "silent": {},
    }


def _bytes_of(column: Any, i: int) -> int:
    """Return the bytes of one client's value of a column."""
    return column.each_bytes if isinstance(column, Summed) else column_bytes([entry(column, i)])


def _now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _weights(setup: Setup) -> list[float]:
    """Return each client's weight in a mean over all, by its stated number of examples."""
    if setup.factors is not None:
        return [factor / setup.num_clients for factor in setup.factors]
    if setup.weighting == UNIFORM:
        return [1 / setup.num_clients] * setup.num_clients
    claims = [float(client.num_examples) for client in setup.clients]
    return [claim / (math.fsum(claims) or 1.0) for claim in claims]


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return bytes(file.read(1))
