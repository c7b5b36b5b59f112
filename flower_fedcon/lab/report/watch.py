"""`fedcon watch`: lines about runs of other processes, from their files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flower_fedcon.errors import ConfigError, printable
from flower_fedcon.lab.experiments.folders import labels_of
from flower_fedcon.lab.report.contents import RunContents, read_run, run_options
from flower_fedcon.lab.report.upload_shares import Shares
from flower_fedcon.runs import audit_log, flowing
from flower_fedcon.runs.console import brief, left
from flower_fedcon.runs.directory import HISTORY, runs_in
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.limits import Forecast
from flower_fedcon.wire.whole_files import in_use, storage

_FAILURES = 5  # lines about failures at a time
_QUIET = 2  # number of looks without news after which a run counts as ended


class Tail:
    """The new lines of a growing file since the last call.

    An incomplete last line is held back. If the file was replaced, its lines begin again.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._place, self._file = path, 0, -1

    def lines(self) -> Iterator[tuple[bool, str]]:
        """Yield for each line whether it is the file's first, and the line; nothing without a file.

        Raises
        ------
        StorageError
            If the file cannot be read.
        """
        if not self._path.exists():
            return
        with storage(f"read {self._path}"), self._path.open("rb") as file:
            status = os.fstat(file.fileno())  # identifies this file, which may be replaced
            if status.st_ino != self._file or status.st_size < self._place:
                self._file, self._place = status.st_ino, 0
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                first, self._place = self._place == 0, self._place + len(line)
                yield first, line.decode("utf-8", "replace").rstrip("\r\n")


class Watched:
    """One run in progress.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.label = (labels_of(folder) or [folder.name])[0]
        self._history, self._audit = Tail(folder / HISTORY), Tail(folder / audit_log.NAME)
        self._events, self._shares = Tail(folder / flowing.NAME), Shares()
        self._columns: list[str] = []
        self._round, self.quiet = 0.0, 0
        options = run_options(folder)
        self._rounds = options.rounds if options else 0
        self._forecast = options and Forecast(options.rounds, options.stops())

    def news(self) -> list[str]:
        """Return lines on news: the last record, failures of clients, and their shares."""
        told = list(self._failures())
        rows = [row for row in self._rows() if row["round"] > self._round]
        if rows:
            self._round = rows[-1]["round"]
            of = f"/{self._rounds}" if self._rounds else ""
            text = f"{self.label}: round {self._round:g}{of}, {brief(rows[-1])}"
            told.append(text + left(self._forecast(rows[-1])) if self._forecast else text)
            told += self._uploads()
        self.quiet = 0 if told else self.quiet + 1
        return told

    @property
    def ended(self) -> bool:
        """Whether no process works on it."""
        return not in_use(self.folder)

    def contents(self) -> RunContents:
        """Return all the content of its folder."""
        return read_run(self.folder, self.label)

    def _rows(self) -> Iterator[Record]:
        for first, line in self._history.lines():
            if first:
                self._columns = line.split(",")
                continue
            try:
                pairs = zip(self._columns, line.split(","), strict=True)
                row = {name: float(text) for name, text in pairs if text}
                yield {"round": row.pop("round"), **row}
            except (ValueError, KeyError):
                raise ConfigError(
                    f"{self.folder / HISTORY} is damaged: {printable(line, 60)}"
                ) from None

    def _uploads(self) -> Iterator[str]:
        """Yield each client's share of the uploads, in a run that does not wait for clients."""
        for first, line in self._events.lines():
            if first:
                self._shares = Shares()
            self._shares.take(line)
        if self._shares.used:
            yield f"{self.label}: {self._shares.line(running=not self.ended)}"

    def _failures(self) -> Iterator[str]:
        told: list[str] = []
        for _, line in self._audit.lines():
            try:
                told += self._failed(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                told.append(f"{self.label}: a line of its audit log cannot be read")
        yield from told[-_FAILURES:]
        if len(told) > _FAILURES:
            yield f"{self.label}: and {len(told) - _FAILURES} more, see {audit_log.NAME}"

    def _failed(self, line: Any) -> Iterator[str]:
        if line["event"] != "exchange":
            return
        for what in ("dropped", "silent"):
            for name, why in line[what].items():
                told = f"{name} {what}: {why or 'no reason is recorded'}"
                yield f"{self.label}: round {line['round']}, {printable(told, 200)}"


def watch(
    folder: Path,
    *,
    once: bool = False,
    every: float = 1.0,
    say: Callable[[str], object] = print,
) -> bool:
    """Print news of a folder's runs until they end; return whether all have finished.

    Parameters
    ----------
    folder : Path
        The folder of a run or a comparison; further runs of a comparison are followed, too.
    once : bool (default: False)
        Print the progress of the runs, and return.
    every : float (default: 1.0)
        Seconds between looks.
    say : callable

    Raises
    ------
    ConfigError
        If the folder holds no run and none begins in it, or if a history is damaged.
    """
    followed: dict[Path, Watched] = {}
    if not folder.is_dir():
        raise ConfigError(f"{folder} holds no run: no such folder")
    while True:
        for path in runs_in(folder):
            followed.setdefault(path, Watched(path))
        if not followed and not in_use(folder):
            raise ConfigError(f"{folder} holds no run: it has no {HISTORY} in it")
        over = [run.ended for run in followed.values()]  # read before their last news
        for run in followed.values():
            for line in run.news():
                say(line)
        ended = bool(over) and all(over) and all(r.quiet >= _QUIET for r in followed.values())
        if once or ended:
            break
        time.sleep(every)
    states = [run.contents() for run in followed.values()]
    for state in states:
        if state.shares is not None and state.shares.favoured:
            say(f"{state.label}: {state.shares.favoured}")
        say(f"{state.label}: {state.status}")
    return all(state.finished or state.running for state in states)
