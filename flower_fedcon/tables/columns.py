"""A file's columns as numbers and categories, and all misfits with the schema."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from flower_fedcon.errors import first_few, number_of
from flower_fedcon.tables.checks.odd_clusters import spelled
from flower_fedcon.tables.checks.repeated_rows import repeated
from flower_fedcon.tables.marks import (
    DATE,
    EXACT,
    boolean_in,
    canonical,
    folded,
    is_id,
    looks_missing,
    number_in,
    opposite,
    text_of,
    unfit_mark,
)
from flower_fedcon.tables.misfits import DataError, Misfit
from flower_fedcon.tables.preparation import WEIGHTS
from flower_fedcon.tables.raw_cells import Cells
from flower_fedcon.tables.schema import Feature, Schema
from flower_fedcon.tables.table import Table
from flower_fedcon.validation import Array

_LIMIT = re.compile(r"[<>\u2264\u2265]=?\s*[-+]?\d+([.,]\d+)?")
_PERCENT = re.compile(r"[-+]?\d+([.,]\d+)?\s*%")
_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_EXPONENT = 50.0  # of an offset that is no logarithm
_VANISHING = 700.0  # below the negative of it an exponential is 0
_SMALLEST, _SMALLEST_MEAN = 1e-140, 1e-90  # of a column's largest number: squares, and exponentials
LARGEST_NUMBER = 1e45  # 10^10 squares of such numbers sum to less than a server's limit
_DOMAINS = {  # of transforms
    "log": (0.0, "a number > 0"),
    "log1p": (-1.0, "a number > -1"),
    "sqrt": (0.0, "a number >= 0"),
}


class Columns:
    """The columns of one file, or of one client's rows in it, and the misfits in them.

    Parameters
    ----------
    cells : Cells
    schema : Schema
    sparse : scipy.sparse.csr_array, optional
        The features of an SVMlight file.
    cut : bool (default: False)
        Whether what does not fit is made to fit, as for private rows; see `read.cells_cut`. A row
        without an outcome then has NaN.

    Attributes
    ----------
    schema : Schema
    misfits : list of Misfit
    notes : list of str
        Remarks on values that fit.
    counts : dict of dict of int
        For each column of categories: how often each text occurs in it, as written in the file.
    numbers : dict of array, shape (m,)
        For each numeric column its values before any transform; NaN where a value is missing.
    identifiers : dict of frozenset of str
        The different identifiers of each column that has them, once `table` has been called.
    repeated : tuple of str
        Remarks on rows that have the identifier of another row.
    incomplete : dict of int
        For each column: how many of the rows that a schema of complete cases leaves out lack its
        value.
    """

    def __init__(
        self, cells: Cells, schema: Schema, sparse: Any = None, *, cut: bool = False
    ) -> None:
        self._sparse, self._cut = sparse, cut
        self.schema = schema
        self._path, self._rows = cells.path, cells.rows
        self._names, self._cells = cells.names, cells.columns
        self.misfits: list[Misfit] = []
        self.notes: list[str] = [*cells.notes]
        self.counts: dict[str, dict[str, int]] = {}
        self.numbers: dict[str, Array] = {}
        self.clusters: Array | None = None
        self.incomplete: dict[str, int] = {}
        self.repeated: tuple[str, ...] = ()
        self.identifiers: dict[str, frozenset[str]] = {}
        self._known: Mapping[str, Sequence[str]] = {}

    def table(
        self, known: Mapping[str, Sequence[str]] | None = None, *, outcome: bool = True
    ) -> Table:
        """Return the table, once; afterwards only numbers and counts of the columns remain.

        Parameters
        ----------
        known : dict, optional
            The allowed categories of each feature whose schema lists none; by default any.
        outcome : bool
            Whether the rows have outcomes and weights. If not, they are not read: outcomes are 0,
            and the table has no weights.

        Raises
        ------
        DataError
            If a value does not fit the schema.
        """
        schema, self._known = self.schema, {} if known is None else known
        wanted = schema.columns if outcome or schema.sparse else schema.predictors
        lacking = [name for name in wanted if name not in self._cells]
        if lacking:
            needed = () if outcome else ("The model needs it: add it, or correct the header",)
            error = DataError.lacking(self._path, lacking, self._names, *needed)
            if not outcome and {*lacking} & {*schema.offsets}:
                raise DataError(
                    f"{error}; an exposure of 1 gives rates, an offset of 0 leaves it out",
                    columns=lacking,
                )
            raise error
        rows = len(self._cells[wanted[0]])
        if rows == 0:
            raise DataError(f"{self._path}: found no rows, expected at least one below the header")
        places = self._complete(wanted) if schema.complete_cases and outcome else None
        left_out, rows = (0, rows) if places is None else (rows - len(places), len(places))
        self.stratum_names: Sequence[str] = ("",)
        none = np.zeros((rows, 2) if schema.event else rows)
        targets = schema.family.read(self, schema) if outcome else none
        weights = (
            None if not (schema.weight and outcome) else self.numbers_in(schema.weight, "a weight")
        )
        clusters, called = self._clusters() if schema.cluster and outcome else (None, ())
        self.clusters = clusters
        offset = self._offset()
        numeric = [self._feature(f) for f in schema.numeric]
        categories = [self._categories(feature) for feature in schema.categorical]
        if self.misfits:
            raise DataError.of(self._path, self.misfits)
        table = Table(
            file=str(self._path),
            schema=schema,
            targets=targets,
            weights=weights,
            offset=offset,
            numeric=np.stack(numeric, axis=1) if numeric else np.empty((rows, 0)),
            categories=np.stack(categories, axis=1) if categories else np.empty((rows, 0), "U1"),
            sparse=self._sparse,
            clusters=clusters,
            places=places,
            left_out=left_out,
            cluster_names=called,
            stratum_names=self.stratum_names,
        )
        if weights is not None and not weights.any():
            found = f"the weight 0 in each of the {table.num_examples} training rows"
            remedy = "correct the weights, or leave this client out of the data"
            misfit = Misfit(schema.weight, 0, found, "a weight above 0 in one of them", remedy)
            raise DataError.of(self._path, [misfit])
        if weights is not None and not self._cut:
            table = self._without_zeros(table, weights)
        least, most = WEIGHTS
        if not least <= table.total_weight <= most:
            found = f"weights with the sum {table.total_weight:.3g}"
            span = f"a sum from {least:g} to {most:g}"
            remedy = "multiply the weights of all clients by one number"
            raise DataError.of(self._path, [Misfit(schema.weight, 0, found, span, remedy)])
        if outcome and not self._cut and not schema.sparse:
            self.repeated = self._repeated(table, weights)
        self._cells = {}
        return table

    def _repeated(self, table: Table, weights: Array | None) -> tuple[str, ...]:
        """Return remarks on identifiers; rows of weight 0 do not count."""
        counted = slice(None) if weights is None else np.flatnonzero(weights)
        ids = {name: cells[counted] for name, cells in self._cells.items() if is_id(name)}
        self.identifiers = {name: frozenset(map(str, cells)) - {""} for name, cells in ids.items()}
        return *repeated(table, ids, self._rows[counted]), *spelled(table)

    def _without_zeros(self, table: Table, weights: Array) -> Table:
        """Return the rows whose weight is not 0: the others count nowhere."""
        counted = np.flatnonzero(weights)
        if left_out := len(weights) - len(counted):
            said = number_of(left_out, "row has", "rows have")
            self.notes.append(
                f"{said} the weight 0, and {'is' if left_out == 1 else 'are'} left out"
            )
            table = replace(table.of_rows(counted), places=table.numbers_of(counted) - 1)
        return table

    def _complete(self, wanted: Sequence[str]) -> Any:
        """Keep the rows that have a value in every column; return their places.

        Raises
        ------
        DataError
            If no row is complete.
        """
        schema = self.schema
        marks = {feature.name: feature.missing for feature in schema.features}
        texts = {
            schema.event,
            schema.strata,
            schema.cluster,
            *(feature.name for feature in schema.categorical),
        }
        texts |= {schema.target} if schema.family.labelled else set()
        there = np.ones(len(self._rows), dtype=bool)
        for name in wanted:
            missing = {*schema.missing, *marks.get(name, ())}
            numbers = set() if name in texts else {number_in(mark) for mark in missing} - {None}
            cells = self._cells[name].tolist()
            absent = {cell for cell in set(cells) if _is_missing(cell, missing, numbers)}
            blank = np.array([cell in absent or cell != cell for cell in cells], dtype=bool)
            if blank.any():
                self.incomplete[name] = int(blank.sum())
            there &= ~blank
        if not there.any():
            lacking = first_few([f"{name} {cells}" for name, cells in self.incomplete.items()], 20)
            raise DataError(
                f"{self._path}: no row has a value in every column (missing values: {lacking}): "
                f"leave a column out of the schema, or leave complete_cases out"
            )
        self._rows = self._rows[there]
        self._cells = {name: column[there] for name, column in self._cells.items()}
        return np.flatnonzero(there)

    @property
    def rows(self) -> Any:
        """The numbers in the file, from 1, of the rows of `numbers`."""
        return self._rows

    def as_they_stand(self, names: Sequence[str]) -> dict[str, Any]:
        """Return columns unchanged; must be called before `table`.

        Raises
        ------
        DataError
            If a column is missing.
        """
        if lacking := [name for name in names if name not in self._cells]:
            raise DataError.lacking(self._path, lacking, self._names)
        return {name: self._cells[name] for name in names}

    def own_strata(self) -> Any:
        """Return the name of each row's stratum, "" where it is missing; before `table`.

        It is None if rows have no such column.
        """
        name = self.schema.strata
        return self._marks(name, ())[0] if name in self._cells else None

    # --- the outcome ---------------------------------------------------------------------------

    def labels(
        self, name: str, known: Mapping[str, float], remedy: str, others: bool = False
    ) -> Array:
        """Return a number for each row, by its mark; with `others`, -1 for unknown marks."""
        marks, missing = self._marks(name, ())
        self._expect(~missing, name, "a value in every row", "remove the row, or fill it in")
        booleans = _truths(known)
        numbers: dict[str, float | None] = {"": 0.0}
        unknown = []
        for mark in dict.fromkeys(marks[~missing].tolist()):
            numbers[mark] = known.get(mark, booleans.get(boolean_in(mark)))
            if numbers[mark] is None:
                unknown.append(mark)
        expected_marks = {"", *known, *map(opposite, known)}
        otherwise = [
            mark for mark in numbers if mark not in expected_marks and numbers[mark] is not None
        ]
        if otherwise:
            self.notes.append(
                f"column {name!r}: read as true or false, like the schema's values: "
                f"{_listed(otherwise)}"
            )
        if others and not (booleans and any(number_in(mark) is None for mark in known)):
            spellings = {folded(mark): mark for mark in known}
            numbers |= dict.fromkeys([m for m in unknown if folded(m) not in spellings], -1.0)
            if len(unknown) > 1 or (unknown and booleans):  # such as 2 beside 0 and 1
                said = f"{_listed(unknown)} count{'s' * (len(unknown) == 1)} as 0"
                self.notes.append(
                    f"column {name!r}: {said}, since the schema names no negative value"
                )
            if odd := [mark for mark in unknown if looks_missing(mark, outcome=True)]:
                self.notes.append(
                    f"column {name!r}: {_listed(odd)} count as 0. If they stand for a missing "
                    f"value, remove these rows, since no target may be missing"
                )
        expected = f"one of {', '.join(known)}"
        if booleans:
            expected += " (or another usual spelling of true or false)"
        good = np.array([numbers[mark] is not None for mark in marks.tolist()], dtype=bool)
        self._expect(good, name, expected, remedy)
        values = np.array([numbers[mark] or 0.0 for mark in marks.tolist()])
        return np.where(good & ~missing, values, np.nan) if self._cut else values

    def numbers_in(self, name: str, positive: str) -> Array:
        """Return numbers; refuse missing ones, and negative ones if they must be `positive`."""
        values = self._feature(Feature(name))
        if positive:
            inside = np.isnan(values) | ((values >= 0.0) & (values <= 1e300))
            expected = f"{positive} from 0 to 1e300"
            self._expect(inside, name, expected, "correct the cell, or remove the row")
            values = np.clip(values, 0.0, 1e300) if self._cut else values
        if name not in {misfit.column for misfit in self.misfits}:
            remedy = "remove the row, or fill it in"
            self._expect(~np.isnan(values), name, "a number in every row", remedy)
        return values

    def above_zero(self, name: str, what: str, remedy: str) -> Array:
        """Return numbers without missing ones, all above 0."""
        values = self.numbers_in(name, what)
        if name not in {misfit.column for misfit in self.misfits}:
            self._expect(values > 0.0, name, f"{what} above 0", remedy)
        return np.where(values > 0.0, values, np.nan) if self._cut else values

    def _offset(self) -> Array | None:
        """Return the offsets of the linear predictors; None without any."""
        schema, total = self.schema, np.zeros(())
        if schema.offset:
            values = self.numbers_in(schema.offset, "")
            expected = "a number from -1e6 to 1e6, which is added to the linear predictor"
            remedy = "correct the cell, or the column that offset names in the schema"
            if schema.offset not in {misfit.column for misfit in self.misfits}:
                self._expect(np.abs(values) <= 1e6, schema.offset, expected, remedy)
                if schema.family.log_link:
                    expected = f"an offset from -{_VANISHING:g} to {_EXPONENT:g}, since it "
                    expected += "multiplies the outcome by its exponential"
                    remedy = "if the column is a time or an amount, name it as the exposure"
                    fits = (values <= _EXPONENT) & (values >= -_VANISHING)
                    self._expect(fits, schema.offset, expected, remedy)
            total = total + values
        if schema.exposure:
            remedy = "correct the cell, or remove the row: an exposure of 0 allows no count"
            values = self.above_zero(schema.exposure, "an exposure", remedy)
            with np.errstate(divide="ignore", invalid="ignore"):
                total = total + np.log(values)
        return total if schema.offsets else None

    def entries(self, name: str, times: Array) -> Array:
        """Return the times at which rows enter, each before the row's time."""
        values = self.numbers_in(name, "a time")
        if name not in {misfit.column for misfit in self.misfits}:
            expected = "a time of entry before the row's time"
            self._expect(values < times, name, expected, "correct the cell, or remove the row")
        return values

    def strata(self, name: str) -> Array:
        """Return the stratum of each row, as a number from 0, and keep the strata's names."""
        codes, self.stratum_names = self._labelled(name)
        return codes.astype(np.float64)

    def _clusters(self) -> tuple[Array, Sequence[str]]:
        """Return the cluster of each row, as a number from 0, and the clusters' names."""
        return self._labelled(self.schema.cluster)

    def _labelled(self, name: str) -> tuple[Array, Sequence[str]]:
        marks, missing = self._marks(name, ())
        self._expect(~missing, name, "a value in every row", "remove the row, or fill it in")
        names, codes = np.unique(marks, return_inverse=True)
        return codes, list(map(str, names))

    # --- features ------------------------------------------------------------------------------

    def _feature(self, feature: Feature) -> Array:
        """Return a numeric column, NaN where it is missing."""
        name, cells = feature.name, self._cells[feature.name]
        marks = {*self.schema.missing, *feature.missing}
        if cells.dtype.kind in "fiu":
            values = cells.astype(np.float64)
            good = np.isfinite(values) | np.isnan(values)
        else:
            values, good = _parsed(cells.tolist(), marks, alone=self._cut)
        said = ", ".join(repr(mark) for mark in sorted(marks)) or "none"
        expected = f"a finite number, or a mark of a missing value ({said})"
        remedy = "correct the cell, or add its text to missing in the schema"
        texts = [str(cell).strip() for cell in cells[~good][:100]]
        if any(_LIMIT.fullmatch(text) for text in texts):
            remedy = (
                "a value below or above a limit is not missing: write a number for it, the same "
                "way at all sites"
            )
        elif any(_PERCENT.fullmatch(text) for text in texts):
            remedy = 'write the number without "%", as a percentage or as a share at all sites'
        elif any(_COMMA.fullmatch(text) for text in texts):
            remedy = "write decimals with a point, and thousands without a comma"
        elif any(DATE.match(text) for text in texts):
            remedy = "a date is no number: write years, or days since some day"
        self._expect(good, name, expected, remedy)
        values[~good] = np.nan
        for mark in marks:
            if (number := number_in(mark)) is not None:
                values[values == number] = np.nan
        self.numbers[name] = values
        if feature.range:
            low, high = feature.range
            inside = np.isnan(values) | ((values >= low) & (values <= high))
            expected = f"a number from {low:g} to {high:g}"
            self._expect(inside, name, expected, "correct the cell, or the schema's range")
            values = np.clip(values, low, high) if self._cut else values
        if feature.transform in _DOMAINS:
            least, words = _DOMAINS[feature.transform]
            above = values >= least if feature.transform == "sqrt" else values > least
            inside = np.isnan(values) | above
            said = f"{words}, for transform = {feature.transform!r}"
            self._expect(inside, name, said, "correct the cell, or choose another transform")
            values = np.where(inside, values, np.nan)
        if feature.transform == "square":
            values = values * values
        elif feature.transform != "none":
            values = getattr(np, feature.transform)(values)
        if name in (*self.schema.names, self.schema.target):
            self._expect_usable(name, values, cells)
            values = np.clip(values, -LARGEST_NUMBER, LARGEST_NUMBER) if self._cut else values
        transformed: Array = values
        return transformed

    def _expect_usable(self, name: str, values: Array, cells: Any) -> None:
        """Refuse numbers whose squares overflow or vanish; note whole numbers that lose digits."""
        with np.errstate(invalid="ignore"):
            after = ", after its transform" if name in self.schema.names else ""
            expected = f"a number from -{LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}{after}"
            remedy = "correct the cell, or write the column in another unit"
            self._expect(~(np.abs(values) > LARGEST_NUMBER), name, expected, remedy)
            of_means = name == self.schema.target and self.schema.family.log_link
            least = _SMALLEST_MEAN if of_means else _SMALLEST
            if not (np.abs(values) >= least).any():
                expected = f"the column's largest number to be 0, or {least:g} or more{after}"
                self._expect(~(values != 0) | np.isnan(values), name, expected, remedy)
            long = np.flatnonzero(np.abs(self.numbers[name]) >= EXACT)
        for place in long.tolist():
            text = str(cells[place]).strip()
            # Python's int refuses texts of more than 4,300 digits, and infinity.
            if _WHOLE.fullmatch(text) and Decimal(text) != Decimal(self.numbers[name][place]):
                self.notes.append(
                    f"column {name!r}: whole numbers of {len(text)} digits are rounded ({text}): "
                    "is it an identifier? Leave it out"
                )
                return

    def _categories(self, feature: Feature) -> np.ndarray[Any, Any]:
        """Return a categorical column as text, "" where it is missing."""
        name = feature.name
        marks, _ = self._marks(name, feature.missing)
        listed = feature.categories or self._known.get(name, ())
        if listed:
            allowed = np.isin(marks, ["", *listed])
            expected = f"one of {first_few(listed, 20)}"
            remedy = "correct the cell, or add the category, or a mark of missing, to the schema"
            if not feature.categories:
                expected += ", with which the model was fitted"
                remedy = 'correct the cell, or take unknown="missing" (--unknown missing)'
            self._expect(allowed, name, expected, remedy)
            marks = np.where(allowed, marks, "") if self._cut else marks
        return marks

    def _marks(self, name: str, also: Sequence[str]) -> tuple[np.ndarray[Any, Any], Any]:
        """Return a column's cells as `canonical` text ("" if missing), and which are missing."""
        cells = [*map(_key, self._cells[name].tolist())]
        missing = {*self.schema.missing, *also}
        counts: dict[str, int] = {}
        mark_of: dict[Any, str] = {}
        wrong = {}
        for cell, count in Counter(cells).items():
            text = text_of(cell)
            if text is None:
                mark_of[cell] = ""
                continue
            mark = canonical(text)
            mark_of[cell] = "" if mark in missing else mark
            if mark_of[cell]:
                counts[text] = counts.get(text, 0) + count
            if expected := unfit_mark(cell):
                wrong[cell] = expected
        for cell, expected in wrong.items():
            good = np.array([other != cell for other in cells])
            self._expect(good, name, expected, "write the column anew as text")
            if self._cut:
                mark_of[cell] = ""
        self.counts[name] = counts
        marks = np.array([mark_of[cell] for cell in cells], dtype=str)
        return marks, marks == ""

    def _expect(self, good: Any, name: str, expected: str, remedy: str) -> None:
        wrong = np.flatnonzero(~np.asarray(good))
        if wrong.size and self._cut:
            self.notes.append(
                f"column {name!r}: cells cut to fit: {wrong.size}, expected {expected}"
            )
        elif wrong.size:
            place = int(wrong[0])
            cell = self._cells[name][place]
            found = "nothing" if text_of(cell) is None else repr(str(cell))
            row = int(self._rows[place])
            self.misfits.append(Misfit(name, row, found, expected, remedy, wrong.size - 1))


