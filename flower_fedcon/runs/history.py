"""What a run leaves: the final model, and one row for each recorded round."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.layout import Model
from flower_fedcon.validation import Array, nonnegative

Record: TypeAlias = dict[str, float]
Callback: TypeAlias = Callable[[Record], Any]
"""Sees the record of a round; a true return value stops the run after it."""


class History:
    """A run's history.

    `history["objective"]` is the column of that name, one value for each recorded round. Columns:

    round : from 1
    objective : F(x), with the regularizer
    residual : F(x) - F*, where the optimum is known
    violation : distance from x to the constraint set, where there is one
    uplink_bytes, downlink_bytes : payload bytes of all rounds so far, over all clients
    seconds : time spent in the rounds so far, without evaluation
    cohort, replies : clients drawn in this round, and replies that were used
    dropped, retries, lost : replies refused, attempts repeated, and clients that came back
        without their state, so far
    local_iterations, local_evaluations : what local solvers have spent so far, where there are any

    and the problem's own metrics, and the strategy's.

    Attributes
    ----------
    x : array or list of arrays
        The final global model, in the form of the problem's x0.
    rows : list of dict
    outputs : dict
        Further models that the method offers, by name (an average of the iterates, say).
    stopped : bool
        Whether a callback ended the run early.
    """

    def __init__(self, x: Model, rows: Sequence[Record] = (), *, stopped: bool = False) -> None:
        self.x = x
        self.rows: list[Record] = list(rows)
        self.outputs: dict[str, Model] = {}
        self.stopped = stopped

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Array:
        if name not in self.columns:
            raise ConfigError(f"the history has no column {name!r}: {nearest(name, self.columns)}")
        return np.array([row.get(name, np.nan) for row in self.rows])

    def __repr__(self) -> str:
        last = f", last {self.rows[-1]}" if self.rows else ""
        return f"History({len(self.rows)} records{last})"

    def to_csv(self, path: str | Path) -> None:
        """Write all rows to a file."""
        with HistoryFile(Path(path)) as file:
            for row in self.rows:
                file.write(row)

    @staticmethod
    def read_rows(path: str | Path) -> list[Record]:
        """Return the rows of a file written by `to_csv` or a run."""
        with Path(path).open(newline="") as file:
            return [
                {k: _number(v) for k, v in row.items() if v != ""} for row in csv.DictReader(file)
            ]


def _number(text: str) -> float:
    """Return the number that was written: whole ones stay whole."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


class HistoryFile:
    """A CSV file that grows row by row, flushed after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self._file = path.open("w", newline="")

    def write(self, row: Record) -> None:
        """Append a row; a column that is new is empty in earlier rows."""
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            earlier = list(csv.DictReader(self._path.read_text().splitlines()))
            self._columns += new
            self._file = self._path.open("w", newline="")
            writer = csv.DictWriter(self._file, self._columns, restval="")
            writer.writeheader()
            writer.writerows(earlier)
        # repr of a float reads back as the same number
        values = [repr(np.asarray(row[c]).item()) if c in row else "" for c in self._columns]
        csv.writer(self._file).writerow(values)
        self._file.flush()

    def sync(self) -> None:
        """Flush the rows to disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> HistoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class EarlyStopping:
    """A callback that stops a run once a column is at or below a tolerance.

    Parameters
    ----------
    tolerance : float
        >= 0.
    column : str (default: "residual")
        Which column of the history to watch.

    >>> stop = EarlyStopping(1e-3)
    >>> stop({"round": 1, "residual": 0.5}), stop({"round": 2, "residual": 1e-4})
    (False, True)
    """

    def __init__(self, tolerance: float, column: str = "residual") -> None:
        self.tolerance = nonnegative("tolerance", tolerance)
        self.column, self._seen = column, False

    def __call__(self, record: Record) -> bool:
        """Return whether to stop; not at a record in which an evaluation has failed."""
        if self.column not in record and (self._seen or "objective" not in record):
            return False
        if self.column not in record:
            raise ConfigError(
                f"early stopping watches {self.column!r}, which is not recorded: "
                f"{nearest(self.column, record)}"
            )
        self._seen = True
        return bool(record[self.column] <= self.tolerance)
