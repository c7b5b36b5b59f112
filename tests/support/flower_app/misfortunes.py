"""Misfortunes that strike from within: a death between two file operations, a disk that is full.

`tests/support/chaos.py` asks for them by files in its folder: ``die-server`` or ``die-node`` holds
before which of the next file operations there the process kills itself; ``full`` holds how large a
file may become. Where there are no such files nothing happens.
"""

import os
import resource
import signal
import sys
from pathlib import Path

_expecting = False


def expect(root: Path, who: str) -> None:
    """Let this process, a "server" or a "node", meet what the files in `root` say."""
    global _expecting
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    most = _number(root / "full")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if most is None else most, hard))
    asked = root / f"die-{who}"
    left = _number(asked)
    if _expecting or left is None:
        return
    _expecting = True
    ours, flowers = str(root), str(root / "flower")

    def hook(event, arguments):
        nonlocal left
        path = str(arguments[0]) if event in ("open", "os.rename") else ""
        if path.startswith(ours) and not path.startswith(flowers):
            left -= 1
            if left == 0:
                asked.unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not there, or not yet written
        return None
