"""Signs: one bit for each entry, and one number for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.compressors.base import Compressor
from flower_fedcon.compressors.values import Compressed, DType, Shape
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, expect_array, expect_names, finite


class Signs(Compressed):
    """scale, or -scale, entry by entry.

    Parameters
    ----------
    scale : array of float64, shape ()
    bits : array of uint8
        1 for a negative entry, eight entries to a byte.
    shape : tuple of int
        Shape of x.
    dtype : dtype
        Type of x.
    """

    __slots__ = ("bits", "scale")

    def __init__(self, scale: Array, bits: Array, shape: Shape, dtype: DType) -> None:
        self.scale, self.bits = scale, bits
        self.shape, self.dtype = shape, dtype

    def arrays(self) -> dict[str, Array]:
        """Return the scale and the bits."""
        return {"scale": self.scale, "bits": self.bits}

    def dense(self) -> Array:
        """Return the dense array."""
        negative = np.unpackbits(self.bits, count=math.prod(self.shape)).reshape(self.shape)
        scale = float(self.scale)
        dense: Array = np.where(negative, -scale, scale).astype(self.dtype)
        return dense


@dataclass(frozen=True)
class Sign(Compressor):
    """The signs times the mean magnitude ||x||_1 / d: contractive with q of at least 1/d.

    Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes" (ICML 2019), whose q for an x is ||x||_1^2 / (d ||x||^2): near 1 if the
    entries have similar magnitudes.

    Examples
    --------
    >>> Sign().compress(np.array([1.0, -3.0]), np.random.default_rng(0)).dense()
    array([ 2., -2.])
    """

    @property
    def unbiased(self) -> bool:
        """False."""
        return False

    def q(self, size: int) -> float:
        """Return 1/d, which is attained by an x with a single nonzero entry."""
        return 1.0 / size

    def compress(self, x: Array, rng: np.random.Generator) -> Signs:
        """Return the signs; nothing is drawn."""
        finite("x", x)
        wide = x.astype(np.float64).reshape(-1)
        scale = float(np.abs(wide / max(1, wide.size)).sum())
        return Signs(np.array(scale), np.packbits(wide < 0), x.shape, x.dtype)

    def decode(self, arrays: Mapping[str, Array], shape: Shape, dtype: DType) -> Signs:
        """Return the array of a scale >= 0 and its signs."""
        expect_names(arrays, ("bits", "scale"))
        scale = expect_array(arrays, "scale", (), np.dtype(np.float64))
        length = (-(-math.prod(shape) // 8),)
        bits = expect_array(arrays, "bits", length, np.dtype(np.uint8))
        if scale < 0:
            raise ConfigError(f"'scale' must be >= 0, got {float(scale):g}")
        return Signs(scale, bits, shape, np.dtype(dtype))
