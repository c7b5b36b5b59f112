"""The command `fedcon`: its subcommands, which are found in all rooms, and its errors."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from flower_fedcon import __version__
from flower_fedcon.errors import FedConError
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import InterruptedRunError

EXIT_CODES = {
    0: "done",
    1: "the command finished, but a claim, setting, file, check or run failed: see the output",
    2: "wrong usage, settings or data, or a full disk or memory: one line states the cause",
    130: "interrupted: a run can be resumed",
}

app = typer.Typer(
    name="fedcon",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="\n\n".join(
        ["Exit codes:", *(f"{code:3}  {what}" for code, what in EXIT_CODES.items())]
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fedcon {__version__}")
        raise typer.Exit


@app.callback()
def fedcon(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version, and exit."
        ),
    ] = False,
) -> None:
    """Federated constrained and composite optimisation for Flower."""


def _examples(*lines: str) -> str:
    r"""Return the end of a command's help: examples of command lines.

    >>> _examples("fedcon list", "fedcon info fedfw")
    'Examples:\n\nfedcon list\n\nfedcon info fedfw'
    """
    return "\n\n".join(["Examples:", *lines])


def _found() -> dict[str, Command]:
    """Return the commands of all rooms that are here, in the order of the help.

    >>> [name for name in _found() if name.startswith("privacy")]
    ['privacy spent', 'privacy audit']
    """
    package = Path(__file__).parents[1]
    commands: dict[str, Command] = {}
    for path in package.glob("*/commands/[a-z]*.py"):
        place = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        commands.update(getattr(import_module(place), "COMMANDS", {}))
    there = {
        name: command
        for name, command in commands.items()
        if all((package / room).is_dir() for room in command.needs)
    }
    return dict(sorted(there.items(), key=lambda item: item[1].rank))


_GROUPS = {  # of commands of two words: the help
    "data": "Look at tables before a run.",
    "privacy": "Show how much privacy is spent, and audit private mechanisms.",
}


def _add_commands() -> None:
    groups: dict[str, typer.Typer] = {}
    for words, command in _found().items():
        group, _, name = words.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(help=_GROUPS[group], no_args_is_help=True)
            app.add_typer(groups[group], name=group, epilog=_examples(command.examples[0]))
        into = groups[group] if group else app
        into.command(name, epilog=_examples(*command.examples))(command.run)


_add_commands()

# The error of a wrong command line; typer exports only this subclass of it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, one of `EXIT_CODES`."""
    args = None if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may be unprintable here
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _terminable():
            code = app(args, prog_name="fedcon", standalone_mode=False)
    except (FedConError, _UsageError) as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        text = ". ".join([text, *getattr(error, "__notes__", ())])
        text = re.sub(r"( Did you mean [^?]*\?)\1", r"\1", text)  # one by Typer, one by Click
        return _complain(f"error: {text}", 2) if text else 2  # empty: the help was shown
    except ModuleNotFoundError as error:  # of a room that was deleted
        package, _, room = (error.name or "").partition(".")
        if package != __name__.partition(".")[0]:
            raise
        return _complain(f"error: this command needs flower_fedcon.{room}, which is not here", 2)
    except BrokenPipeError:  # the reader of the output has closed it
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


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the command like Ctrl-C, so that processes that it started end, too."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _complain(text: str, code: int) -> int:
    sys.stdout.flush()
    print(" ".join(text.split()), file=sys.stderr)
    return code
