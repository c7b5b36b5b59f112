"""Files of tables: CSV, Parquet, NPZ and SVMlight, read by pandas, NumPy and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.errors import FedConError
from flower_fedcon.tables.columns import Columns
from flower_fedcon.tables.misfits import DataError
from flower_fedcon.tables.schema import Schema, canonical
from flower_fedcon.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd

SPARSE = (".svm", ".svmlight", ".libsvm")
_EXTRA = "pip install 'flower-fedcon[tables]'"


def read_table(
    path: str | Path, schema: Schema, *, column: str | None = None, client: object = None
) -> Table:
    """Return the table in a file.

    Parameters
    ----------
    path : path
        A file .csv, .tsv (or .csv.gz), .parquet, .npz (an array of one axis for each column) or
        .svm, .svmlight, .libsvm (features 1, 2, ...; the schema says ``features = "all"``).
    schema : Schema
    column : str, optional
        The column that says whose row it is.
    client : object, optional
        With `column`, whose rows are taken.

    Raises
    ------
    DataError
        If the file cannot be read, a package that reads such files is not installed, or the file
        does not fit the schema.
    """
    path = Path(path)
    try:
        return _read(path, schema, column, client)
    except FedConError:
        raise
    except Exception as error:  # a column of some kind that nobody has thought of
        raise DataError(f"{path}: it cannot be read as the schema says ({error!r})") from error


def _read(path: Path, schema: Schema, column: str | None, client: object) -> Table:
    """Return what `read_table` does, or raise anything."""
    if _suffix(path) in SPARSE:
        if column is not None:
            raise DataError(f"{path}: rows of an SVMlight file have no {column!r}: one each")
        return _read_sparse(path, schema)
    if schema.sparse:
        raise DataError(
            f'{path}: features = "all" is for SVMlight files ({", ".join(SPARSE)}): name the '
            "columns in [features]"
        )
    frame = read_frame(path)
    if column is not None:
        owners = owners_of(path, frame, column)
        frame = frame[owners == canonical(client)].reset_index(drop=True)
    return Columns(path, frame, schema).table()


def read_frame(path: Path) -> pd.DataFrame:
    """Return a file's columns, those of text files as text.

    Raises
    ------
    DataError
    """
    try:
        import pandas as pd
    except ImportError:
        raise DataError(f"{path}: tables are read by pandas: {_EXTRA}") from None
    suffix = _suffix(path)
    if suffix == ".parquet":
        return _opened(path, lambda: pd.read_parquet(path))
    if suffix == ".npz":
        return pd.DataFrame(_opened(path, lambda: _arrays(path)))
    if suffix not in (".csv", ".tsv"):
        known = ".csv, .tsv, .parquet, .npz, " + ", ".join(SPARSE)
        raise DataError(f"{path}: found a file {suffix or 'without a suffix'}, expected {known}")
    frame = _opened(
        path,
        lambda: pd.read_csv(
            path,
            sep="\t" if suffix == ".tsv" else ",",
            dtype=str,
            keep_default_na=False,
            na_filter=False,
            index_col=False,
            encoding="utf-8-sig",
        ),
    )
    if suffix == ".csv" and len(frame.columns) == 1 and ";" in frame.columns[0]:
        raise DataError(
            f"{path}: found semicolons between its columns, expected commas: save it with commas, "
            "and with a point in decimal numbers"
        )
    frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def owners_of(path: Path, frame: pd.DataFrame, column: str) -> np.ndarray[Any, Any]:
    """Return whose row each is, as text.

    Raises
    ------
    DataError
    """
    if column not in frame.columns:
        raise DataError.lacking(path, [column], list(map(str, frame.columns)))
    return np.array([canonical(value) for value in frame[column]], dtype=object)


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    lengths = {len(array) for array in arrays.values() if array.ndim == 1}
    if len(lengths) != 1 or any(array.ndim != 1 for array in arrays.values()):
        raise ValueError("its arrays are not columns: one axis each, of one length")
    return arrays


def _read_sparse(path: Path, schema: Schema) -> Table:
    from sklearn.datasets import load_svmlight_file

    if not schema.sparse:
        raise DataError(f'{path}: an SVMlight file names no columns: write features = "all"')
    A, y = _opened(path, lambda: load_svmlight_file(str(path)))
    marks: Iterable[str] = (canonical(value) for value in y)
    return Columns(path, {schema.target: np.array([*marks], dtype=object)}, schema).table(A)


def _opened(path: Path, read: Callable[[], Any]) -> Any:
    """Return what a library reads; all that it raises is a fault of the file."""
    try:
        return read()
    except ImportError:
        raise DataError(f"{path}: reading it needs pyarrow: {_EXTRA}") from None
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file (seen from {Path.cwd()})") from None
    except OSError as error:
        raise DataError(f"{path}: it cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged file: whatever the library raises
        text = " ".join(str(error).split())
        raise DataError(
            f"{path}: it cannot be read ({text}): check that it is what its name says, in UTF-8, "
            "with one header line, as many cells in each row, commas between them, decimal points"
        ) from None
