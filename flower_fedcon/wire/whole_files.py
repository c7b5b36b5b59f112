"""Files that are written completely or not at all, in folders that one process uses at a time."""

from __future__ import annotations

import csv
import io
import logging
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flower_fedcon.errors import StorageError

_log = logging.getLogger("flwr")
_PART = ".fedcon-part"  # ends the names of files that are being written


@contextmanager
def storage(what: str) -> Iterator[None]:
    """Turn the operating system's errors into `StorageError`; `what` is what could not be done.

    >>> with storage("read the model"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    flower_fedcon.errors.StorageError: cannot read the model: No space left on device
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {what}: {error.strerror or error}") from error
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise StorageError(f"cannot {what}: its path holds a null byte") from None


@contextmanager
def atomic(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Write a file under a temporary name; it is renamed once it is complete and on the disk.

    After a crash the old file or the new one is there. The next lock on the folder removes
    temporary files of killed processes.
    """
    with storage(f"write {path}"):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=_PART)
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            sync(temporary)
            if not private:
                temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, columns: Mapping[str, Iterable[Any]]) -> None:
    """Write columns of one length in one step, numbers to the last digit, None as an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_text(path, out.getvalue())


def read_bytes(path: Path, *, follow: bool = False) -> bytes:
    """Return the content of a file.

    Parameters
    ----------
    path : Path
    follow : bool (default: False)
        Whether a symbolic link may stand for the file.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    StorageError
        If it is a folder, a named pipe or the like, or cannot be read.
    """
    check_file(path, follow=follow)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def check_file(path: Path, *, follow: bool = False) -> None:
    """Raise unless a path is that of a file; with `follow`, or of a link to one.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    StorageError
        If it is a folder, a named pipe or the like.
    """
    try:
        mode = path.stat().st_mode if follow else path.lstat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise StorageError(f"{path} is {kind}, expected a file: move it away")


class FolderLock:
    """A folder that belongs to this process until `release`, or until the process ends.

    It is the operating system's lock on the folder itself: it leaves no file, and ends with the
    process, however that ends. Temporary files of killed writers are removed.

    Parameters
    ----------
    folder : Path
        An existing folder.
    wait : float (default: 0)
        Seconds to wait for another process to release it.

    Raises
    ------
    StorageError
        If another process, or another run of this process, holds the lock.
    """

    def __init__(self, folder: Path, wait: float = 0.0) -> None:
        with storage(f"open the folder {folder}"):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._close = weakref.finalize(self, os.close, descriptor)
        deadline, pause = time.monotonic() + wait, 0.001
        while not _try_lock(descriptor, folder):
            if time.monotonic() >= deadline:
                self.release()
                raise StorageError(
                    f"{folder} is in use by another process: wait for it to end, or use another "
                    "folder"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        with storage(f"tidy {folder}"):
            for left in folder.glob(f".*{_PART}"):
                if not left.is_dir():  # a folder of that name is not ours
                    left.unlink(missing_ok=True)

    def release(self) -> None:
        """Let others use the folder."""
        self._close()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _try_lock(descriptor: int, folder: Path) -> bool:
    """Lock a folder, and return whether it was free."""
    import fcntl  # not on Windows, where the lock alone is missing

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # on some network file systems
        _log.warning(
            "%s cannot be locked (%s): let no other process use it", folder, error.strerror
        )
    return True


def in_use(folder: Path) -> bool:
    """Return whether a process has locked a folder, without locking it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     with FolderLock(Path(name)):
    ...         held = in_use(Path(name))
    ...     held, in_use(Path(name))
    (True, False)
    """
    import fcntl

    with storage(f"open the folder {folder}"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # on some network file systems, which lock nothing
        return False
    finally:
        os.close(descriptor)
    return False


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
