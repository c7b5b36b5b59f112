"""`fedcon data partition` and `curves`: what an experiment's clients hold, before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.errors import ConfigError, number_of, printable
from flower_fedcon.lab.commands.options import Set
from flower_fedcon.runs.commands import Command, times_in
from flower_fedcon.runs.console import console, say, table


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
    numbers: Annotated[
        Path | None,
        typer.Option("--numbers", help="A CSV file for the numbers at risk below the curves."),
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
    from flower_fedcon.tables.numbers_at_risk import as_columns, at_ticks, of_tables
    from flower_fedcon.wire.whole_files import write_csv

    if output is not None:
        check_figure(output)
    arguments = Experiment.load(file, set_ or [], runs=False).problem_arguments
    keys = ("data", "schema", "client_column", "partition")
    if not {"data", "schema"} <= arguments.keys():
        raise ConfigError(
            f'{file}: curves need a problem of tables: write name = "tables" below [problem]'
        )
    clients, names = clients_of(**{k: v for k, v in arguments.items() if k in keys})
    points = None if grid is None else times_in("--grid", grid)
    by_arm, test = curves_of_tables(
        clients,
        names,
        by,
        grid=points,
        min_rows=arguments.get("min_rows", 1) if least is None else least,
        stratified=stratified,
    )
    schema = clients[0].schema
    called = {arm: schema.group(by, arm) if by else arm for arm in by_arm}
    every, _ = curves_of_tables(clients, names, by, grid=points, min_rows=1)
    counted = "At risk" if points is None else "Adjusted at risk"  # in the first interval
    shown = table("Arm", counted, "Events", "Median", "First", "Last", right_from=1)
    for arm, curve in by_arm.items():
        places = np.flatnonzero(np.isfinite(curve.survival))
        ends = [
            f"{curve.survival[k]:.3f} at {curve.time[k]:g}"
            for k in (places[[0, -1]].tolist() if places.size else ())
        ] or ["", ""]
        counts = [str(int(curve.at_risk[0])), str(int(curve.events.sum()))]
        shown.add_row(printable(called[arm]), *counts, f"{curve.median:g}", *ends)
    console().print(shown)
    if points is not None:
        say("median: up to the next grid time, and after the one before")
    for arm, curve in by_arm.items():
        whole, at = every[arm], curve.time[np.isfinite(curve.survival)]
        kept = int(whole.events.sum() - curve.events.sum())
        if kept:
            say(
                f"{printable(called[arm])}: sites keep {number_of(kept, 'event')}, in counts below "
                "--min-rows"
            )
        if len(at) < len(curve.time):
            last = f"after {at[-1]:g}" if len(at) else "at any time"
            say(f"{printable(called[arm])}: not known {last}, since no site sends its rows at risk")
    for name in next(iter(by_arm.values())).left_out.tolist():
        say(f"{name} sends nothing: too few rows or events")
    if held_out := sum(len(client.held_out_rows) for client in clients):
        say(f"{held_out} held-out rows are not counted: write test_fraction = 0 to count all")
    if test is not None:
        kind = "stratified log-rank" if stratified else "log-rank"
        say(f"{kind} test: {test.in_words}")
    longest = max(float(curve.time[-1]) for curve in by_arm.values())
    times = at_ticks(longest) if points is None else np.append(0.0, [at for at in points if at > 0])
    least_told = arguments.get("min_rows", 1) if least is None else least
    left = of_tables(clients, by, list(by_arm), times, least_told)
    below = table("At risk at", *(f"{at:g}" for at in times), right_from=1)
    for arm, own in zip(by_arm, left.T, strict=True):
        below.add_row(printable(called[arm]), *(f"{n:.0f}" for n in own))
    console().print(below)
    if output is not None:
        at_risk = {called[arm]: list(zip(times.tolist(), own.tolist(), strict=True))
                   for arm, own in zip(by_arm, left.T, strict=True)}  # fmt: skip
        drawn = {called[arm]: curve for arm, curve in by_arm.items()}
        draw_curves(drawn, output, schema.target, at_risk)
        say(f"figure: {output}")
    if numbers is not None:
        write_csv(numbers, as_columns(list(by_arm), times, left))
        say(f"numbers at risk: {numbers}")


COMMANDS = {
    "data partition": Command(
        partition, 211, "fedcon data partition examples/heart/heart.toml -o rows.png"
    ),
    "data curves": Command(
        curves,
        212,
        "fedcon data curves study.toml --by arm -o curves.png",
        "fedcon data curves study.toml --by arm --grid 30,60,90,180,360 --min-rows 5 --stratified",
        needs=("lab/report", "survival"),
    ),
}
