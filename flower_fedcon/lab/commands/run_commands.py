"""`fedcon run`, `compare`, `tune` and `plot`: experiments and their figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.commands.options import (
    File,
    Rounds,
    RunArguments,
    Seed,
    Set,
    XLim,
    YLim,
    spread,
)
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, say, table

if TYPE_CHECKING:
    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.lab.experiments.run_tables import TuningOptions
    from flower_fedcon.lab.experiments.tuning import Point


@spread
def run(arguments: RunArguments) -> None:
    """Run an experiment's algorithm."""
    from flower_fedcon.lab.experiments.comparison import run_one
    from flower_fedcon.lab.experiments.inputs import say_what_changed

    experiment = arguments.experiment()
    if not experiment.sweep:  # which this command does not play
        say_what_changed(arguments.file, experiment)
    run_one(experiment, arguments.plan(experiment), arguments.tracking)


@spread
def compare(
    arguments: RunArguments,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,2",
            help="Run each of these seeds, such as 0,1,2; the mean and the range are shown. "
            "problem:0,1,2 varies the problem's seed, both:0,1,2 the run's and the problem's.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of processes of a study.")] = 2,
) -> None:
    """Run every algorithm of an experiment on the same problem.

    A file with a table named sweep is a study: every algorithm runs with every combination of the
    table's values, spread over processes. The exit code is 1 if a run of a study fails.
    """
    from flower_fedcon.lab.experiments.comparison import run_all, run_seeds
    from flower_fedcon.lab.experiments.inputs import say_what_changed
    from flower_fedcon.lab.experiments.seed_statistics import parse_seeds
    from flower_fedcon.lab.experiments.study import run_study

    experiment = arguments.experiment()
    say_what_changed(arguments.file, experiment)
    arguments.say_whose_settings(experiment)
    if experiment.sweep:
        arguments.refuse_of_study(seeds)
        folder = Path(arguments.plan(experiment).run_dir or "")
        if not run_study(experiment, folder, workers=workers):
            raise typer.Exit(1)
        return
    if seeds is None:
        run_all(experiment, arguments.plan(experiment), arguments.tracking)
        return
    if arguments.seed is not None:
        raise ConfigError("give --seed or --seeds, not both")
    numbers, tables = parse_seeds(seeds)
    seeded = {seed: experiment.seeded(seed, tables) for seed in numbers}
    run_seeds(seeded, arguments.plan(experiment), arguments.tracking)


def tune(
    file: File,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Values of a setting; may be repeated. "
                     "By default the grids in the file."),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(help="Label of an algorithm; may be repeated. By default the file's first, or "
                     "with the file's grids every one that has a grid."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="Run each of these seeds, such as 0,1,2; the mean "
                                           "decides, and the range is shown."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Column of the history to compare by; by default residual.")
    ] = None,
    largest: Annotated[bool, typer.Option("--largest", help="The largest value is best.")] = False,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    rounds: Rounds = None,
    seed: Seed = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs, with a subfolder for each algorithm; by default "
                          "runs/<file name>-tune. Finished runs are not repeated."),
    ] = None,
    set_: Set = None,
) -> None:  # fmt: skip
    """Run an algorithm with every combination of some settings; write the best to best.toml.

    The exit code is 1 if no run reached the level that the file asks for. With the file's grids it
    is 1, too, if a setting in the file is not the best of its grid, or lies at an end of it.
    """
    from flower_fedcon.lab.experiments import tuning
    from flower_fedcon.lab.experiments.folders import label_slug
    from flower_fedcon.lab.experiments.run_tables import TuningOptions
    from flower_fedcon.lab.experiments.seed_statistics import parse

    experiment = RunArguments(file, rounds=rounds, seed=seed, set_=set_).experiment()
    options = experiment.tuning
    if metric is not None or largest:
        options = TuningOptions(metric=metric or options.metric, largest=largest)
    if seeds is not None and seed is not None:
        raise ConfigError("give --seed or --seeds, not both")
    numbers = None if seeds is None else parse(seeds)
    folder = run_dir or Path("runs") / f"{file.stem}-tune"

    def home(label: str) -> Path:
        say(f"{label}:")
        return folder / label_slug(label, experiment.labels)

    if grid:
        points = tuning.grid(grid)
        chosen = {label: experiment.only(label) for label in algorithm or experiment.labels[:1]}
        arrived = [
            any(
                point.arrived
                for point in _tune(alone, points, home(label), options, workers, numbers)
            )
            for label, alone in chosen.items()
        ]
        if not all(arrived):
            raise typer.Exit(1)
        return
    labels = algorithm or [x for x in experiment.labels if experiment.grid(x)]
    if not labels:
        tuning.file_grid(experiment, experiment.labels[0])  # raises
    if rounds is None and options.rounds is not None:
        experiment = RunArguments(
            file, rounds=options.rounds, seed=seed, set_=set_
        ).experiment()  # fmt: skip
    wrong = []
    for label in labels:
        points = tuning.file_grid(experiment, label)
        tried = _tune(experiment.only(label), points, home(label), options, workers, numbers)
        wrong += tuning.faults(experiment, label, tried, options)
    for text in wrong:
        say(text)
    if wrong:
        raise typer.Exit(1)


