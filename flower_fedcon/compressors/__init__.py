"""Compressors, which send a small message instead of a dense array, and decode it.

A compressor C is unbiased, with E C(x) = x and E||C(x) - x||^2 <= q ||x||^2, or contractive, with
E||C(x) - x||^2 <= (1 - q) ||x||^2. It has `compress(x, rng)`, `decode(arrays, shape, dtype)`,
`unbiased` and `q(size)`. `EF21` is error feedback with any of them.
"""

from flower_fedcon.compressors.base import Compressor, Identity, as_compressor
from flower_fedcon.compressors.entries import RandK, TopK
from flower_fedcon.compressors.feedback import EF21
from flower_fedcon.compressors.natural import Natural, Powers
from flower_fedcon.compressors.qsgd import QSGD
from flower_fedcon.compressors.signs import Sign, Signs
from flower_fedcon.compressors.values import Compressed, Quantized, Sparse, dense
from flower_fedcon.errors import point_elsewhere

__all__ = [
    "EF21",
    "QSGD",
    "Compressed",
    "Compressor",
    "Identity",
    "Natural",
    "Powers",
    "Quantized",
    "RandK",
    "Sign",
    "Signs",
    "Sparse",
    "TopK",
    "as_compressor",
    "dense",
]

point_elsewhere(__name__)
