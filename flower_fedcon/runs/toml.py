"""Values in TOML files, read and written: sets, regularizers, solvers, participation rules."""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon import _HOMES
from flower_fedcon.core.availability import Available
from flower_fedcon.core.clock import DISTRIBUTIONS, Clock, Deadline
from flower_fedcon.core.estimated import Estimated
from flower_fedcon.core.participation import Bernoulli, Full, Only, Participation, Sample
from flower_fedcon.errors import ConfigError, nearest, toml_remedy
from flower_fedcon.regularizers.wrap import Foreign
from flower_fedcon.validation import parameters
from flower_fedcon.wire import settings
from flower_fedcon.wire.digests import digest


def parse_value(text: str) -> Any:
    """Return a TOML value, or the text itself if it is not one.

    Raises
    ------
    ConfigError
        If it begins like a table or a list, but is not one.

    >>> parse_value("1e-3"), parse_value("{sample = 3}"), parse_value("ray")
    (0.001, {'sample': 3}, 'ray')
    """
    try:
        tables = parse_toml(f"value = {text}")
    except ConfigError as error:
        # A value that is nested too deeply stays a text, which the reader of the setting refuses.
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
        If it is not TOML, or nested more than 20 deep.
    """
    too_deep = ConfigError("nested too deeply: use at most 20 levels of brackets")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # from tomllib, or for a number with too many digits
        raise ConfigError(f"not valid TOML: {error}{toml_remedy(text, error)}") from None
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
        If it cannot be read, or is not TOML.
    """
    try:
        return parse_toml(Path(path).read_text(encoding="utf-8-sig"))
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
    # JSON's escapes are valid in TOML, which needs this character escaped as well
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def value_at(tables: Mapping[str, Any], key: str) -> Any:
    """Return a setting of a configuration, or None; a key without a table is the algorithm's.

    >>> value_at({"problem": {"alpha": 0.5}, "algorithm": {"client_lr": 0.1}}, "problem.alpha")
    0.5
    >>> value_at({"algorithm": {"participation": {"sample": 2}}}, "participation.sample")
    2
    """
    path = key.split(".")
    where: Any = tables if path[0] in tables and len(path) > 1 else tables.get("algorithm", {})
    for part in path:
        where = where.get(part) if isinstance(where, dict) else None
    return where


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


@cache
def _rules() -> dict[str, type[Participation]]:
    """Return the rules of participation by name: those that the package exports."""
    homes = {name: home for name, home in _HOMES.items() if home.startswith("core.")}
    exported = {
        name: getattr(import_module(f"flower_fedcon.{home}"), name) for name, home in homes.items()
    }
    rules = {name: kind for name, kind in exported.items() if issubclass(kind, Participation)}
    return {name: kind for name, kind in rules.items() if kind is not Participation}


def argument(name: str, value: Any) -> Any:
    """Return an argument of a strategy in the form that its constructor takes.

    >>> argument("participation", {"sample": 3}), argument("regularizer", {"type": "Zero"})
    (Sample(count=3), Zero())
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
        kind, parts = value["type"], {k: argument(k, v) for k, v in value.items() if k != "type"}
        if ":" in str(kind):
            return _made(kind, own_object(kind, f"the {name}"), parts, f"a {name}")
        return settings.make(kind, parts)
    return value


def _participation(value: Any) -> Participation:
    if value == "full":
        return Full()
    if isinstance(value, dict) and "type" in value:
        return _typed_rule(str(value["type"]), {k: v for k, v in value.items() if k != "type"})
    if isinstance(value, dict) and len(value) == 1:
        (rule, number), *_ = value.items()
        if rule in _PARTICIPATION:
            return _PARTICIPATION[rule](number)
        raise ConfigError(f"unknown participation {rule!r}: {nearest(rule, _PARTICIPATION)}")
    raise ConfigError(
        'participation must be "full", {sample = 3}, {fraction = 0.3}, {bernoulli = 0.5}, '
        '{only = 0}, {type = "Markov", stay = 0.9, back = 0.1}, {type = "Cyclic", groups = 4}, '
        '{type = "Available", trace = "trace.csv"}, {type = "Weighted", weights = "examples", '
        'count = 3}, {type = "Buffered", buffer = 2} or a rule of your own, {type = '
        f'"module:Class", ...}}, got {value!r}'
    )


def _typed_rule(name: str, arguments: Mapping[str, Any]) -> Participation:
    """Return a rule by its class: of this package, or the user's own, "module:Class"."""
    kind: Any = _rules().get(name)
    if kind is None and ":" in name:
        kind = own_object(name, "the participation rule")
    if kind is None:
        raise ConfigError(f"unknown participation {name!r}: {nearest(name, _rules())}")
    if kind in (Deadline, Estimated) and "among" in arguments:
        arguments = {**arguments, "among": _participation(arguments["among"])}
    rule = _made(name, kind, arguments, "participation")
    if not isinstance(rule, Participation):
        raise ConfigError(
            f"{name} is not a Participation: derive it from flower_fedcon.Participation"
        )
    return rule


