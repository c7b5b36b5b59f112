"""Arrays of many clients: one leading axis, and how to name some of its entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.validation import Array

Which: TypeAlias = "slice | Array"
"""Some of the clients of a stack: a slice with start and stop, or an array of their places."""


def places(which: Which) -> Array:
    """Return the clients' places.

    >>> places(slice(2, 5))
    array([2, 3, 4])
    """
    return np.arange(which.start, which.stop) if isinstance(which, slice) else which


def per_client(values: Sequence[float], dtype: np.dtype[Any], axes: int) -> Any:
    """Return a constant of the clients: a number if it is the same for all, else an array.

    Its shape is (clients, 1, ..., 1), with `axes` ones.

    >>> per_client([2.0, 2.0], np.dtype(float), 1), per_client([1.0, 2.0], np.dtype(float), 1)
    (2.0, array([[1.],
           [2.]]))
    """
    if len(set(values)) == 1:
        return values[0]
    return np.array(values, dtype).reshape(-1, *[1] * axes)


def together(arrays: Sequence[Array]) -> Array:
    """Return arrays of one shape, stacked along a new leading axis.

    Nothing is copied if they already follow one another in one array.
    """
    first = arrays[0]
    starts = [array.ctypes.data for array in arrays] if first.base is not None else []
    if starts and all(
        array.base is first.base
        and array.flags.c_contiguous
        and start == starts[0] + i * first.nbytes
        for i, (array, start) in enumerate(zip(arrays, starts, strict=True))
    ):
        shape, strides = (len(arrays), *first.shape), (first.nbytes, *first.strides)
        return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)
    return np.stack(arrays)
