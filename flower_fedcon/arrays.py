"""Operations on arrays that may have a leading client axis, or be traced.

The same code serves one client and a cohort. The arrays of a cohort have a leading client axis, and
its numbers are arrays of shape (clients,). The arrays of one client have no such axis, and its
numbers are Python's floats, which cost a tenth of the time of an array of length one. `axes` is the
number of axes of the model itself.

An engine that compiles rounds passes traced arrays, whose entries are not known yet, through the
same code: NumPy dispatches its functions to them. A condition on their entries is assumed to be
true, and tested when the entries are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

_State = TypeVar("_State")
LINE = 64  # bytes of a cache line


class Traced:
    """An array or a number whose operations are recorded before its value is known."""

    def added(self, places: Any, numbers: Any) -> Any:
        """Do what `added` does."""
        raise NotImplementedError

    def placed(self, places: Any, values: Any) -> Any:
        """Do what `placed` does."""
        raise NotImplementedError

    def dots(self, y: Any, axes: int) -> Any:
        """Do what `dot` does."""
        raise NotImplementedError

    def loop(self, advance: Callable[[Any], Any], state: Any) -> Any:
        """Do what `repeat` does, with a state that contains this array."""
        raise NotImplementedError


_ARRAYS: tuple[Any, ...] = (np.ndarray, Traced)  # Any: its type is not checked


def exact_sum(numbers: Iterable[float]) -> float:
    """Return a sum that is rounded once; it is infinite, without an error, if too large.

    >>> exact_sum([1e308, 1e308]), exact_sum([0.1] * 10)
    (inf, 1.0)
    """
    values = list(numbers)
    try:
        return math.fsum(values)
    except OverflowError:
        return math.copysign(math.inf, sum(math.ldexp(number, -64) for number in values))
    except ValueError:  # infinities of both signs
        return math.nan


def added(x: Any, places: Any, numbers: Any) -> Any:
    """Return an array with numbers added in some places: itself, or a new traced array.

    >>> added(np.zeros(3), np.array([2, 0]), 1.0)
    array([1., 0., 1.])
    """
    if isinstance(x, Traced):
        return x.added(places, numbers)
    x[places] += numbers
    return x


def placed(x: Any, places: Any, values: Any) -> Any:
    """Return an array with values put in some places: itself, or a new traced array.

    >>> placed(np.zeros(3), np.array([2, 0]), 1.0)
    array([1., 0., 1.])
    """
    if isinstance(x, Traced):
        return x.placed(places, values)
    x[places] = values
    return x


def known(value: object) -> bool:
    """Return whether a value is known, rather than traced.

    >>> known(1.5)
    True
    """
    return not isinstance(value, Traced)


def number(x: Any) -> Any:
    """Return an entry of an array as a Python float; a traced entry unchanged.

    >>> number(np.ones(3)[1])
    1.0
    """
    return float(x) if known(x) else x


def in_order(x: Any) -> Any:
    """Return an array whose entries are in memory in the order of their indices.

    >>> in_order(np.eye(2)[:, :1]).flags.c_contiguous
    True
    """
    return np.ascontiguousarray(x) if known(x) else x


def as_column(numbers: Any, axes: int, dtype: Any) -> Any:
    """Return a number of each client in a shape and type that multiplies models.

    >>> as_column(np.array([1.0, 2.0]), 1, float)
    array([[1.],
           [2.]])
    """
    return numbers.astype(dtype, copy=False).reshape(-1, *[1] * axes)


def root(x: Any) -> Any:
    """Return the square root of a number, or of each client's.

    >>> root(4.0), root(np.array([4.0, 9.0]))
    (2.0, array([2., 3.]))
    """
    return np.sqrt(x) if isinstance(x, _ARRAYS) else math.sqrt(x)


def is_array(x: object) -> bool:
    """Return whether something is an array with axes, traced or not.

    >>> is_array(np.ones(2)), is_array(1.0)
    (True, False)
    """
    return isinstance(x, _ARRAYS) and x.ndim > 0


def dot(x: Any, y: Any, axes: int) -> Any:
    """Return each client's inner product, in double precision; y may be one model for all.

    >>> dot(np.array([1.0, 2.0]), np.ones(2), axes=1)
    3.0
    >>> dot(np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 2)), axes=1)
    array([3., 7.])
    """
    if isinstance(x, Traced):
        return x.dots(y, axes)
    if x.ndim == axes:
        return float(x.dot(y) if axes == 1 else np.vdot(x, y))
    n, size = len(x), math.prod(x.shape[1:])
    products = np.matmul(x.reshape(n, 1, size), y.reshape(-1, size, 1)).reshape(n)
    return products.astype(np.float64, copy=False)


def times(tables: Any, x: Any) -> Any:
    """Return each client's matrix times its vector, or times one vector for all.

    >>> times(np.eye(2)[None], np.ones(2)), times(np.ones((1, 1, 2)), np.array([[1.0, 2.0]]))
    (array([[1., 1.]]), array([[3.]]))
    """
    if tables.ndim == 2:
        return tables.dot(x)
    if x.ndim == 1:
        return tables.reshape(-1, x.size).dot(x).reshape(tables.shape[:2])
    return np.matmul(tables, x[:, :, None])[:, :, 0]


def length(x: Any, axes: int) -> Any:
    """Return each client's Euclidean norm, in double precision.

    >>> length(np.array([3.0, 4.0]), axes=1), length(np.array([[3.0, 4.0], [0.0, 2.0]]), axes=1)
    (5.0, array([5., 2.]))
    """
    square = dot(x, x, axes)
    return math.sqrt(square) if type(square) is float else np.sqrt(square)


def wide(numbers: Any, x: Any) -> Any:
    """Return a number of each client with the shape and type to combine with models x.

    >>> wide(np.array([1.0, 2.0]), np.ones((2, 3))).shape, wide(0.5, np.ones(3))
    ((2, 1), 0.5)
    """
    if type(numbers) is float:
        return numbers
    return as_column(numbers, x.ndim - 1, x.dtype) if is_array(numbers) else numbers


def told(numbers: Any) -> Any:
    """Return a number of each client in the form of uploads: a list.

    >>> told(np.array([1.0, 2.0])), told(0.5)
    ([1.0, 2.0], 0.5)
    """
    return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers


def no(flags: Any) -> Any:
    """Return the negation of a flag, for each client.

    >>> no(True), no(np.array([True, False]))
    (False, array([False,  True]))
    """
    return ~flags if isinstance(flags, _ARRAYS) else not flags


def pick(flags: Any, a: Any, b: Any) -> Any:
    """Return for each client the number a if its flag holds, otherwise b.

    >>> pick(True, 1.0, 2.0), pick(np.array([True, False]), 1.0, 2.0)
    (1.0, array([1., 2.]))
    """
    if isinstance(flags, _ARRAYS):
        return np.where(flags, a, b)
    return a if flags else b


def keep(flags: Any, x: Any, y: Any) -> Any:
    """Return for each client the model of x if its flag holds, otherwise that of y.

    >>> keep(np.array([True, False]), np.ones((2, 2)), np.zeros((2, 2)))
    array([[1., 1.],
           [0., 0.]])
    """
    if isinstance(flags, _ARRAYS):
        return np.where(flags.reshape(-1, *[1] * (x.ndim - 1)), x, y)
    return x if flags else y


def larger(a: Any, b: Any) -> Any:
    """Return the larger of two numbers, for each client.

    >>> larger(1.0, 2.0), larger(1.5, np.array([1.0, 2.0]))
    (2.0, array([1.5, 2. ]))
    """
    if isinstance(a, _ARRAYS) or isinstance(b, _ARRAYS):
        return np.maximum(a, b)
    return max(a, b)


def smaller(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers, for each client.

    >>> smaller(1.0, 2.0), smaller(1.5, np.array([1.0, 2.0]))
    (1.0, array([1. , 1.5]))
    """
    if isinstance(a, _ARRAYS) or isinstance(b, _ARRAYS):
        return np.minimum(a, b)
    return min(a, b)


