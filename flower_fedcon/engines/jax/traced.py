"""Arrays of JAX that the package's mathematics can use like NumPy's.

NumPy passes every function of a `TracedArray` to this class (`__array_ufunc__`,
`__array_function__`), which calls JAX's function of the same name. JAX's arrays never change, so
changes in place are refused. A condition is assumed to be true and noted: a round returns whether
all its conditions held.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from flower_fedcon.arrays import Traced
from flower_fedcon.errors import FedConError
from flower_fedcon.layout import array_bytes
from flower_fedcon.wire.payloads import SCALAR_BYTES

_Function = TypeVar("_Function", bound=Callable[..., Any])
_tracing = threading.RLock()  # the assumptions, and the kernels' caller, belong to one trace
_conditions: list[Any] = []
_MOST = 10_000
_AT_ONCE, _SUMS = 32, 4


class NotTraceableError(FedConError):
    """Code that reads values, or calls a function that JAX does not have."""


def one_at_a_time(function: _Function) -> _Function:
    """Allow only one thread at a time to trace."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _tracing:
            return function(*args, **kwargs)

    return cast(_Function, call)


def conditions() -> list[Any]:
    """Return the conditions assumed since the last call, each a JAX bool."""
    assumed = [*_conditions]
    _conditions.clear()
    return assumed


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin, Traced):
    """An array, or without axes a number, that represents a value of JAX.

    Parameters
    ----------
    value : jax.Array
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    # --- what it is --------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return int(self.value.ndim)

    @property
    def size(self) -> int:
        """The number of entries."""
        return int(self.value.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the entries."""
        dtype: np.dtype[Any] = np.dtype(self.value.dtype)
        return dtype

    @property
    def T(self) -> TracedArray:  # noqa: N802
        """The transpose."""
        return TracedArray(self.value.T)

    @property
    def flags(self) -> SimpleNamespace:
        """The flags of a new array."""
        return SimpleNamespace(c_contiguous=True, carray=True, writeable=True)

    @property
    def nbytes(self) -> int:
        """The bytes on the wire, as for compact values; also for a number."""
        return array_bytes(self.shape, self.dtype) if self.ndim else SCALAR_BYTES

    @property
    def stack_bytes(self) -> int:
        """The same for a stack of values."""
        return len(self) * array_bytes(self.shape[1:], self.dtype)

    base = None

    def __len__(self) -> int:
        return int(self.value.shape[0])

    def __repr__(self) -> str:
        return f"<traced {self.dtype} of shape {self.shape}>"

    # --- what cannot be known yet --------------------------------------------------------------

    def assume(self) -> None:
        """Note that all entries of this condition must be true."""
        if len(_conditions) > _MOST:
            raise NotTraceableError("the mathematics loops until a condition holds")
        _conditions.append(jnp.all(self.value != 0))

    def __bool__(self) -> bool:
        if self.value.ndim:
            raise NotTraceableError("the mathematics takes an array for a condition")
        self.assume()
        return True

    def loop(self, advance: Callable[[Any], Any], state: Any) -> Any:
        """Do what `arrays.repeat` does, as a loop of JAX; assume the conditions in all of it."""
        before = conditions()
        first = jax.tree.map(lambda part: jnp.asarray(plain(part)), state)

        def once(given: Any) -> Any:
            old, holds = given
            new = jax.tree.map(_as, advance(jax.tree.map(TracedArray, old)), old)
            return new, jnp.stack([holds, *conditions()]).all()

        end, holds = lax.while_loop(
            lambda given: given[0].going.any() & given[1], once, (first, jnp.asarray(True))
        )
        for condition in (*before, holds):
            TracedArray(condition).assume()
        return jax.tree.map(TracedArray, end)

    def _looked_at(self, *args: Any, **kwargs: Any) -> Any:
        raise NotTraceableError("the mathematics asks for a value, which a trace does not have")

    __float__ = __int__ = __index__ = __complex__ = _looked_at
    __array__ = item = tolist = _looked_at

    def __iter__(self) -> Iterator[Any]:
        raise NotTraceableError("the mathematics goes through an array entry by entry")

    # --- entries -------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> TracedArray:
        return TracedArray(self.value[_index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        raise NotTraceableError("the mathematics changes an array in place")

    def added(self, places: Any, numbers: Any) -> TracedArray:
        """Return the array with numbers added in some places."""
        return TracedArray(self.value.at[_index(places)].add(plain(numbers)))

    def placed(self, places: Any, values: Any) -> TracedArray:
        """Return the array with values put in some places."""
        entries = jnp.asarray(plain(values)).astype(self.value.dtype)
        return TracedArray(self.value.at[_index(places)].set(entries))

    def dots(self, y: Any, axes: int) -> TracedArray:
        """Return each client's inner product, in double precision.

        XLA makes three passes for a sum of more than `_AT_ONCE` terms, but only one pass for a few
        sums at the same time.
        """
        clients = self.shape[: self.ndim - axes]
        size = math.prod(self.shape[self.ndim - axes :])
        products = self.value.reshape(-1, size) * plain(y).reshape(-1, size)
        part, zero = size // _SUMS if size > _AT_ONCE else 0, jnp.zeros((), products.dtype)
        parts = [products[:, _SUMS * part :].sum(axis=1)]
        if part:
            pieces = [products[:, i * part : (i + 1) * part] for i in range(_SUMS)]
            parts += lax.reduce(pieces, [zero] * _SUMS, _added, (1,))
        return TracedArray(sum(parts).astype(np.float64).reshape(clients))

    def reshape(self, *shape: Any, **kwargs: Any) -> TracedArray:
        """Return the array in another shape."""
        return TracedArray(self.value.reshape(shape[0] if len(shape) == 1 else shape))

    def ravel(self) -> TracedArray:
        """Return the array with one axis."""
        return self.reshape(-1)

    def swapaxes(self, first: int, second: int) -> TracedArray:
        """Return the array with two axes exchanged."""
        return TracedArray(self.value.swapaxes(first, second))

    def copy(self, order: str = "C") -> TracedArray:
        """Return a copy."""
        return TracedArray(self.value)

    def astype(self, dtype: Any, copy: bool = True, **kwargs: Any) -> TracedArray:
        """Return the array with this type of entries; itself if allowed and of that type."""
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return TracedArray(self.value.astype(dtype))

    # --- NumPy's functions ---------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        _expect_no(kwargs.get("out"))
        kept = {k: plain(v) for k, v in kwargs.items() if k in ("axis", "keepdims", "dtype")}
        if method == "__call__":
            result = _of_jax(ufunc)(*map(plain, inputs), **kept)
        elif method == "reduce" and ufunc.__name__ in _REDUCTIONS:
            kept.setdefault("axis", 0)
            result = getattr(jnp, _REDUCTIONS[ufunc.__name__])(plain(inputs[0]), **kept)
        else:
            raise NotTraceableError(f"np.{ufunc.__name__}.{method} has no counterpart in JAX")
        return wrapped(result)

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        replacement = _OWN.get(function)
        if replacement is not None:
            return replacement(*args, **kwargs)
        _expect_no(kwargs.get("out"))
        ignored = ("out", "casting", "subok", "order", "copy")
        options = {k: plain(v) for k, v in kwargs.items() if k not in ignored}
        result = _of_jax(function)(*map(plain, args), **options)
        return wrapped(result)


def _method(name: str) -> Callable[..., Any]:
    def call(self: TracedArray, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        _expect_no(out)
        options = {k: plain(v) for k, v in kwargs.items()}
        return wrapped(getattr(jnp, name)(self.value, *map(plain, args), **options))

    call.__name__ = name
    call.__doc__ = f"Return what NumPy's method `{name}` does."
    return call


for _name in (
    "all", "any", "argmax", "argmin", "argsort", "clip", "cumsum", "diagonal", "dot", "max", "mean",
    "min", "prod", "repeat", "squeeze", "std", "sum", "take", "trace", "transpose", "var",
):  # fmt: skip
    setattr(TracedArray, _name, _method(_name))

_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
_REDUCTIONS |= {"logical_and": "all", "logical_or": "any"}


def plain(value: Any) -> Any:
    """Return JAX's values of traced arrays, also within tuples and lists."""
    kind = type(value)
    if kind is TracedArray:
        return value.value
    if kind is tuple or kind is list:
        return kind([plain(v) for v in value])
    return value


def _added(sums: list[Any], terms: list[Any]) -> list[Any]:
    return [total + term for total, term in zip(sums, terms, strict=True)]


def _as(new: Any, old: Any) -> Any:
    """Return a value of JAX in the shape and type of another: a loop must keep them."""
    return jnp.broadcast_to(plain(new), old.shape).astype(old.dtype)


def _index(index: Any) -> Any:
    """Return an index in JAX's form: a list becomes an array."""
    return np.array(index) if type(index) is list else plain(index)


def wrapped(result: Any) -> Any:
    """Return the result of a function of JAX, with traced arrays."""
    if isinstance(result, jax.Array):
        return TracedArray(result)
    if isinstance(result, tuple | list):
        make = getattr(type(result), "_make", type(result))
        return make([wrapped(part) for part in result])
    return result


def _expect_no(out: Any) -> None:
    """Raise if NumPy is asked to write into an existing array."""
    if out is not None:
        raise NotTraceableError("the mathematics changes an array in place")


def _of_jax(function: Any) -> Callable[..., Any]:
    """Return JAX's function of the same name."""
    linear = getattr(function, "__module__", "").startswith("numpy.linalg")
    counterpart = getattr(jnp.linalg if linear else jnp, function.__name__, None)
    if counterpart is None:
        raise NotTraceableError(f"np.{function.__name__} has no counterpart in JAX")
    return counterpart  # type: ignore[no-any-return]


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    return wrapped(jnp.bincount(plain(x), plain(weights), minlength=minlength, length=minlength))


def _broadcast_to(array: Any, shape: tuple[int, ...], subok: bool = False) -> Any:
    return wrapped(jnp.broadcast_to(plain(array), shape))


def _result_type(*values: Any) -> np.dtype[Any]:
    return np.result_type(*(v.dtype if type(v) is TracedArray else v for v in values))


_OWN: dict[Any, Callable[..., Any]] = {
    np.bincount: _bincount,
    np.broadcast_to: _broadcast_to,
    np.result_type: _result_type,
    np.shape: lambda array: array.shape,
    np.ndim: lambda array: array.ndim,
}
