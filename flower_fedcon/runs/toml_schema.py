"""The TOML schema: tables checked against the signatures that receive them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from flower_fedcon.errors import ConfigError, FedConError, nearest
from flower_fedcon.validation import Parameters
from flower_fedcon.wire import settings

Table: TypeAlias = dict[str, Any]


@contextmanager
def context(where: str) -> Iterator[None]:
    """Begin the text of user errors with the place where they occurred, once.

    >>> with context("[run]"):
    ...     raise ConfigError("rounds is missing")
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: [run]: rounds is missing
    """
    try:
        yield
    except FedConError as error:
        if str(error).startswith(f"{where}: "):
            raise
        raise type(error)(f"{where}: {error}") from None


def defaults(known: Parameters) -> Table:
    """Return the defaults that can be written in a file."""
    plain = {name: p.default for name, p in known.items() if isinstance(p.default, _SCALARS)}
    return {name: value for name, value in plain.items() if value is not None}


def check_table(value: Any, name: str) -> None:
    """Raise unless `value` is a table."""
    if value is None:
        raise ConfigError(f"the table {name} is missing")
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a table, got {value!r}")


def check_keys(
    table: Mapping[str, Any],
    valid: Iterable[str],
    where: str = "",
    also: Mapping[str, str] | None = None,
) -> None:
    """Raise if a key is not valid, with the nearest valid one; `also` as for `nearest`."""
    names = list(valid)
    for key in table:
        if key not in names:
            place = f" at {where}" if where else ""
            raise ConfigError(f"unknown key {key!r}{place}: {nearest(key, names, also)}")


def check_types(values: Mapping[str, Any], known: Parameters) -> None:
    """Raise if a value does not fit its parameter's annotation."""
    for name, value in values.items():
        check_type(name, value, known[name].annotation)


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise if a value does not fit a type.

    >>> check_type("rounds", "ten", int)
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: rounds must be a whole number, got 'ten'
    """
    if not _fits(value, hint):
        raise ConfigError(f"{name} must be {_describe(hint)}, got {value!r}")


_SCALARS = (bool, int, float, str, NoneType)
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
}


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint in (int, float):  # bool is a subclass of int, but not meant as a number
        kinds = (int, float) if hint is float else (int,)
        return isinstance(value, kinds) and not isinstance(value, bool)
    kind = origin or hint
    if kind is Any or not isinstance(kind, type):
        return True
    if isinstance(value, list) and not issubclass(kind, _SCALARS):
        return True  # a sequence: the constructor checks the rest
    return isinstance(value, kind)


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(_describe(part) for part in get_args(hint) if part is not NoneType)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    kind = origin or hint
    if isinstance(kind, type) and kind not in _WORDS:
        types = [n for n, setting in settings.registered().items() if issubclass(setting, kind)]
        if types:
            return f"a table {{type = ...}} of {', '.join(sorted(types))}"
    return _WORDS.get(hint, f"a {getattr(kind, '__name__', hint)}")
