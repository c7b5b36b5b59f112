"""The history of a run: the final model, and one row for each recorded round."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flower_fedcon.core.evaluation import Record as Record
from flower_fedcon.errors import ConfigError, StorageError, nearest, number_of, pandas
from flower_fedcon.layout import Model
from flower_fedcon.runs.relative import RELATIVE, with_relative
from flower_fedcon.validation import Array, nonnegative
from flower_fedcon.wire.whole_files import atomic, check_file, read_bytes, storage

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger("flwr")
Callback: TypeAlias = Callable[[Record], Any]
"""A function of the record of a round; a true return value stops the run after it."""


def why_not_recorded(name: str, columns: Iterable[str]) -> str:
    """Return a hint for a column that a history does not have.

    >>> why_not_recorded("residuals", ["residual", "round"])
    "did you mean 'residual'? Valid: residual, round"
    """
    recorded = list(columns)
    if re.sub(r"[\s_]", "", name).upper().replace("−", "-") == "F-F*":
        return f"F - F* has the name 'residual'. Valid: {', '.join(sorted(recorded))}"
    of_model = name in ("objective", "residual", RELATIVE) or "epsilon" in recorded
    if of_model and recorded and name not in recorded and "objective" not in recorded:
        return (
            f"a private run records only what noise protects, unless unsafe=True, and one on nodes "
            f"what they answer; recorded: {', '.join(recorded)}"
        )
    if name == RELATIVE and "residual" in recorded:
        return "F* is 0 here, and nothing is relative to it: take residual"
    if name in ("residual", RELATIVE):
        return (
            "F - F* is recorded if the optimum is known before the run: compute problem.optimum "
            "first (in a file: reference = true)"
        )
    return nearest(name, recorded)


def row_name(rows: Iterable[Record], *, many: bool = False) -> str:
    """Return what a row of histories is called, or many: a step where rounds do not wait.

    >>> row_name([{"waves": 7}]), row_name([{"waves": 7}, {"dropped": 0}], many=True)
    ('step', 'rounds or steps')
    """
    names = sorted({"step" if "waves" in row else "round" for row in rows})
    return " or ".join(f"{name}s" if many else name for name in names)


class History:
    """A run's history.

    `history["objective"]` is the column of that name, with a value for each recorded round.
    Columns:

        round : from 1
        objective : F(x), with the regularizer
        residual : F(x) - F*, if the optimum is known
        violation : distance from x to the constraint set, if there is one
        uplink_bytes, downlink_bytes : payload bytes of all rounds so far, over all clients
        seconds : time of the rounds so far, without evaluation; on nodes, time since the start
        simulated_seconds : with a clock, the simulated time of the rounds so far
        late : with a deadline, how many drawn clients would not have been in time, so far
        cohort, replies : clients drawn in this round, and replies that were used
        dropped, retries, lost : so far, replies refused, attempts repeated, and clients that came
            back without their state
        refused : on nodes, how many were refused the name that they claimed
        unheard : on nodes, how many did not answer when the model was evaluated; the record then
            has no objective and no pooled means, only the others' own metrics
        local_iterations, local_evaluations : the cost of local solvers so far, if there are any
        gradients : gradients of clients' objectives and constraints so far, over all clients, full
            or of a minibatch; with those in local solvers, without those in evaluations
        examples_seen : rows that these gradients used
        hessian_products, proxes, lmos : on clients, if there are any: products with Hessians (a
            whole Hessian counts as many as the model has entries), proximal operators, and linear
            minimisations

    The counts of work are left out in private runs, and for your own train loops. Metrics of the
    problem and of the strategy are further columns.

    Attributes
    ----------
    x : array or list of arrays
        The final global model, in the form of the problem's x0.
    rows : list of dict
    outputs : dict
        Further models of the method, by name, such as an average of the iterates.
    stopped : bool
        Whether a callback ended the run early.
    report : Report, optional
        For clients with tables: coefficients by name, and how they were found; `report.text`.
    race : list of dict
        If "auto" was given: each value that was tried, its rounds, bytes and gradients, its result,
        and whether it was chosen. Their cost counts in the columns. Result and objective are
        infinite for a value that diverged, and for one that was not tried, which has 0 rounds.
    """

    report: Any = None
    race: Sequence[dict[str, Any]] = ()

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
            hint = why_not_recorded(name, self.columns)
            raise ConfigError(f"the history has no column {name!r}: {hint}")
        return np.array([row.get(name, np.nan) for row in self.rows])

    def __repr__(self) -> str:
        last = f", last {self.rows[-1]}" if self.rows else ""
        return f"History({len(self.rows)} records{last})"

    def to_csv(self, path: str | Path) -> None:
        """Write all rows to a file."""
        columns = self.columns
        with atomic(Path(path)) as temporary:
            temporary.write_bytes(_table(columns, [_cells(row, columns) for row in self.rows]))

    def to_frame(self) -> pd.DataFrame:
        """Return all rows as a table of pandas: a row for each record, a column for each name."""
        pd = pandas()

        return pd.DataFrame(self.rows, columns=self.columns)

    @staticmethod
    def read_rows(path: str | Path) -> list[Record]:
        """Return the rows of a file written by `to_csv` or a run.

        A last row without its end, which a run that was killed leaves, is left out.

        Raises
        ------
        FedConError
            If the file cannot be read, or is not a history.
        """
        return _parse(Path(path)).rows


class _Parsed(NamedTuple):
    """The content of a file."""

    columns: list[str]
    cells: list[list[str]]
    rows: list[Record]
    end: int  # bytes up to the end of the last row


def _parse(path: Path, count: int | None = None) -> _Parsed:
    """Return the first `count` rows of a file, or all complete ones."""
    try:
        data = read_bytes(path, follow=True)
    except FileNotFoundError:
        raise StorageError(f"cannot read {path}: no such file") from None
    data = data[: data.rfind(b"\n") + 1]
    parsed = _Parsed([], [], [], 0)
    end = line = 0

    def lines() -> Iterator[str]:
        nonlocal end, line
        for bytes_ in io.BytesIO(data):
            end, line = end + len(bytes_), line + 1
            yield bytes_.decode()

    try:
        for cells in csv.reader(lines(), strict=True):
            if not parsed.columns:
                if not cells or len(set(cells)) != len(cells):
                    raise ValueError("no names of columns")
                parsed.columns.extend(cells)
            elif len(cells) != len(parsed.columns):
                raise ValueError(f"{len(cells)} values in {len(parsed.columns)} columns")
            else:
                pairs = zip(parsed.columns, cells, strict=True)
                parsed.rows.append({name: _number(text) for name, text in pairs if text})
                parsed.cells.append(cells)
            parsed = parsed._replace(end=end)
            if len(parsed.rows) == count:
                break
    except (ValueError, csv.Error) as error:
        raise ConfigError(
            f"{path} is damaged in line {line} ({error!s:.99}): remove the lines from there on, or "
            f"resume the run, which cuts the file at its checkpoint"
        ) from None
    return parsed


def _number(text: str) -> float:
    """Return the number that was written; whole numbers stay int."""
    return int(text) if _WHOLE.fullmatch(text) else float(text)


_WHOLE = re.compile(r"-?[0-9]{1,4000}")  # Python does not read longer ones


def _cells(row: Record, columns: Sequence[str]) -> list[str]:
    """Return a row's values as text that reads back as the same numbers; "" for none."""
    # + makes an integer of a truth value
    return [repr(+np.asarray(row[c]).item()) if c in row else "" for c in columns]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """Return a CSV file's bytes; rows may be shorter than the header."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    if columns:
        writer.writerow(columns)
    writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
    return text.getvalue().encode()


class HistoryFile:
    """A CSV file that grows row by row; each row is handed to the operating system at once.

    Parameters
    ----------
    path : Path
    keep : int (default: 0)
        The number of rows to keep of an existing file; everything after them, whole or torn, is
        cut.

    Attributes
    ----------
    rows : list of dict
        The rows that were kept.

    Raises
    ------
    FedConError
        If the file has fewer rows, or is damaged before their end.
    """

    def __init__(self, path: Path, keep: int = 0) -> None:
        self._path = path
        parsed = _parse(path, keep) if keep else _Parsed([], [], [], 0)
        self.rows, self._columns = parsed.rows, parsed.columns
        if len(self.rows) < keep:
            raise StorageError(
                f"cannot resume: {path} holds {number_of(len(self.rows), 'row')}, and its "
                f"checkpoint was written after {keep}. Restore the file, or start again in another "
                "run directory"
            )
        with suppress(FileNotFoundError):  # opening a pipe would block
            check_file(path)
        with storage(f"write {path}"):
            self._file = path.open("ab", buffering=0)
            self._file.truncate(parsed.end)

    def write(self, row: Record) -> None:
        """Append a row; a new column is empty in earlier rows."""
        new = [name for name in row if name not in self._columns]
        if new:
            self._add_columns(new)
        self._append(",".join(_cells(row, self._columns)).encode() + b"\r\n")

    def _append(self, line: bytes) -> None:
        with storage(f"write {self._path}"):
            while line:
                line = line[self._file.write(line) :]

    def _add_columns(self, new: Sequence[str]) -> None:
        """Give the file more columns, in one step."""
        earlier = _parse(self._path).cells
        self._columns = [*self._columns, *new]
        self._file.close()
        with atomic(self._path) as temporary:
            temporary.write_bytes(_table(self._columns, earlier))
        with storage(f"write {self._path}"):
            self._file = self._path.open("ab", buffering=0)

    def sync(self) -> None:
        """Flush the rows to disk."""
        with storage(f"write {self._path}"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class EarlyStopping:
    """A callback that stops a run once a column is at or below a tolerance.

    The log then says where, and why.

    Parameters
    ----------
    tolerance : float
        >= 0.
    column : str (default: "residual")
        The column of the history to watch, or "relative", (F - F*)/|F*|. For this, and for
        "residual", `simulate` finds the optimum first.
    unsafe : bool (default: False)
        Allow early stopping in a private run (`GaussianDP`, private examples). The column, and thus
        the number of rounds, reveals something of the data that no noise protects and epsilon does
        not count.
    at_least : bool (default: False)
        Stop once the column is at or above the tolerance, as for an accuracy.

    >>> stop = EarlyStopping(1e-3)
    >>> stop({"round": 1, "residual": 0.5}), stop({"round": 2, "residual": 1e-4})
    (False, True)
    >>> stop = EarlyStopping(0.9, "accuracy", at_least=True)
    >>> stop({"round": 1, "accuracy": 0.5}), stop({"round": 2, "accuracy": 0.91})
    (False, True)
    """

    def __init__(
        self,
        tolerance: float,
        column: str = "residual",
        *,
        unsafe: bool = False,
        at_least: bool = False,
    ) -> None:
        self.tolerance, self.at_least = nonnegative("tolerance", tolerance), at_least
        self.column, self.unsafe = column, unsafe
        self._seen, self._missed = False, ""

    def __call__(self, record: Record) -> bool:
        """Return whether to stop; False if an evaluation in the record has failed."""
        value = self.value(record)
        if value is None:
            if not self._seen and "unheard" not in record:
                self._miss(record)
            return False
        self._seen = True
        return self.reached(value)

    def _miss(self, record: Record) -> None:
        """Refuse a column that is not recorded; or warn, if another record may have it.

        Which metrics the clients of an app reply is known once they have: some may reply others.
        """
        whole = {c: v for c, v in record.items() if "/" not in c or "/" in self.column}
        why = why_not_recorded(self.column, whole)
        if "objective" in record:
            raise ConfigError(
                f"early stopping watches {self.column!r}, which is not recorded: {why}"
            )
        if not self._missed:
            where = f"{row_name([record])} {record['round']}"
            _log.warning(
                "early stopping watches %r, which %s has not recorded: %s",
                self.column,
                where,
                why,
            )
        self._missed = (
            f"early stopping watched {self.column!r}, which was never recorded, so it could not "
            f"end the run: {why}"
        )

    @property
    def doubt(self) -> str:
        """Why it cannot have stopped a run: its column was in no record; "" if it could."""
        return "" if self._seen else self._missed

    @property
    def level(self) -> str:
        """The tolerance in words: "at most 0.001"."""
        return f"at {'least' if self.at_least else 'most'} {self.tolerance:g}"

    def reached(self, value: float) -> bool:
        """Return whether a value of the column stops the run."""
        return bool(value >= self.tolerance if self.at_least else value <= self.tolerance)

    def why(self, record: Record) -> str:
        """Return why the run stops with a record.

        >>> EarlyStopping(1.0, "loss").why({"round": 6, "loss": 0.8671})
        'loss 0.8671 is at most 1'
        """
        return f"{self.column} {self.value(record):.4g} is {self.level}"

    def value(self, record: Record) -> float | None:
        """Return a record's watched value, if it has one.

        >>> EarlyStopping(1e-3, "relative").value({"objective": 4.5, "residual": 0.5})
        0.125
        """
        seen = with_relative([record])[0] if self.column == RELATIVE else record
        return seen.get(self.column)
