"""The command `fedcon`: its subcommands, in the order of the help, and its errors."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from flower_fedcon import __version__
from flower_fedcon.cli import (
    advice,
    collection,
    contrast_command,
    data,
    deploy_command,
    doctor,
    laboratory,
    new_app,
    path_command,
    predict_command,
    privacy_command,
    reports,
    run_commands,
)
from flower_fedcon.cli.options import examples
from flower_fedcon.errors import FedConError
from flower_fedcon.runs.console import InterruptedRunError

EXIT_CODES = {
    0: "done",
    1: "the command finished, but a claim, setting, file, check or run failed: see the output",
    2: "wrong usage, settings or data, or a full disk or memory: one line states the cause",
    130: "interrupted: a run can be resumed",
}

# Each command imports its modules when it is called, so that help and completion are fast.

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


def _add(command: Callable[..., None], *lines: str, name: str | None = None) -> None:
    """Add a command, with examples for its help."""
    app.command(name, epilog=examples(*lines))(command)


_add(collection.list_, "fedcon list", "fedcon list --markdown", name="list")
_add(collection.info, "fedcon info FedFW", "fedcon info FedFW --size 943x1682",
     "fedcon info digits")  # fmt: skip
_add(collection.cite, "fedcon cite FedFW FedDualAvg", "fedcon cite runs/digits_l1 > papers.bib")
_add(advice.recommend, "fedcon recommend sims/digits_l1.toml",
     "fedcon recommend sims/fedfw_lasso.toml --sample 0.5 --try 50 -o best.toml",
     "fedcon recommend --measure sims -o studies.json")  # fmt: skip
_add(run_commands.run, "fedcon run sims/fedfw_lasso.toml --rounds 200",
     "fedcon run sims/fedfw_lasso.toml --set algorithm.penalty=2 --run-dir runs/lasso",
     "fedcon run sims/fedfw_lasso.toml --run-dir runs/lasso --resume",
     "fedcon run sims/fedfw_lasso.toml --until fw_gap=1 --budget seconds=60")  # fmt: skip
_add(run_commands.compare, "fedcon compare sims/digits_l1.toml",
     "fedcon compare sims/digits_l1.toml --rounds 100 --seeds 0,1,2")  # fmt: skip
_add(run_commands.tune, "fedcon tune sims/digits_l1.toml --grid client_lr=0.1,0.2,0.5 --rounds 100",
     "fedcon tune sims/digits_l1.toml")  # fmt: skip
_add(path_command.path, "fedcon path sims/digits_l1.toml --num 20 --folds 5 -o path.csv")
_add(predict_command.predict, "fedcon predict runs/heart new.csv -o predictions.csv",
     "fedcon predict runs/heart new.csv -o out.csv --keep patient --unknown missing")  # fmt: skip
_add(contrast_command.contrast, "fedcon contrast runs/heart age=70 --against age=50",
     "fedcon contrast runs/trial treatment=early --against treatment=usual --by sex -o effects.csv",
     "fedcon contrast runs/heart --coefficient age=10 --coefficient sex=1=1",
     "fedcon contrast runs/by_sex --smaller runs/readmission")  # fmt: skip
_add(laboratory.reproduce, "fedcon reproduce --quick", "fedcon reproduce --list",
     "fedcon reproduce Dadras --quick", "fedcon reproduce arXiv:2305.10294",
     "fedcon reproduce fedfw_lasso --json claims.json")  # fmt: skip
_add(run_commands.plot, "fedcon plot runs/lasso runs/lasso-2 -o residual.png",
     "fedcon plot runs/digits_l1 -o accuracy.pdf --x rounds --y test_accuracy",
     "fedcon plot runs/readmission --kind forest -o forest.pdf -o forest.svg")  # fmt: skip
_add(
    reports.table,
    "fedcon table runs/digits_l1 --to residual=1e-3 --of rounds --of bytes",
    "fedcon table runs/* --to residual=1e-3 --to residual=1e-6 --middle median -o table.tex",
)
_add(reports.report, "fedcon report runs/digits_l1 --open",
     "fedcon report runs/lasso runs/lasso-2 -o both.html")  # fmt: skip
_add(reports.watch, "fedcon watch runs/lasso", "fedcon watch runs/lasso --once")
_add(
    laboratory.steps,
    "fedcon steps sims/benchmarks/steps.toml --run-dir runs/steps --figure steps.png",
)
_add(laboratory.bench, "fedcon bench --list", "fedcon bench prox compiled -o results.json")
_add(deploy_command.deploy, "fedcon deploy sims --local --nodes 3",
     "fedcon deploy examples/heart/app --local --data examples/heart/cleveland.csv --data "
     "examples/heart/va.csv")  # fmt: skip
_add(new_app.new, "fedcon new my-app --algorithm feddualavg --framework torch",
     "fedcon new readmission --study study.toml")  # fmt: skip
_add(doctor.doctor, "fedcon doctor")
app.add_typer(data.app, name="data", epilog=examples("fedcon data check --help"))
app.add_typer(privacy_command.app, name="privacy", epilog=examples("fedcon privacy spent state"))

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
