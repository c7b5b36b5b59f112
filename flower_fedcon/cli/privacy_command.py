"""`fedcon privacy`: what has been spent of the privacy of examples, and of a run's clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon.cli.options import examples
from flower_fedcon.lab.experiments.console import console, table

app = typer.Typer(help="Privacy of examples, over all runs.", no_args_is_help=True)


@app.callback()
def privacy() -> None:
    """Privacy of examples, over all runs."""


@app.command(epilog=examples("fedcon privacy spent state", "fedcon privacy spent runs/private"))
def spent(
    folder: Annotated[
        Path,
        typer.Argument(help="A node's state-dir, or the directory of a run.", metavar="FOLDER"),
    ],
    delta: Annotated[
        float | None, typer.Option(help="In (0, 1); by default the ledger's target_delta.")
    ] = None,
) -> None:
    """Say how much privacy the examples of each client's data have spent, over all runs.

    A ledger is of rows, by their digest: it goes on whatever the client or the run is called, and
    adds up studies with other noise. Of a run whose server adds noise for whole clients
    (GaussianDP), say what its rounds so far have spent.
    """
    from flower_fedcon.core.private import epsilon_of
    from flower_fedcon.privacy.examples import ExampleDP
    from flower_fedcon.privacy.ledger import Ledger
    from flower_fedcon.runs.asked_rounds import account
    from flower_fedcon.wire.ledgers import spent_in, understood

    shown = table("data", "gradients", "noise", "epsilon", "delta", "budget", right_from=1)
    clients = account(folder)
    if "sums" in clients:
        at = delta or clients["target_delta"]
        mechanism, most = clients["mechanism"], clients["budget"]
        shown.add_row(
            "a client",
            f"{clients['rounds']} rounds",
            f"{clients['noise']:g}" + (f" {mechanism}" if mechanism != "independent" else ""),
            f"{epsilon_of({**clients, 'target_delta': at}):.4g}",
            f"{at:g}",
            "" if most is None else f"{most:g}",
        )
    for data, entries in sorted(spent_in(folder, least=0 if "sums" in clients else 1).items()):
        with understood(folder):
            at = delta or entries.get("target_delta") or 1e-5
            ledger = Ledger(ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=at))
            ledger.take(entries)
        noises = ", ".join(f"{noise:g}" for noise in sorted({z for z, _ in ledger.gradients}))
        budget = entries.get("budget")
        shown.add_row(
            data,
            str(ledger.gradients.total()),
            noises,
            f"{ledger.epsilon:.4g}",
            f"{at:g}",
            "" if budget is None else f"{budget:g}",
        )
    console().print(shown)
