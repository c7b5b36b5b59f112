"""The hooks that wings bring to runs (`runs.hooks`), found by name.

A wing names its hook in `HOOKS` of its `wing.py` (`flower_fedcon.core.wings`). `register` adds one
for this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from flower_fedcon.core.wings import loaded
from flower_fedcon.errors import ConfigError

_own: dict[str, type[Any]] = {}


@cache
def _of_wings() -> tuple[type[Any], ...]:
    """Return the hooks that wings bring."""
    return tuple(loaded("HOOKS").values())


def hooks() -> tuple[type[Any], ...]:
    """Return the classes of all hooks that wings bring, subclasses of `RunHook`."""
    return (*_of_wings(), *_own.values())


def register(kind: type[Any]) -> None:
    """Make a hook a part of each run of this process from now on, or take another of its name.

    Parameters
    ----------
    kind : type
        A subclass of `flower_fedcon.runs.hooks.RunHook` with a `name` of its own.

    Raises
    ------
    ConfigError
        If the name is taken.
    """
    taken = {"race", "ledgers", *(hook.name for hook in _of_wings())}
    if not kind.name or kind.name in taken:
        raise ConfigError(
            f"{kind.__name__}.name must be a name that no other hook has, got {kind.name!r}"
        )
    _own[kind.name] = kind


def check_arguments(plan: Any, given: Sequence[str]) -> None:
    """Let the wings check the arguments of a plan that are theirs.

    Parameters
    ----------
    plan : Plan
    given : sequence of str
        Their names.

    Raises
    ------
    ConfigError
        If they are not valid, or nobody has them.
    """
    kinds = hooks()
    for kind in kinds:
        kind.check(plan)
    for name in given:
        if not any(name in kind.arguments for kind in kinds):
            raise ConfigError(f"{name}: what answers it is not installed: leave {name} out")
