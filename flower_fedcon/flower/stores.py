"""Stores of a client's state between messages: Flower's context, or a file."""

from __future__ import annotations

import hashlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.compressing import Remembering
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.errors import ConfigError, StorageError
from flower_fedcon.flower.leftovers import tidy
from flower_fedcon.flower.messages import Lent, Tensors, lent_array, named_record
from flower_fedcon.flower.policy import Policy
from flower_fedcon.wire import state_files
from flower_fedcon.wire.whole_files import FolderLock, atomic, read_bytes, storage

if TYPE_CHECKING:
    from flwr.app import Context

_log = logging.getLogger("flwr")
_HEX = re.compile(r"[0-9a-f]{32}")
_WAIT = 60.0  # seconds
_RECORD = "fedcon"
_STATE = re.compile(r"fedcon\.[0-9a-f]{32}")
_RUNS = 64  # runs whose states a context holds: more than a race has


class Store(ABC):
    """A store of a client's versions between messages."""

    @abstractmethod
    def load(self, run: RunInfo, state_type: type[Any] | None, *, own: bool = True) -> Versions:
        """Return the versions of this run; empty if there are none.

        Without `own` their arrays may be read-only views of what is kept.
        """

    @abstractmethod
    def save(self, run: RunInfo, versions: Versions) -> None:
        """Keep the versions."""

    def keep_pass(self, run: RunInfo, word: str) -> None:  # noqa: B027  (not every store lasts)
        """Keep the pass by which the server recognises this client, if the store is durable."""

    def known_pass(self, run_id: str) -> str:
        """Return the pass; "" if there is none."""
        return ""

    def locked(self, run: RunInfo) -> AbstractContextManager[Any]:
        """Return a lock against other processes, to hold from `load` to `save`."""
        return nullcontext()

    @abstractmethod
    def note(self, kind: str, data: str) -> str:
        """Return the note on rows, by their digest, over all runs; "" if there is none."""

    @abstractmethod
    def keep_note(self, kind: str, data: str, text: str) -> None:
        """Write the note."""

    def noting(self, kind: str) -> AbstractContextManager[Any]:
        """Return a lock against other processes, to hold from `note` to `keep_note`."""
        return nullcontext()

    def revise(
        self,
        kind: str,
        data: str,
        change: Callable[[str], str],
        former: Callable[[], Sequence[str]] = tuple,
    ) -> str:
        """Replace a note by `change(note)` and return it, locked against other processes.

        If there is no note under `data`, the first under a digest of `former` is taken over.
        """
        with self.noting(kind):
            noted = self.note(kind, data)
            before = noted or next(filter(None, (self.note(kind, one) for one in former())), "")
            text = change(before)
            if text != noted:
                self.keep_note(kind, data, text)
        return text


class ContextStore(Store):
    """The state in `Context.state`, which a SuperNode keeps in memory.

    Parameters
    ----------
    context : flwr.app.Context
    """

    def __init__(self, context: Context) -> None:
        self._records = context.state
        self._tensors = Tensors(Lent)

    def load(self, run: RunInfo, state_type: type[Any] | None, *, own: bool = True) -> Versions:
        """Return the versions of this run; empty if the context holds none."""
        name = f"{_RECORD}.{run.run_id}"
        if name not in self._records:
            return Versions()
        record: Any = self._records[name]
        arrays: Any = self._records[f"{name}.arrays"]
        if record.get("run") != _key(run):
            return Versions()
        held = dict[str, Any]()
        for key, tensor in arrays.items():
            held[key] = tensor.numpy() if own else lent_array(tensor)
            if not own:
                self._tensors.note(held[key], tensor)
        versions: Versions = state_files.unpack(str(record["state"]), held, _types(state_type))
        return versions

    def save(self, run: RunInfo, versions: Versions) -> None:
        """Put the versions into the context."""
        from flwr.app import ConfigRecord

        text, arrays = state_files.pack(versions)
        name = f"{_RECORD}.{run.run_id}"  # one for each run, since a race plays several
        self._records[name] = ConfigRecord({"run": _key(run), "state": text})
        self._records[f"{name}.arrays"] = named_record(arrays, self._tensors)
        self._tensors = Tensors(Lent)
        saved = [key for key in self._records if _STATE.fullmatch(key)]
        for key in saved[: max(0, len(saved) - _RUNS)]:  # of earlier runs
            del self._records[key], self._records[f"{key}.arrays"]

    def note(self, kind: str, data: str) -> str:
        """Return the context's note; it is kept for one run."""
        record = self._records.get(f"{_RECORD}.{kind}")
        return "" if record is None else str(record.get(data, ""))

    def keep_note(self, kind: str, data: str, text: str) -> None:
        """Put the note into the context."""
        from flwr.app import ConfigRecord

        self._records[f"{_RECORD}.{kind}"] = ConfigRecord({data: text})


