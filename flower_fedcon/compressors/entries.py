"""Compressors that send only some entries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.compressors.base import Compressor
from flower_fedcon.compressors.values import DType, Shape, Sparse
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, count, expect_array, expect_names, finite, positive


@dataclass(frozen=True)
class _Entries(Compressor):
    """Compressors that keep K entries, where `fraction` or `count` gives K."""

    fraction: float | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.fraction is None) == (self.count is None):
            raise ConfigError(f"{name} needs either fraction or count: give one of them")
        if self.count is not None:
            count(f"{name}(count)", self.count)
        elif positive(f"{name}(fraction)", self.fraction) > 1:
            raise ConfigError(f"{name}(fraction) must be at most 1, got {self.fraction!r}")

    def kept(self, size: int) -> int:
        """Return K, the number of entries kept of `size`: at least 1.

        Raises
        ------
        ConfigError
            If `count` is above `size`.
        """
        if self.count is None:
            return max(1, round(float(self.fraction or 0) * size))
        if self.count > size:
            raise ConfigError(
                f"{type(self).__name__}(count={self.count}) is more than the model's {size} "
                f"entries: pass at most {size}, or a fraction"
            )
        return self.count

    def _pick(self, x: Array, indices: Array) -> Sparse:
        return Sparse(indices.astype(_index_type(x.size)), x.reshape(-1)[indices], x.shape)

    def decode(self, arrays: Mapping[str, Array], shape: Shape, dtype: DType) -> Sparse:
        """Return the entries in a message; their indices must be in range and increasing."""
        size = math.prod(shape)
        length = (self.kept(size),)
        expect_names(arrays, ("indices", "values"))
        indices = expect_array(arrays, "indices", length, _index_type(size))
        values = expect_array(arrays, "values", length, np.dtype(dtype))
        if indices[0] < 0 or indices[-1] >= size or (indices[1:] <= indices[:-1]).any():
            raise ConfigError(f"indices must increase strictly within 0 to {size - 1}")
        return Sparse(indices, values, shape)


@dataclass(frozen=True)
class RandK(_Entries):
    """K entries, drawn uniformly, each times d/K: unbiased with q = d/K - 1.

    Parameters
    ----------
    fraction : float, optional
        K/d, in (0, 1]; K is rounded, and at least 1. Give either this or `count`.
    count : int, optional
        K >= 1.
    scaled : bool
        False drops the factor d/K: C is then contractive, with q = K/d.

    Examples
    --------
    >>> half = RandK(fraction=0.5)
    >>> half.q(4), half.compress(np.ones(4), np.random.default_rng(0)).values
    (1.0, array([2., 2.]))
    """

    scaled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.scaled, bool):
            raise ConfigError(f"RandK(scaled) must be True or False, got {self.scaled!r}")

    @property
    def unbiased(self) -> bool:
        """Whether the entries are scaled."""
        return self.scaled

    def q(self, size: int) -> float:
        """Return d/K - 1, or K/d if the entries are not scaled."""
        kept = self.kept(size)
        return size / kept - 1 if self.scaled else kept / size

    def compress(self, x: Array, rng: np.random.Generator) -> Sparse:
        """Return K entries."""
        finite("x", x)
        kept = self.kept(x.size)
        sparse = self._pick(x, np.sort(rng.choice(x.size, kept, replace=False, shuffle=False)))
        if self.scaled:
            sparse.values *= x.size / kept
        return sparse


@dataclass(frozen=True)
class TopK(_Entries):
    """The K entries of largest magnitude; ties go to the lowest index. Contractive, q = K/d.

    Parameters
    ----------
    fraction : float, optional
        K/d, in (0, 1]; K is rounded, and at least 1. Give either this or `count`.
    count : int, optional
        K >= 1.

    Examples
    --------
    >>> TopK(count=2).compress(np.array([1.0, -3.0, 2.0]), np.random.default_rng(0)).dense()
    array([ 0., -3.,  2.])
    """

    @property
    def unbiased(self) -> bool:
        """False."""
        return False

    def q(self, size: int) -> float:
        """Return K/d."""
        return self.kept(size) / size

    def compress(self, x: Array, rng: np.random.Generator) -> Sparse:
        """Return K entries; nothing is drawn."""
        finite("x", x)
        kept = self.kept(x.size)
        size = np.abs(x.reshape(-1))
        least = np.partition(size, x.size - kept)[x.size - kept]
        chosen = size > least
        tied = np.flatnonzero(size == least)
        chosen[tied[: kept - np.count_nonzero(chosen)]] = True
        return self._pick(x, np.flatnonzero(chosen))


def _index_type(size: int) -> DType:
    return np.dtype(np.int32 if size <= np.iinfo(np.int32).max else np.int64)
