"""Validation of arguments and messages: return the value, or raise an error with the remedy."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import date, timedelta
from typing import Any, TypeAlias, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from flower_fedcon.arrays import empty_at_a_line, known
from flower_fedcon.errors import ConfigError, NotFiniteError, nearest, repr_of

Array: TypeAlias = npt.NDArray[Any]
Parameters: TypeAlias = dict[str, inspect.Parameter]
Function = TypeVar("Function", bound=Callable[..., Any])
PIECE = 2**18  # entries, two megabytes of doubles
_LARGE = 2**20  # bytes of an array whose copy begins at a cache line
_SHORT = 10_000  # entries from which on BLAS uses several threads for a product


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ConfigError(f"{name} must be a number, got {repr_of(value)}")
    try:
        return float(value)
    except OverflowError:  # a whole number too large for a float
        raise ConfigError(f"{name} must be less than 1.8e308, got {repr_of(value)}") from None


def real(name: str, value: object) -> float:
    """Return `value` as a float if it is finite."""
    number = _number(name, value)
    if not math.isfinite(number):
        raise ConfigError(f"{name} must be finite, got {repr_of(value)}")
    return number


def positive(name: str, value: object) -> float:
    """Return `value` as a float if it is finite and > 0."""
    number = _number(name, value)
    if not (number > 0 and math.isfinite(number)):
        raise ConfigError(f"{name} must be finite and > 0, got {repr_of(value)}")
    return number


def optional(check: Callable[[str, object], float], name: str, value: object) -> float | None:
    """Return None, or `check` of a given value.

    >>> optional(positive, "radius", None), optional(positive, "radius", 2)
    (None, 2.0)
    """
    return None if value is None else check(name, value)


AUTO = "auto"
"""An argument that a run chooses by a race of a few values."""


def chosen(check: Callable[[str, object], Any], name: str, value: object) -> Any:
    """Return None (for a rule), "auto" (for a race), or `check` of a given value.

    >>> chosen(positive, "client_lr", "auto"), chosen(positive, "client_lr", 2)
    ('auto', 2.0)
    """
    if value is None or (isinstance(value, str) and value == AUTO):
        return value
    return check(name, value)


def nonnegative(name: str, value: object) -> float:
    """Return `value` as a float if it is finite and >= 0."""
    number = _number(name, value)
    if not (number >= 0 and math.isfinite(number)):
        raise ConfigError(f"{name} must be finite and >= 0, got {repr_of(value)}")
    return number


def up_to_one(name: str, value: object) -> float:
    """Return `value` as a float if it is in (0, 1].

    >>> up_to_one("reply_rate", 1.5)
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: reply_rate must be in (0, 1], got 1.5
    """
    number = positive(name, value)
    if number > 1:
        raise ConfigError(f"{name} must be in (0, 1], got {value!r}")
    return number


def count(name: str, value: object, minimum: int = 1) -> int:
    """Return `value` as an int if it is a whole number >= `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ConfigError(f"{name} must be a whole number >= {minimum}, got {repr_of(value)}")
    return int(value)


def _fits(value: object, kind: str) -> bool:
    if isinstance(value, bool | np.bool_):
        return kind == "bool"
    if kind == "int":
        return isinstance(value, int | np.integer)
    return isinstance(value, int | float | np.integer | np.floating) and bool(
        -math.inf < value < math.inf  # also for a whole number too large for a float
    )


_FIELDS = {"int": "a whole number", "float": "a finite number", "bool": "true or false"}


def spelt(hint: object) -> str:
    """Return an annotation as text.

    >>> spelt("int | None"), spelt(float)
    ('int | None', 'float')
    """
    return hint.__name__ if isinstance(hint, type) else str(hint)


def check_field(name: str, value: object, kind: str) -> None:
    """Raise if a value does not have a field's type, for int, float and bool.

    >>> check_field("local_steps", 2.5, "int")
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: local_steps must be a whole number, got 2.5
    """
    plain = kind.removesuffix(" | None")
    if value is None and plain != kind:
        return
    if plain in _FIELDS and not _fits(value, plain):
        raise ConfigError(f"{name} must be {_FIELDS[plain]}, got {repr_of(value)}")


def choice(name: str, value: object, valid: tuple[str, ...]) -> str:
    """Return `value` if it is one of the strings in `valid`."""
    if value not in valid:
        folded = [word for word in valid if word.lower() == str(value).lower()]
        meant = f": did you mean {folded[0]!r}?" if folded else ""
        said = ", ".join(map(repr, valid))
        raise ConfigError(f"{name} must be one of {said}, got {repr_of(value)}{meant}")
    return str(value)


def word_or_number(name: str, value: object, valid: tuple[str, ...]) -> str | float:
    """Return one of the strings in `valid`, or a number > 0.

    >>> word_or_number("extrapolation", 2, ("constant",))
    2.0
    """
    return choice(name, value, valid) if isinstance(value, str) else positive(name, value)


def expect_unmasked(name: str, value: object) -> None:
    """Raise if entries of an array, or of a list of arrays, are masked: NumPy drops the mask."""
    parts = value if isinstance(value, list | tuple) else (value,)
    for part in parts:
        hidden = int(np.count_nonzero(part.mask)) if isinstance(part, np.ma.MaskedArray) else 0
        if hidden:
            raise ConfigError(
                f"{name} is a masked array, and {hidden} of its {part.size} entries are masked: "
                f"first drop their rows or fill them in (`.filled(...)`)"
            )


_TIMES = (date, timedelta, np.datetime64, np.timedelta64)


def time_in_words(value: object) -> str:
    """Return what a date or a duration is, and what to write instead; "" for other values.

    >>> time_in_words(timedelta(2)), time_in_words(2.0)
    ('the duration 2 days, 0:00:00: write a number instead, such as its days', '')
    """
    if not isinstance(value, _TIMES) or is_missing(value):
        return ""
    if isinstance(value, timedelta | np.timedelta64):
        return f"the duration {value}: write a number instead, such as its days"
    return f"the date {value}: write a number instead, such as the days since another date"


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or pandas' NA, or a tuple with one of them."""
    if value is None:
        return True
    if isinstance(value, tuple):
        return any(map(is_missing, value))
    try:
        return bool(value != value)
    except TypeError:  # NA is neither equal to itself nor not
        return True


def expect_no_times(name: str, value: Any) -> None:
    """Raise if an array or a list has dates or durations, which would count in nanoseconds, say.

    Raises
    ------
    ConfigError

    Examples
    --------
    >>> expect_no_times("time", [1.0, 2.0])
    >>> expect_no_times("time", np.array([3], "m8[D]"))
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: time holds the duration 3 days: write a number instead, ...
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "O")
    if kind in "biufcSU":
        return
    if isinstance(value, np.ndarray) and value.dtype.names:
        for field in value.dtype.names:
            expect_no_times(name, value[field])
        return
    cells = value.reshape(-1) if isinstance(value, np.ndarray) else np.asarray(value, object)
    for cell in cells.reshape(-1)[: 1 if kind in "mM" else None]:
        if said := time_in_words(cell):
            raise ConfigError(f"{name} holds {said}")


def floats_of(name: str, value: Any) -> Array:
    """Return numbers as an array of floats, with NaN for those that are missing.

    Raises
    ------
    ConfigError
        If entries are masked, or are texts, dates or durations.

    Examples
    --------
    >>> floats_of("time", [1, None])
    array([ 1., nan])
    """
    expect_no_times(name, value)
    array = plain_array(name, value)
    if array.dtype.kind not in "biuf":
        cells = [math.nan if is_missing(v) else v for v in array.reshape(-1).tolist()]
        try:
            array = np.array([*map(float, cells)]).reshape(array.shape)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{name} must hold numbers, got {repr_of(value)}: convert it (`.astype(float)`"
                + (", or `== 'dead'`, say)" if name == "event" else ")")
            ) from None
    return array.astype(np.float64)


def plain_array(name: str, value: object) -> Array:
    """Return the NumPy array of a value, of any type.

    Raises
    ------
    ConfigError
        If NumPy cannot make an array of `value`, or if entries are masked: NumPy would use the
        hidden values.
    """
    expect_unmasked(name, value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # such as rows of several lengths
        raise ConfigError(f"{name} must be an array ({error})") from None


def float_array(name: str, value: object, ndim: int | None = None, *, keep: bool = True) -> Array:
    """Return `value` as a contiguous array of finite floats that no other code writes to.

    Parameters
    ----------
    name : str
        The name of the value in errors.
    value : object
        An array of numbers, or a value that NumPy can convert.
    ndim : int, optional
        The number of axes that it must have.
    keep : bool (default: True)
        Whether the array will be kept. Otherwise the result may be the given array itself.

    Returns
    -------
    array of float32 or float64, read-only
        float32 if `value` has that type, otherwise float64; a copy, unless `kept` needs none.

    Raises
    ------
    ConfigError
        If `value` is not such an array, a value is not finite, or entries are masked.
    """
    given = plain_array(name, value)
    try:
        if given.dtype.kind not in "biuf":
            raise TypeError(f"its dtype is {given.dtype}")
        with np.errstate(over="ignore"):  # from a wider type; refused below
            array = np.ascontiguousarray(
                given, dtype=np.float32 if given.dtype == np.float32 else np.float64
            ).reshape(given.shape)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be an array of numbers ({error})") from None
    if ndim is not None and array.ndim != ndim:
        raise ConfigError(f"{name} must have {ndim} axes, got shape {array.shape}")
    flat = array.reshape(-1)  # in pieces, since the array of flags would be large
    if not all(np.isfinite(flat[piece]).all() for piece in pieces(flat.size)):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ConfigError(
            f"{name} has a value that is not finite ({array[where]}) at {where}: give a "
            f"finite number, or in data leave such rows out"
        )
    return kept(array, given) if keep else array


def kept(array: Array, given: Array) -> Array:
    """Return an array to be kept: read-only, in memory that no other code may write to.

    It is a copy if it shares memory with the given array, unless that memory is read-only: an array
    that owns its data and is not writeable (``A.flags.writeable = False``), a part of such an
    array, or a file that is opened for reading (``np.load(name, mmap_mode="r")``).

    >>> buffer = np.zeros(2)
    >>> own = kept(buffer, buffer)
    >>> buffer[0] = 1.0
    >>> own, own.flags.writeable
    (array([0., 0.]), False)
    >>> buffer.flags.writeable = False
    >>> kept(buffer, buffer) is buffer
    True
    """
    if np.may_share_memory(array, given) and not _unchanging(given):
        if array.nbytes < _LARGE:
            array = array.copy()
        else:
            copied = empty_at_a_line(array.shape, array.dtype)
            copied[...] = array
            array = closed(copied)
    array.flags.writeable = False
    return array


def closed(array: Array) -> Array:
    """Return an array of `empty_at_a_line` that is full: from now on it is read-only.

    >>> kept(closed(own := empty_at_a_line((2,), np.dtype(float))), own) is own
    True
    """
    array.base.flags.writeable = array.flags.writeable = False  # type: ignore[union-attr]
    return array


def _unchanging(array: Any) -> bool:
    """Return whether an array's memory is read-only for everyone."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        if array.base is None:
            return bool(array.flags.owndata)
        array = array.base
    try:
        return memoryview(array).readonly
    except TypeError:
        return False


def total(name: str, weights: Array) -> float:
    """Return the sum of weights, if they are >= 0 and the sum is neither 0 nor infinite.

    >>> total("sample_weight", np.array([1e308, 1e308]))
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: sample_weight must have a sum from 1e-300 to 1.8e308, got inf
    """
    least = weights.min()
    if least < 0 or not weights.any():
        raise ConfigError(f"{name} must be >= 0 and not all 0, got a smallest of {least:g}")
    with np.errstate(over="ignore"):
        summed = float(weights.sum(dtype=np.float64))
    if not 1e-300 <= summed < math.inf:
        raise ConfigError(f"{name} must have a sum from 1e-300 to 1.8e308, got {summed:g}")
    return summed


def pieces(size: int) -> Iterator[slice]:
    """Yield the places of so many entries at a time that they stay in the processor's cache.

    >>> [*pieces(3)]
    [slice(0, 262144, None)]
    """
    for start in range(0, size, PIECE):
        yield slice(start, start + PIECE)


def largest_entry(x: Array) -> float:
    """Return the largest absolute value of an entry; NaN if one is NaN.

    It takes one pass over the memory, and no copy.

    >>> largest_entry(np.array([1.0, -3.0])), largest_entry(np.array([np.nan, 1.0]))
    (3.0, nan)
    """
    flat = x.ravel(order="K")
    ends = [(0.0, 0.0)]
    ends += [(flat[piece].max(), flat[piece].min()) for piece in pieces(flat.size)]
    high, low = np.max(ends), np.min(ends)
    return max(float(high), -float(low))


def squared_norm(x: Array) -> Any:
    """Return ||x||^2, computed in this thread.

    BLAS's threads would spin for a tenth of a second after a long product, and slow down the
    threads of the compiled loops, which wait for one another.

    >>> float(squared_norm(np.full((100, 200), 0.5)))
    5000.0
    """
    if x.size <= _SHORT or not known(x):
        return np.vdot(x, x)  # unlike `dot`, it does not warn of overflow
    flat = x.ravel(order="K")  # a view, if the entries are contiguous in any order
    return np.einsum("i,i->", flat, flat)


def expect_names(arrays: Mapping[str, Array], names: tuple[str, ...]) -> None:
    """Raise unless a message holds exactly the arrays with these names."""
    if set(arrays) != set(names):
        raise ConfigError(f"expected the arrays {sorted(names)}, got {sorted(arrays)}")


def expect_array(
    arrays: Mapping[str, Array], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Return an array of a message, if it has this shape and dtype and is finite."""
    array = arrays[name]
    if array.shape != shape or array.dtype != dtype:
        raise ConfigError(
            f"{name!r} has shape {array.shape} and dtype {array.dtype}, expected {shape}, {dtype}"
        )
    return finite(name, array)


def finite(name: str, array: Array) -> Array:
    """Return `array` if all its values are finite."""
    if not np.isfinite(array).all():
        raise NotFiniteError(f"{name!r} holds values that are not finite")
    return array


def takes_fields(*settings: Any) -> Callable[[Function], Function]:
    """Show the fields of dataclasses as keyword arguments of a function that passes them on.

    Their defaults are the values that `settings` have.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Draws:
    ...     seed: int = 0
    >>> @takes_fields(Draws(seed=3))
    ... def play(rounds, **given): ...
    >>> inspect.signature(play)
    <Signature (rounds, *, seed=3)>
    """

    def shown(function: Function) -> Function:
        stated = inspect.signature(function)
        named = [p for p in stated.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=getattr(each, f.name))
            for each in settings
            for f in fields(each)
            if f.name not in stated.parameters
        ]
        function.__signature__ = stated.replace(parameters=named + more)  # type: ignore[attr-defined]
        return function

    return shown


def with_fields(title: str, given: Mapping[str, Any], *settings: Any) -> list[Any]:
    """Return copies of dataclasses with the given fields replaced.

    Raises
    ------
    ConfigError
        If none of them has a field of a given name.
    """
    names_of_each = [{f.name for f in fields(each)} for each in settings]
    valid = set[str]().union(*names_of_each)
    for name in given:
        if name not in valid:
            raise ConfigError(f"{title} has no argument {name!r}: {nearest(name, valid)}")
    return [
        replace(each, **{name: given[name] for name in given if name in names})
        for each, names in zip(settings, names_of_each, strict=True)
    ]


def fields_of_node(kind: type[Any], prefix: str, node_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dataclass's fields from a node's configuration, by keys with this prefix.

    Raises
    ------
    ConfigError
        If there is no field of that name.
    """
    by_key = {prefix + f.name.replace("_", "-"): f.name for f in fields(kind)}
    said = {key: value for key, value in node_config.items() if key.startswith(prefix)}
    for key in said:
        if key not in by_key:
            raise ConfigError(f"unknown key {key!r} of this node: {nearest(key, by_key)}")
    return {by_key[key]: value for key, value in said.items()}


def parameters(target: Callable[..., Any]) -> Parameters:
    """Return the parameters of a function, or of a class and the bases that get its **kw.

    Their annotations are types, not text.

    >>> def area(*, width: float, height: float = 1.0) -> float: ...
    >>> {name: p.annotation for name, p in parameters(area).items()}
    {'width': <class 'float'>, 'height': <class 'float'>}
    """
    functions: list[Any] = [target]
    if isinstance(target, type):
        functions = [vars(kind)["__init__"] for kind in target.__mro__ if "__init__" in vars(kind)]
    merged: Parameters = {}
    for function in functions:
        hints = _hints(function)
        listed = inspect.signature(function).parameters.values()
        for p in listed:
            if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                merged.setdefault(p.name, p.replace(annotation=hints.get(p.name, Any)))
        if not any(p.kind is p.VAR_KEYWORD for p in listed):
            break
    return merged


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:  # a name that is imported for type checkers only
        return {}
