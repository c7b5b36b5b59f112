"""The command `fedcon`: list the collection, run and compare experiments, draw their figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.experiments.console import console, say, table
from flower_fedcon.experiments.runner import (
    InterruptedRunError,
    Safety,
    folder_for,
    load,
    run_all,
    run_seeds,
    write,
)

# Each command imports what it needs: help and completion answer at once.

app = typer.Typer(
    name="fedcon",
    help="Federated constrained and composite optimisation for Flower.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

# What a wrong command line raises; typer exports only this subclass of it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_File = Annotated[Path, typer.Argument(help="Experiment file (TOML).", show_default=False)]
_Engine = Annotated[str | None, typer.Option(help="Where clients run: local, stacked or ray.")]
_Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
_Seed = Annotated[int | None, typer.Option(help="Seed of cohorts, batches and compressors.")]
_RunDir = Annotated[
    Path | None, typer.Option(help="Folder for the results; by default a new runs/<file name>.")
]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]
_Every = Annotated[
    int | None,
    typer.Option(help="Rounds between checkpoints; by default one every ten seconds."),
]
_Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-change",
        metavar="NAME",
        help="A setting that may differ from the resumed run's; may be repeated.",
    ),
]
_Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace an entry of the file, such as algorithm.client_lr=0.1; may be repeated.",
    ),
]


_Seeds = Annotated[
    str | None,
    typer.Option(metavar="0,1,2", help="Run each seed; the mean and the range are shown."),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 2 for the user's errors, 130 for Ctrl-C."""
    args = None if arguments is None else list(arguments)
    try:
        code = app(args, prog_name="fedcon", standalone_mode=False)
    except (FedConError, _UsageError) as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        return _complain(f"error: {text}", 2) if text else 2  # empty: the help was shown
    except InterruptedRunError as error:
        return _complain(str(error), 130)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    if code == 130:
        return _complain("interrupted", 130)
    return code if isinstance(code, int) else 0


def _complain(text: str, code: int) -> int:
    sys.stdout.flush()
    print(" ".join(text.split()), file=sys.stderr)
    return code


