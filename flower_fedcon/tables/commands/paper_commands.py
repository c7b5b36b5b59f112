"""`fedcon estimates` and `fedcon data describe`: a paper's tables of estimates, and its Table 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.errors import ConfigError, printable
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, say, table

_Output = Annotated[
    list[Path] | None,
    typer.Option("--output", "-o", help="A .csv, .md or .tex (booktabs) file; may be repeated."),
]


def estimates(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs on tables, or a folder of several.", metavar="RUN_DIR..."
        ),
    ],
    output: _Output = None,
) -> None:
    """Make a table for papers of what runs on tables found: estimate (interval), p.

    Each run needs `inference`, and has two columns. Estimates are odds, rate or hazard ratios where
    the model has them, else coefficients per unit. A schema's labels name columns and categories.
    (`fedcon table` compares what methods spend, in rounds or bytes.)
    """
    from flower_fedcon.runs.paper_tables import check_suffixes
    from flower_fedcon.tables.paper_estimates import paper_estimates

    check_suffixes(output or ())
    _show(*paper_estimates(run_dirs), [], output)


def describe(
    files: Annotated[list[Path], typer.Argument(help="One or more tables.", metavar="FILE...")],
    schema: Annotated[Path, typer.Option(help="The TOML file that all nodes share.")],
    by: Annotated[
        str | None,
        typer.Option(
            help="The categorical column whose categories are compared, such as the arm. Default: "
            "the schema's describe_by."
        ),
    ] = None,
    client_column: Annotated[
        str | None,
        typer.Option(help="The column that names the client, if one file holds all clients."),
    ] = None,
    least: Annotated[
        int,
        typer.Option(
            "--min-rows", help="The least number of rows in a cell, as a node's policy has it."
        ),
    ] = 1,
    output: _Output = None,
) -> None:
    """Describe tables by the categories of a column: a paper's Table 1, with tests.

    Numbers have mean and standard deviation, categories rows and shares. Levels are compared by
    Welch's t-test, by an analysis of variance if there are more than two, or by chi-squared without
    continuity correction; SMD is the standardised difference. Each categorical column is a two-way
    table with the one of --by. All follows from sums that each client could send. A run whose
    schema has describe_by leaves the same in by_level.csv and by_level_tests.csv, with all digits
    and expected counts.
    """
    from flower_fedcon.runs.paper_tables import check_suffixes
    from flower_fedcon.tables.builders import clients_of, prepare
    from flower_fedcon.tables.schema import Schema

    check_suffixes(output or ())
    loaded = Schema.load(schema)
    if not (by or loaded.describe_by):
        raise ConfigError("say by which column: --by arm, or describe_by in the schema")
    stated = replace(loaded, describe_by=by or loaded.describe_by)
    clients, names = clients_of(list(map(str, files)), stated.stated, client_column)
    found = prepare(clients, names, least).by_level
    assert found is not None  # noqa: S101  (the schema asks for it)
    _show(*found.paper, found.notes, output)


def _show(
    head: list[str], rows: list[list[str]], notes: list[str], output: list[Path] | None
) -> None:
    """Print a table, and write it."""
    from flower_fedcon.runs.paper_tables import write_paper_table

    shown = table(*map(printable, head), right_from=1)
    for row in rows:
        shown.add_row(*map(printable, row))
    console().print(shown)
    notes = [note for note in notes if note]
    for note in notes:
        say(printable(note))
    for file in output or ():
        write_paper_table(file, head, rows, notes)
        say(f"table: {file}")


COMMANDS = {
    "estimates": Command(
        estimates,
        101,
        "fedcon estimates runs/trial -o table2.tex",
        "fedcon estimates runs/crude runs/adjusted -o table2.md -o table2.csv",
    ),
    "data describe": Command(
        describe,
        211,
        "fedcon data describe north.csv south.csv --schema schema.toml --by arm -o table1.tex",
        "fedcon data describe all.csv --schema schema.toml --by sex --client-column site",
    ),
}