class FileStore(Store):
    """The state in a separate file for each run and client, which survives restarts.

    Parameters
    ----------
    folder : path
        The node's `state-dir`, private to the user.
    name : str
        The client's name.
    policy : Policy
        Decides how long, and how much, is kept of other runs.
    """

    def __init__(self, folder: str | Path, name: str, policy: Policy) -> None:
        self._policy = policy
        # A name may hold any character; the digest distinguishes names.
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        self._folder = Path(folder)
        self._name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] + "-" + digest

    def ledgers(self, data: str, *former: str) -> list[Path]:
        """Return the place of the ledger of these data, over all runs and names.

        The places of older versions follow: under other digests, and under this client's name.
        """
        return [
            self._folder / "privacy" / name for name in dict.fromkeys((data, *former, self._name))
        ]

    def path(self, run: RunInfo) -> Path:
        """Return the file of a run; the server names the run, but cannot choose a path."""
        return self._path(run.run_id, "state")

    def _path(self, run_id: str, file: str) -> Path:
        if not _HEX.fullmatch(run_id):
            raise ConfigError(f"a run_id must be 32 hexadecimal digits, got {run_id!r}")
        return self._folder / run_id / self._name / file

    def load(self, run: RunInfo, state_type: type[Any] | None, *, own: bool = True) -> Versions:
        """Return the versions of this run; empty if there is no file, or a damaged one."""
        path = self.path(run)
        try:
            versions: Versions = state_files.read(path, _types(state_type))
        except FileNotFoundError:
            tidy(self._folder, run.run_id, self._policy)
            return Versions()
        except state_files.DamagedError as error:
            _log.warning("%s: this client's state counts as lost", error)
            return Versions()
        return versions

    def save(self, run: RunInfo, versions: Versions) -> None:
        """Write the versions, durably."""
        state_files.write(self.path(run), versions)

    def locked(self, run: RunInfo) -> AbstractContextManager[Any]:
        """Return a lock on this client's folder; it waits for an earlier message."""
        folder = self.path(run).parent
        with storage(f"keep state in {self._folder}"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FolderLock(folder, wait=_WAIT)

    def keep_pass(self, run: RunInfo, word: str) -> None:
        """Write the pass, if it is new; without it a restarted node waits a little longer."""
        path = self._path(run.run_id, "pass")
        if not _HEX.fullmatch(word) or word == self.known_pass(run.run_id):
            return
        with storage(f"keep state in {self._folder}"):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic(path, private=True) as temporary:
            temporary.write_text(word)

    def known_pass(self, run_id: str) -> str:
        """Return the pass; "" if there is no readable one."""
        if not _HEX.fullmatch(run_id):
            return ""
        try:
            word = read_bytes(self._path(run_id, "pass")).decode()
        except (FileNotFoundError, StorageError, ValueError):
            return ""
        return word if _HEX.fullmatch(word) else ""

    def note(self, kind: str, data: str) -> str:
        """Return the content of the file for these rows."""
        try:
            return read_bytes(self._folder / kind / data).decode()
        except FileNotFoundError:
            return ""

    def keep_note(self, kind: str, data: str, text: str) -> None:
        """Write the file, durably."""
        with atomic(self._folder / kind / data, private=True) as temporary:
            temporary.write_text(text)

    def noting(self, kind: str) -> AbstractContextManager[Any]:
        """Return a lock on these files; it waits for an earlier message."""
        folder = self._folder / kind
        with storage(f"keep state in {self._folder}"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FolderLock(folder, wait=_WAIT)


def _types(state_type: type[Any] | None) -> dict[str, type[Any]]:
    named = {} if state_type is None else {state_type.__name__: state_type}
    return {"Versions": Versions, "Remembering": Remembering, **named}


def _key(run: RunInfo) -> str:
    return f"{run.algorithm} {run.run_id}"
