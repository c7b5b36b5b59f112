"""What earlier runs have left in a node's state folder, and for how long it stays."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Iterator
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
    """Remove what a policy no longer keeps of other runs, before a run's first state is written.

    Only folders that bear a run's identity are looked at.

    Raises
    ------
    RefusedError
        If other runs leave no room for this one.
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
            f"refused: the states of other runs take {total} bytes on this node, its policy has "
            f"policy.max-state-bytes = {policy.max_state_bytes}"
        )


def _others(folder: Path, run_id: str) -> Iterator[_Leftover]:
    try:
        entries = list(folder.iterdir())
    except OSError:  # no folder yet
        return
    for path in entries:
        if path.name == run_id or not re.fullmatch(r"[0-9a-f]{32}", path.name):
            continue
        if path.is_symlink() or not path.is_dir():
            continue
        found = [file.lstat() for file in path.rglob("*") if not file.is_dir()]
        used = max((entry.st_mtime for entry in found), default=path.lstat().st_mtime)
        yield _Leftover(used, sum(entry.st_size for entry in found), path)
