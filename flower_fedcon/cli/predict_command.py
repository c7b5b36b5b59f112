"""`fedcon predict`: the model of a run, applied to rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.console import say


def predict(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run on tables.")],
    file: Annotated[Path, typer.Argument(help="A table, as the run's schema says.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A CSV file to write.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column to write beside them; may be repeated."),
    ] = None,
    unknown: Annotated[
        str,
        typer.Option(help="Treat a category that the model does not have as: refuse, or missing."),
    ] = "refuse",
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Only the rows that the run held out of this file, which is a client's, with all "
            "its rows and outcomes.",
        ),
    ] = False,
) -> None:
    """Predict for each row of a file, by the model that a run has left.

    The file is read and checked as `fedcon data check` does it, by the schema of the run; it needs
    no outcome. Missing values become what they became in the run. Written are the number of the
    row, the prediction, the linear predictor and the probabilities of classes; where sites have
    intercepts of their own the linear predictor alone, as the difference from a row of zeros of the
    same site. With random intercepts predictions are for a site, or group, whose intercept is the
    mean one. Nothing is sent.
    """
    import numpy as np

    from flower_fedcon.tables.fitted import load_model
    from flower_fedcon.tables.own_files import PREDICTIONS
    from flower_fedcon.tables.schema import RANDOM
    from flower_fedcon.wire.whole_files import write_csv

    if output.resolve() == file.resolve():
        raise ConfigError(f"--output {output} is the file that is read: name another")
    model = load_model(run_dir)
    rows = model.rows(file, unknown=unknown, keep=keep or (), held_out=held_out)
    found = model.columns_of(rows.table)
    number, _ = PREDICTIONS
    taken = {number, *found} & rows.kept.keys()
    if taken:
        raise ConfigError(f"--keep {min(taken)}: predictions have a column of this name, rename it")
    numbers = rows.table.numbers_of(np.arange(len(rows.table.targets))).tolist()
    cells = {k: [None if v != v else v for v in own.tolist()] for k, own in found.items()}
    write_csv(output, {number: numbers, **cells, **rows.kept})
    if model.schema.complete_cases and (lacking := int(rows.table.incomplete.sum())):
        say(f"{lacking} rows lack a value and have no prediction, since the run left such rows out")
    whose = ""
    if model.preparation.site_effects == RANDOM:
        whose = ", for a site, or group, whose random intercept is the mean one"
    say(f"predictions for {len(numbers)} rows{whose}: {output}")