@app.command("list")
def list_(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Show the collection."""
    from flower_fedcon.registry import CLASSES, markdown_table, strategy_class

    if markdown:
        print(markdown_table())
        return

    titles = ("Problem", "Participation", "State", "Wire, each round", "Paper")
    screen = console()
    narrow = screen.width < 120  # one cell for all, a line for each
    rows = table("Name", "Sheet") if narrow else table("Name", *titles)
    for name in CLASSES:
        sheet = strategy_class(name).sheet
        wire = f"{sheet.down} down, {sheet.up} up"
        cells = [sheet.problem, sheet.participation, sheet.state, wire, sheet.paper]
        if narrow:
            lines = [f"{title}: {cell}" for title, cell in zip(titles, cells, strict=True)]
            cells = ["\n".join(lines) + "\n"]
        rows.add_row(CLASSES[name], *cells)
    screen.print(rows)


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="An algorithm's name.")],
    size: Annotated[
        str | None, typer.Option(help="A model's size, such as 7850 or 943x1682: bytes of a round.")
    ] = None,
) -> None:
    """Show one algorithm's sheet."""
    from flower_fedcon.experiments.schema import parameter_texts, parameters
    from flower_fedcon.registry import strategy_class

    kind = strategy_class(name)
    sheet = asdict(kind.sheet)
    screen = console()
    screen.print(sheet.pop("title"), style="bold")
    grid = table("", "", plain=True)
    for key, text in sheet.items():
        grid.add_row({"down": "downlink", "up": "uplink"}.get(key, key.replace("_", " ")), text)
    screen.print(grid)
    screen.print("\nHyperparameters", style="bold")
    rows = table("Name", "Default", "Meaning")
    texts = parameter_texts(kind)
    for key, parameter in parameters(kind).items():
        required = parameter.default is parameter.empty
        rows.add_row(key, "required" if required else repr(parameter.default), texts.get(key, ""))
    screen.print(rows)
    if size is not None:
        from flower_fedcon.experiments.schema import wire_sizes

        screen.print(f"\nOn the wire, model {size}", style="bold")
        costs = table("What", "Bytes", right_from=1)
        for what, number in wire_sizes(size).items():
            costs.add_row(what, f"{number:,}")
        screen.print(costs)


@app.command()
def run(
    file: _File,
    engine: _Engine = None,
    rounds: _Rounds = None,
    seed: _Seed = None,
    run_dir: _RunDir = None,
    resume: _Resume = False,
    checkpoint_every: _Every = None,
    allow_change: _Allow = None,
    set_: _Set = None,
) -> None:
    """Run an experiment's algorithm."""
    experiment = load(file, engine, rounds, seed, set_)
    safety = Safety(resume, checkpoint_every, tuple(allow_change or ()))
    run_all(experiment, folder_for(file, run_dir, resume), safety, compare=False)


@app.command()
def compare(
    file: _File,
    engine: _Engine = None,
    rounds: _Rounds = None,
    seed: _Seed = None,
    run_dir: _RunDir = None,
    resume: _Resume = False,
    checkpoint_every: _Every = None,
    allow_change: _Allow = None,
    set_: _Set = None,
    seeds: _Seeds = None,
) -> None:
    """Run every algorithm of an experiment on the same problem."""
    experiment = load(file, engine, rounds, seed, set_)
    safety = Safety(resume, checkpoint_every, tuple(allow_change or ()))
    if seeds is None:
        run_all(experiment, folder_for(file, run_dir, resume), safety, compare=True)
        return
    from flower_fedcon.experiments.seed_statistics import parse

    if seed is not None:
        raise ConfigError("give --seed or --seeds, not both")
    each = {number: load(file, engine, rounds, number, set_) for number in parse(seeds)}
    run_seeds(each, folder_for(file, run_dir, resume), safety)


@app.command()
def tune(
    file: _File,
    grid: Annotated[
        list[str],
        typer.Option(metavar="KEY=V1,V2", help="Values of a setting; may be repeated."),
    ],
    algorithm: Annotated[
        str | None, typer.Option(help="Label of the algorithm; by default the file's first.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Column of the history.")] = "residual",
    largest: Annotated[bool, typer.Option("--largest", help="The largest value is best.")] = False,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    rounds: _Rounds = None,
    seed: _Seed = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs; by default runs/<file name>-tune. "
                     "Finished runs in it are not repeated."),
    ] = None,
    set_: _Set = None,
) -> None:  # fmt: skip
    """Run an algorithm with every combination of some settings, and write the best one."""
    from flower_fedcon.experiments import tuning
    from flower_fedcon.runs.directory import write_text

    experiment = load(file, None, rounds, seed, set_)
    if algorithm is not None:
        experiment = experiment.only(algorithm)
    folder = run_dir or Path("runs") / f"{file.stem}-tune"
    points = tuning.grid(grid)
    found, best = tuning.tune(
        experiment, points, folder, metric=metric, largest=largest, workers=workers, say=say
    )
    rows = table(*points[0], metric.replace("_", " ").capitalize(), right_from=0)
    for point in sorted(found, key=lambda p: -p.score if largest else p.score):
        rows.add_row(*point.settings.values(), "failed" if point.error else f"{point.score:.4g}")
    console().print(rows)
    write_text(folder / "best.toml", best.to_toml(0))
    say(f"best:      {folder / 'best.toml'}")


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments; all by default.", show_default=False)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer rounds and claims: some minutes.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write everything as JSON.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as Markdown.")] = None,
    sims: Annotated[Path, typer.Option(help="Folder of the experiment files.")] = Path("sims"),
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
) -> None:
    """Run the papers' experiments: claim beside measurement.

    The exit code is 1 if a claim fails without an explanation.
    """
    from flower_fedcon.experiments import reproduce as claims

    outcome = claims.reproduce(claims.find(sims, names or ()), quick=quick, workers=workers,
                               say=say)  # fmt: skip
    rows = table(*claims.TITLES)
    for verdict in outcome.verdicts:
        rows.add_row(*claims.cells(verdict)[:-1], verdict.verdict)
    console().print(rows)
    for verdict in outcome.verdicts:
        if verdict.note:
            say(f"explained: {verdict.experiment}, {verdict.what}: {verdict.note}")
    say(claims.summary(outcome))
    for path, text in (
        (json, claims.to_json(outcome)), (markdown, claims.to_markdown(outcome))
    ):  # fmt: skip
        if path is not None:
            write(path, text)
    if any(verdict.verdict == "fail" for verdict in outcome.verdicts):
        raise typer.Exit(1)


@app.command()
def plot(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders of runs or comparisons.")],
    output: Annotated[
        list[Path],
        typer.Option("--output", "-o", help="A .png, .pdf or .svg file; may be repeated."),
    ],
    x: Annotated[
        str | None, typer.Option(help="Panels: rounds, bytes, seconds; by default all.")
    ] = None,
    y: Annotated[
        str | None, typer.Option(help="Column of the histories; by default F - F*, or F.")
    ] = None,
) -> None:
    """Draw the histories of runs in one figure, bands over seeds."""
    from flower_fedcon.experiments.figures import check_figure, plot_histories
    from flower_fedcon.experiments.runner import histories_of

    for path in output:
        check_figure(path, x)
    histories, seeds = histories_of(run_dirs)
    plot_histories(histories, output, x=x, y=y, seeds=seeds)
    for path in output:
        say(f"figure: {path}")


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Benchmarks; by default those of a minute or less.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, to see that it works.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="A .png, .pdf or .svg file, for the cost curves.")
    ] = None,
) -> None:
    """Time this machine: ratios to hand-written loops, medians and quartiles."""
    from flower_fedcon.benchmarks import run as measure
    from flower_fedcon.benchmarks import to_json
    from flower_fedcon.benchmarks.figure import plot_curves
    from flower_fedcon.experiments.figures import check_figure
    from flower_fedcon.runs.directory import write_text

    if figure is not None:
        check_figure(figure)
    found = list(measure(names, quick=quick))
    rows = table("What", "Yardstick", "Ratio", "Quartiles", "Cost", "Target", right_from=2)
    for one in found:
        quartiles = f"{one.low:.3g} to {one.high:.3g}"
        cost = f"{one.cost:.3g} {one.unit}"
        rows.add_row(one.what, one.yardstick, f"{one.ratio:.3g}", quartiles, cost, one.target)
    console().print(rows)
    if output is not None:
        write_text(output, to_json(found))
        say(f"results: {output}")
    if figure is not None:
        say(f"figure: {plot_curves(found, figure)}")
