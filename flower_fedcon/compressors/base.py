"""The interface of a compressor, and the identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.compressors.values import Compressed, DType, Shape
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, expect_array


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
        """Return C(x), for a finite x of any shape; random draws come from `rng`."""

    @abstractmethod
    def decode(self, arrays: Mapping[str, Array], shape: Shape, dtype: DType) -> Compressed | Array:
        """Return the value whose `arrays` came over the wire, for an x of `shape` and `dtype`.

        Raises
        ------
        ConfigError
            If this compressor does not send such arrays.
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
        """Return the only array."""
        if len(arrays) != 1:
            raise ConfigError(f"expected one array, got {sorted(arrays)}")
        return expect_array(arrays, next(iter(arrays)), shape, np.dtype(dtype))


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
        "a compressor is Identity(), RandK(fraction=...), TopK(fraction=...), QSGD(levels=...), "
        f"Natural() or Sign(), got {value!r}"
    )
