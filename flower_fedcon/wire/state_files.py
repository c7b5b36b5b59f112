"""States as text and arrays, and as files that are whole or refused.

A state is a tree of named tuples, dictionaries, lists, arrays and plain values, and of types that
are `Saveable`. It is written as JSON and NumPy arrays, never pickled, and read back with the types
that the reader knows.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.validation import Array

_MAGIC = b"fedcon state "
_VERSION = 2  # 1: before states held mirrors
_PLAIN = (bool, int, float, str, type(None))


@runtime_checkable
class Saveable(Protocol):
    """A type that knows how it is saved; its class method `from_tree` reads it back."""

    def to_tree(self) -> Any:
        """Return its content as a tree."""


class DamagedError(FedConError):
    """A file that is truncated or altered: its content counts as lost."""


def pack(tree: Any) -> tuple[str, dict[str, Array]]:
    """Return a tree as JSON text, and the arrays that the text refers to.

    >>> pack({"x": np.zeros(2), "t": 3})
    ('{"d": {"x": {"a": 0}, "t": 3}}', {'0': array([0., 0.])})
    """
    arrays: dict[str, Array] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, np.ndarray):
            arrays[str(len(arrays))] = np.ascontiguousarray(value).reshape(value.shape)
            return {"a": len(arrays) - 1}
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            fields = {name: encode(part) for name, part in value._asdict().items()}
            return {"n": type(value).__name__, "f": fields}
        if isinstance(value, Saveable):
            return {"o": type(value).__name__, "f": encode(value.to_tree())}
        if isinstance(value, Mapping):
            return {"d": {str(name): encode(part) for name, part in value.items()}}
        if isinstance(value, list | tuple):
            return (
                {"t": [encode(part) for part in value]}
                if isinstance(value, tuple)
                else [encode(part) for part in value]
            )
        raise ConfigError(f"a state cannot hold {type(value).__name__}: {value!r}")

    return json.dumps(encode(tree)), arrays


def unpack(text: str, arrays: Mapping[str, Array], types: Mapping[str, type[Any]]) -> Any:
    """Return the tree written by `pack`.

    Parameters
    ----------
    types : dict
        The named tuples and saveable types that may occur, by name.

    Raises
    ------
    DamagedError
        If the text does not fit the arrays or the types.
    """

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(part) for part in value]
        if not isinstance(value, dict):
            return value
        if "a" in value:
            return arrays[str(value["a"])]
        if "t" in value:
            return tuple(decode(part) for part in value["t"])
        if "d" in value:
            return {name: decode(part) for name, part in value["d"].items()}
        if "o" in value:
            return types[value["o"]].from_tree(decode(value["f"]))
        fields = {name: decode(part) for name, part in value["f"].items()}
        return types[value["n"]](**fields)

    try:
        return decode(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"a state that cannot be read: {error!r}") from None


def write(path: Path, tree: Any) -> None:
    """Write a tree to a file, in one step: after a crash the old or the new file is there, whole.

    The file and its folder are private to the user.
    """
    text, arrays = pack(tree)
    body = io.BytesIO()
    named: dict[str, Any] = {**arrays, "json": np.frombuffer(text.encode(), dtype=np.uint8)}
    np.savez(body, **named)
    payload = body.getvalue()
    head = _MAGIC + f"{_VERSION} {hashlib.sha256(payload).hexdigest()}\n".encode()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(head + payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: Path, types: Mapping[str, type[Any]]) -> Any:
    """Return the tree in a file.

    Raises
    ------
    DamagedError
        If the file is truncated or altered.
    ConfigError
        If another version of this package wrote it, in another format.
    """
    data = path.read_bytes()
    head, _, payload = data.partition(b"\n")
    words = head.removeprefix(_MAGIC).split(b" ")
    if not head.startswith(_MAGIC) or len(words) != 2 or not words[0].isdigit():
        raise DamagedError(f"{path} is not a state file, or its head is damaged")
    if int(words[0]) != _VERSION:
        writer = "earlier" if int(words[0]) < _VERSION else "newer"
        raise ConfigError(
            f"{path} has format {int(words[0])}, this version reads format {_VERSION}: go on with "
            f"the {writer} version of flower-fedcon that wrote it, or start again in another folder"
        )
    if hashlib.sha256(payload).hexdigest().encode() != words[1]:
        raise DamagedError(f"{path} is truncated or altered: its checksum does not fit")
    with np.load(io.BytesIO(payload), allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    text = arrays.pop("json").tobytes().decode()
    return unpack(text, arrays, types)
