"""Natural compression: each entry as a sign and a power of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flower_fedcon.compressors.base import Compressor
from flower_fedcon.compressors.values import Compressed, DType, Shape
from flower_fedcon.errors import ConfigError, NotFiniteError
from flower_fedcon.validation import Array, expect_array, expect_names, finite

_LEVELS = 127  # levels of a signed byte
_EXPONENTS = 1100  # largest exponent of a double


class Powers(Compressed):
    """sign * 2^(top - 127 + |level|), entry by entry; 0 where the level is 0.

    Parameters
    ----------
    top : array of int16, shape ()
        The exponent of level 127.
    levels : array of int8
        The level of each entry, with its sign; the shape of x.
    dtype : dtype
        Type of x.
    """

    __slots__ = ("levels", "top")

    def __init__(self, top: Array, levels: Array, dtype: DType) -> None:
        self.top, self.levels = top, levels
        self.shape, self.dtype = levels.shape, dtype

    def arrays(self) -> dict[str, Array]:
        """Return the exponent and the signed levels."""
        return {"top": self.top, "levels": self.levels}

    def dense(self) -> Array:
        """Return the dense array."""
        exponents = int(self.top) - _LEVELS + np.abs(self.levels.astype(np.int32))
        powers = np.ldexp(np.sign(self.levels).astype(np.float64), exponents)
        dense: Array = powers.astype(self.dtype)
        return dense


@dataclass(frozen=True)
class Natural(Compressor):
    """Stochastic rounding to a power of two: unbiased with q = 1/8, in one byte an entry.

    Horvath, Ho, Horvath, Sahu, Canini, Richtarik, "Natural Compression for Distributed Deep
    Learning" (MSML 2022), definition 1. An entry below 2^-126 of the largest is randomly rounded to
    0 or to that bound.

    Examples
    --------
    >>> Natural().compress(np.array([4.0, -0.5, 0.0]), np.random.default_rng(0)).dense()
    array([ 4. , -0.5,  0. ])
    """

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def q(self, size: int) -> float:
        """Return 1/8."""
        return 0.125

    def compress(self, x: Array, rng: np.random.Generator) -> Powers:
        """Return the levels."""
        finite("x", x)
        wide = np.abs(x.astype(np.float64))
        largest = float(wide.max(initial=0.0))
        top = int(np.frexp(largest)[1]) if largest else 0  # all entries are below 2^top
        if top >= np.finfo(x.dtype).maxexp:
            raise NotFiniteError(
                "Natural cannot round x: the power of two above it overflows. If the run diverges, "
                "use smaller steps"
            )
        # Entries below 2^least are rounded to 0 or 2^least; others to 2^floor or twice that.
        least = top - _LEVELS + 1
        floor = np.frexp(wide)[1] - 1
        small = (floor < least) | (wide == 0)
        base = np.where(small, 0.0, np.ldexp(1.0, floor))
        width = np.where(small, np.ldexp(1.0, least), base)
        up = rng.random(x.shape) * width < wide - base
        level = np.where(small, 0, floor - least + 1) + up
        signed = np.copysign(level, x).astype(np.int8)
        return Powers(np.array(top, dtype=np.int16), signed, x.dtype)

    def decode(self, arrays: Mapping[str, Array], shape: Shape, dtype: DType) -> Powers:
        """Return the array of these levels, with an exponent within a double's range."""
        expect_names(arrays, ("levels", "top"))
        top = expect_array(arrays, "top", (), np.dtype(np.int16))
        levels = expect_array(arrays, "levels", shape, np.dtype(np.int8))
        if abs(int(top)) > _EXPONENTS:
            raise ConfigError(f"'top' must be from {-_EXPONENTS} to {_EXPONENTS}, got {int(top)}")
        if levels.size and levels.min() < -_LEVELS:
            raise ConfigError(f"'levels' must be from {-_LEVELS} to {_LEVELS}")
        return Powers(top, levels, np.dtype(dtype))
