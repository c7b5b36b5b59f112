"""What a run keeps in its folder: ledgers, rows, audit log, checkpoints, and the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_fedcon.core.buffered import unit_of
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.server import Server
from flower_fedcon.runs import asked_rounds, audit_log, checkpoint
from flower_fedcon.runs.audit_log import AuditLog
from flower_fedcon.runs.cohort_log import Cohorts
from flower_fedcon.runs.directory import RunDirectory, versions
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.hooks import Playing, RunHook
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.race_hook import RaceHook
from flower_fedcon.validation import Array
from flower_fedcon.wire.ledgers import RunLedgers

_log = logging.getLogger("flwr")
_CHECKPOINT_SECONDS = 10.0
_PAUSE = 9.0  # times as long as writing a checkpoint takes, until the next


class Spending(RunHook):
    """Writes what private runs and private examples have spent, before anything is shown for it.

    Parameters
    ----------
    folder : Path
    """

    name = "ledgers"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Any] | None = None
        self._ledgers: RunLedgers | None = None

    def begin(self, run: Playing, known: Any) -> None:
        """Remember what the checkpoint says has been spent."""
        self._known = known

    def lead(self, run: Playing) -> bool:
        """Count what files of the folder say has been spent."""
        asked_rounds.keep(run.server.private, self._folder)
        self._ledgers = RunLedgers(run.engine.ledgers(), self._folder, self._known)
        return True

    def writing(self, run: Playing) -> None:
        """Write what has been spent, if it has changed."""
        if self._ledgers is not None:
            self._ledgers.save()

    def snapshot(self) -> dict[str, Any] | None:
        """Return what private examples have spent."""
        return None if self._ledgers is None else self._ledgers.entries() or None


class Kept(RunHook):
    """The folder of a run: it writes rows, checkpoints and the model, and begins the audit log.

    Parameters
    ----------
    plan : Plan
        With a folder.
    engine : Engine
    race_hook : RaceHook
    problem : dict, optional
        The problem's table in an experiment file.

    Attributes
    ----------
    path : Path
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        race_hook: RaceHook,
        problem: Mapping[str, Any] | None,
    ) -> None:
        assert plan.run_dir is not None  # noqa: S101  (the caller's case)
        self._directory, self._plan, self._engine = RunDirectory(plan.run_dir), plan, engine
        self.path = self._directory.path
        self._race_hook, self._problem = race_hook, problem
        self._found: dict[str, Any] | None = None
        self._fingerprint: checkpoint.Fingerprint = {}
        self._clients: dict[str, Any] = {}
        self._before: dict[str, Any] | None = None  # during a round: the state it began with
        self._saved, self._took = time.monotonic(), 0.0

    def parts(self, server: Server, *, rounds: bool) -> list[RunHook]:
        """Return what writes into the folder, in its order; `rounds` if the run has some."""
        parts: list[RunHook] = [Spending(self.path), self]
        if not rounds and self._engine.clients_keep_states:
            self._clients = checkpoint.with_clients(server.setup.clients)
        if rounds and not server.private.hides:
            parts.append(Cohorts(self.path, self._race_hook))
        return parts

    def found(
        self, strategy: Method[Any], setup: Setup, x0: Array, rivals: Sequence[Method[Any]]
    ) -> dict[str, Any]:
        """Return the checkpoint to continue from; empty if there is none.

        Raises
        ------
        FedConError
            If it is damaged, or belongs to a run with different settings or data.
        """
        directory, plan = self._directory, self._plan
        self._fingerprint = checkpoint.fingerprint(
            strategy, setup, x0, self._engine, plan.clock, rivals
        )
        if plan.resume and directory.exists:
            self._found = checkpoint.load(
                self.path,
                strategy,
                setup,
                self._fingerprint,
                plan.allow_changes,
                rivals=rivals,
            )
        return self._found or {}

    def begin(self, run: Playing, known: Any) -> None:
        """Make the folder, or take up the run in it."""
        directory, plan, content = self._directory, self._plan, self._found
        unit = unit_of(run.server.strategy.participation)
        self._saved, self._took = time.monotonic(), 0.0
        if content is None:
            if plan.resume:
                lacks = "no checkpoint in" if directory.exists else "there is no folder"
                _log.warning("%s %s to resume: starting from %s 1", lacks, self.path, unit)
            algorithm = self._race_hook.stated(run.server)
            inputs = checkpoint.shortened(self._fingerprint)
            directory.create(run.server, plan, algorithm, self._problem, inputs)
            self._begin_audit(run)
            return
        run.history.rows = directory.reopen(content["rows"])
        run.recorder.seconds = content["seconds"]
        if content["clients"] is not None:
            self._engine.load(content["clients"])
        self._begin_audit(run)
        _log.info("resuming %s after %s %d", self.path, unit, run.server.round)
        if run.server.round > plan.num_rounds:
            _log.warning(
                "%s holds %d %ss, more than the requested %d: this is its whole history",
                self.path,
                run.server.round,
                unit,
                plan.num_rounds,
            )

    def _begin_audit(self, run: Playing) -> None:
        """Begin an audit log, if the plan or the engine asks for one."""
        wanted = self._engine.clients_keep_states if self._plan.audit is None else self._plan.audit
        if wanted:
            data = self._fingerprint.get("data", {}).get("digest", ())
            log = AuditLog(self.path / audit_log.NAME, run.server, data)
            for runner in self._race_hook.runners:
                runner.server.audit = log
            run.server.audit = log

    def lead(self, run: Playing) -> bool:
        """Write a checkpoint, in a resumed run, too: each start is a new incarnation."""
        self._checkpoint(run)
        return True

    def before_round(self, run: Playing, most: int) -> int:
        """Remember the state to which a run on nodes goes back if the round fails."""
        if self._engine.clients_keep_states:
            self._before = self._content(run)
        return most

    def recorded(self, run: Playing, row: Record, seen: Mapping[bool, Record]) -> bool:
        """Append a row to the history's file."""
        self._directory.write(row)
        return False

    def pause(self, run: Playing, *, now: bool) -> None:
        """Write a checkpoint now, or if one is due by the round or the time."""
        self._before = None
        if now or self._is_due(run):
            self._checkpoint(run)

    def _is_due(self, run: Playing) -> bool:
        if self._plan.checkpoint_every is not None:
            return run.server.round % self._plan.checkpoint_every == 0
        pause = max(_CHECKPOINT_SECONDS, _PAUSE * self._took)  # a large model takes seconds
        late = time.monotonic() - self._saved > pause
        return late or run.server.private.remembers

    def _content(self, run: Playing) -> dict[str, Any]:
        """Return the content of the server's checkpoint."""
        return {
            "fingerprint": self._fingerprint,
            "server": run.server.snapshot(),
            "rows": len(run.history.rows),
            "seconds": run.recorder.seconds,
            **self._clients,
            **checkpoint.with_states(run.hooks.snapshot()),
        }

    def _write(self, run: Playing, content: dict[str, Any]) -> None:
        """Write a checkpoint."""
        run.hooks.writing(run)  # never less than a checkpoint has
        self._directory.sync()
        run.server.audit.sync()
        run.hooks.sync()
        states = {"clients": self._engine.save(), "versions": versions()}
        checkpoint.save(self.path, content | states)

    def _checkpoint(self, run: Playing) -> None:
        """Write all that a later start needs; clients then keep these versions."""
        began = time.monotonic()
        self._write(run, self._content(run))
        for runner in self._race_hook.runners:
            if not runner.out:
                runner.server.acknowledgements.keep()
        run.server.acknowledgements.keep()
        self._saved = time.monotonic()  # the next is due this long after the end of this one
        self._took = self._saved - began

    def rescue(self, run: Playing) -> None:
        """Write the state before a round that has failed, if nothing of it has been applied."""
        if run.asking and self._before is not None:
            self._write(run, self._before)

    def ended(self, run: Playing) -> None:
        """Write the model."""
        server = run.server
        beside = dict(zip(server.buffer_names, server.buffers, strict=True))
        self._directory.save_model(run.history, server.setup.layout.names, beside)

    def close(self) -> None:
        """Unlock the folder."""
        self._directory.close()
