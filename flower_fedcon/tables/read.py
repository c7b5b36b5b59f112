"""Files of tables, and the client of each row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from flower_fedcon.errors import FedConError, nearest, needing
from flower_fedcon.tables.cell_digests import digest_of_cells, digest_of_content
from flower_fedcon.tables.checks.kinds_of_columns import seen_in_rows
from flower_fedcon.tables.columns import Columns
from flower_fedcon.tables.decimals import with_points
from flower_fedcon.tables.marks import canonical, folded, text_of, unfit_mark
from flower_fedcon.tables.misfits import DataError, Misfit
from flower_fedcon.tables.public import check_public
from flower_fedcon.tables.raw_cells import SPARSE, Cells, opened, read_cells, suffix_of
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.table import Table

SAID = 10  # the largest number of logged remarks
_log = logging.getLogger("flwr")
_cut: ContextVar[bool] = ContextVar("cut", default=False)
Found = TypeVar("Found")


def read_table(
    path: str | Path, schema: Schema, *, column: str | None = None, client: object = None
) -> Table:
    """Return the table in a file.

    Parameters
    ----------
    path : path
        A file .csv, .tsv (or .csv.gz), .parquet, .npz (an array with one axis for each column) or
        .svm, .svmlight, .libsvm (features 1, 2, ...; the schema has ``features = "all"``).
    schema : Schema
    column : str, optional
        The column that states the client of each row.
    client : object, optional
        With `column`: the client whose rows are read.

    Raises
    ------
    DataError
        If the file cannot be read, a package that reads such files is not installed, or the file
        does not fit the schema.
    """
    path = Path(path)
    if _cut.get():
        check_public(schema)
    if column is None:
        table = guarded(path, lambda: _table(columns_of(path, schema)))
        return _recognised(table, path)
    parts, notes = guarded(path, columns_by_client, path, schema, column)
    name = canonical(client)
    if name not in parts:
        raise DataError(
            f"{path}: no row has {name!r} in the column {column!r}: {nearest(name, parts)}"
        )
    table = guarded(path, _table, parts[name], notes)
    return _recognised(table, path, column, name)


@contextmanager
def cells_cut() -> Iterator[None]:
    """Read tables in this block for private rows: no row decides whether a file fits its schema.

    A number beyond its range becomes the range's end. What is no number, and a category or class
    that the schema does not list, counts as missing; a row without an outcome counts as nothing
    (`tables.noisy_sums`). The table's `notes` say how many cells that were.
    """
    before = _cut.set(True)
    try:
        yield
    finally:
        _cut.reset(before)


@contextmanager
def privately() -> Iterator[None]:
    """Let a node's own loader read private rows in this block."""
    try:
        with cells_cut():
            yield
    except DataError as error:
        error.columns.clear()  # the loader may have read cells as they are
        raise


def _recognised(table: Table, path: Path, column: str = "", client: str = "") -> Table:
    """Return the table with what recognises its rows; only a node that counts by it needs it."""
    content = digest_of_content(path, client)
    of_cells = partial(digest_of_cells, path, content, column, client)
    return replace(table, rows_digest=content, digest_of_cells=of_cells)


def read_clients(path: str | Path, schema: Schema, column: str) -> dict[str, Table]:
    """Return the tables of all clients in a file, by the values of this column.

    Raises
    ------
    DataError
        As in `read_table`, or if a row has no client.
    """
    path = Path(path)
    parts, notes = guarded(path, columns_by_client, path, schema, column)
    return guarded(path, lambda: {name: _table(columns, notes) for name, columns in parts.items()})


def log_notes(tables: Iterable[Table]) -> None:
    """Log remarks on the rows of tables, on a machine that may see the rows."""
    lines = list(
        dict.fromkeys(f"{table.file}: {note}" for table in tables for note in table.notes())
    )
    for line in lines[:SAID]:
        _log.warning("%s", line)
    if len(lines) > SAID:
        _log.warning("%s more remarks: see `fedcon data check`", len(lines) - SAID)


