"""`fedcon doctor`: whether this machine can run the package, checked without a network."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import typer
from packaging.requirements import Requirement

from flower_fedcon.errors import FedConError, printable
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, say, table

GOOD, NOTED, BAD = "ok", "note", "FAILS"
_PORTS = {9091: "ServerAppIo", 9092: "Fleet, for SuperNodes", 9093: "Control, for `flwr run`",
          9094: "ClientAppIo, of a SuperNode"}  # fmt: skip
_COMMANDS = ("flwr", "flower-superlink", "flower-supernode")
_WORKSHOP = ("dev", "docs")  # extras for developers of this package
_SKEW = 5.0  # seconds
_ROOM = 1e9  # bytes


class Finding(NamedTuple):
    """The result of one check: `state` is `GOOD`, `NOTED` or `BAD`; `text` has the remedy."""

    what: str
    state: str
    text: str


def doctor() -> None:
    """Check versions, Flower, Ray, numba, ports, folders and the clock.

    The command starts nothing, and nothing leaves the machine. The exit code is 1 if a check fails.
    Notes concern what only some runs need.
    """
    rows = table("What", "", "Found")
    checks = list(findings())
    for finding in checks:
        rows.add_row(*finding)
    console().print(rows)
    states = [finding.state for finding in checks]
    if BAD in states:
        say(f"{states.count(BAD)} of {len(states)} checks fail")
        raise typer.Exit(1)
    say(
        "all is well"
        if NOTED not in states
        else "all is well; notes concern what only some runs need"
    )


def findings() -> Iterator[Finding]:
    """Do one check after another; a check that raises has failed."""
    for check in (_python, _packages, _extras, _compiler, _algorithms, _commands, _ports, _homes,
                  _locks, _clock, _machine):  # fmt: skip
        try:
            yield from check()
        except (OSError, ValueError, FedConError) as error:
            yield Finding(check.__name__[1:], BAD, printable(str(error)))


def _python() -> Iterator[Finding]:
    version, good = platform.python_version(), (3, 11) <= sys.version_info[:2] <= (3, 13)
    remedy = "" if good else "; install 3.11, 3.12 or 3.13"
    yield Finding("Python", GOOD if good else BAD, f"{version}, {sys.executable}{remedy}")


def _packages() -> Iterator[Finding]:
    """Compare the installed packages with the requirements in this package's metadata."""
    package = metadata.distribution("flower-fedcon")
    yield Finding("flower-fedcon", GOOD, f"{package.version}, {Path(__file__).parents[1]}")
    for text in package.requires or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Finding(wanted.name, BAD, f"not installed: pip install '{text}'")
            continue
        good = wanted.specifier.contains(version, prereleases=True)
        remedy = "" if good else f", wanted {wanted.specifier}: pip install '{text}'"
        yield Finding(wanted.name, GOOD if good else BAD, f"{version}{remedy}")


def _extras() -> Iterator[Finding]:
    """Look for the packages of the extras; Ray is an extra of Flower."""
    yield _of_extra("ray", "simulation")
    package = metadata.distribution("flower-fedcon")
    extras = [e for e in package.metadata.get_all("Provides-Extra") or () if e not in _WORKSHOP]
    for text in package.requires or ():
        wanted = Requirement(text)
        if wanted.name in ("flwr", "flower-fedcon"):  # an extra of the required package
            continue
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            continue
        for extra in extras:
            if wanted.marker.evaluate({"extra": extra}):
                yield _of_extra(wanted.name, extra)


def _of_extra(package: str, extra: str) -> Finding:
    try:
        return Finding(package, GOOD, metadata.version(package))
    except metadata.PackageNotFoundError:
        return Finding(package, NOTED, f"not installed: pip install 'flower-fedcon[{extra}]'")


