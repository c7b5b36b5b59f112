"""`fedcon privacy audit`: an audit of private mechanisms with canaries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.commands.options import File, Set
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, say, steps, table


def audit(
    file: File,
    runs: Annotated[
        int, typer.Option(help="Number of runs with a canary, and of runs without; at least 100.")
    ] = 4000,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Rounds of a run, by default the file's, at most 100. For a node's file the "
            "number of gradients, by default 1."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the noise; by default noise comes from the operating system."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence with which all lower bounds hold together.")
    ] = 0.99,
    rows: Annotated[
        int, typer.Option(help="For a node's file: the number of the node's rows.")
    ] = 1000,
    json: Annotated[Path | None, typer.Option(help="Write everything as JSON.")] = None,
    set_: Set = None,
) -> None:
    """Run a private mechanism many times with and without a canary; bound epsilon from below.

    FILE is an experiment whose algorithms have a GaussianDP or whose problem has private examples,
    or a node's configuration with a table named privacy. The canary is the worst case that the
    guarantee must cover: a client, or a row, whose every contribution is far longer than the clip.
    Clipping, grid, cohorts and noise are those of a run.

    There are two lower bounds. One follows from an attacker's errors (Clopper-Pearson), and holds
    for any noise. The other follows from the measured size of the noise (fit); it assumes normal
    noise, and finds fewer errors. The exit code is 1 if a bound exceeds the stated epsilon, or if
    an entry leaves without noise. A bound below the stated epsilon proves nothing: an audit finds
    errors, not their absence.
    """
    from flower_fedcon.lab.canaries.canary_audit import audit as audit_of
    from flower_fedcon.lab.canaries.canary_audit import findings_json, games_of
    from flower_fedcon.validation import count
    from flower_fedcon.wire.whole_files import write_text

    count("--runs", runs, minimum=100)
    count("--rows", rows, minimum=2)
    if rounds is not None:
        count("--rounds", rounds)
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence must be in [0.5, 1), got {confidence:g}")
    games = games_of(file, set_ or [], rounds, rows)
    with steps("playing", sum(game.releases for game in games)) as tick:
        findings = audit_of(games, runs, confidence, seed, tick)
    shown = table(
        "what", "one", "releases", "delta", "stated", "by counts", "by fit", "", right_from=2
    )
    for one in findings:
        shown.add_row(
            one.label,
            one.unit,
            str(one.releases),
            f"{one.delta:g}",
            *(f"{value:.4g}" for value in (one.stated, one.by_counts, one.by_fit)),
            "holds" if one.holds else "EXCEEDED",
        )
    console().print(shown)
    for one in findings:
        if one.silent:
            say(f"{one.label}: {one.silent} entries were sent without noise")
    say(f"lower bounds of epsilon, by counts and by fit, which hold together with confidence "
        f"{confidence:.0%}; {runs} runs with a canary and {runs} without")  # fmt: skip
    if json is not None:
        settings = {"file": str(file), "runs": runs, "seed": seed, "confidence": confidence}
        write_text(json, findings_json(findings, **settings))
    if not all(one.holds for one in findings):
        raise typer.Exit(1)


COMMANDS = {
    "privacy audit": Command(
        audit,
        221,
        "fedcon privacy audit private.toml",
        "fedcon privacy audit private.toml --rounds 10 --runs 20000 --seed 0 --json audit.json",
        "fedcon privacy audit node.toml --rows 5000",
    )
}