def _tune(
    experiment: Experiment,
    points: list[dict[str, str]],
    folder: Path,
    options: TuningOptions,
    workers: int,
    seeds: list[int] | None,
) -> list[Point]:
    """Tune one algorithm, and show and write what was found."""
    from flower_fedcon.lab.experiments import tuning
    from flower_fedcon.wire.whole_files import write_text

    tried, best = tuning.tune(
        experiment, points, folder, options=options, seeds=seeds, workers=workers, say=say
    )
    rows = table(*points[0], options.title.replace("_", " ").capitalize(), right_from=0)
    for point in sorted(tried, key=lambda point: point.rank(options)):
        rows.add_row(*point.settings.values(), str(point))
    console().print(rows)
    if best is None:
        first = tuning.best(tried, options)[0]
        say(
            f"no best.toml was written: no run brought {options.metric} down to {options.level:g}; "
            f"the nearest was {tuning.describe(first.settings)}. Try more --rounds or a higher "
            f"level"
        )
        (folder / "best.toml").unlink(missing_ok=True)  # of an earlier search
        return tried
    write_text(folder / "best.toml", best.to_toml(0))
    say(f"best:      {folder / 'best.toml'}")
    return tried


def plot(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs or comparisons. Files are skipped, so DIR/* works."),
    ],
    output: Annotated[
        list[Path],
        typer.Option("--output", "-o", help="A .png, .pdf or .svg file; may be repeated."),
    ],
    x: Annotated[
        list[str] | None,
        typer.Option(
            help="Panels, separated by commas: rounds, bytes (up and down, with the headers of "
            "arrays; drawn in megabytes), seconds, simulated, gradients, "
            "examples. Default: those of the first four that were recorded. May be repeated."
        ),
    ] = None,
    y: Annotated[
        str | None,
        typer.Option(
            help="Column of the histories; by default F - F*, or F where F* is not known. Its axis "
            "is logarithmic if all values are positive and span more than two decades."
        ),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="Use a logarithmic axis for y; values <= 0 become gaps.")
    ] = False,
    xlim: XLim = None,
    ylim: YLim = None,
    panel: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Draw a panel for each value of a setting, such as participation or problem.seed.",
        ),
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            help="Width of the figure in inches, with letters for print; many journals have "
            "columns of 3.3."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="For runs on tables, instead of histories: forest (coefficients or ratios with "
            "intervals), sites (a forest plot by site of each column), roc, calibration, survival."
        ),
    ] = None,
) -> None:
    """Draw histories of runs, with bands over seeds, or results of runs on tables."""
    from flower_fedcon.lab.experiments.figures import check_figure, parse_limits, plot_histories
    from flower_fedcon.lab.experiments.histories import histories_of, panels_of
    from flower_fedcon.validation import positive

    if width is not None:
        positive("--width", width)

    against = ",".join(x) if x else None
    for path in output:
        check_figure(path, against)
    folders = [path for path in run_dirs if not path.is_file()]  # DIR/* names files too
    if not folders:
        raise ConfigError(f"{run_dirs[0]} is a file: name the folder of a run or of a comparison")
    if len(folders) < len(run_dirs):
        names = ", ".join(path.name for path in run_dirs if path.is_file())
        say(f"skipped, since they are not folders: {names}")
    if kind is not None:
        from flower_fedcon.lab.report.study_figures import plot_study

        if x or y or log or panel or xlim or ylim:
            raise ConfigError(
                "--kind draws no history: leave --x, --y, --log, --panel, --xlim and --ylim out"
            )
        plot_study(folders, kind, output, width)
        for path in output:
            say(f"figure: {path}")
        return
    histories, seeds = histories_of(folders)
    by = None if panel is None else panels_of(folders, panel)
    plot_histories(
        histories, output, x=against, y=y, seeds=seeds, by=by, width=width, log=log, say=say,
        xlim=parse_limits("xlim", xlim), ylim=parse_limits("ylim", ylim),
    )  # fmt: skip
    for path in output:
        say(f"figure: {path}")


COMMANDS = {
    "run": Command(
        run,
        50,
        "fedcon run sims/fedfw_lasso.toml --rounds 200",
        "fedcon run sims/fedfw_lasso.toml --set algorithm.penalty=2 --run-dir runs/lasso",
        "fedcon run sims/fedfw_lasso.toml --run-dir runs/lasso --resume",
        "fedcon run sims/fedfw_lasso.toml --until fw_gap=1 --budget seconds=60",
    ),
    "compare": Command(
        compare,
        60,
        "fedcon compare sims/digits_l1.toml",
        "fedcon compare sims/digits_l1.toml --rounds 100 --seeds 0,1,2",
    ),
    "tune": Command(
        tune,
        70,
        "fedcon tune sims/digits_l1.toml --grid client_lr=0.1,0.2,0.5 --rounds 100",
        "fedcon tune sims/digits_l1.toml",
    ),
    "plot": Command(
        plot,
        120,
        "fedcon plot runs/lasso runs/lasso-2 -o residual.png",
        "fedcon plot runs/digits_l1 -o accuracy.pdf --x rounds --y test_accuracy",
        "fedcon plot runs/lasso -o residual.pdf --x rounds --xlim 0,200 --ylim 1e-6,",
        "fedcon plot runs/readmission --kind forest -o forest.pdf -o forest.svg",
    ),
}
