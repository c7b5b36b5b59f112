"""`fedcon data check`: a look at tables before a run, which sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flower_fedcon.errors import ConfigError, first_few, number_of, printable
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, say, table

if TYPE_CHECKING:
    from flower_fedcon.tables import DataError

_CLIENTS = 12  # so many are shown for each column; a file has all


def check(
    files: Annotated[list[Path], typer.Argument(help="One or more tables.", metavar="FILE...")],
    schema: Annotated[Path, typer.Option(help="The TOML file that all nodes share.")],
    client_column: Annotated[
        str | None,
        typer.Option(help="The column that names the client, if one file holds all clients."),
    ] = None,
    least: Annotated[
        int,
        typer.Option(
            "--min-rows",
            help="The least number of rows behind a sum, as policy.min-rows "
            "in the node's configuration.",
        ),
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write everything that is shown to this CSV file."),
    ] = None,
) -> None:
    """Check tables against a schema: errors by file, row and column, else a summary.

    The summary gives for each column and client the number of values and of missing values, the
    minimum, mean and maximum, the categories with their rows, and what a node would tell a server.
    Warnings follow: a client whose values are a hundred times the others', decimal points that
    slipped, cells that two columns exchanged, codes of missing values such as -999 or 99,
    categories that may be one ("M", "m", "male"), a reference that does not occur, columns that are
    combinations of others, empty columns and identifiers. Warnings refuse nothing.

    The command runs where the files are, and sends nothing. The exit code is 1 if a table does not
    fit the schema, or if a class of the outcome has no row.
    """
    from flower_fedcon.problems.files import natural
    from flower_fedcon.tables import DataError, Schema
    from flower_fedcon.tables.builders import client_names
    from flower_fedcon.tables.read import columns_by_client, columns_of, guarded
    from flower_fedcon.tables.survey import Client, survey
    from flower_fedcon.wire.whole_files import write_text

    if client_column is not None and len(files) != 1:
        raise ConfigError(f"--client-column is for one file, got {len(files)} files")
    loaded, wrong = Schema.load(schema), False
    fitting: list[Client] = []
    notes: list[str] = []
    for path, own_name in zip(files, client_names(list(map(str, files))), strict=True):
        try:
            if client_column is None:
                parts = {own_name: guarded(path, columns_of, path, loaded)}
            else:
                parts, notes = guarded(path, columns_by_client, path, loaded, client_column)
        except DataError as error:
            wrong = True
            _misfits(path, error)
            continue
        for name in sorted(parts, key=natural):
            columns = parts[name]
            where = f"{path}" if client_column is None else f"{path}: {name}"
            try:
                checked = guarded(path, columns.table)
            except DataError as error:
                wrong = True
                _misfits(path, error)
                continue
            rows, lacking = checked.num_examples, ""
            if checked.left_out:
                cells = [f"{column} {count}" for column, count in columns.incomplete.items()]
                lacking = f", {checked.left_out} left out, without a value of {first_few(cells)}"
            held = len(checked.targets) - rows
            say(f"{where} fits: {number_of(rows, 'row')} to train on, {held} held out{lacking}")
            fitting.append(Client(name, columns, checked))
    if not fitting:
        raise typer.Exit(1)
    seen = survey(fitting, least)
    shown = table("Column", "Client", "Values", "Missing", "Least", "Mean", "Greatest", "Told",
                  "Categories", right_from=2)  # fmt: skip
    columns_shown: dict[str, int] = {}
    for line in seen.lines:
        place = columns_shown.setdefault(line.column, 0)
        columns_shown[line.column] += 1
        if place < _CLIENTS:
            numbers = [
                "" if v is None else f"{v:.5g}" for v in (line.least, line.mean, line.greatest)
            ]
            shown.add_row(
                "" if place else line.column, line.client, str(line.values), str(line.missing),
                *numbers, line.told, _categories(line.categories),
            )  # fmt: skip
    console().print(shown)
    if len(fitting) > _CLIENTS:
        say(f"{_CLIENTS} of {len(fitting)} clients are shown; --output FILE has all")
    if wrong:
        say("The summary leaves out tables that do not fit.")
    findings = [*notes, *seen.findings]
    if findings or not (wrong or seen.refusals):
        say("What stands out:" if findings else "Nothing stands out.")
    for finding in findings:
        say(f"- {printable(finding)}")
    for refusal in seen.refusals:
        say(f"No model can be fitted: {printable(refusal)}")
    if output is not None:
        write_text(output, seen.csv)
        say(f"columns: {output}")
    if wrong or seen.refusals:
        raise typer.Exit(1)


def _misfits(path: Path, error: DataError) -> None:
    """Print all misfits of a file."""
    for misfit in error.misfits:
        say(f"{path}: {misfit}")
    if any(misfit.row for misfit in error.misfits):
        say(f"{path}: row 1 is the first below the header, line 2 of a text")
    if not error.misfits:
        say(str(error))


def _categories(categories: Sequence[tuple[str, int]]) -> str:
    """Return the most frequent categories with their numbers of rows."""
    return first_few([f"{printable(name, 20)} {rows}" for name, rows in categories])


COMMANDS = {
    "data check": Command(
        check,
        210,
        "fedcon data check examples/heart/*.csv --schema examples/heart/app/schema.toml",
        "fedcon data check all.csv --schema schema.toml --client-column site -o columns.csv",
    )
}