def columns_of(path: Path, schema: Schema, also: tuple[str, ...] = ()) -> Columns:
    """Return a file's columns, unchecked, and other columns unchanged.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    if suffix_of(path) in SPARSE:
        return _sparse(path, schema)
    return Columns(_dense(path, schema, also), schema, cut=_cut.get())


def columns_by_client(
    path: Path, schema: Schema, column: str
) -> tuple[dict[str, Columns], list[str]]:
    """Return each client's columns, unchecked, and remarks on the clients' names.

    Raises
    ------
    DataError
        If the file cannot be read, or a row has no client.
    """
    if suffix_of(path) in SPARSE:
        raise DataError(
            f"{path}: an SVMlight file has no column {column!r} for clients: give one "
            f"file for each client"
        )
    cells = _dense(path, schema, (column,))
    owners = owners_of(cells, schema, column)
    names, place = np.unique(owners.astype(str), return_inverse=True)
    order = np.argsort(place, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(place, minlength=len(names)))[:-1])
    parts = dict(zip(names.tolist(), rows, strict=True)) if len(owners) else {}
    parts.pop("", None)
    texts = (text_of(cell) for cell in cells.columns[column].tolist())
    notes = _alike(column, dict.fromkeys(text for text in texts if text is not None))
    cut = _cut.get()
    return {
        name: Columns(cells.of_rows(places), schema, cut=cut) for name, places in parts.items()
    }, notes


def owners_of(cells: Cells, schema: Schema, column: str) -> np.ndarray[Any, Any]:
    """Return the client of each row, as text.

    Raises
    ------
    DataError
        If the column is missing, or has no value in a row.
    """
    if column not in cells.columns:
        raise DataError.lacking(cells.path, [column], cells.names)
    values = cells.columns[column].tolist()
    owners = [canonical(text_of(cell) or "") for cell in values]
    misfits = []
    for wrong, expected, remedy in (
        ([o in ("", *schema.missing) for o in owners], "a client in every row",
         "fill in the row's client, or remove the row"),
        ([bool(unfit_mark(cell)) for cell in values], "the client as text",
         "write the column anew as text"),
    ):  # fmt: skip
        places = np.flatnonzero(wrong)
        if places.size:
            row, cell = int(cells.rows[places[0]]), values[places[0]]
            said = "nothing" if text_of(cell) is None else repr(str(cell))
            if _cut.get():  # these are nobody's rows
                owners = ["" if bad else owner for owner, bad in zip(owners, wrong, strict=True)]
                continue
            misfits.append(Misfit(column, row, said, expected, remedy, len(places) - 1))
    if misfits:
        raise DataError.of(cells.path, misfits)
    return np.fromiter(owners, dtype=object, count=len(owners))


def guarded(path: Path, read: Callable[..., Found], *arguments: Any) -> Found:
    """Return what `read` finds in a file; any error names the file.

    Raises
    ------
    DataError
    """
    try:
        return read(*arguments)
    except FedConError:
        raise
    except Exception as error:  # a column of an unknown kind
        raise DataError(f"{path}: it cannot be read as the schema says ({error!r})") from error


def _dense(path: Path, schema: Schema, also: tuple[str, ...]) -> Cells:
    if schema.sparse:
        raise DataError(
            f'{path}: features = "all" is for SVMlight files ({", ".join(SPARSE)}): name the '
            "columns in [features]"
        )
    cut = _cut.get()
    cells = read_cells(path, [*schema.columns, *also], cut=cut, identifiers=not cut)
    return with_points(cells, schema, cut=cut)


def _sparse(path: Path, schema: Schema) -> Columns:
    if not schema.sparse:
        raise DataError(f'{path}: an SVMlight file names no columns: write features = "all"')
    A, y = opened(path, partial(_svmlight, path))
    cells = Cells(path, (schema.target,), {schema.target: y}, np.arange(1, len(y) + 1))
    return Columns(cells, schema, sparse=A)


def _svmlight(path: Path) -> Any:
    with needing("SVMlight files are read by scikit-learn", "estimators"):
        from sklearn.datasets import load_svmlight_file
    return load_svmlight_file(str(path))


def _table(columns: Columns, notes: Sequence[str] = ()) -> Table:
    """Return the table of columns, with remarks on them."""
    return replace(columns.table(), notes=lambda: [*notes, *columns.notes, *seen_in_rows(columns)])


def _alike(column: str, texts: dict[str, None]) -> list[str]:
    """Return remarks on clients whose names are easily confused."""

    def confused(names: Iterable[str], by: Callable[[str], str]) -> Iterator[tuple[str, int]]:
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(by(name), []).append(name)
        for group in groups.values():
            if len(group) > 1:
                said = " and ".join(map(repr, group))
                yield f"column {column!r}: {said} are taken as", len(group)

    names = dict.fromkeys(map(canonical, texts))
    return [
        *(f"{said} one client" for said, _ in confused(texts, canonical)),
        *(f"{said} {count} clients" for said, count in confused(names, folded)),
    ]
