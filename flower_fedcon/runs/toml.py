"""Values in TOML files, read and written: sets, regularizers, solvers, participation rules."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.core.participation import Bernoulli, Full, Only, Participation, Sample
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.wire import settings


def parse_value(text: str) -> Any:
    """Return a TOML value, or the text itself where it is none.

    Raises
    ------
    ConfigError
        If it begins like a table or a list, and is none.

    >>> parse_value("1e-3"), parse_value("{sample = 3}"), parse_value("ray")
    (0.001, {'sample': 3}, 'ray')
    """
    try:
        tables = parse_toml(f"value = {text}")
    except ConfigError as error:
        # What is nested too deeply is refused as a text, by who wants a number.
        if text.lstrip().startswith(("{", "[")) and "nested" not in str(error):
            raise ConfigError(
                f"{text[:80]!r} is {error}: write numbers as 0.2 or 1e-3, and texts in quotes"
            ) from None
        return text
    return tables["value"] if len(tables) == 1 else text


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises
    ------
    ConfigError
        If it is none, or nested more than 20 deep.
    """
    too_deep = ConfigError("nested too deeply: no entry may lie more than 20 brackets deep")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # of tomllib, or of a number with too many digits
        raise ConfigError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise too_deep from None
    level: list[Any] = [tables]
    for _ in range(20):
        parts = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return tables
    raise too_deep


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises
    ------
    ConfigError
        If it cannot be read, or is none.
    """
    try:
        return parse_toml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path} is {error}") from None


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
    "only": lambda client: Only(client),
}


def argument(name: str, value: Any) -> Any:
    """Return an argument of a strategy as its constructor takes it.

    >>> argument("participation", {"sample": 3}), argument("regularizer", {"type": "Zero"})
    (Sample(count=3, fraction=None), Zero())
    """
    if name == "participation":
        return _participation(value)
    if isinstance(value, list):
        return [argument(name, part) for part in value]
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
        'participation must be "full", {sample = 3}, {fraction = 0.3}, {bernoulli = 0.5} or '
        f"{{only = 0}}, got {value!r}"
    )


def tabled(value: Any) -> Any:
    """Return an argument as a file states it: the value of which `argument` makes it again.

    Raises
    ------
    ConfigError
        If it is an object of the user's own, which no file can state.

    >>> from flower_fedcon.sets import Box
    >>> tabled(Sample(count=3)), tabled(Box(-1.0, np.ones(2)))
    ({'sample': 3}, {'type': 'Box', 'lower': -1.0, 'upper': [1.0, 1.0]})
    """
    if isinstance(value, Sample):
        return {"fraction": value.fraction} if value.count is None else {"sample": value.count}
    if isinstance(value, Bernoulli):
        return {"bernoulli": value.p}
    if isinstance(value, Only):
        return {"only": value.client}
    if isinstance(value, Full):
        return "full"
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        # TOML has no null: the bound that a stage of MCFedDA does without is infinite.
        return [math.inf if part is None else tabled(part) for part in value]
    if isinstance(value, bool | int | float | str):
        return value
    kind = type(value).__name__
    if settings.registered().get(kind) is not type(value):
        raise ConfigError(f"{value!r} is no type of this package: a file cannot state it")
    stated = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return {"type": kind, **{k: tabled(v) for k, v in stated.items() if v is not None}}
