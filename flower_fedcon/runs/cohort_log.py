"""Who took part in each round of a run: `cohorts.jsonl` in its folder.

    {"clients": 10}
    {"round": 1, "drawn": "all", "used": "all"}
    {"round": 2, "drawn": "0-2 7", "used": "0 2 7"}

The first line has the clients' number, or their names if these are not 0, 1, ...; the others have
places in this list. A private run has no such file: what it spends follows from cohorts that nobody
knows. A run that does not wait for its clients has its log of events instead (`runs.flowing`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, StorageError
from flower_fedcon.runs.hooks import Playing, RunHook
from flower_fedcon.runs.race_hook import RaceHook
from flower_fedcon.wire.whole_files import read_bytes, storage, sync

NAME = "cohorts.jsonl"
_HELD = 100_000  # clients: a short round does not wait for the disk


class Cohorts(RunHook):
    """Writes the cohorts of a run.

    Parameters
    ----------
    folder : Path
        The run's.
    race_hook : RaceHook
        All that race note their cohorts; those of the winner are written.
    """

    name = "cohorts"

    def __init__(self, folder: Path, race_hook: RaceHook) -> None:
        self._path, self._race_hook = folder / NAME, race_hook
        self._written = 0

    def begin(self, run: Playing, known: Any) -> None:
        """Let servers note their cohorts, and cut off lines after the checkpoint."""
        self._run = run
        self._written = 0 if known is None else known["written"]
        racing = [] if known is None else known["racing"]
        for server, noted in zip_longest(self._servers(), racing[: len(self._servers())]):
            server.cohorts = [(number, drawn, used) for number, drawn, used in noted or ()]
        with storage(f"write {self._path}"):
            if not self._written:
                names = run.server.setup.names
                first = len(names) if _are_numbers(names) else [*names]
                self._path.write_text(_line({"clients": first}), "utf-8")
                return
            lines = self._path.read_bytes().splitlines(keepends=True)[: self._written + 1]
            if len(lines) <= self._written:
                raise StorageError(
                    f"{self._path} has {len(lines)} of the {self._written + 1} lines that the "
                    f"checkpoint counts: restore the file, or start again in another run directory"
                )
            os.truncate(self._path, sum(map(len, lines)))

    def _servers(self) -> list[Server]:
        """Return the servers that race, or that of the run."""
        return [runner.server for runner in self._race_hook.runners] or [self._run.server]

    def before_round(self, run: Playing, most: int) -> int:
        """Write what has been noted, if it is much."""
        noted = run.server.cohorts
        if noted and len(noted) * (1 + len(noted[-1][1])) > _HELD:
            self._write()
        return most

    def _write(self) -> None:
        """Write what the run's server has noted, once no other one can win."""
        server = self._run.server
        if self._race_hook.race is not None or not server.cohorts:
            return
        noted, server.cohorts = server.cohorts, []
        n = server.setup.num_clients
        lines = [
            _line({"round": number, "drawn": _places(drawn, n), "used": _places(used, n)})
            for number, drawn, used in noted
        ]
        with storage(f"write {self._path}"), self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
        self._written += len(lines)

    def snapshot(self) -> dict[str, Any]:
        """Write what has been noted; return how many lines there are, and what racers have."""
        self._write()
        racing = [server.cohorts for server in self._servers()]
        return {"written": self._written, "racing": racing if any(racing) else []}

    def sync(self) -> None:
        """Flush the lines to disk."""
        with storage(f"write {self._path}"):
            sync(self._path)

    def ended(self, run: Playing) -> None:
        """Write the last lines."""
        self._write()


def read_cohorts(folder: str | Path) -> list[dict[str, Any]]:
    """Return who took part in each round of a run.

    Parameters
    ----------
    folder : path
        The run's folder.

    Returns
    -------
    list of dict
        For each round, in order: "round"; "drawn" and "used", the clients that were asked and
        those whose uploads were used: numbers from 0, or names where clients have some.

    Raises
    ------
    FedConError
        If the folder has no such file, or the file is damaged.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from flower_fedcon import Sample, read_cohorts, simulate
    >>> from flower_fedcon.problems import digits
    >>> from flower_fedcon.strategies import FedAvg
    >>> rule = Sample(count=3)
    >>> with TemporaryDirectory() as folder:
    ...     _ = simulate(FedAvg(participation=rule), digits(), num_rounds=2, run_dir=folder)
    ...     first, second = read_cohorts(folder)
    >>> second["round"], len(second["used"])
    (2, 3)
    """
    path = Path(folder) / NAME
    try:
        data = read_bytes(path, follow=True)
    except FileNotFoundError:
        raise StorageError(
            f"cannot read {path}: no such file. A private run has none; one with Buffered has "
            f"events.jsonl; runs of earlier versions have none either"
        ) from None
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    rows: list[dict[str, Any]] = []
    try:
        stated = json.loads(lines[0])["clients"] if lines else 0
        names = range(stated) if isinstance(stated, int) else stated
        for line in lines[1:]:
            row = json.loads(line)
            drawn, used = (_clients(row[part], names) for part in ("drawn", "used"))
            rows.append({"round": int(row["round"]), "drawn": drawn, "used": used})
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} is damaged in line {len(rows) + 2} ({error!s:.99})") from None
    return rows


def _clients(places: str, names: Sequence[Any]) -> list[Any]:
    """Return the clients at these places.

    >>> _clients("0-2 7", range(9)), _clients("1", ["a", "b"])
    ([0, 1, 2, 7], ['b'])
    """
    if places == "all":
        return [*names]
    ends = (part.partition("-") for part in places.split())
    return [
        names[place]
        for first, _, last in ends
        for place in range(int(first), int(last or first) + 1)
    ]


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False) + "\n"


def _are_numbers(names: Sequence[str]) -> bool:
    return all(name == str(place) for place, name in enumerate(names))


def _places(clients: Sequence[int], count: int) -> str:
    """Return the places of clients, in ascending order, as a text.

    >>> _places([0, 1, 2, 7], 9), _places([0, 1], 2), _places([], 2)
    ('0-2 7', 'all', '')
    """
    if len(clients) == count:
        return "all"
    places = np.sort(np.asarray(clients, dtype=np.int64))
    if not places.size:
        return ""
    new = np.flatnonzero(np.diff(places) != 1)
    first = places[np.concatenate(([0], new + 1))].tolist()
    last = places[np.concatenate((new, [places.size - 1]))].tolist()
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(first, last, strict=True))
