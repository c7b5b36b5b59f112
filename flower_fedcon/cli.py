"""The command `fedcon`: list the collection, run and compare experiments, draw their figures."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from flower_fedcon.console import console, progress, quiet, results, say, table
from flower_fedcon.errors import ConfigError, FedConError

if TYPE_CHECKING:
    from flower_fedcon.experiments import Experiment
    from flower_fedcon.history import History, Record
    from flower_fedcon.problem import FederatedProblem

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


class _InterruptedError(Exception):
    """Ctrl-C during a run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 2 for the user's errors, 130 for Ctrl-C."""
    args = None if arguments is None else list(arguments)
    try:
        code = app(args, prog_name="fedcon", standalone_mode=False)
    except (FedConError, _UsageError) as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        return _complain(f"error: {text}", 2) if text else 2  # empty: the help was shown
    except _InterruptedError as error:
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
    from flower_fedcon.registry import strategy_class
    from flower_fedcon.tables import parameter_texts, parameters

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
        from flower_fedcon.tables import wire_sizes

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
    experiment = _load(file, engine, rounds, seed, set_)
    safety = _Safety(resume, checkpoint_every, tuple(allow_change or ()))
    _run_all(experiment, _folder(file, run_dir, resume), safety, compare=False)


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
    experiment = _load(file, engine, rounds, seed, set_)
    safety = _Safety(resume, checkpoint_every, tuple(allow_change or ()))
    if seeds is None:
        _run_all(experiment, _folder(file, run_dir, resume), safety, compare=True)
        return
    from flower_fedcon.seeds import parse

    if seed is not None:
        raise ConfigError("give --seed or --seeds, not both")
    each = {number: _load(file, engine, rounds, number, set_) for number in parse(seeds)}
    _run_seeds(each, _folder(file, run_dir, resume), safety)


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
    from flower_fedcon import tune as tuning
    from flower_fedcon.rundir import write_text

    experiment = _load(file, None, rounds, seed, set_)
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
    from flower_fedcon import reproduce as claims

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
            _write(path, text)
    if any(verdict.verdict == "fail" for verdict in outcome.verdicts):
        raise typer.Exit(1)


@app.command()
def plot(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders of runs or comparisons.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .pdf or .svg file.")],
    x: Annotated[
        str | None, typer.Option(help="Panels: rounds, bytes, seconds; by default all.")
    ] = None,
) -> None:
    """Draw the histories of runs in one figure."""
    from flower_fedcon.plotting import check_figure, plot_histories
    from flower_fedcon.rundir import HISTORY

    check_figure(output, x)
    histories: dict[str, list[Record]] = {}
    for given in run_dirs:
        found = [given] if (given / HISTORY).exists() else _parts(given)
        if not found:
            raise ConfigError(f"{given} holds no run: there is no {HISTORY} in it")
        for folder in found:
            label = base = _label(folder)
            if label in histories:
                label = base = f"{base} ({folder})"
            number = 2
            while label in histories:
                label, number = f"{base} {number}", number + 1
            histories[label] = _rows(folder / HISTORY)
    say(f"figure: {plot_histories(histories, output, x=x)}")


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks; by default all.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, to see that it works.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file.")] = None,
) -> None:
    """Time this machine: ratios to hand-written loops, medians and quartiles."""
    from flower_fedcon.benchmarks import run as measure
    from flower_fedcon.benchmarks import to_json
    from flower_fedcon.rundir import write_text

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


# --- runs ----------------------------------------------------------------------------------------


def _load(
    file: Path, engine: str | None, rounds: int | None, seed: int | None, settings: list[str] | None
) -> Experiment:
    from flower_fedcon.experiments import Experiment

    options = {"rounds": rounds, "seed": seed, "engine": engine}
    overrides = [f"run.{key}={value}" for key, value in options.items() if value is not None]
    return Experiment.load(file, [*(settings or []), *overrides])


class _Safety(NamedTuple):
    """What `simulate` takes for runs that may be interrupted."""

    resume: bool
    checkpoint_every: int | None
    allow_changes: tuple[str, ...]


def _run_all(experiment: Experiment, folder: Path, safety: _Safety, *, compare: bool) -> None:
    from flower_fedcon.plotting import plot_histories
    from flower_fedcon.rundir import CONFIG, FIGURE, write_text

    problem = experiment.problem()
    strategies = experiment.strategies()
    if not compare:
        strategies = dict(list(strategies.items())[:1])
    _find_optimum(experiment, problem)
    histories: dict[str, History] = {}
    for index, label in enumerate(strategies):
        target = folder / _slug(label, strategies) if compare else folder
        if not (safety.resume and (target / CONFIG).exists()):
            _make(target)
            write_text(target / CONFIG, experiment.to_toml(index))
        with _labelled(label if compare else ""):
            histories[label] = _play(experiment, index, label, target, safety)
    if compare and not safety.resume:
        write_text(folder / CONFIG, experiment.to_toml())
    rows = {label: history.rows for label, history in histories.items() if len(history)}
    if rows:
        console().print(results(rows, problem))
        for label, records in rows.items():
            if dropped := records[-1]["dropped"]:
                say(f"{label}: {dropped:g} replies were dropped, see history.csv")
        title = experiment.title or Path(experiment.source).stem
        say(f"figure:    {plot_histories(rows, folder / FIGURE, title=title)}")
    say(f"directory: {folder}")


