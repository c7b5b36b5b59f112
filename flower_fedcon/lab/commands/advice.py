"""`fedcon recommend`: which methods to try on a problem."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.commands.options import Set
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, say, table

if TYPE_CHECKING:
    from flower_fedcon.core.participation import Participation
    from flower_fedcon.lab.advice.candidates import Candidate
    from flower_fedcon.lab.advice.studies import Study
    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.problems.federated import FederatedProblem

_BEST = 3
# Takes the place of tables that a file with only a problem does not have.
_RUN = {"rounds": 200}
_ALGORITHM = {"name": "FedAvg", "client_lr": 1.0, "local_steps": 1, "on_mismatch": "warn"}


def recommend(
    file: Annotated[
        Path | None,
        typer.Argument(help="An experiment file, or a file that has only the table [problem]. "
                            "Without a file the command asks questions.",
                       show_default=False, metavar="PROBLEM"),
    ] = None,
    sample: Annotated[
        float | None, typer.Option(help="Share of the clients in a round. Default: the file's.")
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="A client's bandwidth in megabytes per second. With it methods are "
                          "ranked by bytes."),
    ] = None,
    try_: Annotated[
        int, typer.Option("--try", help="Run every method that fits for so many rounds, and rank "
                                        "the methods by the result.")
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the best methods to this experiment file."),
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option(help="Only renew the figures: measure them in the studies of this folder, "
                          "such as sims, and write them to --output."),
    ] = None,
    set_: Set = None,
) -> None:  # fmt: skip
    """Recommend methods for a problem, with the reasons and the cost in the nearest study.

    Methods declare the problems that they solve, and only those that solve this one are listed. The
    figures come from the studies in sims/. The first step sizes follow from L and mu.
    """
    if measure is not None:
        _measure(measure, output)
        return
    from flower_fedcon.lab.advice.candidates import candidates
    from flower_fedcon.lab.advice.facts import facts_of
    from flower_fedcon.lab.advice.studies import nearest
    from flower_fedcon.validation import count, positive

    if bandwidth is not None:
        positive("bandwidth", bandwidth)
    if output is not None and output.exists():
        raise ConfigError(f"{output} exists already: give -o another name, or remove the file")
    experiment, problem, participation = _read(file, sample, set_)
    if experiment is None and output is not None:
        raise ConfigError(
            "-o needs a problem file, since answers to questions describe no problem "
            "that can be run: give the file as the first argument"
        )
    facts = facts_of(problem, participation)
    for line in facts.lines():
        say(line)
    study, by_bytes = nearest(facts), bandwidth is not None
    fitting, others = candidates(problem, participation, facts, study, by_bytes=by_bytes)
    if not fitting:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in others.items())
        raise ConfigError(f"no method fits this problem. {reasons}")
    if try_:
        fitting = _try(problem, fitting, count("try", try_), by_bytes)
    best = fitting[:_BEST]
    _show(best, study, bandwidth)
    say(f"{len(fitting)} methods fit, {len(others)} do not:")
    for name, reason in others.items():
        say(f"  {name}: {reason}")
    if experiment is None:
        shown = study.command if study else "fedcon list"
        say(f"to see them run: {shown}")
        return
    _write(experiment, best, participation, output, file)


def _read(
    file: Path | None, sample: float | None, set_: list[str] | None
) -> tuple[Experiment | None, FederatedProblem, Participation]:
    """Return the problem that the file or the answers describe."""
    from flower_fedcon.core.participation import Sample
    from flower_fedcon.lab.advice.ask import ask_problem
    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.runs.toml import read_toml

    if file is None:
        if not sys.stdin.isatty():
            raise ConfigError(
                "no problem was given: name an experiment file, or run the command in a terminal, "
                "where it asks questions"
            )
        problem, rule = ask_problem(lambda text, default: typer.prompt(text, default=default))
        return None, problem, rule
    tables = {"run": _RUN, "algorithm": _ALGORITHM, **read_toml(file)}
    experiment = Experiment(tables, str(file), set_ or [])
    stated = experiment.participation()
    rule = stated if sample is None else Sample(fraction=sample)
    return experiment, experiment.problem(), rule


def _show(best: list[Candidate], study: Study | None, bandwidth: float | None) -> None:
    rows = table("Method", "First settings", "In the nearest study", "Why")
    for each in best:
        settings = "\n".join(f"{k} = {_brief(v)}" for k, v in each.settings.items())
        why = "\n".join(each.why)
        rows.add_row(each.kind.__name__, settings or "its defaults", _cost(each, study, bandwidth),
                     why)  # fmt: skip
    console().print(rows)
    if study is None:
        say("no study has a problem of this kind: --try 50 ranks the methods on this one")
    else:
        case = study.facts
        alike = f"{case.term or 'no'} regularizer, {case.clients} clients, {100 * case.rate:.3g} %"
        say(f"nearest study: {study.name} ({alike} of them in a round); rounds and megabytes until "
            f"{100 * study.level:g} % of F(x0) - F* are left, each method with its own tuned "
            f"settings there: {study.command}")  # fmt: skip


def _cost(each: Candidate, study: Study | None, bandwidth: float | None) -> str:
    """Return a candidate's rounds and megabytes in the study, in words."""
    if study is None or each.measured is None:
        return "not in it" if study else "no study"
    measured = each.measured
    if measured.rounds is None or measured.megabytes is None:
        return f"not within {study.limit} rounds"
    text = f"{measured.rounds} rounds, {measured.megabytes:.4g} MB"
    if bandwidth is not None:
        megabytes = measured.megabytes / (study.facts.clients * study.facts.rate)
        text += f",\n{megabytes / bandwidth:.3g} s of transfer\nfor a client that is always in"
    return text


