"""Misfits of a table: in full at its node, and without cells elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from flower_fedcon.errors import ConfigError, nearest, number_of, printable
from flower_fedcon.tables.own_files import written_by


@dataclass(frozen=True)
class Misfit:
    """A value or column that does not fit the schema.

    Parameters
    ----------
    column : str
        The column's name in the schema.
    row : int
        From 1, the first row below the header; 0 for the column as a whole.
    found, expected, remedy : str
    also : int
        How many more rows of the column have the same misfit.
    """

    column: str
    row: int
    found: str
    expected: str
    remedy: str
    also: int = 0

    def __str__(self) -> str:
        where = f"row {self.row}, column {self.column!r}" if self.row else f"column {self.column!r}"
        more = f" (and in {number_of(self.also, 'more row')})" if self.also else ""
        found = printable(self.found, 60)
        return f"{where}: found {found}{more}, expected {self.expected}: {self.remedy}"


class DataError(ConfigError):
    """A table that does not fit its schema.

    Its text names file, row and column, what was found and what was expected. A server learns only
    which columns of the schema do not fit (`told`): no cell, row or file name.

    Parameters
    ----------
    text : str
    misfits : sequence of Misfit
    columns : sequence of str, optional
        The columns of the schema that do not fit; by default those of the misfits.
    """

    def __init__(
        self, text: str, misfits: Sequence[Misfit] = (), columns: Sequence[str] = ()
    ) -> None:
        super().__init__(text)
        self.misfits = tuple(misfits)
        self.columns = list(columns or dict.fromkeys(misfit.column for misfit in misfits))

    @classmethod
    def of(cls, file: str | Path, misfits: Sequence[Misfit]) -> DataError:
        """Return the error of a file with these misfits."""
        more = len(misfits) - 1
        others = f" ({more} more; `fedcon data check {file}` names them all)" if more else ""
        return cls(f"{file}: {misfits[0]}{others}", misfits)

    @classmethod
    def lacking(
        cls,
        file: str | Path,
        names: Sequence[str],
        known: Sequence[str],
        remedy: str = "Correct the schema or the header",
    ) -> DataError:
        """Return the error of a file without these columns, in one line for any number of them."""
        if origin := written_by(known):
            return cls(
                f"{file}: it is not a client's table, since {origin} has written it: move it out "
                f"of the folder, or name the files of data without it",
                columns=names,
            )
        listed = []
        for name in names:
            if normalize("NFC", name) in [normalize("NFC", other) for other in known]:
                listed.append(
                    f"{name!r} (one that looks the same is in another form of Unicode, with a "
                    "letter and its accent as one sign or two: copy its name from the file)"
                )
                continue
            near = nearest(name, known)
            hint = near.partition("? ")[0] if near.startswith("did you mean") else ""
            listed.append(f"{name!r} ({hint}?)" if hint else repr(name))
        has = printable(", ".join(known), 200)
        return cls(
            f"{file}: no column{'s'[: len(names) - 1]} {', '.join(listed)}: it has {has}. {remedy}",
            columns=names,
        )

    @property
    def told(self) -> str:
        """The text for a server."""
        where = f" in column {', '.join(map(repr, self.columns[:10]))}" if self.columns else ""
        return (
            f"its table cannot be read as the schema says{where}: the node's own log has the "
            "details, and so has `fedcon data check` on that node"
        )
