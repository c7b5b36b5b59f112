"""The unchanged cells of a file, column by column: CSV, Parquet or NPZ.

The same rules hold for all kinds of files. Names lose surrounding blanks, and a requested column
that occurs twice is refused. Only requested columns are kept. A cell of a CSV file is its text. A
row with more or fewer cells than the header is refused, and so is a NUL.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from flower_fedcon.errors import MissingExtraError, needing, printable
from flower_fedcon.tables.marks import is_id
from flower_fedcon.tables.misfits import DataError, Misfit

SPARSE = (".svm", ".svmlight", ".libsvm")
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
_NO_HEADER = re.compile(r"#|//|sep=", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d+")
_FEWER = "a cell is missing: write an empty cell for a missing value"
_MORE = (
    "write decimals with a point, and give a column of row names a name (R: write.csv(..., "
    "row.names = FALSE))"
)
_BETWEEN = {",": "a comma", ";": "a semicolon", "\t": "a tab"}


@dataclass(frozen=True, eq=False)
class Cells:
    """The requested columns of a file.

    Parameters
    ----------
    path : path
    names : tuple of str
        The names of all columns of the file.
    columns : dict of array, shape (m,)
        The requested columns that the file has, by name: numbers, or objects (text, None for
        nothing, and other values of a Parquet file).
    rows : array of int, shape (m,)
        The number of each row in the file, from 1 for the first below the header.
    delimiter : str
        The separator of the cells in a text file.
    notes : tuple of str
        Remarks on how the cells were read.
    """

    path: Path
    names: tuple[str, ...]
    columns: dict[str, Any]
    rows: Any
    delimiter: str = ","
    notes: tuple[str, ...] = ()

    def of_rows(self, places: Any) -> Cells:
        """Return some of the rows, by their places."""
        columns = {name: column[places] for name, column in self.columns.items()}
        return replace(self, columns=columns, rows=self.rows[places])


def read_cells(
    path: Path, wanted: Sequence[str] | None, *, cut: bool = False, identifiers: bool = False
) -> Cells:
    """Return the wanted columns of a file, without those that it lacks; all of them for None.

    With `identifiers` columns whose names are those of identifiers are read, too.

    With `cut` no row decides whether a file can be read: each line of a text is a row, whatever
    quotes it has, and one with more or fewer cells than the header has no value in any column. A
    value of an array that Python cannot hold is none, and bytes that are not UTF-8 are other signs.

    Raises
    ------
    DataError
        If the file cannot be read, or has a wanted column twice.
    """
    readers: dict[str, Callable[..., Cells]] = {
        ".csv": _csv,
        ".tsv": _csv,
        ".parquet": _parquet,
        ".npz": _npz,
    }
    suffix = suffix_of(path)
    if suffix not in readers:
        kind = f"a file {suffix}" if suffix else "a file without a suffix"
        suffixes = ", ".join([*readers, *SPARSE])
        saved = ": save it as CSV UTF-8" if suffix in _SPREADSHEETS else ""
        raise DataError(f"{path}: found {kind}, expected {suffixes}{saved}")
    cells: Cells = opened(path, lambda: readers[suffix](path, wanted, cut=cut, ids=identifiers))
    return cells


def suffix_of(path: Path) -> str:
    """Return a file's kind, from its name.

    >>> suffix_of(Path("Ward.7.CSV.gz"))
    '.csv'
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix


def opened(path: Path, read: Callable[[], Any]) -> Any:
    """Return the result of `read`; any exception counts as an error in the file.

    Raises
    ------
    DataError
    """
    try:
        return read()
    except DataError:
        raise
    except MissingExtraError as error:
        raise DataError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (relative paths start from {Path.cwd()})") from None
    except OSError as error:
        text = " ".join(str(error.strerror or error).split())
        raise DataError(f"{path}: it cannot be read: {text}") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"{path}: it cannot be read: it is not UTF-8 (the byte 0x{byte:02x} is not): save it "
            "as UTF-8, which Excel calls CSV UTF-8"
        ) from None
    except Exception as error:  # a damaged file: the library may raise anything
        text = " ".join(str(error).split())
        raise DataError(
            f"{path}: it cannot be read ({text}): check that it is what its name says, in UTF-8, "
            "with one header line, and as many cells in each row"
        ) from None


