"""`fedcon report`, `table` and `watch`: pages and tables of runs, and a view of running ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.lab.commands.options import XLim, YLim
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import say

Folders = Annotated[
    list[Path], typer.Argument(help="Folders of runs or comparisons.", metavar="RUN_DIR...")
]


def report(
    run_dirs: Folders,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="An .html file; by default RUN_DIR/report.html."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    xlim: XLim = None,
    ylim: YLim = None,
) -> None:
    """Write a web page of curves, clients, coefficients and settings.

    The page is one file that needs no network.
    """
    from flower_fedcon.lab.experiments.figures import parse_limits
    from flower_fedcon.lab.report.page import write_report

    path = write_report(
        run_dirs,
        output or run_dirs[0] / "report.html",
        xlim=parse_limits("xlim", xlim),
        ylim=parse_limits("ylim", ylim),
    )
    say(f"page: {path}")
    if open_:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            say("no browser was found: open the file in one")


def table(
    run_dirs: Folders,
    to: Annotated[
        list[str],
        typer.Option(metavar="COLUMN[=LEVEL]", help="A level to reach, such as residual=1e-3. A "
                                                    "column without a level shows its last value. "
                                                    "May be repeated."),
    ],
    of: Annotated[
        list[str] | None,
        typer.Option(help="What is counted until the level is reached: rounds (the default), "
                          "bytes, uplink, downlink, seconds, simulated (with a clock), or a column "
                          "of the histories; may be repeated."),
    ] = None,
    middle: Annotated[
        str, typer.Option(help="mean, shown with the standard deviation, or median, shown with the "
                               "range.")
    ] = "mean",
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Settings that make the rows, separated by commas: method "
                                         "(the algorithm), participation, local_steps, "
                                         "problem.alpha, ... Default: what --columns leaves of the "
                                         "labels."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Settings that make the columns, as --rows."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="ROW", help="Also show each other row's difference to this one over "
                                         "the same seeds, with a 95 % interval and a test: the "
                                         "paired t-test of means, Wilcoxon's of medians."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="A .tex (booktabs) or .csv file; may be repeated."),
    ] = None,
) -> None:  # fmt: skip
    """Make a table for papers: what runs spend until they reach a level, over seeds.

    It compares methods, in rounds, bytes or seconds. What runs on tables found is in `fedcon
    estimates`, and the columns by arm in `fedcon data describe`.
    """
    from flower_fedcon.errors import ConfigError
    from flower_fedcon.lab.experiments.crossed import crossed
    from flower_fedcon.lab.experiments.folders import write
    from flower_fedcon.lab.experiments.paired import paired
    from flower_fedcon.lab.experiments.targets import MIDDLES, parse_target, targets_of
    from flower_fedcon.runs import console
    from flower_fedcon.validation import choice

    choice("middle", middle, MIDDLES)
    for path in output or ():
        if path.suffix not in (".tex", ".csv"):
            raise ConfigError(f"cannot write {path}: its name must end in .tex or .csv")
    folders = [path for path in run_dirs if not path.is_file()]  # DIR/* names files too
    targets = targets_of(folders, [*map(parse_target, to)], of or ["rounds"], middle)
    reasons = targets.failed
    if rows or columns:
        keys = [[key.strip() for text in own or () for key in text.split(",") if key.strip()]
                for own in (rows, columns)]  # fmt: skip
        targets = crossed(targets, folders, *keys)
    compared = None if against is None else paired(targets, against)
    shown = console.table(targets.stub, *targets.titles, right_from=1)
    for label in targets.rows:
        shown.add_row(label, *targets.texts(label))
    for label, why in targets.failed.items():
        shown.add_row(label, f"failed: {why}")
    console.console().print(shown)
    if targets.is_crossed and len(targets.heads) == 1:
        say(f"each cell: {targets.title(*targets.heads[0])}")
    if targets.notes:
        say("; ".join(targets.notes))
    for label, why in reasons.items():
        if label not in targets.failed:
            say(f"{label}: failed: {why}")
    if compared is not None:
        shown = console.table(targets.stub, *targets.titles, right_from=1)
        for label in compared.rows:
            shown.add_row(label, *compared.texts(label))
        console.console().print(shown)
        say("; ".join(compared.notes))
    for path in output or ():
        if path.suffix == ".tex":
            write(path, targets.latex() + ("" if compared is None else f"\n{compared.latex()}"))
        else:
            write(path, (compared or targets).csv())
        say(f"table: {path}")


def watch(
    run_dir: Annotated[
        Path, typer.Argument(help="Folder of a run or a comparison.", metavar="RUN_DIR")
    ],
    once: Annotated[bool, typer.Option("--once", help="Show the progress once, and exit.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between updates.")] = 1.0,
) -> None:
    """Follow runs of other processes, from their files, until they end.

    The command changes nothing in the folder. The exit code is 1 if a run stopped before it was
    finished.
    """
    from flower_fedcon.lab.report.watch import watch as follow
    from flower_fedcon.validation import positive

    finished = follow(run_dir, once=once, every=positive("every", every), say=say)
    if not (finished or once):
        raise typer.Exit(1)


COMMANDS = {
    "table": Command(
        table,
        130,
        "fedcon table runs/digits_l1 --to residual=1e-3 --of rounds --of bytes",
        "fedcon table runs/* --to residual=1e-3 --to residual=1e-6 --middle median -o table.tex",
        "fedcon table runs/study --to relative=1e-4 --rows method --columns participation",
        "fedcon table runs/digits_l1 --to residual --against FedAvg -o differences.csv",
    ),
    "report": Command(
        report,
        140,
        "fedcon report runs/digits_l1 --open",
        "fedcon report runs/lasso runs/lasso-2 -o both.html",
        "fedcon report runs/lasso --ylim residual=1e-6,1 --xlim rounds=0,200",
        needs=("lab/report",),
    ),
    "watch": Command(
        watch,
        150,
        "fedcon watch runs/lasso",
        "fedcon watch runs/lasso --once",
        needs=("lab/report",),
    ),
}
