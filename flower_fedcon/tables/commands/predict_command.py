"""`fedcon predict`: apply the model of a run to the rows of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.errors import ConfigError, number_of
from flower_fedcon.runs.commands import Command, times_in
from flower_fedcon.runs.console import say


def predict(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run on tables.")],
    file: Annotated[Path, typer.Argument(help="A table that fits the run's schema.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A CSV file to write.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column of the file to write beside the predictions; may be repeated.",
        ),
    ] = None,
    unknown: Annotated[
        str,
        typer.Option(
            help="What to do with a category that the model does not know: refuse the "
            "file, or treat it as missing."
        ),
    ] = "refuse",
    times: Annotated[
        str | None,
        typer.Option(
            help="Times, separated by commas: of a Cox model with a baseline hazard, also write "
            "the probability of no event up to each."
        ),
    ] = None,
    stratum: Annotated[
        str | None,
        typer.Option(
            help="With --times: the baseline hazard to take for all rows, by its name in the run's "
            "baseline.csv. By default that of each row's own stratum, or the only one."
        ),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Predict only the rows that the run held out. The file must be a client's, with "
            "all its rows and outcomes.",
        ),
    ] = False,
) -> None:
    """Predict each row of a file with the model of a finished run.

    The file is checked against the run's schema, as by `fedcon data check`; it needs no outcome.
    Missing values are treated as in the run. The output has the row's number, the prediction, the
    linear predictor and the probabilities of classes. Where each site has its own intercept, the
    output has the linear predictor alone, without the intercept.
    A Cox model predicts the log hazard ratio, and with --times probabilities of survival.
    With random intercepts predictions are for a site, or group, with the mean intercept. Nothing is
    sent.
    """
    import numpy as np

    from flower_fedcon.tables.fitted import load_model
    from flower_fedcon.tables.own_files import PREDICTIONS, WITHOUT_INTERCEPT
    from flower_fedcon.tables.schema import OWN, RANDOM
    from flower_fedcon.wire.whole_files import write_csv

    if output.resolve() == file.resolve():
        raise ConfigError(f"--output {output} is the input file: name another")
    if stratum is not None and times is None:
        raise ConfigError("--stratum says whose baseline hazard --times takes: give --times, too")
    points = None if times is None else times_in("--times", times)
    model = load_model(run_dir)
    rows = model.rows(file, unknown=unknown, keep=keep or (), held_out=held_out)
    columns = model.columns_of(rows.table)
    if points is not None:
        survival = model.predict_survival(rows, points, stratum=stratum, unknown=unknown)
        columns |= {
            f"survival [{time:.12g}]": own for time, own in zip(points, survival.T, strict=True)
        }
    number, _ = PREDICTIONS
    taken = {number, *columns} & rows.kept.keys()
    if taken:
        raise ConfigError(
            f"--keep {min(taken)}: the predictions have a column of this name: rename the file's"
        )
    numbers = rows.table.numbers_of(np.arange(len(rows.table.targets))).tolist()
    cells = {k: [None if v != v else v for v in column.tolist()] for k, column in columns.items()}
    write_csv(output, {number: numbers, **cells, **rows.kept})
    many = number_of(len(numbers), "row")
    if model.schema.complete_cases and (lacking := int(rows.table.incomplete.sum())):
        say(
            f"{number_of(lacking, 'row has', 'rows have')} a missing value: no prediction, since "
            "the run left such rows out"
        )
        many = f"{len(numbers) - lacking} of {many}"
    whose = ""
    if model.preparation.site_effects == RANDOM:
        whose = ", for a site, or group, with the mean random intercept"
    if model.preparation.site_effects == OWN:
        print(
            "warning: each site keeps its own intercept, so these are no predictions: column "
            f"{WITHOUT_INTERCEPT} lacks the intercept, and only differences between rows of one "
            "site have a meaning",
            file=sys.stderr,
        )
        say(f"linear predictors without intercept for {many}: {output}")
        return
    say(f"predictions for {many}{whose}: {output}")


COMMANDS = {
    "predict": Command(
        predict,
        90,
        "fedcon predict runs/heart new.csv -o predictions.csv",
        "fedcon predict runs/heart new.csv -o out.csv --keep patient --unknown missing",
        "fedcon predict runs/trial new.csv -o out.csv --times 12,24,60",
    )
}
