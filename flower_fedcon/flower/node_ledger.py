"""A node's ledger of the privacy that its examples have spent, over all runs and restarts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flower_fedcon.errors import ConfigError, StorageError
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.validation import count, nonnegative, positive
from flower_fedcon.wire.whole_files import FolderLock, atomic, read_bytes, storage

_log = logging.getLogger("flwr")
_FILE = "spent.json"
_WAIT = 60.0  # seconds that another message of this node may have the ledger


class FileLedger(Ledger):
    """A ledger in a folder of its own.

    Parameters
    ----------
    privacy : ExampleDP
    folder : Path
    """

    def __init__(self, privacy: ExampleDP, folder: Path) -> None:
        super().__init__(privacy)
        self._folder = folder

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Read what is spent, and write down what then is, before anything leaves this process."""
        folder = self._folder
        with storage(f"keep the privacy ledger in {folder}"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FolderLock(folder, wait=_WAIT):
            self._read(folder / _FILE)
            before = dict(self.spent)
            try:
                yield
            finally:
                if self.spent != before:
                    self._write(folder / _FILE)

    def _read(self, path: Path) -> None:
        self._left = (0.0, 0)
        noise = self.privacy.noise_multiplier
        try:
            found = json.loads(read_bytes(path))
            entries, then = found["spent"], found.get("noise_multiplier", noise)
            self.spent = {positive("rate", rate): count("spent", n) for rate, n in entries}
            self.distance = nonnegative("distance", found.get("distance", 0.0))
        except FileNotFoundError:
            self.spent, self.distance, then = {}, 0.0, noise
        except (ValueError, TypeError, KeyError, ConfigError) as error:
            raise StorageError(
                f"{path} does not say how much privacy this client has spent ({error!r:.99}): put "
                "back a copy; removing it forgets what has been released"
            ) from None
        if self.spent and then != noise:
            raise StorageError(
                f"{path} counts gradients with noise-multiplier {then!r}, and this node has "
                f"{noise!r}: set it back, since what has left cannot be undone"
            )

    def _write(self, path: Path) -> None:
        with atomic(path, private=True) as temporary:
            found = {
                "noise_multiplier": self.privacy.noise_multiplier,
                "distance": self.distance,
            }
            temporary.write_text(json.dumps({**found, "spent": sorted(self.spent.items())}))
        known = self.privacy
        most = "" if known.budget is None else f" of {known.budget:g}"
        _log.info(
            "privacy of this node's examples: epsilon %.4g%s at delta %g, for %d gradients",
            self.epsilon, most, known.target_delta, sum(self.spent.values()),
        )  # fmt: skip
