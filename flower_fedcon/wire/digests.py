"""A short text that stands for a value's content, the same in every process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
import sys
import types
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.wire.own_code import PLAIN, own_code

LATER = "later"
"""In the metadata of a dataclass's field that counts only if set: older folders stay valid."""
_CODE = (type, types.FunctionType, types.BuiltinFunctionType)


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that stand for the content of a value.

    Arrays count with all entries. An object counts by its class and its `resume_key`, if it
    declares one: a text or a number that says all that matters. Without one it counts by its class
    and what pickle would keep, except values of `functools.cached_property`. A function counts by
    its name, its defaults and the variables that it closes over. An object that cannot be pickled
    (a lock, a file) counts by its class only. A dataclass's field whose metadata say `later` counts
    unless it has its default. A user's own classes and functions count with their code
    (`own_code`).

    Raises
    ------
    ConfigError
        If an object is nested too deeply.

    Examples
    --------
    >>> digest(np.zeros(2000)) == digest(np.zeros(2000)), digest(np.zeros(3)) == digest(np.zeros(4))
    (True, False)
    >>> class Own:
    ...     def __init__(self, weight):
    ...         self.resume_key = f"weight {weight}"
    >>> digest(Own(1)) == digest(Own(1)), digest(Own(1)) == digest(Own(2))
    (True, False)
    """
    content = Content()
    try:
        content.add(value)
    except RecursionError:
        raise ConfigError(
            f"a {type(value).__name__} is nested too deeply to be compared with that of a resumed "
            "run: give it an attribute resume_key, a text that says what it is"
        ) from None
    return content.hash.hexdigest()[:16]


def shown(value: Any) -> str:
    """Return a value as a readable line of text."""
    text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(value).split()))
    return text if len(text) <= 200 else f"{text[:197]}..."


def _is(value: Any, default: Any) -> bool:
    """Return whether a field is at its default, which is not an array."""
    return value is default or (not isinstance(value, np.ndarray) and bool(value == default))


class Content:
    """A hash that values are added to."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._inside: list[int] = []  # the objects that are being added, outermost first

    def add(self, value: Any) -> None:
        """Add a value."""
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) in PLAIN:
            self._mark(type(value).__name__, repr(value))
        elif id(value) in self._inside:
            self._mark("within", str(self._inside.index(id(value))))
        else:
            self._inside.append(id(value))
            self._add_inside(value)
            self._inside.pop()

    def _mark(self, *words: str) -> None:
        for word in words:  # with its length, so that different lists of words are different bytes
            data = word.encode(errors="surrogatepass")
            self.hash.update(f"{len(data)}:".encode())
            self.hash.update(data)

    def _add_all(self, kind: str, values: Any) -> None:
        values = list(values)
        self._mark(kind, str(len(values)))
        for value in values:
            self.add(value)

    def _add_inside(self, value: Any) -> None:
        kind = type(value)
        key = None if isinstance(value, type) else getattr(value, "resume_key", None)
        if key is not None:
            self._mark("key", _name(kind), str(key))
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._mark("array", value.dtype.str, str(value.shape))
            self.hash.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        elif _is_tensor(value):
            self._add_tensor(value)
        elif kind in (list, tuple):
            self._add_all(kind.__name__, value)
        elif isinstance(value, dict) and kind in (dict, types.MappingProxyType):
            self._add_all("dict", sorted(value.items(), key=lambda item: repr(item[0])))
        elif kind in (set, frozenset):
            self._add_all("set", sorted(digest(part) for part in value))
        elif isinstance(value, _CODE):
            self._mark("code", _name_and_code(value))
            if isinstance(value, types.FunctionType):
                around = inspect.getclosurevars(value).nonlocals
                self._add_all("function", [value.__defaults__, value.__kwdefaults__, around])
        elif dataclasses.is_dataclass(value):
            self._mark("fields", _name_and_code(kind))
            parts = {
                f.name: getattr(value, f.name)
                for f in dataclasses.fields(value)
                if LATER not in f.metadata or not _is(getattr(value, f.name), f.default)
            }
            self.add(parts)
        else:
            self._add_object(value)

    def _add_tensor(self, value: Any) -> None:
        """Add the entries of a PyTorch tensor: pickle would keep its storage, too."""
        plain = value.detach().cpu()
        if str(plain.layout) != "torch.strided":
            plain = plain.to_dense()
        self._mark("tensor", str(plain.dtype), str(tuple(plain.shape)))
        self.hash.update(plain.reshape(-1).contiguous().view(sys.modules["torch"].uint8).numpy())

    def _add_object(self, value: Any) -> None:
        """Add what pickle would keep of an object."""
        self._mark("object", _name_and_code(type(value)))
        try:
            reduced = value.__reduce_ex__(4)
        except RecursionError:
            raise
        except Exception:  # a lock, a file, or any error of a user's class
            self._add_unknown(value)
            return
        if isinstance(reduced, str):
            self._mark(reduced)
            return
        make, arguments, state, *items = (*reduced, None, None, None)[:5]
        if isinstance(state, dict):
            state = {k: v for k, v in state.items() if k not in _cached(type(value))}
        self._add_all("made", [make, arguments, state])
        for more in items:
            self._add_all("items", more or ())

    def _add_unknown(self, value: Any) -> None:
        """Add the class of an object that cannot be pickled."""


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _cached(kind: type[Any]) -> frozenset[str]:
    """Return the attributes of a class that are computed from the others."""
    return frozenset(
        name
        for base in kind.__mro__
        for name, attribute in vars(base).items()
        if isinstance(attribute, functools.cached_property)
    )


def _name(code: Any) -> str:
    return f"{code.__module__}.{code.__qualname__}"


def _name_and_code(code: Any) -> str:
    code_digest = own_code(code)
    return f"{_name(code)} {code_digest}" if code_digest else _name(code)
