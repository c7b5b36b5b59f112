"""`fedcon data`: what a node's owner, or a researcher, sees of tables before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.cli.options import Set, examples
from flower_fedcon.lab.experiments.console import console, say, table

app = typer.Typer(help="Look at tables before a run.", no_args_is_help=True)


@app.command(
    epilog=examples(
        "fedcon data check examples/heart/va.csv --schema examples/heart/app/schema.toml"
    )
)
def check(
    files: Annotated[list[Path], typer.Argument(help="Tables, or one.", metavar="FILE...")],
    schema: Annotated[Path, typer.Option(help="The TOML file that all nodes share.")],
    least: Annotated[
        int, typer.Option("--min-rows", help="As policy.min-rows of the node's configuration.")
    ] = 1,
) -> None:
    """Say by file, row and column what does not fit a schema; else what a node would tell.

    Runs where the file is, and sends nothing. The exit code is 1 if something does not fit.
    """
    from flower_fedcon.tables import DataError, Schema, read_table

    known, wrong = Schema.load(schema), False
    for path in files:
        try:
            found = read_table(path, known)
        except DataError as error:
            wrong = True
            for misfit in error.misfits or [error]:
                say(str(misfit) if misfit is error else f"{path}: {misfit}")
            continue
        rows, held = found.num_examples, len(found.targets) - found.num_examples
        say(f"{path} fits: {rows} rows to train on, {held} held out")
        if known.sparse:
            continue
        told = found.answer("summary", {}, least)
        shown = table("Column", "Values", "Missing", "Told", right_from=1)
        for j, feature in enumerate(known.numeric):
            values = int(rows - _missing(found.numeric[found.training_rows, j]))
            sent = "count and sum" if told["observed"][j] else "nothing"
            shown.add_row(feature.name, str(values), str(rows - values), sent)
        for j, feature in enumerate(known.categorical):
            marks = found.categories[found.training_rows, j]
            missing = int((marks == "").sum())
            sent = "counts" if feature.categories else "counts and names"
            shown.add_row(feature.name, str(rows - missing), str(missing), sent)
        console().print(shown)
    if wrong:
        raise typer.Exit(1)


@app.command(epilog=examples("fedcon data partition examples/heart/heart.toml -o rows.png"))
def partition(
    file: Annotated[Path, typer.Argument(help="An experiment file.", metavar="FILE")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .pdf or .svg file.")],
    set_: Set = None,
) -> None:
    """Draw who holds what: the rows of each client of an experiment, by outcome."""
    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.lab.experiments.holdings import draw_holdings

    experiment = Experiment.load(file, set_ or [])
    header, *body = draw_holdings(experiment.problem_arguments, output)
    shown = table(*header, right_from=1)
    for row in body:
        shown.add_row(*row)
    console().print(shown)
    say(f"figure: {output}")


def _missing(column: object) -> int:
    import numpy as np

    return int(np.isnan(column).sum())  # type: ignore[call-overload]
