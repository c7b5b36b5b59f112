"""`fedcon run`, `compare`, `tune` and `plot`: experiments, and what they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.cli.options import File, Rounds, RunArguments, Seed, Set, spread
from flower_fedcon.errors import ConfigError
from flower_fedcon.experiments.console import console, say, table


@spread
def run(arguments: RunArguments) -> None:
    """Run an experiment's algorithm."""
    from flower_fedcon.experiments.comparison import run_one

    experiment = arguments.experiment()
    run_one(experiment, arguments.plan(experiment))


@spread
def compare(
    arguments: RunArguments,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="Run each seed; the mean and the range are shown."),
    ] = None,
) -> None:
    """Run every algorithm of an experiment on the same problem."""
    from flower_fedcon.experiments.comparison import run_all, run_seeds
    from flower_fedcon.experiments.seed_statistics import parse

    experiment = arguments.experiment()
    if seeds is None:
        run_all(experiment, arguments.plan(experiment))
        return
    if arguments.seed is not None:
        raise ConfigError("give --seed or --seeds, not both")
    seeded = {seed: experiment.seeded(seed) for seed in parse(seeds)}
    run_seeds(seeded, arguments.plan(experiment))


def tune(
    file: File,
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
    rounds: Rounds = None,
    seed: Seed = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs; by default runs/<file name>-tune. "
                     "Finished runs in it are not repeated."),
    ] = None,
    set_: Set = None,
) -> None:  # fmt: skip
    """Run an algorithm with every combination of some settings, and write the best one."""
    from flower_fedcon.experiments import tuning
    from flower_fedcon.runs.directory import write_text

    experiment = RunArguments(file, rounds=rounds, seed=seed, set_=set_).experiment()
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
    from flower_fedcon.experiments.histories import histories_of

    for path in output:
        check_figure(path, x)
    histories, seeds = histories_of(run_dirs)
    plot_histories(histories, output, x=x, y=y, seeds=seeds)
    for path in output:
        say(f"figure: {path}")
