"""Noise from the operating system: no seed, and no resumed run, repeats it."""

from __future__ import annotations

import math
import secrets

import numpy as np

from flower_fedcon.validation import Array


def normal(shape: tuple[int, ...]) -> Array:
    """Return standard normal numbers."""
    from scipy.special import ndtri

    drawn: Array = ndtri(uniform(shape))
    return drawn


def uniform(shape: tuple[int, ...]) -> Array:
    """Return numbers in (0, 1), of 52 bits each: with one more, the largest would round to 1."""
    bits = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), np.uint64)
    uniform: Array = ((bits >> np.uint64(12)) + 0.5) * 2.0**-52
    return uniform.reshape(shape)
