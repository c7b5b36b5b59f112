"""Docstrings of classes, completed by what their bases say of the arguments."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
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


def with_entries(text: str, described: Iterable[Entry]) -> str:
    r"""Return a docstring without indent that describes these arguments.

    >>> with_entries("Sum.\n\nRaises\n------\nE", [(["a"], "a : int\n    Whole.")])
    'Sum.\n\nParameters\n----------\na : int\n    Whole.\n\nRaises\n------\nE'
    """
    section = _TITLE + "\n".join(lines for _, lines in described)
    paragraphs = text.split("\n\n")
    there = [k for k, p in enumerate(paragraphs) if p.startswith(_TITLE)]
    first = [k for k, p in enumerate(paragraphs) if "\n---" in p]
    place = min(there or first or [len(paragraphs)])
    return "\n\n".join([*paragraphs[:place], section, *paragraphs[place + len(there) :]])


def pointer(names: list[str], kind: type) -> Entry:
    """Return lines that say which class describes some arguments."""
    end = f" : see `{kind.__name__}`"
    lines = textwrap.wrap(", ".join(names), _WIDTH - len(end))
    return names, "\n".join(line.rstrip(",") + end for line in lines)


class Completed:
    """A class's docstring, to which the class adds when it is first read.

    Parameters
    ----------
    text : str
        The docstring in the class's file.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.whole: str | None = None

    def __get__(self, instance: Any, kind: type[Any]) -> str:
        """Return the completed docstring."""
        if self.whole is None:
            text = inspect.cleandoc(self.text)
            described = kind.described(list(entries(text)))
            self.whole = with_entries(text, described) if described else text
        return self.whole


def complete(kind: type[Any]) -> None:
    """Let a class with a docstring complete it: by `described`, which gets its own entries."""
    text = vars(kind).get("__doc__")
    if isinstance(text, str):  # there is none with python -OO
        kind.__doc__ = Completed(text)  # type: ignore[assignment]


def with_inherited(
    kind: type[Any], own: Iterable[Entry], names: Sequence[str], elsewhere: type | None = None
) -> list[Entry]:
    """Return what a class and its bases say of some arguments, in the order of these.

    What the class `elsewhere` describes is not repeated: the last lines say where it is.
    """
    by_name = {told[0]: (told, lines) for told, lines in own}
    described = {name for told, _ in by_name.values() for name in told}
    left: list[str] = []
    missing = [name for name in names if name not in described]
    for base in kind.__mro__[1:]:
        for told, lines in entries(inspect.cleandoc(base.__doc__ or "")):
            if len(told) == 1 and told[0] in missing:
                missing.remove(told[0])
                if base is elsewhere:
                    left.append(told[0])
                else:
                    by_name[told[0]] = told, lines
    order = {name: k for k, name in enumerate(names)}
    in_order = sorted(by_name.values(), key=lambda entry: order.get(entry[0][0], len(order)))
    return [*in_order, *([pointer(left, elsewhere)] if elsewhere and left else [])]
