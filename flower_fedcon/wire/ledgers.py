"""Ledgers of the privacy that clients' examples have spent, kept in files over runs and restarts.

Each client's data have one ledger, named by a digest of the rows: another name, run or noise
multiplier continues the same ledger.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flower_fedcon.errors import ConfigError, StorageError
from flower_fedcon.objectives.private_objective import private_within
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.row_digests import digest_of_rows
from flower_fedcon.wire.whole_files import FolderLock, atomic, read_bytes, storage

_log = logging.getLogger("flwr")
SPENT, RUN = "spent.json", "privacy.json"
_WAIT = 60.0  # seconds to wait for another message of this node to release the ledger


class FileLedger(Ledger):
    """A ledger in its own folder.

    Parameters
    ----------
    privacy : ExampleDP
    folder : Path
    *former : Path
        Folders whose ledgers count the same data: they are added to this one, and removed.
    """

    def __init__(self, privacy: ExampleDP, folder: Path, *former: Path) -> None:
        super().__init__(privacy)
        self._folder, self._former, self._told = folder, former, False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Read what is spent, and write the new total before anything leaves this process."""
        folder = self._folder
        with storage(f"keep the privacy ledger in {folder}"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FolderLock(folder, wait=_WAIT):
            self.gradients.clear()
            self.distance = 0.0
            self._take(folder / SPENT, more=False)
            for former in self._former:
                if (former / SPENT).is_file():
                    self._take(former / SPENT, more=True)
                    self._write(folder / SPENT)
                    (former / SPENT).unlink()
            self._tell_of_others()
            before = self.gradients.copy()
            try:
                yield
            finally:
                if self.gradients != before:
                    self._write(folder / SPENT)

    def _tell_of_others(self) -> None:
        """Warn of a new ledger next to those of other rows: they may belong to the same people."""
        if not (self._folder / SPENT).is_file() and not self._told:
            self._told = True
            others = [*self._folder.parent.glob(f"*/{SPENT}")]
            if others:
                _log.warning(
                    "the ledger of this node's private examples begins at 0, beside %d of other "
                    "rows in %s: where the same people are in both, their epsilons add up; a load "
                    "that draws rows wants a seed", len(others), self._folder.parent,
                )  # fmt: skip

    def _take(self, path: Path, *, more: bool) -> None:
        entries = _read(path)
        if entries is not None:
            with understood(path):
                self.take(entries, more=more)

    def _write(self, path: Path) -> None:
        privacy = self.privacy
        with atomic(path, private=True) as temporary:
            temporary.write_text(json.dumps(self.entries()))
        most = "" if privacy.budget is None else f" of {privacy.budget:g}"
        _log.info(
            "privacy of this node's examples: epsilon %.4g%s at delta %g, for %d gradients",
            self.epsilon, most, privacy.target_delta, self.gradients.total(),
        )  # fmt: skip


class RunLedgers:
    """The ledgers of a simulation's clients, kept in its run directory.

    Parameters
    ----------
    ledgers : dict
        The ledgers by the digest of their data.
    folder : Path
        Ledgers that it already holds are counted.
    known : dict, optional
        What the run's checkpoint has of them (`entries`): the file must have no less.

    Raises
    ------
    StorageError
        If a ledger there cannot be read, or lacks what the checkpoint has.
    """

    def __init__(
        self, ledgers: dict[str, Ledger], folder: Path, known: Mapping[str, Any] | None = None
    ) -> None:
        self._ledgers, self._path = ledgers, folder.resolve() / RUN
        self._kept = _read(self._path) or {}
        with understood(self._path):
            for key, least in (known or {}).items():
                kept = self._kept.get(key)  # always written before the first checkpoint
                if key in ledgers and (kept is None or not ledgers[key].covers(kept, least)):
                    raise ValueError("it lacks gradients that the checkpoint has")
            for key, ledger in ledgers.items():
                if key in self._kept:
                    ledger.go_on(self._kept[key], (self._path, key))

    def entries(self) -> dict[str, Any]:
        """Return what is spent, by the digest of the data, in JSON's types."""
        return {key: ledger.entries() for key, ledger in self._ledgers.items()}

    def save(self) -> None:
        """Write what is spent, before any result of a round is shown."""
        entries = self.entries()
        if entries and self._kept != self._kept | entries:
            self._kept = self._kept | entries
            with atomic(self._path, private=True) as temporary:
                temporary.write_text(json.dumps(self._kept))
        for key, ledger in self._ledgers.items():
            ledger.written((self._path, key))


def ledgers_of(objectives: Iterable[Any]) -> dict[str, Ledger]:
    """Return the ledgers of the private objectives, by the digest of their data.

    If clients have the same rows, the second one's digest ends in "-2", and so on.
    """
    ledgers: dict[str, Ledger] = {}
    seen: Counter[str] = Counter()
    for objective in objectives:
        if (inner := private_within(objective)) is not None:
            data = key_of(inner.objective)
            seen[data] += 1
            ledgers[data if seen[data] == 1 else f"{data}-{seen[data]}"] = inner.ledger
    return ledgers


def key_of(objective: Any) -> str:
    """Return the digest by which a ledger knows a client's data.

    For an objective that states its rows, these alone count: a network starts from another point in
    each study.
    """
    return str(getattr(objective, "rows_key", None) or digest(objective))


def rows_on_node(objective: Any) -> str:
    """Return the digest by which a node recognises its rows across studies.

    Only the rows count, in any order and type: another loss, outcome, l2, intercept or schema is
    another study on the same rows, and their epsilons add up. If the rows are unknown, the rest of
    the objective counts, too.

    Parameters
    ----------
    objective : object
        A table, or a loss, as the node has loaded it.
    """
    if (of_cells := getattr(objective, "digest_of_cells", None)) is not None:
        return str(of_cells())
    if stored := getattr(objective, "rows_digest", ""):
        return str(stored)
    rows = _rows_of(objective)
    return key_of(objective) if rows is None else digest_of_rows(rows)


def former_on_node(objective: Any) -> tuple[str, ...]:
    """Return the digests by which earlier versions recognised a node's rows."""
    rows = _rows_of(objective)
    single = "" if rows is None else digest_of_rows(rows, single=True)
    digests = (str(getattr(objective, "rows_digest", "")), single, key_of(objective))
    return tuple(filter(None, digests))


def _rows_of(objective: Any) -> Any:
    """Return the rows of a loss, as a node has loaded them; None if they are unknown."""
    if isinstance(objective, LinearModel):
        return objective.A
    return getattr(objective, "own_rows", None)


def spent_in(folder: Path, least: int = 1) -> dict[str, dict[str, Any]]:
    """Return the entries of the ledgers in a node's state-dir or a run directory, by their data.

    Raises
    ------
    StorageError
        If fewer than `least` ledgers are found, or one cannot be read.
    """
    files = [*folder.glob(SPENT), *folder.glob(f"*/{SPENT}"), *folder.glob(f"privacy/*/{SPENT}")]
    entries = {path.parent.name: _read(path) or {} for path in files}
    entries |= _read(folder / RUN) or {}
    if len(entries) < least:
        raise StorageError(
            f"{folder} has no privacy ledger: give a node's state-dir, or the directory of a run "
            "with private examples"
        )
    return entries


def _read(path: Path) -> Any:
    """Return the content of a file; None without the file."""
    try:
        with understood(path):
            content = json.loads(read_bytes(path))
            if not isinstance(content, dict):
                raise ValueError(f"it holds a {type(content).__name__}")
            return content
    except FileNotFoundError:
        return None


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Name the file in errors about its contents."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
        raise StorageError(
            f"{path} does not say how much privacy this client has spent ({error!r:.99}): put "
            "back a copy; removing it forgets what has been released"
        ) from None
