"""The TOML schema: tables checked against the signatures that receive them, and written."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from flower_fedcon.core.participation import Bernoulli, Full, Participation, Sample
from flower_fedcon.errors import ConfigError, FedConError, nearest
from flower_fedcon.wire import settings

Table: TypeAlias = dict[str, Any]
Parameters: TypeAlias = dict[str, inspect.Parameter]


@contextmanager
def context(where: str) -> Iterator[None]:
    """Begin the text of user errors with the place where they arose.

    >>> with context("[run]"):
    ...     raise ConfigError("rounds is missing")
    Traceback (most recent call last):
    flower_fedcon.errors.ConfigError: [run]: rounds is missing
    """
    try:
        yield
    except FedConError as error:
        raise type(error)(f"{where}: {error}") from None


def parameters(target: Callable[..., Any]) -> Parameters:
    """Return the named parameters of a function, or of a class and the bases it passes **kw to.

    Their annotations are types, not text.

    >>> def area(*, width: float, height: float = 1.0) -> float: ...
    >>> {name: p.annotation for name, p in parameters(area).items()}
    {'width': <class 'float'>, 'height': <class 'float'>}
    """
    functions: list[Any] = [target]
    if isinstance(target, type):
        functions = [vars(kind)["__init__"] for kind in target.__mro__ if "__init__" in vars(kind)]
    found: Parameters = {}
    for function in functions:
        hints = _hints(function)
        own = inspect.signature(function).parameters.values()
        for p in own:
            if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                found.setdefault(p.name, p.replace(annotation=hints.get(p.name, Any)))
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    return found


def defaults(known: Parameters) -> Table:
    """Return the defaults that a file can state."""
    plain = {name: p.default for name, p in known.items() if isinstance(p.default, _SCALARS)}
    return {name: value for name, value in plain.items() if value is not None}


def check_table(value: Any, name: str) -> None:
    """Raise unless `value` is a table."""
    if value is None:
        raise ConfigError(f"the table {name} is missing")
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a table, got {value!r}")


def check_keys(table: Mapping[str, Any], valid: Iterable[str], where: str = "") -> None:
    """Raise if a key is not among the valid ones, naming the nearest."""
    names = list(valid)
    for key in table:
        if key not in names:
            place = f" at {where}" if where else ""
            raise ConfigError(f"unknown key {key!r}{place}: {nearest(key, names)}")


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


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:  # a name imported for type checkers only
        return {}


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint in (int, float):  # bool is a subclass of int, and meant as neither
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
        types = [n for n, known in settings.registered().items() if issubclass(known, kind)]
        if types:
            return f"a table {{type = ...}} of {', '.join(sorted(types))}"
    return _WORDS.get(hint, f"a {getattr(kind, '__name__', hint)}")


def parse_value(text: str) -> Any:
    """Return a TOML value, or the text itself where it is none.

    >>> parse_value("1e-3"), parse_value("{sample = 3}"), parse_value("ray")
    (0.001, {'sample': 3}, 'ray')
    """
    try:
        tables = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tables["value"] if len(tables) == 1 else text


def write_value(value: Any) -> str:
    """Return a value as TOML.

    >>> write_value({"type": "L1", "weight": 1e-3, "on": True})
    '{type = "L1", weight = 0.001, on = true}'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {write_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write_value, value)) + "]"
    # JSON's escapes are valid in TOML, which also wants this one character escaped
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def section(header: str, table: Mapping[str, Any]) -> list[str]:
    """Return a table's lines, after an empty one."""
    return ["", header, *(f"{_key(key)} = {write_value(value)}" for key, value in table.items())]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else write_value(key)


_PARTICIPATION: dict[str, Callable[[Any], Participation]] = {
    "sample": lambda size: Sample(count=size),
    "fraction": lambda fraction: Sample(fraction=fraction),
    "bernoulli": lambda p: Bernoulli(p),
}


def argument(name: str, value: Any) -> Any:
    """Return an argument of a strategy as its constructor takes it.

    >>> argument("participation", {"sample": 3}), argument("regularizer", {"type": "Zero"})
    (Sample(count=3, fraction=None), Zero())
    """
    if name == "participation":
        return _participation(value)
    if isinstance(value, dict):
        if "type" not in value:
            raise ConfigError(
                f'{name} is a table without type: write {{type = "L1", weight = 1e-3}}, or another '
                f"of {', '.join(sorted(settings.registered()))}"
            )
        return settings.make(
            value["type"], {k: argument(k, v) for k, v in value.items() if k != "type"}
        )
    return value


def _participation(value: Any) -> Participation:
    if value == "full":
        return Full()
    if isinstance(value, dict) and len(value) == 1:
        (rule, number), *_ = value.items()
        if rule in _PARTICIPATION:
            return _PARTICIPATION[rule](number)
        raise ConfigError(f"unknown participation {rule!r}: {nearest(rule, _PARTICIPATION)}")
    raise ConfigError(
        'participation must be "full", {sample = 3}, {fraction = 0.3} or {bernoulli = 0.5}, '
        f"got {value!r}"
    )
