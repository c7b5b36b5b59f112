"""Compressors: what is sent in place of a dense array, and how it is read back.

A compressor C is unbiased, with E C(x) = x and E||C(x) - x||^2 <= q ||x||^2, or contractive, with
E||C(x) - x||^2 <= (1 - q) ||x||^2. It has `compress(x, rng)`, `decode(arrays, shape, dtype)`,
`unbiased` and `q(size)`.
"""

from flower_fedcon.compressors.base import Compressor, Identity, as_compressor
from flower_fedcon.compressors.entries import RandK, TopK
from flower_fedcon.compressors.qsgd import QSGD
from flower_fedcon.compressors.values import Compressed, Quantized, Sparse, dense

__all__ = [
    "QSGD",
    "Compressed",
    "Compressor",
    "Identity",
    "Quantized",
    "RandK",
    "Sparse",
    "TopK",
    "as_compressor",
    "dense",
]
