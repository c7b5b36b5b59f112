"""The states of earlier runs in a node's state folder, and their removal."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flower_fedcon.errors import RefusedError
from flower_fedcon.flower.policy import Policy

_log = logging.getLogger("flwr")
_DAY = 86400.0


class _Leftover(NamedTuple):
    """The states of one run."""

    used: float  # when they were last written
    size: int  # bytes
    path: Path


def tidy(folder: Path, run_id: str, policy: Policy) -> None:
    """Remove states of other runs that a policy no longer keeps, before a run's first state.

    Only folders named by a run's id are considered.

    Raises
    ------
    RefusedError
        If the states of other runs leave no room for this one.
    """
    kept = sorted(_others(folder, run_id))
    now, total = time.time(), sum(run.size for run in kept)
    for run in kept:
        old = now - run.used > policy.keep_days * _DAY
        if old or (total > policy.max_state_bytes and now - run.used > _DAY):
            shutil.rmtree(run.path, ignore_errors=True)
            total -= run.size
            _log.info("removed the state of run %s, last used %.3g days ago",
                      run.path.name, (now - run.used) / _DAY)  # fmt: skip
    if total > policy.max_state_bytes:
        raise RefusedError(
            f"refused: the states of other runs take {total} bytes on this node, and its policy "
            f"has policy.max-state-bytes = {policy.max_state_bytes}: remove old states, or raise it"
        )


def _others(folder: Path, run_id: str) -> list[_Leftover]:
    leftovers: list[_Leftover] = []
    try:
        entries = list(folder.iterdir())
    except OSError:  # no folder yet
        return leftovers
    for path in entries:
        if path.name == run_id or not re.fullmatch(r"[0-9a-f]{32}", path.name):
            continue
        if path.is_symlink() or not path.is_dir():
            continue
        with suppress(FileNotFoundError):  # another process is removing it
            leftovers.append(_measured(path))
    return leftovers


def _measured(path: Path) -> _Leftover:
    """Return the states of a run; other processes may change its files meanwhile."""
    used, size, files = path.lstat().st_mtime, 0, 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                entry = Path(folder, name).lstat()
                used = max(used, entry.st_mtime) if files else entry.st_mtime
                size, files = size + entry.st_size, files + 1
    return _Leftover(used, size, path)
