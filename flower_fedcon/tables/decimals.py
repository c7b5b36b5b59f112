"""Decimal commas: the numbers of a file that separates its columns by semicolons or tabs.

A file's decimal mark follows from numbers that can be read in only one way: 2,5 and 0,125 have a
decimal comma, 2.5 a decimal point. If all of them could be thousands, 1,234 or 1.234, or if both
marks occur, the file is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon.tables.misfits import DataError, Misfit
from flower_fedcon.tables.raw_cells import Cells
from flower_fedcon.tables.schema import Schema

_NUMBER = re.compile(r"[+-]?([0-9]+([.,])[0-9]*|([.,])[0-9]+)([eE][+-]?[0-9]+)?")
_EITHER = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")
_NO_FRACTION = re.compile(r"[+-]?[0-9]+,0+")
_ONE_WAY = "write the numbers of a file with one decimal mark, and no mark between thousands"


def with_points(cells: Cells, schema: Schema, *, cut: bool = False) -> Cells:
    """Return the cells of a file with a point in each decimal number.

    Files with commas between columns, and files that are not text, are returned unchanged. With
    `cut` each number is read by itself, with a decimal comma or a decimal point.

    Raises
    ------
    DataError
        If numbers can be read in two ways.
    """
    if cells.delimiter == ",":
        return cells
    numeric = [feature.name for feature in schema.numeric]
    if not schema.family.labelled:
        numeric.append(schema.target)
    numeric += [name for name in (schema.entry, schema.weight) if name]
    missing = {*schema.missing, *(mark for f in schema.numeric for mark in f.missing)}
    if cut:
        return replace(cells, columns=_columns_pointed(cells, numeric, missing))
    marks: dict[str, tuple[str, int, str]] = {}  # where each first occurs
    clear: set[str] = set()
    for name in numeric:
        for place, mark, text in _decimals(cells.columns.get(name, ()), missing):
            marks.setdefault(mark, (name, place, text))
            if not _EITHER.fullmatch(text):
                clear.add(mark)
    if len(marks) > 1:
        (name, place, text), (_, _, other) = marks["."], marks[","]
        expected = f"a decimal comma as in {other!r}" if "," in clear else "one kind of numbers"
        raise _unclear(cells, name, place, text, expected)
    unclear = marks.keys() - clear
    if "," in unclear or (cells.delimiter == ";" and unclear):
        (mark,) = unclear
        name, place, text = marks[mark]
        whole, _, rest = text.partition(mark)
        expected = f"{whole}{rest}, or other numbers that show the meaning of {mark!r}"
        raise _unclear(cells, name, place, text, expected)
    if "," not in marks:
        return cells
    name, _, text = marks[","]
    note = f"numbers are read with a decimal comma, such as {text!r} in column {name!r}"
    columns = _columns_pointed(cells, numeric, missing)
    return replace(cells, columns=columns, notes=(*cells.notes, note))


def _columns_pointed(cells: Cells, numeric: list[str], missing: set[str]) -> dict[str, Any]:
    """Return the columns with a point in place of each decimal comma."""
    columns = {}
    for column, values in cells.columns.items():
        shape = _NUMBER if column in numeric else _NO_FRACTION
        texts = [_pointed(cell, shape, missing) for cell in values.tolist()]
        columns[column] = np.array(texts, dtype=object)
    return columns


def _decimals(column: Any, missing: set[str]) -> Iterator[tuple[int, str, str]]:
    """Yield place, mark and text of the numbers with a point or a comma."""
    for place, cell in enumerate(column):
        text = str(cell).strip()
        if text not in missing and (matched := _NUMBER.fullmatch(text)):
            yield place, matched[2] or matched[3], text


def _pointed(cell: Any, shape: re.Pattern[str], missing: set[str]) -> Any:
    text = str(cell).strip()
    return text.replace(",", ".") if text not in missing and shape.fullmatch(text) else cell


def _unclear(cells: Cells, column: str, place: int, text: str, expected: str) -> DataError:
    row = int(cells.rows[place])
    return DataError.of(cells.path, [Misfit(column, row, repr(text), expected, _ONE_WAY)])
