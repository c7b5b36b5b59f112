"""`fedcon report` and `watch`: what runs leave, as a page, and as lines while they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.lab.experiments.console import say

Folders = Annotated[
    list[Path], typer.Argument(help="Folders of runs or comparisons.", metavar="RUN_DIR...")
]


def report(
    run_dirs: Folders,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="An .html file; by default RUN_DIR/report.html."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write one page of curves, clients, coefficients and settings, to look at in a browser.

    The page is one file that needs no network.
    """
    from flower_fedcon.lab.report.page import write_report

    path = write_report(run_dirs, output or run_dirs[0] / "report.html")
    say(f"page: {path}")
    if open_:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            say("no browser was found: open the file in one")


def watch(
    run_dir: Annotated[
        Path, typer.Argument(help="Folder of a run or a comparison.", metavar="RUN_DIR")
    ],
    once: Annotated[bool, typer.Option("--once", help="Say how far it is, and end.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks.")] = 1.0,
) -> None:
    """Follow runs that go on elsewhere, from their files, until they end.

    Nothing in the folder is changed. The exit code is 1 if a run ended before it was finished.
    """
    from flower_fedcon.lab.report.watch import watch as follow
    from flower_fedcon.validation import positive

    finished = follow(run_dir, once=once, every=positive("every", every), say=say)
    if not (finished or once):
        raise typer.Exit(1)
