"""Arrays whose entries are not known yet.

The mathematics of this package calls NumPy, and NumPy asks an array that is not its own what a
function means for it. An engine that compiles rounds passes such arrays through the same lines, and
notes what is done to them. A condition on their entries is taken to be true, and tested once the
entries are there. Where either case is usual, a line asks here whether they are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


class Traced:
    """An array, or a number, whose value is not known while the operations on it are noted."""


def known(value: object) -> bool:
    """Return whether a value can be looked at.

    >>> known(1.5)
    True
    """
    return not isinstance(value, Traced)


def anyone(flags: object) -> bool:
    """Return whether any of several conditions holds; True where that is not known.

    For work that changes nothing of whom the condition does not hold for.

    >>> anyone(np.array([False, True])), anyone(np.zeros(2, bool))
    (True, False)
    """
    return not known(flags) or bool(np.any(flags))  # type: ignore[call-overload]


def number(x: Any) -> Any:
    """Return an entry of an array as a Python float; what is not known yet, as it is.

    >>> number(np.ones(3)[1])
    1.0
    """
    return float(x) if known(x) else x


def in_order(x: Any) -> Any:
    """Return an array whose entries stand in memory in the order of their indices.

    >>> in_order(np.eye(2)[:, :1]).flags.c_contiguous
    True
    """
    return np.ascontiguousarray(x) if known(x) else x


def of_type(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as one of a type.

    >>> of_type(0.5, np.dtype(np.float32)).dtype
    dtype('float32')
    """
    return dtype.type(x) if known(x) else x.astype(dtype)


def vector(numbers: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """Return numbers as an array.

    >>> vector([0.5, 2], np.dtype(float))
    array([0.5, 2. ])
    """
    if all(map(known, numbers)):
        return np.array(numbers, dtype)
    return np.stack([of_type(x, dtype) for x in numbers])


def as_column(numbers: Any, axes: int, dtype: Any) -> Any:
    """Return a number of each client, to be multiplied by models of so many axes and this type.

    >>> as_column(np.array([1.0, 2.0]), 1, float)
    array([[1.],
           [2.]])
    """
    return numbers.astype(dtype).reshape(-1, *[1] * axes)


def root(x: Any) -> Any:
    """Return the square root of a number.

    >>> root(4.0)
    2.0
    """
    return math.sqrt(x) if known(x) else np.sqrt(x)
