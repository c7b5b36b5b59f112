"""States as text and arrays, and as files that are whole or refused.

A state is a tree of named tuples, dictionaries, lists, arrays and plain values, and of types that
are `Saveable`. It is written as JSON and NumPy arrays, never pickled, and read back with the types
that the reader knows.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.validation import Array
from flower_fedcon.wire.whole_files import atomic, check_file, storage

_MAGIC = b"fedcon state "
_HEAD = re.compile(_MAGIC + rb"(\d{1,9}) ([0-9a-f]{64})\n")
_NOT_YET = 64 * "0"  # the digest of a file that is being written
_PIECE, _LINE = 2**20, 200  # bytes: read at a time, and an upper bound on a head's length
_VERSION = 3  # 2: mirrors were not yet named tuples; 1: states held no mirrors
_PLAIN = (bool, int, float, str, type(None))


@runtime_checkable
class Saveable(Protocol):
    """A type that knows how it is saved; its class method `from_tree` reads it back."""

    def to_tree(self) -> Any:
        """Return its content as a tree."""


class DamagedError(FedConError):
    """A file that is truncated or altered: its content counts as lost."""


class AlteredError(DamagedError):
    """A file that was not written so by anybody: its checksum does not fit."""


def pack(tree: Any) -> tuple[str, dict[str, Array]]:
    """Return a tree as JSON text, and the arrays that the text refers to.

    >>> pack({"x": np.zeros(2), "t": 3})
    ('{"d": {"x": {"a": 0}, "t": 3}}', {'0': array([0., 0.])})
    """
    arrays: dict[str, Array] = {}
    return json.dumps(_encoded(tree, arrays)), arrays


def _encoded(value: Any, arrays: dict[str, Array]) -> Any:
    """Return a value for JSON, and put its arrays aside.

    As a closure that calls itself it would keep the arrays alive until Python collects it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        arrays[str(len(arrays))] = np.ascontiguousarray(value).reshape(value.shape)
        return {"a": len(arrays) - 1}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = {name: _encoded(part, arrays) for name, part in value._asdict().items()}
        return {"n": type(value).__name__, "f": fields}
    if isinstance(value, Saveable):
        return {"o": type(value).__name__, "f": _encoded(value.to_tree(), arrays)}
    if isinstance(value, Mapping):
        return {"d": {str(name): _encoded(part, arrays) for name, part in value.items()}}
    if isinstance(value, list | tuple):
        parts = [_encoded(part, arrays) for part in value]
        return {"t": parts} if isinstance(value, tuple) else parts
    raise ConfigError(f"a state cannot hold {type(value).__name__}: {value!r}")


def unpack(
    text: str, arrays: Mapping[str, Array], types: Mapping[str, type[Any]], part: str | None = None
) -> Any:
    """Return the tree written by `pack`.

    Parameters
    ----------
    types : dict
        The named tuples and saveable types that may occur, by name.
    part : str, optional
        The entry of the tree, a dictionary, that alone is read.

    Raises
    ------
    DamagedError
        If the text does not fit the arrays or the types.
    """
    try:
        tree = json.loads(text)
        return _decoded(tree if part is None else tree["d"][part], arrays, types)
    except Exception as error:  # a text that is not a state can make the types raise anything
        raise DamagedError(f"a state that cannot be read ({error!r:.200})") from None


def _decoded(value: Any, arrays: Mapping[str, Array], types: Mapping[str, type[Any]]) -> Any:
    """Undo `_encoded`."""
    if isinstance(value, list):
        return [_decoded(part, arrays, types) for part in value]
    if not isinstance(value, dict):
        return value
    if "a" in value:
        return arrays[str(value["a"])]
    if "t" in value:
        return tuple(_decoded(part, arrays, types) for part in value["t"])
    if "d" in value:
        return {name: _decoded(part, arrays, types) for name, part in value["d"].items()}
    if "o" in value:
        return types[value["o"]].from_tree(_decoded(value["f"], arrays, types))
    fields = {name: _decoded(part, arrays, types) for name, part in value["f"].items()}
    return types[value["n"]](**fields)


def write(path: Path, tree: Any) -> None:
    """Write a tree to a file in one step: after a crash the old or the new file is there, complete.

    The file and its folder are private to the user.
    """
    text, arrays = pack(tree)
    named: dict[str, Any] = {**arrays, "json": np.frombuffer(text.encode(), dtype=np.uint8)}
    with storage(f"make the folder {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic(path, private=True) as temporary, temporary.open("wb") as file:
        file.write(_head(_NOT_YET))
        content = _Digested(file)
        np.savez(content, **named)
        file.seek(0)
        file.write(_head(content.digest()))


def _head(digest: str) -> bytes:
    return _MAGIC + f"{_VERSION} {digest}\n".encode()


def _digest(file: BinaryIO, start: int) -> str:
    """Return the SHA-256 of the bytes after the head, read in pieces."""
    file.seek(start)
    checksum = hashlib.sha256()
    while piece := file.read(_PIECE):
        checksum.update(piece)
    return checksum.hexdigest()


class _Digested:
    """A file to which an archive is written from start to end, and its SHA-256.

    It has no places to go back to, so nothing that was written is read again.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._checksum = file, hashlib.sha256()
        self.flush = file.flush

    def write(self, data: Any) -> int:
        """Write the next bytes."""
        self._checksum.update(data)
        return self._file.write(data)

    def read(self, size: int = -1) -> bytes:
        """Refuse: NumPy asks whether a file has it, to tell files from paths."""
        raise io.UnsupportedOperation("read")

    def digest(self) -> str:
        """Return the checksum of what was written, as text."""
        return self._checksum.hexdigest()


def read(path: Path, types: Mapping[str, type[Any]], part: str | None = None) -> Any:
    """Return the tree in a file, or one part of it; see `unpack`.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    DamagedError
        If the file is truncated or altered.
    StorageError
        If the path is not a file, or cannot be read.
    ConfigError
        If another version of this package wrote it, in another format.
    """
    check_file(path)
    with storage(f"read {path}"), path.open("rb") as file:
        return _content(path, file, types, part)


def _content(path: Path, file: BinaryIO, types: Mapping[str, type[Any]], part: str | None) -> Any:
    head = file.readline(_LINE)
    matched = _HEAD.fullmatch(head)
    if matched is None:
        raise DamagedError(f"{path} is not a state file, or its head is damaged")
    version, digest = int(matched[1]), matched[2].decode()
    if version != _VERSION:
        writer = "earlier" if version < _VERSION else "newer"
        raise ConfigError(
            f"{path} has format {version}, this version reads format {_VERSION}: go on with "
            f"the {writer} version of flower-fedcon that wrote it, or start again in another folder"
        )
    if _digest(file, len(head)) != digest:
        raise AlteredError(f"{path} is truncated or altered: its checksum does not fit")
    try:
        file.seek(len(head))
        with np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        text = arrays.pop("json").tobytes().decode()
    except Exception as error:  # a complete file of another program: zip and NumPy raise anything
        raise DamagedError(f"{path} holds no state ({error!r:.200})") from None
    return unpack(text, arrays, types, part)