def _try(
    problem: FederatedProblem, found: list[Candidate], rounds: int, by_bytes: bool
) -> list[Candidate]:
    """Run the candidates, show their results, and return those that ran, best first."""
    from flower_fedcon.lab.advice.trial import UNDECIDED, WORTH, try_out

    trials = try_out(problem, found, rounds, by_bytes=by_bytes, say=say)
    rows = table("Method", "Chosen", "Objective", "F - F*", "Infeasible by", "MB", "Seconds",
                 right_from=2)  # fmt: skip
    for trial in trials:
        name, last = trial.candidate.kind.__name__, trial.last
        if trial.error:
            rows.add_row(name, "", "failed", "", "", "", f"{trial.seconds:.2f}")
            continue
        size = (last["uplink_bytes"] + last["downlink_bytes"]) / 1e6
        gap = f"{last['residual']:.3g}" if "residual" in last else ""
        rows.add_row(name, trial.chosen, f"{last['objective']:.6g}", gap,
                     f"{trial.infeasible:.2g}", f"{size:.4g}", f"{trial.seconds:.2f}")  # fmt: skip
    if rounds < WORTH:
        say(f"after {rounds} rounds with the first settings; from --try {WORTH} on races choose "
            f"the steps:")  # fmt: skip
    else:
        say(f"after {rounds} rounds, those of the races for steps among them:")
    console().print(rows)
    if any(trial.chosen == UNDECIDED for trial in trials):
        say(f'"{UNDECIDED}": the race for the step takes more than {rounds} rounds; try more')
    ran = [trial.candidate for trial in trials if not trial.error]
    if not ran:
        raise ConfigError(f"no method ran for {rounds} rounds: {trials[0].error}")
    return ran


def _write(
    experiment: Experiment,
    best: list[Candidate],
    participation: Participation,
    output: Path | None,
    file: Path | None,
) -> None:
    """Write the best method as an experiment, or say how."""
    from flower_fedcon.lab.experiments.folders import write
    from flower_fedcon.runs.toml import tabled

    if output is None:
        say(f"to run them: fedcon recommend {file} -o best.toml && fedcon compare best.toml")
        return
    tables: list[dict[str, Any]] = [
        {"name": each.kind.__name__, "participation": tabled(participation), **each.settings}
        for each in best
    ]
    write(output, experiment.with_algorithms(tables).to_toml())
    say(f"to run them: fedcon compare {output}")


def _measure(sims: Path, output: Path | None) -> None:
    from flower_fedcon.lab.advice.studies import measure
    from flower_fedcon.lab.experiments.folders import write

    if output is None:
        raise ConfigError("--measure needs -o, the file for its figures")
    write(output, measure(sims, say=say))
    say(f"figures: {output}")


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


COMMANDS = {
    "recommend": Command(
        recommend,
        40,
        "fedcon recommend sims/digits_l1.toml",
        "fedcon recommend sims/fedfw_lasso.toml --sample 0.5 --try 50 -o best.toml",
        "fedcon recommend --measure sims -o studies.json",
    )
}