def _compiler() -> Iterator[Finding]:
    """Run a step of the compiled loops, if numba is installed."""
    import numpy as np

    from flower_fedcon import FederatedProblem, simulate
    from flower_fedcon.objectives import LeastSquares
    from flower_fedcon.strategies import FedAvg

    if find_spec("numba") is None:
        yield Finding(
            "loops", NOTED, "by NumPy; with numba installed, steps of large cohorts are compiled"
        )
        return
    rows = np.random.default_rng(0).standard_normal((4, 64, 256))  # large enough to be compiled
    problem = FederatedProblem([LeastSquares(A, A[:, 0]) for A in rows])
    strategy = FedAvg(client_lr=0.1, local_steps=2)
    one, other = (simulate(strategy, problem, 1, engine=e).x for e in ("local", "stacked"))
    same = np.allclose(one, other, rtol=0.0, atol=1e-12)
    yield Finding(
        "loops", GOOD if same else BAD,
        "compiled by numba, equal to NumPy's" if same
        else "compiled steps differ from NumPy's: reinstall numba, or uninstall it",
    )  # fmt: skip


def _algorithms() -> Iterator[Finding]:
    from flower_fedcon.registry import accepted, algorithms, own_algorithms

    added = own_algorithms()
    unloaded = sorted({*accepted()} - {*algorithms(), *added})
    beside = f", and {len(added)} beside it" if added else ""
    if unloaded:
        yield Finding("algorithms", BAD, f"{', '.join(unloaded)}: the package cannot be loaded")
    else:
        yield Finding("algorithms", GOOD, f"{len(algorithms())} of the collection{beside}")


def _commands() -> Iterator[Finding]:
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    for name in _COMMANDS:
        place = shutil.which(name, path=path)
        missing = "not found; deployments need it: pip install --force-reinstall flwr"
        yield Finding(name, GOOD if place else BAD, place or missing)


def _ports() -> Iterator[Finding]:
    for port, use in _PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                text = f"{error.strerror}: Flower's default for {use}; give Flower another port"
                yield Finding(f"port {port}", NOTED, text)
            else:
                yield Finding(f"port {port}", GOOD, f"free ({use})")


def _homes() -> Iterator[Finding]:
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    yield _writable("FLWR_HOME", home, "set FLWR_HOME to a folder that you may write to")
    yield _writable(
        "this folder", Path.cwd(), "change to a folder that you may write to, or give --run-dir"
    )
    temporary = Path(tempfile.gettempdir())
    yield _writable("temporary files", temporary, "set TMPDIR to a folder that you may write to")


def _writable(what: str, folder: Path, remedy: str) -> Finding:
    """Write a file into a folder, or into its parent if it does not exist."""
    there = folder
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"fedcon")
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Finding(what, BAD, f"{folder}: {error.strerror}; {remedy}")
    made = "" if there == folder else ", not made yet"
    text = f"{folder}{made}: {free / 1e9:.1f} GB free"
    return Finding(what, GOOD if free >= _ROOM else NOTED, text)


def _locks() -> Iterator[Finding]:
    """Test the lock that keeps two runs out of one folder."""
    from flower_fedcon.wire.whole_files import FolderLock, in_use

    with tempfile.TemporaryDirectory(dir=_first_writable()) as name, FolderLock(Path(name)):
        held = in_use(Path(name))
    unlocked = "this file system cannot lock folders: give each run its own folder"
    yield Finding("locks", GOOD if held else NOTED, "folders can be locked" if held else unlocked)


def _clock() -> Iterator[Finding]:
    """Compare the clock with that of the file system, and with the age of these files."""
    now = time.time()
    with tempfile.NamedTemporaryFile(dir=_first_writable()) as file:
        skew = os.stat(file.name).st_mtime - now
    text = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    if now < Path(__file__).stat().st_mtime - 86400:
        text += ": earlier than the package's files; set it, or TLS certificates will not be valid"
        yield Finding("clock", BAD, text)
    elif abs(skew) > _SKEW:
        text += f": {skew:+.0f} s off the file system's clock; let both follow one time server"
        yield Finding("clock", NOTED, text)
    else:
        yield Finding("clock", GOOD, text)


def _first_writable() -> Path:
    return Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())


def _machine() -> Iterator[Finding]:
    threads = os.environ.get("OMP_NUM_THREADS", "")
    text = f"{len(os.sched_getaffinity(0))} cores, OMP_NUM_THREADS {threads or 'not set'}"
    text += "" if threads == "1" else " (1 gives the same bits on every machine)"
    yield Finding("machine", GOOD, text)


COMMANDS = {"doctor": Command(doctor, 200, "fedcon doctor")}
