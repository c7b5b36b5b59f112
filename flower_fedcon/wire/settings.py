"""Settings as text and arrays: the form in which hyperparameters, sets and solvers reach a client.

A message can name only the types registered here, with their own parameters: a server cannot make a
client build anything else.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from flower_fedcon import (
    aggregation,
    compressors,
    optimizers,
    privacy,
    regularizers,
    schedules,
    sets,
    solvers,
)
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.validation import Array


class _LocalError(Exception):
    """A value of a type that is not registered."""


_SCALARS = (bool, int, float, str, type(None))


@cache
def registered() -> dict[str, type[Any]]:
    """Return the types that a message may name: sets, regularizers, solvers and others."""
    types: dict[str, type[Any]] = {}
    mathematics = sets, regularizers, solvers, compressors, aggregation, optimizers, schedules
    for module in (*mathematics, privacy):
        for name, kind in vars(module).items():
            named = isinstance(kind, type) and dataclasses.is_dataclass(kind) and name[0] != "_"
            if named and not inspect.isabstract(kind):
                types[name] = kind
    del types["Foreign"]  # holds a user's own object
    return types


def encode(settings: Mapping[str, Any]) -> tuple[str, dict[str, Array]]:
    """Return settings as JSON text, and the arrays that the text refers to.

    A user's own oracle is not sent: the text then says that the client has one under that name.
    """
    arrays: dict[str, Array] = {}

    def spec(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, np.ndarray):
            arrays[f"settings.{len(arrays)}"] = value
            return {"array": f"settings.{len(arrays) - 1}"}
        if isinstance(value, list | tuple):
            return [spec(part) for part in value]
        kind = type(value).__name__
        if registered().get(kind) is type(value):
            fields = [f.name for f in dataclasses.fields(value) if f.init]
            return {"type": kind, **{name: spec(getattr(value, name)) for name in fields}}
        raise _LocalError

    specs: dict[str, Any] = {}
    for name, value in settings.items():
        sent = len(arrays)
        try:
            specs[name] = spec(value)
        except _LocalError:  # nothing of it is sent, even if only a part is the user's own
            for key in list(arrays)[sent:]:
                del arrays[key]
            specs[name] = {"type": "local", "class": type(value).__name__}
    return json.dumps(specs), arrays


def decode(
    text: str, arrays: Mapping[str, Array], own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings written by `encode`; `own` holds the client's own oracles."""
    try:
        settings = json.loads(text)
        return {
            str(name): _built(str(name), value, arrays, own) for name, value in settings.items()
        }
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"settings that cannot be read: {error}") from None


def _built(
    name: str, value: Any, arrays: Mapping[str, Array], own: Mapping[str, Any] | None
) -> Any:
    """Return the value of a setting; as a closure it would keep a message's arrays alive."""
    if isinstance(value, list):
        return [_built(name, part, arrays, own) for part in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if value.get("type") == "local":
        if own is None or name not in own:
            raise ConfigError(
                f"the server's {name} is a {value.get('class')!r}, which is not one of this "
                f"package's: give client_app(oracles={{{name!r}: ...}}) the same object"
            )
        given = own[name]
        return regularizers.as_regularizer(given) if name == "regularizer" else given
    parameters = {k: _built(name, v, arrays, own) for k, v in value.items() if k != "type"}
    return make(value.get("type"), parameters)


def make(kind: Any, parameters: Mapping[str, Any]) -> Any:
    """Return a value of the registered type `kind`, with these parameters."""
    types = registered()
    if not isinstance(kind, str) or kind not in types:
        raise ConfigError(f"unknown type {kind!r}: {nearest(str(kind), types)}")
    fields = [f.name for f in dataclasses.fields(types[kind]) if f.init]
    for name in parameters:
        if name not in fields:
            raise ConfigError(f"{kind} has no parameter {name!r}: {nearest(name, fields)}")
    try:
        return types[kind](**parameters)
    except TypeError:
        lacking = [
            f.name
            for f in dataclasses.fields(types[kind])
            if f.init
            and f.name not in parameters
            and f.default is f.default_factory is dataclasses.MISSING
        ]
        raise ConfigError(f"{kind} needs the parameters {', '.join(lacking)}") from None
