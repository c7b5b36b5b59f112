"""`fedcon path`: the solutions for many weights of a regularizer, and the choice of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.commands.options import File, Rounds, Seed, Set
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, say, table

if TYPE_CHECKING:
    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.paths import CrossValidation, RegularizationPath
    from flower_fedcon.problems.federated import FederatedProblem
    from flower_fedcon.regularizers import Regularizer

_SHOWN = 12  # points of a path that the table has


def path(
    file: File,
    num: Annotated[int, typer.Option(help="Number of weights on the path.")] = 100,
    min_ratio: Annotated[
        float, typer.Option(help="The smallest weight, relative to the largest.")
    ] = 1e-3,
    folds: Annotated[
        int,
        typer.Option(
            help="Number of folds in each client for cross-validation; 0 means no cross-validation."
        ),
    ] = 0,
    stability: Annotated[
        int,
        typer.Option(
            help="Stability selection with this many complementary pairs of half samples in each "
            "client; 0 means none."
        ),
    ] = 0,
    error: Annotated[
        float,
        typer.Option(help="Bound on the expected number of falsely selected columns."),
    ] = 1.0,
    tolerance: Annotated[
        float, typer.Option(help="KKT residual at which a weight's run stops.")
    ] = 1e-8,
    own: Annotated[
        bool,
        typer.Option(
            "--own-algorithm",
            help="Use the file's algorithm. By default a path uses FedNewton where objectives have "
            "Hessians.",
        ),
    ] = False,
    rounds: Rounds = None,
    seed: Seed = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write weights, residuals and all coefficients to this CSV file. Those of tables "
            "are per standard deviation, as the header says, unless standardize = false.",
        ),
    ] = None,
    set_: Set = None,
) -> None:
    """Solve a problem for many weights of its regularizer.

    With tables the weights are values of lambda, whatever l1 > 0 the file has. With other problems
    weights are multiples of the problem's regularizer. Each weight gets at most as many rounds as
    the file's table "run" says, with the cohorts of its algorithm. --stability instead shows how
    often each column is selected on half samples of the clients' rows.
    """
    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.paths import cross_validate, regularization_path
    from flower_fedcon.paths.path_report import coefficients, names_of, to_csv, unit_of
    from flower_fedcon.tables.default_method import default_strategy
    from flower_fedcon.wire.whole_files import write_text

    experiment = Experiment.load(file, set_ or ())
    problem, run = experiment.problem(), experiment.run_options
    options = {
        "num": num, "min_ratio": min_ratio, "tolerance": tolerance,
        "max_rounds": run.rounds if rounds is None else rounds,
        "seed": run.seed if seed is None else seed,
    }  # fmt: skip
    strategy = experiment.strategy()
    if not own:
        strategy = default_strategy(problem, strategy.participation)
    chosen: CrossValidation | None = None
    psi = _for_lambda(experiment)
    if stability:
        _show_stable(problem, psi, strategy, pairs=stability, error=error, **options)
        return
    weight = "weight" if psi is None else "lambda"
    if folds:
        chosen = cross_validate(problem, psi, strategy, folds=folds, **options)  # type: ignore[arg-type]
        solved = chosen.path
    else:
        solved = regularization_path(problem, psi, strategy, **options)  # type: ignore[arg-type]
    names, unit = names_of(problem), unit_of(problem)
    if psi is None:
        say(f"weights are multiples of the problem's own regularizer, {problem.regularizer!r}")
    _show(solved, chosen, weight.capitalize())
    if chosen is not None:
        place = chosen.one_standard_error
        say(f"{weight} {chosen.values[place]:.4g}, the largest within a standard error:")
        titles, body = coefficients(problem, chosen, place)
        rows = table(*titles, right_from=1)
        for cells in body:
            rows.add_row(*cells)
        console().print(rows)
    say(repr(solved if chosen is None else chosen))
    if output is not None:
        write_text(output, to_csv(names, solved, chosen, weight=weight, unit=unit))
        say(f"path: {output}")


def _show_stable(
    problem: FederatedProblem, psi: Regularizer | None, strategy: Any, **settings: Any
) -> None:
    """Show how often half samples select the columns, most frequent first."""
    from flower_fedcon.paths import stability_selection
    from flower_fedcon.paths.path_report import names_of

    stable = stability_selection(problem, psi, strategy, **settings)
    names = [name.partition(" [")[0] for name in names_of(problem)]
    names = list(dict.fromkeys(names)) if problem.preparation is not None else names
    rows = table("Column", "Share of half samples", "Selected", right_from=1)
    for k in sorted(range(len(stable.shares)), key=lambda k: (-stable.shares[k], k)):
        if stable.shares[k]:
            rows.add_row(names[k], f"{stable.shares[k]:.0%}", "yes" if k in stable.selected else "")
    console().print(rows)
    say(repr(stable))


def _for_lambda(experiment: Experiment) -> Regularizer | None:
    """Return tables' penalty for lambda = 1, so that a path's weights are lambda; or None."""
    problem, l1 = experiment.problem(), experiment.all_problem_arguments.get("l1")
    if problem.preparation is None or problem.regularizer is None or l1 is None:
        return None
    if not l1:
        raise ConfigError(
            "l1 = 0 in the file, and a path needs an l1 penalty: add --set problem.l1=1; any l1 > "
            "0 gives the same path"
        )
    return problem.regularizer.scaled(1.0 / l1)


def _show(solved: RegularizationPath, chosen: CrossValidation | None, weight: str) -> None:
    """Show some points of a path, including the first, the last and the chosen ones."""
    extra = () if chosen is None else ("Held-out loss", "")
    rows = table(weight, "Active", "KKT", "Rounds", "Bytes up", *extra, right_from=0)
    last = len(solved) - 1
    places = {round(i * last / max(1, min(_SHOWN, last))) for i in range(_SHOWN + 1)}
    marks: dict[int, str] = {}
    if chosen is not None:
        marks = {chosen.one_standard_error: "1se", chosen.best: "min"}
    for i in sorted({place for place in places if place <= last} | marks.keys()):
        cells = [
            f"{solved.values[i]:.4g}", str(solved.active[i].size), f"{solved.kkt[i]:.1e}",
            str(solved.rounds[i]), f"{solved.uplink_bytes[i]:,}",
        ]  # fmt: skip
        if chosen is not None:
            loss = f"{chosen.mean[i]:.4f} +- {chosen.standard_error[i]:.4f}"
            cells += [loss, marks.get(i, "")]
        rows.add_row(*cells)
    console().print(rows)


COMMANDS = {
    "path": Command(
        path,
        80,
        "fedcon path sims/digits_l1.toml --num 20 --folds 5 -o path.csv",
        needs=("paths",),
    )
}
