"""`fedcon reproduce` and `bench`: the papers' claims, and this machine's speed, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, say, table


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiments by name; or a method, an author or an arXiv number, for all "
            "experiments that have it. Default: all experiments.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Run fewer rounds and check fewer claims, in some minutes."),
    ] = False,
    names_only: Annotated[
        bool, typer.Option("--list", help="List the experiments, without running any.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write everything as JSON.")] = None,
    earlier: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="The JSON of an earlier run: only named experiments are run, and the "
            "measurements of all others are taken from it.",
        ),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Draw into this folder a figure of each claimed scaling, and for each paper one "
            "laid out as its own."
        ),
    ] = None,
    sims: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the experiment files. Default: sims, or the package's own files where "
            "that folder is missing.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs. Finished runs in it are not repeated."),
    ] = None,
) -> None:
    """Run the papers' experiments, and compare each claim with the measurement.

    The exit code is 1 if a claim fails without an explanation, or differently from what its
    explanation expects.
    """
    from flower_fedcon.lab.experiments import reproduce as claims
    from flower_fedcon.lab.experiments.figures import plot_panels, plot_scalings
    from flower_fedcon.lab.experiments.folders import write

    files = claims.find(sims, names or ())
    if names_only:
        rows = table("Experiment", "Paper", "What of it", "Methods", "Claims", right_from=4)
        for file, paper, figure, methods, number in map(claims.Entry.read, files):
            rows.add_row(file.stem, paper, figure, ", ".join(methods), str(number))
        console().print(rows)
        return
    recalled: list[Path] = []
    if earlier is not None:
        files = files if names else []
        recalled = [path for path in claims.find(sims) if path not in files]
    outcome = claims.reproduce(
        files, quick=quick, workers=workers, folder=run_dir, recalled=recalled, earlier=earlier,
        say=say,
    )  # fmt: skip
    for paper, found in claims.grouped(outcome.verdicts).items():
        rows = table(*claims.TITLES[:-1])
        for claim in found:
            rows.add_row(*claim.cells()[:-1])
        say(paper)
        console().print(rows)
    for verdict in outcome.verdicts:
        if verdict.note:
            shown = "".join(f'shown by "{text}"; ' for text in verdict.shown_by)
            expected = f" ({shown}expected {verdict.expected})" if verdict.expected else ""
            say(
                f"{verdict.verdict}: {verdict.experiment}, {verdict.what}: {verdict.note}{expected}"
            )
    say(claims.summary(outcome))
    for path, text in (
        (json, claims.to_json(outcome)), (markdown, claims.to_markdown(outcome))
    ):  # fmt: skip
        if path is not None:
            write(path, text)
    if figures is not None:
        for name, scalings in outcome.scalings.items():
            target = plot_scalings(scalings, figures / f"{name}.png", title=name.replace("_", " "))
            say(f"figure: {target}")
        for paper, panels in outcome.panels.items():
            say(f"figure: {plot_panels(panels, figures / f'paper_{paper}.png')}")
    if any(verdict.verdict == "fail" for verdict in outcome.verdicts):
        raise typer.Exit(1)


def steps(
    file: Annotated[Path, typer.Argument(help="The study's file.", metavar="FILE")],
    run_dir: Annotated[
        Path, typer.Option(help="Folder for the results. Finished problems in it are not repeated.")
    ],
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as Markdown.")] = None,
    figure: Annotated[Path | None, typer.Option(help="A .png, .pdf or .svg file.")] = None,
) -> None:
    """Compare steps chosen by rule and by race with the best of a grid, in rounds.

    The comparison covers each method, problem, L/mu and number of clients in a round; units are
    drawn at random. The exit code is 1 if a run with steps by rule or by race ends above its start.
    """
    from flower_fedcon.lab.experiments.figures import check_figure
    from flower_fedcon.lab.experiments.folders import write
    from flower_fedcon.lab.steps.cells import StepStudy
    from flower_fedcon.lab.steps.measuring import run_steps
    from flower_fedcon.lab.steps.outcome import grown, plot_steps, to_markdown

    if figure is not None:
        check_figure(figure)
    study = StepStudy.load(file)
    rows = run_steps(study, run_dir, workers=workers, say=say)
    text = to_markdown(rows, study.levels)
    say(text)
    if markdown is not None:
        write(markdown, text)
    if figure is not None:
        say(f"figure: {plot_steps(rows, figure)}")
    above = grown(rows)
    for each in above:
        say(f"ended above the start: {each}")
    if above:
        raise typer.Exit(1)


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Benchmarks by name. Default: those of at most a minute."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use tiny sizes, to test that the benchmarks work.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="A .png, .pdf or .svg file, for the cost curves.")
    ] = None,
    names_only: Annotated[
        bool, typer.Option("--list", help="List the benchmarks, and time none.")
    ] = False,
) -> None:
    """Time the package on this machine, against hand-written loops: medians and quartiles.

    A ratio is the package's time divided by the hand-written loop's: below 1 the package is faster.
    The cost is the package's own. Missed targets are marked.
    """
    from flower_fedcon.lab.benchmarks import described, to_json
    from flower_fedcon.lab.benchmarks import run as measure
    from flower_fedcon.lab.benchmarks.figure import plot_curves
    from flower_fedcon.lab.experiments.figures import check_figure
    from flower_fedcon.wire.whole_files import write_text

    if names_only:
        rows = table("Name", "By default", "What")
        for name, default, what in described():
            rows.add_row(name, "yes" if default else "", what)
        console().print(rows)
        return
    if figure is not None:
        check_figure(figure)
    results = list(measure(names, quick=quick))
    rows = table("What", "Yardstick", "Ratio", "Quartiles", "Cost", "Target", right_from=2)
    for one in results:
        quartiles = f"{one.low:.3g} to {one.high:.3g}"
        cost = f"{one.cost:.3g} {one.unit}"
        target = one.target if quick else one.judged
        rows.add_row(one.what, one.yardstick, f"{one.ratio:.3g}", quartiles, cost, target)
    console().print(rows)
    if output is not None:
        write_text(output, to_json(results))
        say(f"results: {output}")
    if figure is not None:
        say(f"figure: {plot_curves(results, figure)}")


COMMANDS = {
    "reproduce": Command(
        reproduce,
        110,
        "fedcon reproduce --quick",
        "fedcon reproduce --list",
        "fedcon reproduce Dadras --quick",
        "fedcon reproduce arXiv:2305.10294",
        "fedcon reproduce fedfw_lasso --json claims.json",
    ),
    "steps": Command(
        steps,
        160,
        "fedcon steps sims/benchmarks/steps.toml --run-dir runs/steps --figure steps.png",
    ),
    "bench": Command(
        bench, 170, "fedcon bench --list", "fedcon bench prox compiled -o results.json"
    ),
}
