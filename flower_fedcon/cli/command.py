"""The command `fedcon`: its parts, in the order in which help shows them, and its errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import typer

from flower_fedcon.cli import collection, data, deployment, laboratory, paths, reports, runs
from flower_fedcon.errors import FedConError
from flower_fedcon.experiments.console import InterruptedRunError

# Each command imports what it needs when it is called: help and completion answer at once.

app = typer.Typer(
    name="fedcon",
    help="Federated constrained and composite optimisation for Flower.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("list")(collection.list_)
app.command()(collection.info)
app.command()(runs.run)
app.command()(runs.compare)
app.command()(runs.tune)
app.command()(paths.path)
app.command()(laboratory.reproduce)
app.command()(runs.plot)
app.command()(reports.report)
app.command()(laboratory.bench)
app.command()(deployment.deploy)
app.add_typer(data.app, name="data")

# What a wrong command line raises; typer exports only this subclass of it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 2 for the user's errors, 130 for Ctrl-C.

    Errors of the disk and of the memory are the user's, too.
    """
    args = None if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may hold what a terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(args, prog_name="fedcon", standalone_mode=False)
    except (FedConError, _UsageError) as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        return _complain(f"error: {text}", 2) if text else 2  # empty: the help was shown
    except BrokenPipeError:  # the reader of the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = "" if error.filename is None else f": {error.filename}"
        return _complain(f"error: {error.strerror or error}{where}", 2)
    except MemoryError as error:
        return _complain(f"error: not enough memory: {str(error) or 'take a smaller problem'}", 2)
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
