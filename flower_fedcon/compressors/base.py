"""The interface of a compressor, and the one that leaves all as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.compressors.values import Compressed, DType, Shape
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array


class Compressor(ABC):
    """A (random) map C that makes an array smaller on the wire."""

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether E C(x) = x."""

    @abstractmethod
    def q(self, size: int) -> float:
        """Return the constant q for arrays of `size` entries.

        Unbiased: E||C(x) - x||^2 <= q ||x||^2. Else: E||C(x) - x||^2 <= (1 - q) ||x||^2.
        """

    @abstractmethod
    def compress(self, x: Array, rng: np.random.Generator) -> Compressed | Array:
        """Return C(x), for a finite x of any shape; draws come from `rng` alone."""

    @abstractmethod
    def decode(self, arrays: Mapping[str, Array], shape: Shape, dtype: DType) -> Compressed | Array:
        """Return the value whose `arrays` came over the wire, for an x of `shape` and `dtype`.

        Raises
        ------
        ConfigError
            If they are not what this compressor would send.
        """


@dataclass(frozen=True)
class Identity(Compressor):
    """C(x) = x: no compression."""

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def q(self, size: int) -> float:
        """Return 0."""
        return 0.0

    def compress(self, x: Array, rng: np.random.Generator) -> Array:
        """Return x itself, not a copy."""
        return x

    def decode(self, arrays: Mapping[str, Array], shape: Shape, dtype: DType) -> Array:
        """Return the one array there is."""
        if len(arrays) != 1:
            raise ConfigError(f"expected one array, got {sorted(arrays)}")
        return expect(arrays, next(iter(arrays)), shape, np.dtype(dtype))


def as_compressor(value: object) -> Compressor:
    """Return `value` as a compressor; None is `Identity()`.

    Raises
    ------
    ConfigError
        If `value` is neither None nor an instance of a compressor.

    Examples
    --------
    >>> as_compressor(None)
    Identity()
    """
    if value is None:
        return Identity()
    if isinstance(value, Compressor):
        return value
    raise ConfigError(
        "a compressor is Identity(), RandK(fraction=...), TopK(fraction=...) or QSGD(levels=...), "
        f"got {value!r}"
    )


def names(arrays: Mapping[str, Array], names: tuple[str, ...]) -> None:
    """Raise unless these arrays have come, in alphabetical order."""
    if sorted(arrays) != list(names):
        raise ConfigError(f"expected the arrays {', '.join(names)}, got {sorted(arrays)}")


def expect(arrays: Mapping[str, Array], name: str, shape: Shape, dtype: DType) -> Array:
    """Return an array of a message if it has this shape and dtype, and is finite."""
    array = arrays[name]
    if array.shape != shape or array.dtype != dtype:
        raise ConfigError(
            f"{name!r} has shape {array.shape} and dtype {array.dtype}, expected {shape}, {dtype}"
        )
    return finite(name, array)


def finite(name: str, array: Array) -> Array:
    """Return `array` if all its values are finite."""
    if not np.isfinite(array).all():
        raise ConfigError(f"{name!r} holds values that are not finite")
    return array
