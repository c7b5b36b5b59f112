"""A page's commands, pasted into a shell."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from processes import SCRIPTS, environment, free_ports, processes_of, wait_until


def bash(script: str, folder: Path, **env: str) -> str:
    path = os.pathsep.join([str(SCRIPTS), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**os.environ, "PATH": path, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Pasted:
    """A block that was pasted into a shell."""

    def __init__(self, script: str, folder: Path, home: Path) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                ["bash", "-euc", script],
                cwd=folder,
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def status(self, seconds: float = 240) -> int:
        assert wait_until(lambda: self.process.poll() is not None, seconds), self.log()
        return self.process.returncode


def stop(homes: list[Path]) -> None:
    """Kill every process that was started with one of these homes."""

    def gone() -> bool:
        alive = {pid for home in homes for pid in processes_of(home)}
        for pid in alive:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        return not alive

    assert wait_until(gone, 20)


def consecutive_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for _ in range(50):
        (first,) = free_ports(1)
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for sock in sockets:
                sock.close()
    pytest.skip("no consecutive free ports")
