"""Stochastic quantisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.compressors.base import Compressor
from flower_fedcon.compressors.values import DType, Quantized, Shape
from flower_fedcon.errors import ConfigError, NotFiniteError
from flower_fedcon.validation import Array, count, expect_array, expect_names, finite


@dataclass(frozen=True)
class QSGD(Compressor):
    """Stochastic rounding to multiples of ||x||/s: unbiased with q = min(d/s^2, sqrt(d)/s).

    Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD" (NeurIPS 2017), section 3.1. An entry is sent
    as one signed integer: a byte if s <= 127, else two.

    Parameters
    ----------
    levels : int
        s, from 1 to 32767.

    Examples
    --------
    >>> QSGD(levels=5).compress(np.array([3.0, -4.0]), np.random.default_rng(0)).signed
    array([ 3, -4], dtype=int8)
    """

    levels: int

    def __post_init__(self) -> None:
        if count("QSGD(levels)", self.levels) > np.iinfo(np.int16).max:
            raise ConfigError(f"QSGD(levels) must be at most 32767, got {self.levels!r}")

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def q(self, size: int) -> float:
        """Return min(d/s^2, sqrt(d)/s)."""
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def compress(self, x: Array, rng: np.random.Generator) -> Quantized:
        """Return the norm and the levels."""
        finite("x", x)
        wide = x.astype(np.float64)
        with np.errstate(over="ignore"):
            scale = float(np.linalg.norm(wide.reshape(-1)))
        if not math.isfinite(scale):
            raise NotFiniteError(
                "QSGD cannot quantise x: its norm overflows. If the run diverges, use smaller steps"
            )
        # Rounding up with probability equal to the fraction makes the mean exact.
        position = np.abs(wide) * (self.levels / scale if scale else 0.0)
        level = np.floor(position)
        level += rng.random(x.shape) < position - level
        np.minimum(level, self.levels, out=level)
        signed = np.copysign(level, wide).astype(self._type)
        return Quantized(np.array(scale), signed, self.levels, x.dtype)

    def decode(self, arrays: Mapping[str, Array], shape: Shape, dtype: DType) -> Quantized:
        """Return the array of a norm >= 0 and levels between -s and s."""
        expect_names(arrays, ("levels", "norm"))
        scale = expect_array(arrays, "norm", (), np.dtype(np.float64))
        signed = expect_array(arrays, "levels", shape, self._type)
        if scale < 0:
            raise ConfigError(f"'norm' must be >= 0, got {float(scale):g}")
        if signed.size and (signed.min() < -self.levels or signed.max() > self.levels):
            raise ConfigError(f"'levels' must be from {-self.levels} to {self.levels}")
        return Quantized(scale, signed, self.levels, np.dtype(dtype))

    @property
    def _type(self) -> DType:
        return np.dtype(np.int8 if self.levels <= np.iinfo(np.int8).max else np.int16)
