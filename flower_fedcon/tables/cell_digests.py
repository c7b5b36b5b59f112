"""Digests by which a node recognises the rows of a file, whatever its form.

A digest counts every row of the node in every column, by name, as a multiset: neither the order of
rows and columns, nor the kind of file, its separators, decimal mark or compression matter, nor the
schema. Numbers count in one precision (`wire.row_digests`), however they are written; "true" and
"false" are 1 and 0; other texts count without what is easily overlooked (`marks.folded`), and
without a time of midnight. Cells without a value, such as "NA", count as nothing, and so do names
of rows. The column of clients does not count.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.tables.marks import canonical, folded, looks_missing, number_in, text_of
from flower_fedcon.tables.misfits import DataError
from flower_fedcon.tables.raw_cells import SPARSE, Cells, read_cells, suffix_of
from flower_fedcon.validation import Array
from flower_fedcon.wire.row_digests import digest_of_columns, word

_MIDNIGHT = re.compile(r"(?<=\d)[T ]00:00(:00(\.0*)?)?(Z|\+00:00)?")
_ROW_NAMES = ("", "unnamed:0", "indexlevel0")
_TRUTHS = {"true": 1.0, "false": 0.0}


def digest_of_content(path: Path, client: str = "") -> str:
    """Return a digest of a file's content, and of the client whose rows are read.

    The order of a text's lines, and their line endings, do not matter.
    """
    content = path.read_bytes()
    if path.suffix.lower() == ".gz":
        content = gzip.decompress(content)
    if suffix_of(path) not in (".npz", ".parquet"):
        content = b"\n".join(sorted(filter(None, content.splitlines())))
    hasher = sha256(content)
    hasher.update(client.encode())
    return hasher.hexdigest()[:16]


@lru_cache(maxsize=64)
def digest_of_cells(path: Path, content: str, column: str = "", client: str = "") -> str:
    """Return the digest of a file's rows, or of one client's; see the module.

    Of a temporary file that no longer exists it is the digest of its content.

    Parameters
    ----------
    path : path
    content : str
        The file's `digest_of_content`.
    column : str
        The column that states the client of each row; "" for none.
    client : str
        The client, as `marks.canonical` writes it.

    Raises
    ------
    DataError
        If the file has changed meanwhile.
    """
    try:
        now = digest_of_content(path, client)
    except FileNotFoundError:
        return content
    if now != content:
        raise DataError(f"{path}: it has changed since it was read: load it anew")
    if suffix_of(path) in SPARSE:  # private examples take none
        return content
    try:
        cells = read_cells(path, None)
    except DataError:  # as private rows are read: no row decides
        cells = read_cells(path, None, cut=True)
    if column:
        owners = [canonical(text_of(cell) or "") for cell in cells.columns[column].tolist()]
        cells = cells.of_rows(np.flatnonzero([owner == client for owner in owners]))
    return digest_of_columns({name: _parsed(own) for name, own in _named(cells) if name != column})


def _named(cells: Cells) -> Iterable[tuple[str, Any]]:
    """Return the columns, without names of rows."""
    for name, column in cells.columns.items():
        if folded(name) not in _ROW_NAMES:
            yield name, column


def _parsed(column: Any) -> tuple[Array, Any]:
    """Return a column's numbers, and what stands for its texts."""
    if column.dtype.kind in "biuf":
        return column.astype(np.float64), np.zeros(len(column), np.uint64)
    parsed: dict[Any, tuple[float, Any]] = {}
    pairs = []
    for cell in column.tolist():
        key = cell if isinstance(cell, str | Number) else text_of(cell)
        if key not in parsed:
            parsed[key] = _read(key)
        pairs.append(parsed[key])
    numbers, texts = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(numbers, np.float64), np.array(texts, np.uint64)


def _read(cell: Any) -> tuple[float, Any]:
    """Return a cell's number, or NaN, and what stands for its text, or 0."""
    none = np.uint64(0)
    text = text_of(cell) or ""
    number = number_in(text.strip())
    if number is None:
        text = folded(_MIDNIGHT.sub("", text.strip()))
        number = _TRUTHS.get(text, number_in(text))
    if number is not None:
        return number, none
    return np.nan, none if not text.strip() or looks_missing(text) else word(text)