def _places(
    path: Path, names: Sequence[str], wanted: Sequence[str] | None, ids: bool = False
) -> dict[str, int]:
    """Return the places of the wanted columns, and of identifiers."""
    if wanted is None:  # a name that occurs again with a sign that no name has
        return {name + "\0" * names[:j].count(name): j for j, name in enumerate(names)}
    by_name: dict[str, int] = {}
    twice = []
    for name in dict.fromkeys(wanted):
        places = [j for j, other in enumerate(names) if other == name]
        if len(places) > 1:
            numbers = ", ".join(str(j + 1) for j in places)
            said = f"{len(places)} columns of this name (numbers {numbers} of the file)"
            twice.append(Misfit(name, 0, said, "one", "rename or remove the others"))
        elif places:
            by_name[name] = places[0]
    if twice:
        raise DataError.of(path, twice)
    if ids and by_name:
        by_name |= {
            name: j for j, name in enumerate(names) if names.count(name) == 1 and is_id(name)
        }
    return by_name


def _numbered(path: Path, names: Sequence[str], columns: dict[str, Any], rows: int) -> Cells:
    return Cells(path, tuple(names), columns, np.arange(1, rows + 1))


# --- text --------------------------------------------------------------------------------------


def _csv(
    path: Path, wanted: Sequence[str] | None, *, cut: bool = False, ids: bool = False
) -> Cells:
    """Return the cells of a file of text."""
    open_: Any = gzip.open if path.name.lower().endswith(".gz") else open
    errors = "replace" if cut else "strict"
    with open_(path, "rt", encoding="utf-8-sig", errors=errors, newline="") as stream:
        lines = _without_nul(path, stream, cut)
        first = list(_up_to_text(lines))
        delimiter = _delimiter(path, first)
        reader: Any = csv.reader(
            chain(first, lines), delimiter=delimiter, skipinitialspace=True, strict=True
        )
        if cut:
            reader = _each_line(chain(first, lines), delimiter)
        try:
            header = next((row for row in reader if not _is_blank(row)), None)
            if header is None:
                raise DataError(f"{path}: it cannot be read: it is empty; write a header line")
            names = [name.strip() for name in header]
            places = _places(path, names, wanted, ids)
            if not places:
                second: list[str] = next((row for row in reader if not _is_blank(row)), [])
                shown = delimiter.join(header)
                below = {name.strip() for name in second}
                if _NO_HEADER.match(shown) or {*(wanted or ())} <= below:
                    raise DataError(
                        f"{path}: line 1 is not the header: found {printable(shown, 60)!r}, "
                        "expected the names of the columns: remove the lines above them"
                    )
                raise DataError.lacking(path, list(dict.fromkeys(wanted or ())), names)
            # For a single column `itemgetter` would not return a tuple.
            pick = itemgetter(*places.values(), *[0] * (2 - min(2, len(places))))
            picked, misshapen, broken = [], [], 0
            for number, row in enumerate((row for row in reader if not _is_blank(row)), 1):
                if cut and len(row) != len(header):
                    picked.append((None,) * max(2, len(places)))
                    broken += 1
                elif len(row) != len(header):
                    misshapen.append((number, reader.line_num, row))
                elif not misshapen:
                    picked.append(pick(row))
        except csv.Error as error:
            raise DataError(
                f"{path}: it cannot be read: line {reader.line_num}: {error}: close each quote, "
                "and write a quote within a quoted text twice"
            ) from None
    if misshapen:
        raise _misshapen(path, header, misshapen, delimiter)
    columns = {}
    for name, cells in zip(places, zip(*picked, strict=True) if picked else [], strict=False):
        columns[name] = _objects(cells)
    if not picked:
        columns = {name: _objects(()) for name in places}
    numbered = _numbered(path, names, columns, len(picked))
    notes = (f"lines with more or fewer cells than the header, taken as empty rows: {broken}",)
    return replace(numbered, delimiter=delimiter, notes=notes if broken else ())


def _delimiter(path: Path, first: Sequence[str]) -> str:
    """Return the separator of the cells, from the first line of a file.

    It is a tab in `.tsv` files. Else it is the comma, unless that line has no comma outside of
    quotes, but semicolons (as Excel writes in Europe) or tabs.

    >>> [_delimiter(Path("a.csv"), [line]) for line in ("a,b;c", "a;b", '"a;b"', "a")]
    [',', ';', ',', ',']
    """
    if suffix_of(path) == ".tsv":
        return "\t"
    outside = "".join("".join(first).split('"')[::2])
    return next((mark for mark in _BETWEEN if mark in outside), ",")


