"""Signals that end a run between two rounds."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def graceful(wanted: bool) -> Iterator[list[int]]:
    """Let a first SIGINT or SIGTERM end the run after the current round, with a checkpoint.

    Yields a list that then holds the signal's number; a second signal interrupts at once.
    """
    received: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