def _run_seeds(each: dict[int, Experiment], folder: Path, safety: _Safety) -> None:
    """Run a comparison for several seeds, in folder/<algorithm>/seed-<seed>."""
    from flower_fedcon.plotting import plot_histories
    from flower_fedcon.rundir import CONFIG, FIGURE, write_text
    from flower_fedcon.seeds import mean

    first = next(iter(each.values()))
    _find_optimum(first, first.problem())
    runs: dict[str, list[Sequence[Record]]] = {label: [] for label in first.labels}
    for index, label in enumerate(first.labels):
        for seed, experiment in each.items():
            target = folder / _slug(label, first.labels) / f"seed-{seed}"
            if not (safety.resume and (target / CONFIG).exists()):
                _make(target)
                write_text(target / CONFIG, experiment.to_toml(index))
            with _labelled(f"{label}, seed {seed}"):
                history = _play(experiment, index, f"{label}, seed {seed}", target, safety,
                                problem=first.problem())  # fmt: skip
                runs[label].append(history.rows)
    if not (folder / CONFIG).exists():
        write_text(folder / CONFIG, first.to_toml())
    means = {label: mean(rows) for label, rows in runs.items() if all(rows)}
    if means:
        console().print(results(means, first.problem(), runs))
        title = first.title or Path(first.source).stem
        say(f"figure:    {plot_histories(means, folder / FIGURE, title=title, seeds=runs)}")
    say(f"directory: {folder}")


def _write(path: Path, text: str) -> None:
    from flower_fedcon.rundir import write_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _find_optimum(experiment: Experiment, problem: FederatedProblem) -> None:
    if not experiment.reference:
        return
    began = time.perf_counter()
    try:
        optimum = problem.optimum
    except FedConError as error:
        raise type(error)(f"{error}; or do without F - F*: --set problem.reference=false") from None
    seconds = time.perf_counter() - began
    say(f"reference optimum F* = {optimum.value:.8g} ({optimum.method}, {seconds:.1f} s)")


def _play(
    experiment: Experiment,
    index: int,
    label: str,
    folder: Path,
    safety: _Safety,
    problem: FederatedProblem | None = None,
) -> History:
    from flower_fedcon.history import History
    from flower_fedcon.rundir import HISTORY
    from flower_fedcon.simulation import simulate

    options = experiment.run_options
    if options.engine == "stacked":  # beside the log, which is kept quiet below
        from flower_fedcon.engines.stacked import obstacle

        reason = obstacle(experiment.strategy(index), problem or experiment.problem())
        if reason is not None:
            say(f"{label}: {reason}; running on the local engine")
    try:
        with progress(label, options.rounds) as show, quiet(options.engine != "ray"):
            return simulate(
                experiment.strategy(index),
                problem or experiment.problem(),
                options.rounds,
                engine=options.engine,
                seed=options.seed,
                evaluate_every=options.evaluate_every,
                run_dir=folder,
                callbacks=(show,),
                **safety._asdict(),
            )
    except KeyboardInterrupt:
        rows = History.read_rows(folder / HISTORY) if (folder / HISTORY).exists() else []
        done = int(rows[-1]["round"]) if rows else 0
        raise _InterruptedError(
            f"interrupted: {label} is recorded up to round {done} of {options.rounds} in {folder}; "
            f"go on with --resume --run-dir {folder}"
        ) from None


# --- folders -------------------------------------------------------------------------------------


def _folder(file: Path, run_dir: Path | None, resume: bool) -> Path:
    """Return the run directory: the one asked for, or a new one."""
    if run_dir is not None:
        if not resume and _holds_run(run_dir):
            raise ConfigError(
                f"{run_dir} holds a run already: choose another --run-dir, or remove it"
            )
        return run_dir
    folder = first = Path("runs") / file.stem
    number = 2
    while not resume and _holds_run(folder):
        folder, number = first.with_name(f"{first.name}-{number}"), number + 1
    return folder


def _holds_run(folder: Path) -> bool:
    from flower_fedcon.rundir import HISTORY

    return (folder / HISTORY).exists() or bool(_parts(folder))


def _parts(folder: Path) -> list[Path]:
    """Return the runs of a comparison."""
    from flower_fedcon.rundir import HISTORY

    found = [*folder.glob(f"*/{HISTORY}"), *folder.glob(f"*/seed-*/{HISTORY}")]
    return sorted(path.parent for path in found)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot make the run directory {folder}: {reason}") from None


def _slug(label: str, labels: Sequence[str] | dict[str, Any]) -> str:
    """Return the folder name of a label, different from those of the others."""
    used: list[str] = []
    for other in labels:
        slug = base = re.sub(r"[^a-z0-9]+", "-", other.lower()).strip("-") or "run"
        number = 2
        while slug in used:
            slug, number = f"{base}-{number}", number + 1
        if other == label:
            return slug
        used.append(slug)
    raise KeyError(label)


def _label(folder: Path) -> str:
    """Return what a run directory's configuration calls its algorithm."""
    import tomllib

    from flower_fedcon.rundir import CONFIG

    try:
        table = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))["algorithm"]
        return str(table.get("label") or table["name"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return folder.name


def _rows(path: Path) -> list[Record]:
    from flower_fedcon.history import History

    try:
        return History.read_rows(path)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


@contextmanager
def _labelled(label: str) -> Iterator[None]:
    from flower_fedcon.tables import context

    if not label:
        yield
        return
    with context(label):
        yield
