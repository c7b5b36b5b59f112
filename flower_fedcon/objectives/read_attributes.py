"""The attributes that methods of a class may read: clients of one stack must share them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

_OPEN = {"vars", "getattr", "__dict__", "__getattribute__", "attrgetter", "eval", "exec", "globals"}
"""Names by which code may read any attribute."""
_CLOSED = ("builtins", "numpy", "scipy", "math")
"""Modules whose functions read no attributes of a loss."""


@lru_cache(maxsize=1024)
def attributes_read(kind: type, methods: tuple[str, ...]) -> frozenset[str] | None:
    """Return the attributes of an object that methods, and functions they call, may read.

    These are all names in their code, whatever they refer to; None if that is unknown.

    >>> class Tilted:
    ...     def loss(self, scores): return self.tilted(scores) * self.weight
    ...     def tilted(self, scores): return abs(self.tilt * scores)
    >>> sorted(attributes_read(Tilted, ("loss",)))
    ['abs', 'tilt', 'tilted', 'weight']
    """
    names: set[str] = set()
    seen: set[FunctionType] = set()
    waiting = [member for name in methods for member in _members(kind, name)]
    while waiting:
        function = _function(waiting.pop())
        if function is None:
            return None
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        new = set(_mentioned(function.__code__))
        if new & _OPEN:
            return None
        for name in new:
            waiting += _called(function, name)
        for name in new - names:
            waiting += _members(kind, name)
        names |= new
    return frozenset(names)


def _mentioned(code: CodeType) -> Iterator[str]:
    """Yield the names in code, and in the functions inside it."""
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _mentioned(constant)


def _members(kind: type, name: str) -> list[Any]:
    """Return the methods and properties with this name, of a class and its bases."""
    members = [vars(one)[name] for one in kind.__mro__[:-1] if name in vars(one)]
    return [member for member in members if callable(member) or hasattr(member, "__get__")]


def _called(function: FunctionType, name: str) -> Iterator[Any]:
    """Yield what a name in the function's scope can call, except classes."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    try:
        meant = cells[name].cell_contents if name in cells else function.__globals__.get(name)
    except ValueError:  # a cell that is still empty
        return
    if callable(meant) and not isinstance(meant, type):
        yield meant


def _function(member: Any) -> Any:
    """Return the function behind a method or property; None if its code cannot be seen."""
    for name in ("fget", "func", "__func__", "__wrapped__", "py_func"):
        if (inner := getattr(member, name, None)) is not None:
            return _function(inner)
    closed = (type(member).__module__ or "").partition(".")[0] in _CLOSED
    return member if isinstance(member, FunctionType) or closed else None
