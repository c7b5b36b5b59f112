"""`fedcon data`: a look at tables before a run, which sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flower_fedcon.cli.options import Set, examples
from flower_fedcon.errors import ConfigError, first_few, printable
from flower_fedcon.runs.console import console, say, table

if TYPE_CHECKING:
    from flower_fedcon.tables import DataError

app = typer.Typer(help="Look at tables before a run.", no_args_is_help=True)


_CLIENTS = 12  # so many are shown for each column; a file has all


@app.command(
    epilog=examples(
        "fedcon data check examples/heart/*.csv --schema examples/heart/app/schema.toml",
        "fedcon data check all.csv --schema schema.toml --client-column site -o columns.csv",
    )
)
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
    Warnings follow: a client whose values are a hundred times the others', codes of missing values
    such as -999, categories that may be one ("M", "m", "male"), a reference that does not occur,
    columns that are combinations of others, empty columns and identifiers. Warnings refuse nothing.

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
    known, wrong = Schema.load(schema), False
    fitting: list[Client] = []
    notes: list[str] = []
    for path, own_name in zip(files, client_names(list(map(str, files))), strict=True):
        try:
            if client_column is None:
                parts = {own_name: guarded(path, columns_of, path, known)}
            else:
                parts, notes = guarded(path, columns_by_client, path, known, client_column)
        except DataError as error:
            wrong = True
            _misfits(path, error)
            continue
        for name in sorted(parts, key=natural):
            columns = parts[name]
            where = f"{path}" if client_column is None else f"{path}: {name}"
            try:
                found = guarded(path, columns.table)
            except DataError as error:
                wrong = True
                _misfits(path, error)
                continue
            rows, lacking = found.num_examples, ""
            if found.left_out:
                cells = [f"{column} {own}" for column, own in columns.incomplete.items()]
                lacking = f", {found.left_out} left out, without a value of {first_few(cells)}"
            held = len(found.targets) - rows
            say(f"{where} fits: {rows} rows to train on, {held} held out{lacking}")
            fitting.append(Client(name, columns, found))
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


@app.command(epilog=examples("fedcon data partition examples/heart/heart.toml -o rows.png"))
def partition(
    file: Annotated[Path, typer.Argument(help="An experiment file.", metavar="FILE")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .pdf or .svg file.")],
    set_: Set = None,
) -> None:
    """Draw how an experiment's rows are divided among clients, by outcome."""
    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.lab.experiments.holdings import draw_holdings

    experiment = Experiment.load(file, set_ or [], runs=False)
    header, *body = draw_holdings(experiment.builder, experiment.problem_arguments, output)
    shown = table(*header, right_from=1)
    for row in body:
        shown.add_row(*row)
    console().print(shown)
    say(f"figure: {output}")


@app.command(
    epilog=examples(
        "fedcon data curves study.toml --by arm -o curves.png",
        "fedcon data curves study.toml --by arm --grid 30,60,90,180,360 --min-rows 5 --stratified",
    )
)
def curves(
    file: Annotated[
        Path, typer.Argument(help="An experiment file whose problem is tables.", metavar="FILE")
    ],
    by: Annotated[
        str | None, typer.Option(help="The categorical column whose categories are compared.")
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            help="Times at which sites count events and rows at risk. Default: all times of events."
        ),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option(
            "--min-rows", help="The smallest count that a site sends. Default: the file's."
        ),
    ] = None,
    stratified: Annotated[bool, typer.Option(help="Compare rows only within a client.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .png, .pdf or .svg file.")
    ] = None,
    set_: Set = None,
) -> None:
    """Show Kaplan-Meier curves of tables with times to events, and the log-rank test.

    The clients' counts are added up: events and rows at risk in the intervals of the grid.
    """
    import numpy as np

    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.lab.experiments.figures import check_figure
    from flower_fedcon.lab.report.study_figures import draw_curves
    from flower_fedcon.survival.of_tables import curves_of_tables
    from flower_fedcon.tables.builders import clients_of

    if output is not None:
        check_figure(output)
    arguments = Experiment.load(file, set_ or [], runs=False).problem_arguments
    keys = ("data", "schema", "client_column", "partition")
    if not {"data", "schema"} <= arguments.keys():
        raise ConfigError(
            f'{file}: curves need a problem of tables: write name = "tables" below [problem]'
        )
    clients, names = clients_of(**{k: v for k, v in arguments.items() if k in keys})
    points = None
    if grid is not None:
        try:
            points = [float(point) for point in grid.split(",")]
        except ValueError:
            raise ConfigError(
                f"--grid must be times separated by commas, such as 30,60,90, got {grid!r}"
            ) from None
    found, test = curves_of_tables(
        clients,
        names,
        by,
        grid=points,
        min_rows=arguments.get("min_rows", 1) if least is None else least,
        stratified=stratified,
    )
    every, _ = curves_of_tables(clients, names, by, grid=points, min_rows=1)
    counted = "At risk" if points is None else "Adjusted at risk"  # in the first interval
    shown = table("Arm", counted, "Events", "Median", "First", "Last", right_from=1)
    for arm, curve in found.items():
        known = np.flatnonzero(np.isfinite(curve.survival))
        ends = [
            f"{curve.survival[k]:.3f} at {curve.time[k]:g}"
            for k in (known[[0, -1]].tolist() if known.size else ())
        ] or ["", ""]
        counts = [str(int(curve.at_risk[0])), str(int(curve.events.sum()))]
        shown.add_row(printable(arm), *counts, f"{curve.median:g}", *ends)
    console().print(shown)
    if points is not None:
        say("median: up to the next grid time, and after the one before")
    for arm, curve in found.items():
        whole, at = every[arm], curve.time[np.isfinite(curve.survival)]
        kept = int(whole.events.sum() - curve.events.sum())
        if kept:
            say(f"{printable(arm)}: sites keep {kept} events, in counts below --min-rows")
        if len(at) < len(curve.time):
            last = f"after {at[-1]:g}" if len(at) else "at any time"
            say(f"{printable(arm)}: not known {last}, since no site sends its rows at risk")
    for name in next(iter(found.values())).left_out.tolist():
        say(f"{name} sends nothing: too few rows or events")
    if held_out := sum(len(own.held_out_rows) for own in clients):
        say(f"{held_out} held-out rows are not counted: write test_fraction = 0 to count all")
    if test is not None:
        kind = "stratified log-rank" if stratified else "log-rank"
        say(
            f"{kind} test: chi2 {test.statistic:.4g}, {test.degrees} degrees of freedom, "
            f"p = {test.pvalue:.3g}"
        )
    if output is not None:
        draw_curves(found, output, clients[0].schema.target)
        say(f"figure: {output}")


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
