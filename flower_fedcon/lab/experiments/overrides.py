"""Changes to an experiment file: ``--set key=value`` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flower_fedcon import registry
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.experiments.run_tables import RunOptions
from flower_fedcon.lab.experiments.toml_schema import Table, check_table, context
from flower_fedcon.problems import builder
from flower_fedcon.runs.toml import parse_value
from flower_fedcon.validation import parameters

TOP = ("title", "paper", "problem", "run", "algorithm", "compare", "tuning")
"""The keys of an experiment file."""
ALGORITHM = ("name", "label", "on_mismatch", "grid")
"""The keys of an algorithm's table that are not its arguments."""
_TABLES = ("problem", "run", "algorithm")


def apply(tables: Table, overrides: Sequence[str]) -> None:
    """Apply "key=value" texts to an experiment's tables, in place; see `Experiment.load`.

    Raises
    ------
    ConfigError
        If a text is not of that form, or names no entry.

    Examples
    --------
    >>> tables = {"problem": {"name": "lasso"}, "run": {}, "algorithm": {"name": "FedFW"}}
    >>> apply(tables, ["rounds=7", "algorithm.participation.sample=2"])
    >>> tables["run"], tables["algorithm"]
    ({'rounds': 7}, {'name': 'FedFW', 'participation': {'sample': 2}})
    """
    for override in sorted(overrides, key=_after_names):
        with context(f"--set {override}"):
            _apply(tables, override)


def valid_keys(tables: Table, table: str) -> tuple[str, ...]:
    """Return the keys that one of the tables ``[problem]``, ``[run]``, ``[algorithm]`` can have."""
    if table == "run":
        return tuple(RunOptions.__dataclass_fields__)
    name = tables.get(table, {}).get("name")
    if name is None:  # an override may give it
        return ("name",)
    if table == "problem":
        return ("name", "reference", *parameters(builder(name)))
    return (*ALGORITHM, *parameters(registry.strategy_class(name)))


def _after_names(override: str) -> bool:
    """Sort overrides of names first: which keys a table can have follows from its name."""
    return not override.partition("=")[0].strip().endswith(".name")


def _apply(tables: Table, override: str) -> None:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError("write key=value, such as run.rounds=10")
    for name in _TABLES:
        check_table(tables.get(name), f"[{name}]")
    if path[0] not in TOP and (
        len(path) == 1 or any(path[0] in valid_keys(tables, table) for table in _TABLES)
    ):
        path = [_home(tables, path[0]), *path]
    where: Any = tables
    for i, part in enumerate(path[:-1]):
        if isinstance(where, list):
            numbers = [str(n) for n in range(1, len(where) + 1)]
            if part not in numbers:
                raise ConfigError(f"unknown number {part!r}: {nearest(part, numbers)}")
            where = where[int(part) - 1]
            continue
        if i == 0 and part not in TOP:
            raise ConfigError(f"unknown table {part!r}: {nearest(part, TOP[2:])}")
        if not isinstance(where.get(part), dict | list):
            where[part] = {}
        where = where[part]
    if not isinstance(where, dict):
        raise ConfigError("write compare.1.key=value for the first of [[compare]]")
    where[path[-1]] = parse_value(text.strip())


def _home(tables: Table, key: str) -> str:
    """Return the one table that can have the key."""
    keys = {table: valid_keys(tables, table) for table in _TABLES}
    homes = [table for table, valid in keys.items() if key in valid]
    if len(homes) > 1:
        choices = " or ".join(f"{table}.{key}" for table in homes)
        raise ConfigError(f"{key!r} is a key of several tables: write {choices}")
    if not homes:
        everything = {k for valid in keys.values() for k in valid}
        raise ConfigError(f"unknown key {key!r}: {nearest(key, everything)}")
    return homes[0]
