"""Flower's commands as processes: started, watched, and ended with all that they start."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from flower_fedcon.flower.deployment import family_of as processes_of
from flower_fedcon.flower.deployment import free_ports as free_ports

Value = bool | int | float | str
SCRIPTS = Path(sysconfig.get_path("scripts"))
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Reads the homes of processes, and ends these when its input ends: its parent may be killed. It
# imports nothing of the project, whose virtual environment may be gone by then.
_LAST_ONE_OUT = f"""
import os, signal, sys, time
from pathlib import Path
{inspect.getsource(processes_of)}
homes = sys.stdin.read().splitlines()
time.sleep(0.5)  # the last one started shows no environment before it has begun
for home in homes:
    deadline = time.monotonic() + 15
    while (family := family_of(home)) and time.monotonic() < deadline:
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
"""


class DeploymentError(RuntimeError):
    """A process did not start, or a run did not complete; the message ends with log tails."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of one Flower process, with `home` as its FLWR_HOME."""
    # Settings of the caller's own Flower or Ray must not leak into the test.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "RAY_"))}
    env |= dict.fromkeys(_THREADS, "1")
    env |= {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # 1 s by default, for every message
        "RAY_USAGE_STATS_ENABLED": "0",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
        # Flower looks its own commands up in PATH.
        "PATH": os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", os.defpath)]),
    }
    return env


def key_value_pairs(config: Mapping[str, Value]) -> str:
    """Return `config` as the ``key=value`` pairs which Flower's command line takes."""
    for value in config.values():
        if isinstance(value, str) and '"' in value:
            raise ValueError(f"Flower's command line takes no double quote: {value!r}")
    # A JSON scalar is a TOML scalar.
    return " ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in config.items())


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Poll `ready` until it is true; return False if it never was."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@cache
def _last_one_out() -> subprocess.Popen[str]:
    """Start a process that outlives this one by as long as it takes to end what it was told of."""
    return subprocess.Popen(
        [sys.executable, "-c", _LAST_ONE_OUT],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


class FlowerProcess:
    """One long-running Flower command with its own FLWR_HOME, which can be killed and restarted.

    As on a machine of its own: processes sharing one FLWR_HOME would install the same app into
    the same folder at the same time.
    """

    def __init__(self, root: Path, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.home = root / name
        self.home.mkdir(parents=True, exist_ok=True)
        self.log_file = root / f"{name}.log"
        self.arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start the command; its log is appended to the one of an earlier start."""
        homes = _last_one_out().stdin
        assert homes is not None
        print(self.home, file=homes, flush=True)
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [str(SCRIPTS / self.arguments[0]), *self.arguments[1:]],
                cwd=self.home,
                env=environment(self.home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready` holds; raise if it does not in time or the process ends before."""
        if not wait_until(lambda: not self.alive() or ready(), seconds) or not self.alive():
            reason = f"not ready after {seconds:g} s" if self.alive() else "it ended"
            raise DeploymentError(f"{self.name} did not start: {reason}\n{self.log_tail()}")

    def alive(self) -> bool:
        """Return whether the command is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The exit status of the command, None while it is running or not started."""
        return None if self._process is None else self._process.poll()

    def log(self) -> str:
        """Return what was logged since the latest start."""
        return self.log_file.read_bytes()[self._log_start :].decode(errors="replace")

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log, with a heading."""
        log = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join([f"--- end of {self.log_file}", *log.splitlines()[-lines:]])

    def kill(self) -> None:
        """Kill the command and whatever it started (SIGKILL, as if the machine went down)."""
        family = processes_of(self.home)  # before the kill, which cuts the children off
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

        def gone() -> bool:
            nonlocal family
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            family = processes_of(self.home)  # a dying process may have started one more
            return not family

        if not wait_until(gone, 15):
            raise DeploymentError(f"{self.name}: processes {sorted(family)} do not end")
        if self._process is not None:
            self._process.wait(timeout=15)