def _made(name: str, kind: Any, arguments: Mapping[str, Any], what: str) -> Any:
    """Return an object of a class, made with named arguments from a file."""
    accepted = parameters(kind)
    for key in arguments:
        if key not in accepted:
            raise ConfigError(f"{name} takes no {key!r}: {nearest(key, accepted)}")
    for key, parameter in accepted.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise ConfigError(f"{what} of type {name} needs {key}: write {key} = ...")
    return kind(**arguments)


def clock_of(table: Mapping[str, Any]) -> Clock:
    """Return the clock that a table states.

    >>> clock_of({"compute": 2.0, "up": {"type": "LogNormal", "median": 1e6}})
    Clock(up=LogNormal(per='client', median=1000000.0, spread=0.5), compute=2.0)
    """
    arguments = {}
    for name, value in table.items():
        if isinstance(value, dict):
            kind = str(value.get("type"))
            if kind not in DISTRIBUTIONS:
                raise ConfigError(
                    f"{name}: unknown distribution {kind!r}: {nearest(kind, DISTRIBUTIONS)}"
                )
            rest = {key: part for key, part in value.items() if key != "type"}
            value = _made(kind, DISTRIBUTIONS[kind], rest, "a distribution")
        arguments[name] = value
    made: Clock = _made("a clock", Clock, arguments, "a clock")
    return made


def own_object(name: str, what: str) -> Any:
    """Return the object "module:name", from an installed module or one in the working folder.

    Raises
    ------
    ConfigError
        If there is no such object.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # not in a command's path; worker processes inherit it
        sys.path.append(here)
    invalidate_caches()  # for a module that was just written
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(
            f"cannot import {module_name!r} for {what} {name!r} ({error!r}): write "
            f'"module:name", of a module that is installed or lies in {here}'
        ) from None
    target = getattr(module, attribute, None)
    if not callable(target):
        callables = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise ConfigError(f"{module_name!r} has no {attribute!r}: {nearest(attribute, callables)}")
    return target


def tabled(value: Any) -> Any:
    """Return an argument in the form of a file, from which `argument` makes it again.

    Raises
    ------
    ConfigError
        If it is the user's own object and no file can state it.

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
    if isinstance(value, Available):
        stated = {"type": "Available", "trace": value.source or value.trace.astype(int).tolist()}
        more = {"count": value.count, "unbiased": value.unbiased or None}
        return stated | {name: part for name, part in more.items() if part is not None}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        # TOML has no null: a stage of MCFedDA without a bound has an infinite one.
        return [math.inf if part is None else tabled(part) for part in value]
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {name: tabled(part) for name, part in value.items()}
    if isinstance(value, Foreign) and value.factor == 1.0:
        value = value.operator
    kind = type(value).__name__
    if settings.registered().get(kind) is not type(value) and _rules().get(kind) is not type(value):
        return _own_table(value)
    stated = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    return {"type": kind, **{k: tabled(v) for k, v in stated.items() if v is not None}}


def module_of(kind: Any) -> str:
    """Return the module from which others import a class; for a script its name."""
    module = str(kind.__module__)
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).stem if module == "__main__" and file is not None else module


def _own_table(value: Any) -> dict[str, Any]:
    """Return the user's own object as its class and the arguments that make it again.

    Raises
    ------
    ConfigError
        If the class cannot be imported by name, or does not keep its arguments as attributes.
    """
    kind = type(value)
    what = f"{' '.join(repr(value).split())[:80]} is your own object, and a file cannot state"
    if "<" in kind.__qualname__ or "." in kind.__qualname__:
        raise ConfigError(f"{what} it: define {kind.__name__} at the top level of a module")
    arguments = {}
    for name, parameter in parameters(kind).items():
        if hasattr(value, name):
            arguments[name] = getattr(value, name)
        elif parameter.default is parameter.empty:
            raise ConfigError(f"{what} its {name}: keep it as an attribute of that name")
    try:
        same = digest(kind(**arguments)) == digest(value)
    except Exception:  # whatever the user's class raises
        same = False
    if not same:
        raise ConfigError(
            f"{what} it: {kind.__name__}({', '.join(arguments)}) of its attributes differs from it"
        )
    stated = {name: tabled(part) for name, part in arguments.items() if part is not None}
    return {"type": f"{module_of(kind)}:{kind.__qualname__}", **stated}
