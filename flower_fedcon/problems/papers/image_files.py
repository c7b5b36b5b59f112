"""Readers of image sets in a user's folder: MNIST's idx files and CIFAR-10's binary version."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.problems.images import Images
from flower_fedcon.validation import Array

CIFAR_SHAPE = (3, 32, 32)
_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTES = 0x08  # the type code of MNIST's files; others are not read


def folder(data: str, files: str) -> Path:
    """Return the path of an existing folder; `files` tells the error what it must hold."""
    path = Path(data).expanduser()
    if not path.is_dir():
        raise ConfigError(f"{data} is not a folder: data must be a folder with {files}")
    return path


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file, gzipped or not, or None."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def read_mnist(folder: Path, part: str) -> Images:
    """Return the images of ``PART-images-idx3-ubyte`` and ``PART-labels-idx1-ubyte``.

    Parameters
    ----------
    folder : Path
    part : {"train", "t10k"}

    Returns
    -------
    Images
        `pixels` of shape (n, 28, 28), uint8.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, or the two do not belong together.
    """
    paths = []
    for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
        path = find(folder, name)
        if path is None:
            raise ConfigError(
                f"{folder} holds no {name} or {name}.gz: data must be a folder with MNIST's files"
            )
        paths.append(path)
    pixels, labels = read_idx(paths[0], (28, 28)), read_idx(paths[1], ())
    if len(pixels) != len(labels):
        raise ConfigError(
            f"{paths[0].name} holds {len(pixels)} images and {paths[1].name} {len(labels)} labels: "
            "they do not belong together"
        )
    return Images(pixels, _classes(paths[1], labels))


def read_idx(path: Path, item: tuple[int, ...]) -> Array:
    """Return the array of an idx file of unsigned bytes, gzipped or not.

    Parameters
    ----------
    path : Path
    item : tuple of int
        The shape of one item: the file must hold n >= 1 of them.

    Returns
    -------
    array, shape (n, *item), uint8

    Raises
    ------
    ConfigError
        If the file cannot be read, or is not exactly such a file. No more bytes are read than its
        header states.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP
            raw.seek(0)
            content = gzip.GzipFile(fileobj=raw) if zipped else raw
            return _read_idx(path, content, item)  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error) as error:
        _refuse(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")


def _read_idx(path: Path, file: BinaryIO, item: tuple[int, ...]) -> Array:
    axes = 1 + len(item)
    expected = bytes([0, 0, _UNSIGNED_BYTES, axes])
    magic = _exactly(path, file, 4)
    if magic != expected:
        _refuse(path, f"begins with {magic.hex()}, an idx file of this kind with {expected.hex()}")
    sizes = np.frombuffer(_exactly(path, file, 4 * axes), dtype=">u4").tolist()
    if tuple(sizes[1:]) != item or sizes[0] < 1:
        wanted = " x ".join(["n", *map(str, item)])
        _refuse(path, f"says that it holds {' x '.join(map(str, sizes))} bytes, expected {wanted}")
    content = _exactly(path, file, math.prod(sizes))
    if file.read(1):
        _refuse(path, f"goes on after the {' x '.join(map(str, sizes))} bytes that it announces")
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes)


def _exactly(path: Path, file: BinaryIO, size: int) -> bytes:
    """Return `size` bytes; memory grows with the file's content, not with its header's claim."""
    content = io.BytesIO()
    while content.tell() < size:
        block = file.read(min(size - content.tell(), 1 << 20))
        if not block:
            _refuse(path, f"ends after {content.tell()} of {size} bytes: it is truncated")
        content.write(block)
    return content.getvalue()


def read_cifar(path: Path) -> Images:
    """Return the images of a file of CIFAR-10's binary version, such as ``data_batch_1.bin``.

    Each image is one byte for its class and 3072 for its pixels.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Images
        `pixels` of shape (n, 3, 32, 32), uint8.

    Raises
    ------
    ConfigError
        If the file cannot be read, its size is not that of whole images, or a class is above 9.
    """
    size = 1 + math.prod(CIFAR_SHAPE)
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}")
    if not len(content) or len(content) % size:
        _refuse(path, f"has {len(content)} bytes, expected a multiple of {size}, one image each")
    records = content.reshape(-1, size)
    return Images(records[:, 1:].reshape(-1, *CIFAR_SHAPE), _classes(path, records[:, 0]))


def _classes(path: Path, labels: Array) -> Array:
    if labels.max() > 9:
        _refuse(path, f"holds a class {labels.max()}, expected 0 to 9")
    return labels.astype(np.int64)


def _refuse(path: Path, why: str) -> NoReturn:
    raise ConfigError(f"{path} {why}: get the file again from its source")
