"""Docstrings of classes, completed by what their bases say of the arguments."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

_TITLE = "Parameters\n----------\n"
_WIDTH = 96  # of a line in a class's docstring, without its indent
Entry = tuple[list[str], str]
"""The names of arguments, and their lines in a docstring."""


def entries(text: str) -> Iterator[Entry]:
    r"""Yield the arguments that a docstring without indent describes.

    >>> list(entries("Sum.\n\nParameters\n----------\na, b : int\n    Whole.\n"))
    [(['a', 'b'], 'a, b : int\n    Whole.')]
    """
    lines = text.partition(_TITLE)[2].partition("\n\n")[0].rstrip().splitlines()
    starts = [k for k, line in enumerate(lines) if not line.startswith(" ")]
    for first, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        names = lines[first].partition(" : ")[0].split(",")
        yield [name.strip() for name in names], "\n".join(lines[first:end])


def with_entries(text: str, more: Iterable[str]) -> str:
    r"""Return a docstring without indent with more arguments, after its own.

    >>> print(with_entries("Sum.\n\nRaises\n------\nE", ["a : int\n    Whole."]))
    Sum.
    <BLANKLINE>

    Parameters
    ----------
    a : int
        Whole.
    <BLANKLINE>

    Raises
    ------
    E
    """
    added = "\n".join(more)
    if not added:
        return text
    before, title, rest = text.partition(_TITLE)
    if title:
        own, gap, after = rest.partition("\n\n")
        return f"{before}{title}{own.rstrip()}\n{added}{gap}{after}"
    paragraphs = text.split("\n\n")
    place = next((k for k, p in enumerate(paragraphs) if "\n---" in p), len(paragraphs))
    return "\n\n".join([*paragraphs[:place], _TITLE + added, *paragraphs[place:]])


def pointer(names: list[str], kind: type) -> str:
    """Return lines that say which class describes some arguments."""
    end = f" : see `{kind.__name__}`"
    lines = textwrap.wrap(", ".join(names), _WIDTH - len(end))
    return "\n".join(line.rstrip(",") + end for line in lines)


class Completed:
    """A class's docstring, to which the class adds when it is first read.

    Parameters
    ----------
    text : str
        The docstring in the class's file.
    """

    def __init__(self, text: str) -> None:
        self.text: str = inspect.cleandoc(text)
        self.whole: str | None = None

    def __get__(self, instance: Any, kind: type[Any]) -> str:
        """Return the completed docstring."""
        if self.whole is None:
            told = {name for names, _ in entries(self.text) for name in names}
            self.whole = with_entries(self.text, kind.entries_beside(told))
        return self.whole


def complete(kind: type[Any]) -> None:
    """Let a class with a docstring complete it, by its `entries_beside(told)`."""
    text = vars(kind).get("__doc__")
    if isinstance(text, str):  # there is none with python -OO
        kind.__doc__ = Completed(text)  # type: ignore[assignment]


def inherited(kind: type[Any], names: Iterable[str]) -> dict[str, tuple[type, str]]:
    """Return the base that describes each of these arguments, and its lines."""
    found: dict[str, tuple[type, str]] = {}
    for base in kind.__mro__[1:]:
        for told, lines in entries(inspect.cleandoc(base.__doc__ or "")):
            if len(told) == 1:
                found.setdefault(told[0], (base, lines))
    return {name: found[name] for name in names if name in found}
