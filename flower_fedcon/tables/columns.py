"""Columns as they stand in a file, as numbers and categories; or what does not fit in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.tables.misfits import DataError, Misfit
from flower_fedcon.tables.schema import Feature, Schema, canonical
from flower_fedcon.tables.table import Table
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    import pandas as pd

_DOMAINS = {  # of transforms
    "log": (0.0, "a number > 0"),
    "log1p": (-1.0, "a number > -1"),
    "sqrt": (0.0, "a number >= 0"),
}


class Columns:
    """The columns of one file, and all that does not fit in them.

    Parameters
    ----------
    path : path
    frame : pandas.DataFrame or dict
        Cells by column: text, or numbers.
    schema : Schema
    """

    def __init__(self, path: Path, frame: pd.DataFrame | Mapping[str, Any], schema: Schema) -> None:
        self._path, self._schema = path, schema
        self._cells = {str(name): np.asarray(frame[name]) for name in frame}
        self.misfits: list[Misfit] = []
        self.missing: dict[str, int] = {}

    def table(self, sparse: Any = None) -> Table:
        """Return the table.

        Raises
        ------
        DataError
            If something does not fit.
        """
        schema = self._schema
        lacking = [name for name in schema.columns if name not in self._cells]
        if lacking:
            raise DataError.lacking(self._path, lacking, list(self._cells))
        rows = len(self._cells[schema.target])
        if rows == 0:
            raise DataError(
                f"{self._path}: it has no rows: at least one is expected below the header"
            )
        targets = self._targets()
        weights = None if not schema.weight else self._numbers(schema.weight, least=0.0)
        numeric = [self._feature(f) for f in schema.numeric]
        categories = [self._categories(feature) for feature in schema.categorical]
        if self.misfits:
            raise DataError.of(self._path, self.misfits)
        table = Table(
            file=str(self._path),
            schema=schema,
            targets=targets,
            weights=weights,
            numeric=np.stack(numeric, axis=1) if numeric else np.empty((rows, 0)),
            categories=np.stack(categories, axis=1) if categories else np.empty((rows, 0), "U1"),
            sparse=sparse,
        )
        if weights is not None and not weights[table.training_rows].any():
            found = f"the weight 0 in each of the {table.num_examples} rows that are trained on"
            remedy = "correct the weights, or leave this client out of the data"
            misfit = Misfit(schema.weight, 0, found, "a weight above 0 in one of them", remedy)
            raise DataError.of(self._path, [misfit])
        return table

    # --- the outcome ---------------------------------------------------------------------------

    def _targets(self) -> Array:
        schema, name = self._schema, self._schema.target
        if schema.loss == "logistic":
            known = dict.fromkeys(schema.positive, 1.0)
            known |= dict.fromkeys(schema.negative, -1.0)
            return self._labels(name, known, None if schema.negative else -1.0)
        if schema.loss == "multinomial":
            known = {mark: float(place) for place, mark in enumerate(schema.classes)}
            return self._labels(name, known, None)
        if schema.loss == "cox":
            time = self._numbers(name, least=0.0)
            seen = self._labels(schema.event, {"0": 0.0, "1": 1.0}, None)
            return np.stack([time, seen], axis=1)
        return self._numbers(name, least=0.0 if schema.loss == "poisson" else None)

    def _labels(self, name: str, known: Mapping[str, float], other: float | None) -> Array:
        """Return a number for each row, by its mark."""
        marks, missing = self._marks(name, ())
        self._expect(~missing, name, marks, "a value in every row", "remove the row, or fill it in")
        found = {mark: known.get(mark, other) for mark in np.unique(marks[~missing])}
        wrong = np.array([found.get(mark, 0.0) is None for mark in marks])
        expected = f"one of {', '.join(known)}"
        self._expect(~wrong, name, marks, expected, "correct it, or add the value to the schema")
        return np.array([found.get(mark) or 0.0 for mark in marks])

    def _numbers(self, name: str, least: float | None) -> Array:
        """Return numbers, none of them missing."""
        values = self._feature(Feature(name, range=() if least is None else (least, 1e300)))
        self.missing.pop(name, None)
        cells, bad = self._cells[name], {m.column for m in self.misfits}
        if name not in bad:
            remedy = "remove the row, or fill it in"
            self._expect(~np.isnan(values), name, cells, "a number in every row", remedy)
        return values

    # --- features ------------------------------------------------------------------------------

    def _feature(self, feature: Feature) -> Array:
        """Return a numeric column, NaN where it is missing."""
        name, cells = feature.name, self._cells[feature.name]
        marks = {*self._schema.missing, *feature.missing}
        if cells.dtype.kind in "fiub":
            values = cells.astype(np.float64)
            finite = np.isfinite(values) | np.isnan(values)
        else:
            values, finite = _parsed(cells, marks)
        said = ", ".join(repr(mark) for mark in sorted(marks)) or "none"
        expected = f"a finite number, or a mark of a missing value ({said})"
        remedy = "correct the cell, or add its text to missing in the schema"
        self._expect(finite, name, cells, expected, remedy)
        values[~finite] = np.nan
        for mark in marks:
            try:
                values[values == float(mark)] = np.nan
            except ValueError:  # a word
                continue
        if feature.range:
            low, high = feature.range
            inside = np.isnan(values) | ((values >= low) & (values <= high))
            expected = f"a number from {low:g} to {high:g}"
            self._expect(inside, name, cells, expected, "correct the cell, or the schema's range")
        if feature.transform in _DOMAINS:
            least, words = _DOMAINS[feature.transform]
            above = values >= least if feature.transform == "sqrt" else values > least
            inside = np.isnan(values) | above
            said = f"{words}, for transform = {feature.transform!r}"
            self._expect(inside, name, cells, said, "correct the cell, or choose another transform")
            values[~inside] = np.nan
        self.missing[name] = int(np.isnan(values).sum())
        if feature.transform == "square":
            return values * values
        return values if feature.transform == "none" else getattr(np, feature.transform)(values)

    def _categories(self, feature: Feature) -> np.ndarray[Any, Any]:
        """Return a categorical column as text, "" where it is missing."""
        name = feature.name
        marks, missing = self._marks(name, feature.missing)
        self.missing[name] = int(missing.sum())
        marks = np.where(missing, "", marks)
        if feature.categories:
            known = np.isin(marks, ["", *feature.categories])
            expected = f"one of {', '.join(feature.categories)}"
            remedy = "correct the cell, or add the category, or a mark of missing, to the schema"
            self._expect(known, name, marks, expected, remedy)
        return marks

    def _marks(self, name: str, also: Sequence[str]) -> tuple[np.ndarray[Any, Any], Any]:
        """Return a column's cells as `canonical` text, and which are missing."""
        cells = self._cells[name]
        known = {cell: canonical(cell) for cell in dict.fromkeys(cells.tolist())}
        marks = np.array([known[cell] for cell in cells.tolist()], dtype=str)
        return marks, np.isin(marks, [*self._schema.missing, *also, "None", "<NA>"])

    def _expect(self, good: Any, name: str, cells: Any, expected: str, remedy: str) -> None:
        wrong = np.flatnonzero(~np.asarray(good))
        if wrong.size:
            row = int(wrong[0])
            found = repr(str(cells[row]))
            self.misfits.append(Misfit(name, row + 1, found, expected, remedy, wrong.size - 1))


def _parsed(cells: Any, marks: set[str]) -> tuple[Array, Any]:
    """Return texts as numbers, NaN for the missing; and which of them are one or the other."""
    import pandas as pd

    texts = pd.Series(cells).astype(str).str.strip()
    missing = texts.isin([*marks, "None", "<NA>"]).to_numpy()
    texts = texts.where(~missing, "nan")
    known = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64)
    good = np.isfinite(known)
    values = np.full(len(cells), np.nan)
    values[good] = texts[good].to_numpy(dtype=object).astype(np.float64)  # the nearest double
    return values, good | missing
