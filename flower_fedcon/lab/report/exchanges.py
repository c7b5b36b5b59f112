"""Participation and failures in a run, from its audit log (`runs.audit_log`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.errors import printable
from flower_fedcon.runs.audit_log import EARLIER, NAME
from flower_fedcon.validation import Array
from flower_fedcon.wire.whole_files import check_file, storage

KINDS = ("used", "dropped", "silent", "lost")
"""The outcomes of a request to a client; "lost": it came back without its state."""
_MOST_CLIENTS, _LONGEST, _REASONS = 200, 2**24, 100


class Map:
    """Counts by kind, client and round, in a limited number of groups of clients and rounds.

    Rounds are grouped by increasing powers of two as further ones come.

    >>> grid = Map(["a", "b"], columns=2)
    >>> for server_round in (1, 2, 3):
    ...     grid.add("used", "a", server_round)
    >>> grid.width, grid.counts[0].tolist()  # rounds 1-2 and 3-4
    (2, [[2, 1], [0, 0]])
    """

    def __init__(self, names: list[str], columns: int) -> None:
        self.names, self.width, self._columns = names, 1, max(2, columns)
        self.group = -(-len(names) // _MOST_CLIENTS) or 1  # clients in a row
        self._rows = {name: place // self.group for place, name in enumerate(names)}
        shape = (len(KINDS), -(-len(names) // self.group), self._columns)
        self._counts = np.zeros(shape, dtype=np.int64)
        self._last = 0

    def add(self, kind: str, client: str, server_round: int) -> None:
        """Count one answer, or none, of a client."""
        if client not in self._rows or server_round < 1:
            return  # an unknown client, without a row
        while server_round > self.width * self._columns:
            self._halve()
        self._last = max(self._last, server_round)
        place = (server_round - 1) // self.width
        self._counts[KINDS.index(kind), self._rows[client], place] += 1

    def _halve(self) -> None:
        half = self._counts[..., : self._columns // 2 * 2]
        pairs = half.reshape(*half.shape[:2], -1, 2).sum(axis=-1)
        if self._columns % 2:
            pairs = np.concatenate([pairs, self._counts[..., -1:]], axis=-1)
        self._counts = np.zeros_like(self._counts)
        self._counts[..., : pairs.shape[-1]] = pairs
        self.width *= 2

    @property
    def counts(self) -> Array:
        """The counts, of shape (kinds, rows of clients, columns of rounds)."""
        return self._counts[..., : -(-self._last // self.width)]

    @property
    def labels(self) -> list[str]:
        """The name of each row: a client, or the first and the last of a group."""
        parts = [self.names[i : i + self.group] for i in range(0, len(self.names), self.group)]
        return [part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]


@dataclass
class Exchanges:
    """The content of an audit log.

    Attributes
    ----------
    map : Map
        A map of the exchanges of rounds, without queries and certificates.
    totals : dict
        Client -> counts by kind, over all exchanges.
    sent : dict
        Client -> bytes of its uploads that were used.
    reasons : Counter
        (client, kind, reason) -> number of times.
    starts : int
        The number of starts of the run.
    error : str
        The error with which it ended, or "".
    unreadable : int
        The number of unreadable lines, except for a torn last line.
    """

    map: Map
    totals: dict[str, Counter[str]] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    starts: int = 0
    error: str = ""
    unreadable: int = 0

    def take(self, line: Mapping[str, Any], cells: int) -> None:
        """Take in a line of the log.

        Raises
        ------
        ValueError, KeyError, TypeError, AttributeError
            If it is not a line of an audit log.
        """
        event = line["event"]
        if event == "start":
            self.starts, self.error = self.starts + 1, ""
            if not self.map.names:
                names = [str(name) for name in line["clients"]]
                rows = min(len(names), _MOST_CLIENTS) or 1
                self.map = Map(names, min(500, cells // rows))
        elif event == "exchange":
            self._take_exchange(line)
        elif event == "end":
            self.error = printable(str(line["error"]))

    def _take_exchange(self, line: Mapping[str, Any]) -> None:
        server_round, training = int(line["round"]), line["phase"] == "train"
        answers: list[tuple[str, str, str]] = []
        for name, size in line["used"].items():
            if not 0 <= (sent := int(size)) < 2**63:
                raise ValueError(f"{size} bytes")
            answers.append((name, "used", ""))
            self.sent[name] += sent
        for kind in ("dropped", "silent"):
            answers += [(name, kind, str(reason)) for name, reason in line[kind].items()]
        answers += [(str(name), "lost", "") for name in line["lost"]]
        for name, kind, reason in answers:
            self.totals.setdefault(name, Counter())[kind] += 1
            if training:
                self.map.add(kind, name, server_round)
            key = (name, kind, printable(reason, 200))
            if kind != "used" and (key in self.reasons or len(self.reasons) < _REASONS):
                self.reasons[key] += 1


def read_exchanges(folder: Path, cells: int = 100_000) -> Exchanges | None:
    """Return the content of a run's audit log; None without one.

    Parameters
    ----------
    folder : Path
    cells : int (default: 100,000)
        The largest number of cells in its map.

    Raises
    ------
    StorageError
        If it cannot be read.
    """
    first = folder / NAME
    paths = [*(first.with_suffix(f".{i}{first.suffix}") for i in range(EARLIER, 0, -1)), first]
    paths = [path for path in paths if path.exists()]
    if not paths:
        return None
    exchanges = Exchanges(Map([], 2))
    for path in paths:
        for text in complete_lines(path):
            try:
                exchanges.take(json.loads(text), cells)
            except (
                ArithmeticError,
                AttributeError,
                LookupError,
                RecursionError,
                TypeError,
                ValueError,
            ):
                exchanges.unreadable += 1
    return exchanges


def complete_lines(path: Path) -> Iterator[bytes]:
    """Return the complete lines of a file."""
    check_file(path, follow=True)
    with storage(f"read {path}"), path.open("rb") as file:
        while line := file.readline(_LONGEST):
            if line.endswith(b"\n"):
                yield line
