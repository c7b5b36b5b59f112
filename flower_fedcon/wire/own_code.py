"""The code of a user's own classes and functions, as a text that changes when the code does.

The source counts without comments and docstrings, that of a class with its bases, together with all
of the user's functions, classes and constants that it names. Code of this package and of installed
packages does not count: their versions identify it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
import textwrap
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_PACKAGE = __name__.partition(".")[0]
PLAIN = (type(None), bool, int, float, complex, str, bytes)
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_PLACES = {"site-packages", "dist-packages"}


def own_code(thing: Any) -> str:
    """Return 16 hexadecimal digits that stand for the code of a class or a function.

    The result is "" for code that is not the user's own. Without a source, as for a function made
    at run time, the compiled code counts.

    >>> own_code(np.ndarray), own_code(own_code)
    ('', '')
    """
    return _own_code(thing)


@functools.cache
def _own_code(thing: Any) -> str:
    parts: dict[str, str] = {}
    _collect(thing, parts)
    if not parts:
        return ""
    content = "\0".join(f"{name}\0{text}" for name, text in sorted(parts.items()))
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:16]


def _collect(thing: Any, parts: dict[str, str]) -> None:
    """Add the text of a class or a function, and of the user's own code that it names."""
    if not isinstance(thing, type | types.FunctionType) or not _is_own(thing.__module__):
        return
    name = f"{thing.__module__}:{thing.__qualname__}"
    if name in parts:
        return
    functions = [*_functions(thing)]
    parts[name] = _text(thing, functions)
    for base in thing.__mro__[1:] if isinstance(thing, type) else ():
        _collect(base, parts)
    for function in functions:
        for where, key in _named(function.__code__, function.__globals__):
            value = where[key]
            if isinstance(value, type | types.FunctionType):
                _collect(value, parts)
            elif _is_constant(key, value):
                parts[f"{where.get('__name__')}:{key}"] = _constant(value)


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    """Return the functions of a class, or the function itself."""
    if isinstance(thing, types.FunctionType):
        yield thing
        return
    for value in vars(thing).values():
        members = (value, *(getattr(value, name, None) for name in ("__func__", "fget", "func")))
        for member in members:
            if isinstance(member, types.FunctionType):
                yield member


def _named(code: types.CodeType, around: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Return the names that code uses from its module, and from modules it names: place and key."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    for key in code.co_names:
        value = around.get(key)
        if isinstance(value, types.ModuleType) and _is_own(value.__name__):
            yield from ((vars(value), name) for name in code.co_names if name in vars(value))
        elif key in around:
            yield around, key
    for part in inner:
        yield from _named(part, around)


def _is_own(module_name: str) -> bool:
    """Return whether a module is the user's own: neither this package's nor installed."""
    if module_name.partition(".")[0] == _PACKAGE:
        return False
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if file is None:
        return module_name == "__main__"
    return not _is_installed(file)


def own_places(error: BaseException) -> str:
    """Return where an error arose in the user's own code: the last lines, with file and function.

    >>> own_places(ValueError("raised nowhere"))
    ''
    """
    places = [
        _place(frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] != _PACKAGE
        and not _is_installed(frame.f_code.co_filename)
    ]
    return ", ".join(places[-3:])


def with_place(error: BaseException) -> str:
    """Return an error's type and text, with its place if it arose in the user's own code.

    >>> with_place(ValueError("raised nowhere"))
    'ValueError: raised nowhere'
    """
    place = own_places(error)
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")


def names_a_place(text: str) -> bool:
    """Return whether a text names a line of code in the form of `own_places`.

    >>> names_a_place("no gradient (mine.py:7 in step)"), names_a_place("mine.py is missing")
    (True, False)
    """
    return re.search(r"\.py:[0-9]+ in ", text) is not None


def place_of(function: Callable[..., Any]) -> str:
    """Return where a user's own function begins, in the form of `own_places`.

    >>> place_of(len)
    ''
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else _place(code, code.co_firstlineno)


def _place(code: types.CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}:{line} in {code.co_name}"


@functools.cache
def _is_installed(file: str) -> bool:
    """Return whether a file is installed: in this environment, or where another one keeps it.

    Those are a user's folder, the system's under an environment, and what PYTHONPATH adds.
    """
    path = Path(file).resolve()
    return not _PLACES.isdisjoint(path.parts) or any(map(path.is_relative_to, _installed()))


@functools.cache
def _installed() -> frozenset[Path]:
    """Return the folders of installed packages and of the standard library."""
    return frozenset(Path(sysconfig.get_path(name)).resolve() for name in _INSTALLED)


def _text(thing: Any, functions: list[types.FunctionType]) -> str:
    """Return the source without comments, docstrings and layout."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):  # made at run time, or part of a line
        return " ".join(_compiled(function.__code__) for function in functions)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[0] = ast.Pass()
    return ast.unparse(tree)


def _is_text(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _compiled(code: types.CodeType) -> str:
    constants = [
        _compiled(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _is_constant(name: str, value: Any) -> bool:
    """Return whether a module's variable is constant, by its name or its type."""
    mutable = isinstance(value, list | dict | set)
    return _is_plain(value) and (name.isupper() or not mutable)


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return type(value) in PLAIN or isinstance(value, np.generic)


def _constant(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, set | frozenset):
        return repr(sorted(map(_constant, value)))
    if isinstance(value, list | tuple):
        return repr([_constant(part) for part in value])
    if isinstance(value, dict):
        return repr([(repr(key), _constant(part)) for key, part in value.items()])
    return repr(value)
