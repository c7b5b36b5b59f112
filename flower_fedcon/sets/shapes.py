"""Arrays of models: their sizes, stacks of them, and the validation of what sets are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from flower_fedcon.arrays import known
from flower_fedcon.errors import ConfigError, NotFiniteError
from flower_fedcon.validation import Array, expect_array, expect_names, squared_norm


def size_of(shape: tuple[int, ...]) -> int:
    """Return the number of entries of an array of `shape`."""
    return math.prod(shape)


def rows(x: Array, batch: int) -> Array:
    """Return `x` with the axes behind the first `batch` flattened into one: (..., d)."""
    return x.reshape((*x.shape[:batch], -1))


def each(x: Array, batch: int, function: Callable[[Array], Array]) -> Array:
    """Return `function` of every model in a stack, stacked again; if batch = 0, of `x` itself."""
    if batch == 0:
        return function(x)
    if x.size == 0:
        return x.copy()
    models = x.reshape((-1, *x.shape[batch:]))
    return np.stack([function(model) for model in models]).reshape(x.shape)


def expect_floats(owner: str, x: Array) -> None:
    """Raise unless `x` holds floats: an array of integers would truncate the result."""
    if x.dtype.kind != "f":
        raise ConfigError(
            f"{owner} takes arrays of floats, got {x.dtype}: pass np.asarray(x, dtype=float)"
        )


def expect_finite(owner: object, x: Array) -> None:
    """Raise if an entry of `x` is not a finite float."""
    if x.dtype.kind == "f" and known(x) and squared_norm(x) < math.inf:  # several times as fast
        return
    expect_floats(type(owner).__name__, x)
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise NotFiniteError(
            f"{type(owner).__name__} got a value that is not finite ({x[where]}) at {where}: has "
            f"the run diverged? Check the data and the step sizes"
        )


def expect_matrix(owner: object, shape: tuple[int, ...]) -> None:
    """Raise unless `shape` is that of a matrix."""
    if len(shape) != 2:
        raise ConfigError(f"{owner!r} is a set of matrices, the model has shape {shape}")


def expect_unit(array: Array) -> None:
    """Raise unless `array` is a unit vector to 1e-6."""
    norm = float(np.linalg.norm(array.astype(np.float64)))
    if not abs(norm - 1.0) <= 1e-6:
        raise ConfigError(f"a direction has the norm {norm:.9g}, expected 1")


def only_array(
    arrays: Mapping[str, Array], name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> Array:
    """Return the only array of a message; see `expect_array`."""
    expect_names(arrays, (name,))
    return expect_array(arrays, name, shape, dtype)


class ByValue:
    """Equality by fields, for dataclasses that may hold arrays."""

    def _key(self) -> tuple[Any, ...]:
        return tuple(_hashable(getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and type(self) is type(other)
            and (self._key() == other._key())
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return value
