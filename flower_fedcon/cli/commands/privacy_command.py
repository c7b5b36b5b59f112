"""`fedcon privacy spent`: the epsilon that examples and clients have spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, table


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
            counted, at = SumsLedger(path.read_text(), str(path)), delta or 1e-5
            least = ", ".join(f"{noise:.4g}" for noise in sorted(counted.sums))
            shown.add_row(
                f"a client, {number}", f"{counted.sums.total()} sums", f"{least} by clients",
                f"{counted.epsilon(at):.4g}", f"{at:g}", "",
            )  # fmt: skip
    ledgers = spent_in(folder, least=0 if "sums" in clients or sums else 1)
    for number, (_, entries) in enumerate(sorted(ledgers.items()), 1):
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


COMMANDS = {
    "privacy spent": Command(
        spent, 220, "fedcon privacy spent state", "fedcon privacy spent runs/private"
    )
}