def _up_to_text(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines up to the first that is not blank."""
    for line in lines:
        yield line
        if line.strip():
            return


def _each_line(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of each line, from that line alone."""
    for line in lines:
        try:
            yield from csv.reader([line], delimiter=delimiter, skipinitialspace=True)
        except csv.Error:  # a cell that is too long
            yield [line, ""]


def _without_nul(path: Path, stream: TextIO, cut: bool) -> Iterator[str]:
    """Yield the lines of a file that holds no NUL; to be cut, with other signs in their place."""
    for number, line in enumerate(stream, 1):
        if cut:
            yield line.replace("\0", "\ufffd")
            continue
        if "\0" in line:
            raise DataError(
                f"{path}: it cannot be read: line {number}: found a NUL character, expected text: "
                "the file is damaged, or not UTF-8; write it anew, as UTF-8"
            )
        yield line


def _is_blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def _misshapen(
    path: Path, header: list[str], misshapen: list[tuple[int, int, list[str]]], delimiter: str
) -> DataError:
    """Return the message for rows with more or fewer cells than the header."""
    number, line, row = misshapen[0]
    also = f" (and {len(misshapen) - 1} more rows like that)" if len(misshapen) > 1 else ""
    remedy = _FEWER
    if len(row) > len(header):
        halves = delimiter == "," and any(
            _WHOLE.fullmatch(a.strip()) and b.strip().isdigit() for a, b in pairwise(row)
        )
        remedy = "is there a decimal comma? " * halves
        remedy += f"quote a text with {_BETWEEN[delimiter]}, {_MORE}"
    return DataError(
        f"{path}: it cannot be read: row {number} (line {line}): found {len(row)} cells{also}, "
        f"expected {len(header)} as in the header: {remedy}"
    )


# --- arrays ------------------------------------------------------------------------------------


def _parquet(
    path: Path, wanted: Sequence[str] | None, *, cut: bool = False, ids: bool = False
) -> Cells:
    """Return the cells of a Parquet file, including an index that pandas has saved."""
    with needing("Parquet files are read by pyarrow", "tables"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    names = [str(name).strip() for name in file.schema_arrow.names]
    places = _places(path, names, wanted, ids)
    table = file.read(columns=[file.schema_arrow.names[j] for j in places.values()])
    columns = {}
    for name, column in zip(places, table.columns, strict=True):
        numbers = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        plain = numbers and column.null_count == 0
        # Integers beside missing values would become floats, in which long ones lose digits.
        columns[name] = column.to_numpy() if plain else _values(column.to_pylist, column, cut)
    return _numbered(path, names, columns, file.metadata.num_rows)


def _npz(
    path: Path, wanted: Sequence[str] | None, *, cut: bool = False, ids: bool = False
) -> Cells:
    """Return a file's columns: its arrays of one axis."""
    with np.load(path, allow_pickle=False) as content:
        raw = list(content.files)
        arrays = [content[name] for name in raw]
    lengths = {len(array) for array in arrays if array.ndim == 1}
    if len(lengths) != 1 or any(array.ndim != 1 for array in arrays):
        raise ValueError("its arrays must be columns, with one axis each and of one length")
    names = [name.strip() for name in raw]
    columns = {}
    for name, j in _places(path, names, wanted, ids).items():
        array = arrays[j]
        columns[name] = array if array.dtype.kind in "fiu" else _values(array.tolist, array, cut)
    return _numbered(path, names, columns, *lengths)


def _objects(cells: Sequence[Any]) -> Any:
    return np.fromiter(cells, dtype=object, count=len(cells))


def _values(every: Callable[[], list[Any]], column: Any, cut: bool) -> Any:
    """Return a column's values; to be cut, one by one where Python cannot hold them all."""
    try:
        cells = every()
    except Exception:  # whatever a library raises for a value
        if not cut:
            raise
        cells = [_value_at(column, row) for row in range(len(column))]
    errors = "replace" if cut else "strict"
    return _objects([c.decode("utf-8", errors) if isinstance(c, bytes) else c for c in cells])


def _value_at(column: Any, row: int) -> Any:
    """Return a value of a column of NumPy or Arrow; None for one that Python cannot hold."""
    try:
        value = column[row]
        return value.as_py() if hasattr(value, "as_py") else value.item()
    except Exception:  # whatever a library raises for this value
        return None
