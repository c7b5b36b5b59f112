"""The steps of a run that does not wait for its clients, and its log of events.

`events.jsonl` in the run's folder says in its first line whose events they are, and has a line for
each event (`flower_fedcon.core.flow.Event`): the clients that are asked, by number, and what
becomes of each reply. `step` is how many steps were done, with the coming one for "used":

    {"algorithm": "area", "seed": 0, "rule": "Buffered(buffer=2)", "clients": ["a", "b", "c"],
     "async_bias": ""}
    {"seconds": 0.0, "wave": 1, "asked": [0, 1, 2], "step": 0}
    {"seconds": 1.5, "wave": 1, "client": 2, "outcome": "used", "staleness": 0, "step": 1}

`Clock(events=...)` repeats a run by it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.flow import Event, Flow, Step
from flower_fedcon.core.flow_check import check_no_race
from flower_fedcon.core.flow_head import head_of
from flower_fedcon.core.method import Method
from flower_fedcon.core.server import Server
from flower_fedcon.core.simulated_flow import has_head, parsed
from flower_fedcon.runs.hooks import Playing, RunHook
from flower_fedcon.wire.whole_files import storage, sync

_log = logging.getLogger("flwr")
NAME = "events.jsonl"
_ENOUGH = 10  # uploads for each client, after which the log names whom the run favours


class Flowing(RunHook):
    """Plays the steps of a run, and writes its events.

    Parameters
    ----------
    flow : Flow
    folder : Path, optional
        The run's.
    """

    name = "flow"

    def __init__(self, flow: Flow, folder: Path | None) -> None:
        self._flow = flow
        self._path = None if folder is None else folder / NAME
        self._lines: list[str] = []
        self._written = 0
        self._run: Playing | None = None
        if folder is not None:
            flow.note = self._note

    @classmethod
    def of_run(
        cls,
        server: Server,
        engine: Engine,
        folder: Any,
        strategy: Method[Any],
        rivals: Sequence[Method[Any]],
    ) -> Self | None:
        """Return the hook, if the run does not wait for its clients.

        `strategy` and `rivals` are what the run was given, before any race.

        Raises
        ------
        ConfigError
            If something is raced, or the engine cannot play such a run.
        """
        if not isinstance(server.strategy.participation, Buffered):
            return None
        check_no_race(strategy, rivals)
        return cls(engine.flow(server), None if folder is None else Path(folder))

    def begin(self, run: Playing, known: Any) -> None:
        """Take up the work that was under way, and cut off events after the checkpoint."""
        self._run = run
        if known is not None:
            self._flow.resume(known["flow"])
            self._written = known["events"]
        if self._path is None:
            return
        with storage(f"write {self._path}"):
            if self._path.is_symlink() or (self._path.exists() and not self._path.is_file()):
                raise OSError("it is not a file of its own")
            if not self._written:
                self._path.write_bytes(b"")
                self._lines.append(json.dumps(head_of(run.server)) + "\n")
                self._write()
                return
            lines = self._path.read_bytes().split(b"\n")[:-1][: self._written]
            if len(lines) < self._written:
                raise OSError(f"it has {len(lines)} of the {self._written} lines so far")
            try:
                _check([line.decode() for line in lines], run.server.setup.num_clients)
            except (RecursionError, ValueError) as error:
                raise OSError(f"it is damaged: {error}. Start in another run directory") from None
            os.truncate(self._path, sum(map(len, lines)) + len(lines))

    def step(self, run: Playing) -> Step:
        """Do the next step."""

        def applying() -> None:
            run.asking = False  # mirrors change in place

        flow = self._current()
        flow.applying = applying
        early = self._is_early()
        step = flow.step()
        if early and not self._is_early() and (text := flow.favours):
            _log.info("after %d uploads: %s", flow.used.sum(), text)
        return step

    def _current(self) -> Flow:
        """Return the flow of the run's server; another one if the run has started again."""
        run = self._run
        if run is not None and self._flow.server is not run.server:
            flow = run.engine.flow(run.server)
            flow.follow(self._flow)
            self._flow = flow
        return self._flow

    def _is_early(self) -> bool:
        """Return whether the shares of the uploads do not yet tell much."""
        return bool(self._flow.used.sum() < _ENOUGH * len(self._flow.used))

    def conclude(self, run: Playing, *, whole: bool) -> None:
        """Log the flow's doubts about a run that an error or a signal has ended."""
        if not whole:
            for text in self._flow.doubts():
                _log.warning("%s", text)

    def _note(self, event: Event) -> None:
        what = f'"asked": {[*event.clients]}'
        if event.outcome != "asked":
            (client,) = event.clients
            what = (
                f'"client": {client}, "outcome": "{event.outcome}", "staleness": {event.staleness}'
            )
        begins = f'"seconds": {event.seconds!r}, "wave": {event.wave}'
        # JSON, whose encoder would take four times as long.
        self._lines.append(f'{{{begins}, {what}, "step": {event.step}}}\n')

    def writing(self, run: Playing) -> None:
        """Write the events of a step, before a checkpoint counts them."""
        self._write()

    def ended(self, run: Playing) -> None:
        """Write the last events."""
        self._write()

    def sync(self) -> None:
        """Flush the events to disk."""
        if self._path is not None:
            with storage(f"write {self._path}"):
                sync(self._path)

    def _write(self) -> None:
        if self._path is None or not self._lines:
            return
        with storage(f"write {self._path}"), self._path.open("a", encoding="utf-8") as file:
            file.writelines(self._lines)
        self._written += len(self._lines)
        self._lines = []

    def doubts(self, run: Playing) -> Iterable[str]:
        """Return the flow's doubts."""
        return self._flow.doubts()

    def snapshot(self) -> Mapping[str, Any]:
        """Return the work that is under way, and how many lines come before."""
        flow = self._current().snapshot()
        return {"flow": flow, "events": self._written + len(self._lines)}


def _check(lines: Sequence[str], num_clients: int) -> None:
    """Raise unless these lines of a log can follow one another.

    Raises
    ------
    ValueError
    """
    work: dict[int, int] = {}  # the wave of each client at work
    wave = done = 0
    if has_head(lines):
        json.loads(lines[0])
    for number, event in enumerate(parsed(lines, num_clients), start=1 + has_head(lines)):
        before = event["step"] - (event.get("outcome") == "used")
        if before < done:
            raise ValueError(f"line {number}: step {event['step']} after {done} steps")
        done = before
        if "asked" not in event:
            if work.pop(event["client"], 0) != event["wave"]:
                raise ValueError(f"line {number}: client {event['client']} was not asked for it")
            continue
        if event["wave"] <= wave:
            raise ValueError(f"line {number}: wave {event['wave']} after wave {wave}")
        wave = event["wave"]
        work |= dict.fromkeys(event["asked"], wave)
