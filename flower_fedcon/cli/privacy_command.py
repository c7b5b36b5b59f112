"""`fedcon privacy`: the epsilon spent by examples and clients, and its audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.cli.options import File, Set, examples
from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.console import console, say, steps, table

app = typer.Typer(
    help="Show how much privacy is spent, and audit private mechanisms.", no_args_is_help=True
)


@app.callback()
def privacy() -> None:
    """Show how much privacy is spent, and audit private mechanisms."""


@app.command(epilog=examples("fedcon privacy spent state", "fedcon privacy spent runs/private"))
def spent(
    folder: Annotated[
        Path,
        typer.Argument(help="A node's state-dir, or the directory of a run.", metavar="FOLDER"),
    ],
    delta: Annotated[
        float | None,
        typer.Option(help="The delta of epsilon, in (0, 1); by default the ledger's target_delta."),
    ] = None,
) -> None:
    """Show the epsilon that each client's examples have spent, over all runs.

    A ledger belongs to rows, which it recognises. So it continues under another name of client or
    run, and adds up studies with different noise. The ledgers have numbers, since their names in
    the folder are digests of the rows, which no noise protects. Where clients add noise to sums
    over whole clients, a node's ledger also counts these sums, with the least noise that the keys
    guarantee. For a run with noise for whole clients (GaussianDP) the command shows what its rounds
    so far have spent.
    """
    from flower_fedcon.core.private import epsilon_of
    from flower_fedcon.privacy.examples import ExampleDP
    from flower_fedcon.privacy.ledger import NOISY_SUMS, Ledger, SumsLedger
    from flower_fedcon.runs.asked_rounds import account
    from flower_fedcon.wire.ledgers import spent_in, understood

    shown = table("ledger", "gradients", "noise", "epsilon", "delta", "budget", right_from=1)
    clients = account(folder)
    if "sums" in clients:
        at = delta or clients["target_delta"]
        mechanism, most = clients["mechanism"], clients["budget"]
        shown.add_row(
            "a client",
            f"{clients['rounds']} rounds",
            f"{clients['noise']:g}"
            + (f" {mechanism}" if mechanism != "independent" else "")
            + (" by clients" if clients.get("noise_by") == "clients" else ""),
            f"{epsilon_of({**clients, 'target_delta': at}):.4g}",
            f"{at:g}",
            "" if most is None else f"{most:g}",
        )
    sums = sorted((folder / NOISY_SUMS).glob("[!.]*"))
    for number, path in enumerate(sums, 1):
        if path.is_file():
            known, at = SumsLedger(path.read_text(), str(path)), delta or 1e-5
            least = ", ".join(f"{noise:.4g}" for noise in sorted(known.sums))
            shown.add_row(
                f"a client, {number}", f"{known.sums.total()} sums", f"{least} by clients",
                f"{known.epsilon(at):.4g}", f"{at:g}", "",
            )  # fmt: skip
    found = spent_in(folder, least=0 if "sums" in clients or sums else 1)
    for number, (_, entries) in enumerate(sorted(found.items()), 1):
        with understood(folder):
            at = delta or entries.get("target_delta") or 1e-5
            ledger = Ledger(ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=at))
            ledger.take(entries)
        noises = ", ".join(f"{noise:g}" for noise in sorted({z for z, _ in ledger.gradients}))
        budget = entries.get("budget")
        shown.add_row(
            f"rows {number}",
            str(ledger.gradients.total()),
            noises,
            f"{ledger.epsilon:.4g}",
            f"{at:g}",
            "" if budget is None else f"{budget:g}",
        )
    console().print(shown)


@app.command(
    epilog=examples(
        "fedcon privacy audit private.toml",
        "fedcon privacy audit private.toml --rounds 10 --runs 20000 --seed 0 --json audit.json",
        "fedcon privacy audit node.toml --rows 5000",
    )
)
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
        found = audit_of(games, runs, confidence, seed, tick)
    shown = table(
        "what", "one", "releases", "delta", "stated", "by counts", "by fit", "", right_from=2
    )
    for one in found:
        shown.add_row(
            one.label,
            one.unit,
            str(one.releases),
            f"{one.delta:g}",
            *(f"{value:.4g}" for value in (one.stated, one.by_counts, one.by_fit)),
            "holds" if one.holds else "EXCEEDED",
        )
    console().print(shown)
    for one in found:
        if one.silent:
            say(f"{one.label}: {one.silent} entries were sent without noise")
    say(f"lower bounds of epsilon, by counts and by fit, which hold together with confidence "
        f"{confidence:.0%}; {runs} runs with a canary and {runs} without")  # fmt: skip
    if json is not None:
        settings = {"file": str(file), "runs": runs, "seed": seed, "confidence": confidence}
        write_text(json, findings_json(found, **settings))
    if not all(one.holds for one in found):
        raise typer.Exit(1)