def some(flags: Any) -> bool:
    """Return whether a flag holds for any client; True if that is not known.

    It is for operations that change nothing for clients whose flag does not hold.

    >>> some(False), some(np.array([False, True]))
    (False, True)
    """
    if flags is False or flags is True:
        return flags
    if isinstance(flags, _ARRAYS):
        return not known(flags) or bool(flags.any())
    return bool(flags)


def nobody(flags: Any) -> bool:
    """Return whether a flag holds for no client; assumed to be true if that is not known.

    >>> nobody(False), nobody(np.array([False, True]))
    (True, False)
    """
    return bool((~flags).all()) if isinstance(flags, _ARRAYS) else not flags


def over(function: Callable[..., Any], state: Any, *others: Any) -> Any:
    """Return nested tuples with a function applied to each part, and to parts of others.

    >>> over(lambda a, b: a + b, (1, (2, 3)), (10, (20, 30)))
    (11, (22, 33))
    """
    if not isinstance(state, tuple):
        return function(state, *others)
    parts = [over(function, *part) for part in zip(state, *others, strict=True)]
    return getattr(type(state), "_make", tuple)(parts)


def repeat(advance: Callable[[_State], _State], state: _State) -> _State:
    """Return a state, a NamedTuple with flags `going`, advanced until these hold for no client.

    If the state's first array is traced, it makes the loop.

    >>> from typing import NamedTuple
    >>> class Count(NamedTuple):
    ...     number: float
    ...     going: bool
    >>> repeat(lambda s: Count(s.number + 1, s.number < 3), Count(0.0, True)).number
    4.0
    """
    first: Any = state
    while isinstance(first, tuple):
        first = first[0]
    if isinstance(first, Traced):
        return first.loop(advance, state)  # type: ignore[no-any-return]
    while some(state.going):  # type: ignore[attr-defined]
        state = advance(state)
    return state


def empty_at_a_line(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array that starts at a cache line: loops read it in 5/6 of the time.

    JAX takes such an array without a copy, and no other.

    >>> empty_at_a_line((2, 3), np.dtype(float)).ctypes.data % LINE
    0
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size].view(dtype).reshape(shape)
