"""A disk that fails now and then: any operation on a file in a folder may raise an OSError.

Python tells its own audit hooks of the operations, in time for an error to take their place. A hook
stays as long as the process does; it fails nothing outside the ``with`` block.
"""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.scandir", "os.truncate"}
ERRORS = [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EACCES]


class FailingDisk:
    """Fails with some probability what is done in a folder.

    Parameters
    ----------
    folder : Path
    seed : int
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._random = str(folder), random.Random(seed)
        self._probability, self.failures = 0.0, 0
        sys.addaudithook(self._hear)

    @contextmanager
    def failing(self, probability: float) -> Iterator[None]:
        """Fail operations as long as the block lasts."""
        self._probability, sync = probability, os.fsync

        def fsync(descriptor: int) -> None:
            self._perhaps()
            sync(descriptor)

        os.fsync = fsync
        try:
            yield
        finally:
            self._probability, os.fsync = 0.0, sync

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._probability or event not in OPERATIONS:
            return
        path = arguments[0]
        if not isinstance(path, str | os.PathLike) or str(path).startswith(self._folder):
            self._perhaps()

    def _perhaps(self) -> None:
        if self._random.random() < self._probability:
            self.failures += 1
            number = self._random.choice(ERRORS)
            raise OSError(number, os.strerror(number))
