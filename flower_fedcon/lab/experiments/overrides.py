"""Changes to an experiment file: ``--set key=value`` on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flower_fedcon import registry
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.experiments.run_tables import BOTH, RunOptions
from flower_fedcon.problems import builder
from flower_fedcon.runs.toml import parse_value
from flower_fedcon.runs.toml_schema import Table, check_table, context
from flower_fedcon.validation import AUTO, parameters

TOP = ("title", "paper", "problem", "run", "clock", "algorithm", "compare", "tuning", "sweep")
"""The keys of an experiment file."""
ALGORITHM = ("name", "label", "on_mismatch", "grid")
"""The keys of an algorithm's table that are not its arguments."""
_TABLES = ("problem", "run", "algorithm")


def apply(tables: Table, overrides: Sequence[str]) -> None:
    """Apply "key=value" texts to an experiment's tables, in place; see `Experiment.load`.

    Raises
    ------
    ConfigError
        If a text does not have that form, or names no entry.

    Examples
    --------
    >>> tables = {"problem": {"name": "lasso"}, "run": {}, "algorithm": {"name": "FedFW"},
    ...           "compare": [{"name": "FedFWPlus"}]}
    >>> apply(tables, ["rounds=7", "participation.sample=2", "FedFWPlus.penalty=3.0"])
    >>> tables["run"], tables["algorithm"]
    ({'rounds': 7}, {'name': 'FedFW', 'participation': {'sample': 2}})
    >>> tables["compare"]
    [{'name': 'FedFWPlus', 'participation': {'sample': 2}, 'penalty': 3.0}]
    """
    for override in sorted(overrides, key=_after_names):
        with context(f"--set {override}"):
            _apply(tables, override)


PROBLEM = ("name", "reference", "gradient_noise")
"""The keys of ``[problem]`` that are not arguments of its function."""


def valid_keys(tables: Table, table: str) -> tuple[str, ...]:
    """Return the valid keys of a table ``[problem]``, ``[run]`` or ``[algorithm]``."""
    if table == "run":
        return tuple(RunOptions.__dataclass_fields__)
    name = tables.get(table, {}).get("name")
    if name is None:  # an override may set it
        return ("name",)
    if table == "problem":
        return (*PROBLEM, *parameters(builder(name)))
    return (*ALGORITHM, *_own_keys(name))


def _after_names(override: str) -> bool:
    """Sort overrides of names first, since a table's valid keys depend on its name."""
    return not override.partition("=")[0].strip().endswith(".name")


def _apply(tables: Table, override: str) -> None:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError("write key=value, such as run.rounds=10")
    for name in _TABLES:
        check_table(tables.get(name), f"[{name}]")
    value = parse_value(text.strip())
    for table, inside in _places(tables, path):
        _put(table, inside, value)


def concerns(tables: Table, algorithm: Table, key: str) -> bool:
    """Return whether a key changes a run of one of the algorithms."""
    path = key.split(".")
    if path[0] == "algorithm":
        return algorithm is tables["algorithm"]
    if path[0] == "compare":
        return algorithm is tables["compare"][int(path[1]) - 1]
    owners = [
        table for table, _ in _places(tables, path) if any(table is one for one in _all(tables))
    ]
    return not owners or any(table is algorithm for table in owners)


def _all(tables: Table) -> list[Table]:
    return [tables["algorithm"], *_compared(tables)]


def _places(tables: Table, path: list[str]) -> list[tuple[Table, list[str]]]:
    """Return the tables that a key changes, each with the rest of the path."""
    if path[0] in TOP:
        return [(tables, path)]
    if path == BOTH.split("."):
        return [(tables[name], path[1:]) for name in ("problem", "run")]
    algorithms = _all(tables)
    named = [table for table in algorithms if path[0].lower() in _names(table)]
    if len(path) > 1 and named:
        return [(table, path[1:]) for table in named]
    takers = [table for table in algorithms if path[0] in _arguments(table)]
    homes = [name for name in _TABLES if path[0] in valid_keys(tables, name)]
    if takers and "algorithm" not in homes:
        homes.append("algorithm")
    if len(homes) > 1:
        choices = " or ".join(f"{name}.{path[0]}" for name in homes)
        raise ConfigError(f"{path[0]!r} is a key of several tables: write {choices}")
    if not homes:
        what, valid = "table", [*TOP[2:], *(name for table in algorithms for name in _names(table))]
        if len(path) == 1:
            what, valid = "key", [key for name in _TABLES for key in valid_keys(tables, name)]
        raise ConfigError(f"unknown {what} {path[0]!r}: {nearest(path[0], {*valid})}")
    if homes == ["algorithm"] and takers:
        return [(table, path) for table in takers]
    return [(tables[homes[0]], path)]


def _compared(tables: Table) -> list[Table]:
    listed = tables.get("compare", [])
    return [table for table in listed if isinstance(table, dict) and "name" in table]


def _names(table: Table) -> set[str]:
    """Return the names of a table's algorithm, in lower case."""
    return {str(table[key]).lower() for key in ("name", "label") if key in table}


def _arguments(table: Table) -> list[str]:
    return _own_keys(table["name"]) if "name" in table else []


def _put(table: Table, path: Sequence[str], value: Any) -> None:
    """Put a value at a path within a table."""
    where: Any = table
    for part in path[:-1]:
        if isinstance(where, list):
            numbers = [str(n) for n in range(1, len(where) + 1)]
            if part not in numbers:
                raise ConfigError(f"unknown number {part!r}: {nearest(part, numbers)}")
            where = where[int(part) - 1]
            continue
        if not isinstance(where.get(part), dict | list):
            where[part] = {}
        where = where[part]
    if not isinstance(where, dict):
        raise ConfigError("write compare.1.key=value for the first of [[compare]]")
    where[path[-1]] = _among(where, value) if path[-1] == "participation" else value


def _among(table: Table, rule: Any) -> Any:
    """Return a rule of participation, within the table's own if that leaves open whom it is among.

    >>> _among({"participation": {"type": "Estimated", "cutoff": 50}}, {"sample": 3})
    {'type': 'Estimated', 'cutoff': 50, 'among': {'sample': 3}}
    """
    own, around = table.get("participation"), ("Deadline", "Estimated")
    if not isinstance(own, dict) or own.get("type") not in around or "among" in own:
        return rule
    if isinstance(rule, dict) and rule.get("type") in around:
        return rule
    return {**own, "among": rule}


def _own_keys(name: str) -> list[str]:
    """Return an algorithm's arguments; only the participation if methods race."""
    return ["participation"] if name == AUTO else [*parameters(registry.strategy_class(name))]
