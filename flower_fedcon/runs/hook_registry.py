"""The hooks that wings bring to runs (`runs.hooks`), found by name.

A wing's hook is the class `HOOK` in a file `*_hook.py` of its room; it is imported when a run asks
for it. `register` adds one from outside this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from flower_fedcon.errors import ConfigError

_own: dict[str, type[Any]] = {}


@cache
def _of_wings() -> tuple[type[Any], ...]:
    """Return the hooks in this package, by the names of their files."""
    package = Path(__file__).parents[1]
    files = sorted(package.glob("*/*_hook.py"), key=lambda path: path.name)
    names = (f"{package.name}.{path.parent.name}.{path.stem}" for path in files)
    return tuple(import_module(name).HOOK for name in names)


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
    taken = {"race", "ledgers", *(known.name for known in _of_wings())}
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
    known = hooks()
    for kind in known:
        kind.check(plan)
    for name in given:
        if not any(name in kind.arguments for kind in known):
            raise ConfigError(f"{name}: what answers it is not installed: leave {name} out")
