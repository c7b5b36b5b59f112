"""The parts of a server's or client's state: arrays and numbers, on the host or traced."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flower_fedcon.engines.jax.traced import NotTraceableError, TracedArray

Rebuild = Callable[[Iterator[Any]], Any]
_OTHERS = tuple(str(Path(file).parent) for file in (jax.__file__, np.__file__, __file__) if file)


def parts(tree: Any) -> tuple[list[Any], Rebuild]:
    """Return a state's arrays and numbers, and a function that makes a state from them.

    Raises
    ------
    NotTraceableError
        If the state holds anything else.
    """
    if tree is None or isinstance(tree, bool | str):
        return [], lambda _: tree
    if isinstance(tree, np.ndarray | TracedArray | float | int | np.number):
        return [tree], next
    if isinstance(tree, tuple | list):
        each = [parts(value) for value in tree]
        make = type(tree)._make if hasattr(tree, "_make") else type(tree)
        return [p for entries, _ in each for p in entries], lambda v: make([r(v) for _, r in each])
    if isinstance(tree, dict):
        entries, rebuild = parts(list(tree.values()))
        return entries, lambda values: dict(zip(tree, rebuild(values), strict=True))
    raise NotTraceableError(f"its state holds a {type(tree).__name__}")


def numbers_that_change(
    trace: Callable[[Sequence[Any]], list[Any]], values: Sequence[Any]
) -> list[bool]:
    """Return which parts of the server's state must be traced: arrays and changing numbers.

    Parameters
    ----------
    trace : callable
        Maps the parts of a state to those of the next; parts that are not traced are Python
        numbers.
    values : sequence
        The parts of a state.
    """
    varies = [isinstance(value, np.ndarray) for value in values]
    while True:
        after: list[Any] = []

        def once(given: list[Any], varies: Sequence[bool] = varies, out: Any = after) -> Any:
            left = iter(given)
            out[:] = trace([next(left) if v else x for v, x in zip(varies, values, strict=True)])
            return 0

        jax.eval_shape(once, [x for v, x in zip(varies, values, strict=True) if v])
        if len(after) != len(values):
            raise NotTraceableError("its state has another form after a round")
        more = [
            v or isinstance(new, jax.Array) or new != old
            for v, old, new in zip(varies, values, after, strict=True)
        ]
        if more == varies:
            return varies
        varies = more


def traced_or_number(value: Any) -> Any:
    """Return a traced array, or a number that does not change."""
    arrays = isinstance(value, jax.Array | np.ndarray)
    return TracedArray(jnp.asarray(value)) if arrays else value


def shared(array: Any) -> Any:
    """Return an array that never changes, on the device: on a CPU without a copy.

    A copy is made of memory that does not begin at a cache line.
    """
    return jax.device_put(array, may_alias=True)


def on_host(value: Any, axes: int) -> Any:
    """Return a NumPy array (read-only if it has more axes than a model), or a number."""
    if value.ndim:
        return np.asarray(value) if value.ndim > axes else np.array(value)
    return float(value) if value.dtype.kind == "f" else int(value)


def fixed_parts(state: Any) -> list[Any]:
    """Return the plain values of a client's state, and the types of its arrays."""
    return [(v.shape, v.dtype) if isinstance(v, np.ndarray) else v for v in state]


def place(error: BaseException) -> str:
    """Return the line of a strategy, client or their mathematics that an error comes from."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OTHERS)
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
