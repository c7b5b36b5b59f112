"""A log for machines: a line of JSON for the start, each record, each warning, and the end.

{"time": "2026-01-01T12:00:00.000+00:00", "level": "INFO", "event": "record", "run": "FedAvg",
 "round": 1, "objective": 0.5, ...}
{"time": ..., "level": "WARNING", "event": "log", "run": "FedAvg", "logger": "flwr",
 "message": "..."}
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flower_fedcon.errors import printable
from flower_fedcon.runs.history import Record
from flower_fedcon.wire.whole_files import storage


class JsonLog(logging.Handler):
    """Appends to a file: as a callback it takes records, as a handler log messages.

    Parameters
    ----------
    path : Path
    run : str
        The name of the run in its lines.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """

    def __init__(self, path: Path, run: str) -> None:
        super().__init__(logging.WARNING)
        self._path, self._run = path, run
        with storage(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def __call__(self, record: Record) -> None:
        """Write a record; numbers that are not finite are null, since JSON has none."""
        values = {k: v if math.isfinite(v) else None for k, v in record.items()}
        self.line("INFO", "record", **values)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message of the log."""
        text = printable(record.getMessage(), 2000)
        self.line(record.levelname, "log", logger=record.name, message=text)

    def line(self, level: str, event: str, **content: Any) -> None:
        """Write a line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        told = {"time": now, "level": level, "event": event, "run": self._run, **content}
        with storage(f"write {self._path}"):
            self._file.write(json.dumps(told, ensure_ascii=False, default=float).encode() + b"\n")

    @contextmanager
    def attached(self, **about: Any) -> Iterator[JsonLog]:
        """Take the messages of Flower's log during a `with` block, which is the run."""
        logger = logging.getLogger("flwr")
        self.line("INFO", "start", **about)
        logger.addHandler(self)
        try:
            yield self
        except BaseException as error:
            self.line("ERROR", "end", error=printable(str(error) or type(error).__name__))
            raise
        else:
            self.line("INFO", "end", error="")
        finally:
            logger.removeHandler(self)
            self._file.close()
