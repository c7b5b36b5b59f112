"""A table whose rows and columns are settings of runs, such as methods and participation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.histories import Place, places_of
from flower_fedcon.lab.experiments.targets import Cell, TargetTable


def crossed(
    table: TargetTable, folders: Sequence[Path], rows: Sequence[str], columns: Sequence[str]
) -> TargetTable:
    """Return a table's cells in rows and columns by settings of their runs.

    Parameters
    ----------
    table : TargetTable
        With a row for each label.
    folders : sequence of Path
        Its folders.
    rows, columns : sequence of str
        Keys of settings, or "method"; see `places_of`. If one of the two is empty, it has what is
        left of the labels.

    Raises
    ------
    ConfigError
        If no run has a setting, or two labels would share a cell.
    """
    if twice := [key for key in rows if key in columns]:
        raise ConfigError(f"{twice[0]} cannot be in --rows and in --columns: name it once")
    found = places_of(folders, [*rows, *columns])
    taken: dict[tuple[str, str], str] = {}
    for label in table.rows:
        spot = _spot(label, found[label], len(rows), len(columns))
        if spot in taken:
            raise ConfigError(
                f"{taken[spot]!r} and {label!r} would share one cell: name what sets them apart, "
                f"too, such as --rows method,local_steps"
            )
        taken[spot] = label
    names = [_in_order(list(taken), k) for k in (0, 1)]
    failed, marked = {}, set()
    for label, why in table.failed.items():
        spots = [(row, column) for row in names[0] for column in names[1]
                 if _fits(label, row) and _fits(label, column)]  # fmt: skip
        spot = max(spots, key=lambda spot: len(spot[0]) + len(spot[1]), default=("", ""))
        if spots and spot not in taken:
            marked.add(spot)
        else:
            failed[label] = why
    width, by_spot = len(table.heads), {spot: table.rows[label] for spot, label in taken.items()}
    return table._replace(
        rows={
            row: [
                cell
                for column in names[1]
                for cell in by_spot.get(
                    (row, column), [Cell([], 0, failed=(row, column) in marked)] * width
                )
            ]
            for row in names[0]
        },
        failed=failed,
        columns=names[1],
        row_key=",".join(rows),
        column_key=",".join(columns),
    )


def _spot(label: str, place: Place, rows: int, columns: int) -> tuple[str, str]:
    """Return the names of a label's row and column."""
    row, column = ", ".join(place.texts[:rows]), ", ".join(place.texts[rows:])
    return row if rows else place.rest or label, column if columns else place.rest


def _in_order(spots: Sequence[tuple[str, str]], k: int) -> list[str]:
    """Return the names of rows or columns, in the order of the one across with the most cells."""
    lines: dict[str, list[str]] = {}
    for spot in spots:
        lines.setdefault(spot[1 - k], []).append(spot[k])
    return list(dict.fromkeys([*max(lines.values(), key=len), *(spot[k] for spot in spots)]))


def _fits(label: str, name: str) -> bool:
    """Return whether a label has all parts of a name of a row or column."""
    return all(f", {part}, " in f", {label}, " for part in name.split(", ") if part)