def _key(cell: Any) -> Any:
    """Return a cell, or its text, so that cells which are equal have the same text.

    For Python 0.0 equals -0.0, and True equals 1. Lists have no hash.

    >>> [str(_key(cell)) for cell in (-0.0, 0.5, True, [1, 2], " a")]
    ['0.0', '0.5', 'True', '[1, 2]', ' a']
    """
    if type(cell) is float:
        return cell + 0.0
    return cell if type(cell) in (str, int) or cell is None else text_of(cell)


def _is_missing(cell: Any, marks: set[str], numbers: set[float | None]) -> bool:
    text = text_of(cell)
    return text is None or canonical(text) in marks or number_in(text.strip()) in numbers


def _truths(known: Mapping[str, float]) -> dict[bool | None, float]:
    """Return the number of true and of false marks, if all known marks are spellings of these."""
    if not all(boolean_in(mark) is (value > 0) for mark, value in known.items()):
        return {}
    false = [value for value in known.values() if value <= 0]
    return {True: 1.0, False: false[0] if false else -1.0}


def _listed(marks: Sequence[str]) -> str:
    return first_few([*map(repr, marks)], 10)


def _parsed(cells: Sequence[Any], marks: set[str], *, alone: bool) -> tuple[Array, Any]:
    """Return cells as numbers, NaN for the missing; and which of them are numbers or missing.

    In a column without other values, true and false are 1 and 0; in any, where each cell is to be
    read `alone`.
    """
    values = np.full(len(cells), np.nan)
    odd: dict[int, str] = {}
    for place, cell in enumerate(cells):
        text = text_of(cell)
        if text is None or (text := text.strip()) in marks:
            continue
        number = number_in(text)
        if number is None and alone and text.lower() in ("true", "false"):
            values[place] = text.lower() == "true"
        elif number is None:
            odd[place] = text.lower()
        else:
            values[place] = number
    if odd and not alone and set(odd.values()) <= {"true", "false"} and np.isnan(values).all():
        values[list(odd)] = [text == "true" for text in odd.values()]
        return values, np.ones(len(cells), dtype=bool)
    good = ~np.isinf(values)
    good[list(odd)] = False
    return values, good
