"""Warnings at the end of a run: what it leaves in doubt.

A strategy whose runs can end in doubt has a method `doubts(state, record, unheard)`: given its last
state, the history's last record (empty if there is none) and the names of the clients of which no
reply was ever used, it returns a text for each warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server
    from flower_fedcon.runs.history import Record

_log = logging.getLogger("flwr.strategies")


def warn(server: Server, rows: Sequence[Record]) -> None:
    """Warn of what a run that has ended leaves in doubt."""
    doubts = getattr(server.strategy, "doubts", None)
    if doubts is None or not server.round:
        return
    silent = np.flatnonzero(server.acknowledgements.rounds == 0)
    names = server.setup.names
    unheard = [names[j] for j in silent.tolist()]
    for text in doubts(server.state, rows[-1] if rows else {}, unheard):
        _log.warning("%s", text)
