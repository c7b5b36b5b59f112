"""Errors that a user can cause; all derive from `FedConError`."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from opcode import opmap
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NoReturn

_DIGEST = re.compile(r"\b[0-9a-f]{16}\b")
_SHOWN = 80  # characters of a value
_MOST = 40  # valid words listed in addition to a hint
# The modules with a page of the interface; "" is the package itself.
_PUBLIC = (
    "", "strategies", "problems", "regularizers", "sets", "objectives", "estimators", "tables",
    "survival", "compressors", "privacy", "aggregation", "optimizers", "schedules", "paths",
    "solvers", "testing", "torch", "training",
)  # fmt: skip
GO_ON = "resume=True (`fedcon --resume`, `flwr run --run-config resume=true`)"
"""How a run is continued, in every way of starting it."""


class FedConError(Exception):
    """An error that the user can fix: its text names the value, the valid range and the remedy."""

    @property
    def told(self) -> str:
        """The text for another machine: the same, unless it contains values that must stay here."""
        return str(self)


class ConfigError(FedConError):
    """An argument, file entry or setting that cannot be used."""


class MissingExtraError(ConfigError, ImportError):
    """A package that is not installed; the text has the command that installs it."""


class NotFiniteError(ConfigError):
    """A number in a computation that is not finite, for example after steps that are too long."""


class UnknownScaleError(ConfigError):
    """A default needs a constant of the objectives that not all clients state.

    A run estimates it from a few gradients if it may; otherwise it is an error.
    """


class ParticipationError(FedConError):
    """A participation rule that the algorithm cannot work with."""


class RoundError(FedConError):
    """A round that could not be completed with enough valid replies."""


class DivergedError(RoundError):
    """A run's numbers are no longer finite: its steps are too long."""


class BudgetError(FedConError):
    """A round that would cost more privacy than the run may spend."""


class AlgorithmError(FedConError):
    """A strategy and its client do not fit together: a mistake in their code."""


class StorageError(FedConError):
    """A file or folder that cannot be read or written, or that another process is using."""

    @property
    def told(self) -> str:
        """The text without digests of rows, by which ledgers are named; this machine's has them."""
        return _DIGEST.sub("...", str(self))


class RefusedError(FedConError):
    """A request that a node's own policy does not allow, or a reply that a server does not."""


class StateLostError(FedConError):
    """A client is asked to continue, but its state is lost."""


def is_divergence(error: BaseException) -> bool:
    """Return whether an error says that numbers are no longer finite.

    >>> is_divergence(NotFiniteError("L1 got inf")), is_divergence(OverflowError("math range"))
    (True, True)
    """
    return isinstance(error, NotFiniteError | DivergedError | OverflowError | FloatingPointError)


@contextmanager
def needing(what: str, extra: str, otherwise: str = "") -> Iterator[None]:
    """Guard imports of an extra's packages: the error says how to install the extra.

    Parameters
    ----------
    what : str
        What needs which package, such as "the page is drawn by plotly".
    extra : str
        The extra's name in this package's pyproject.toml.
    otherwise : str
        What else the user can do.

    Raises
    ------
    MissingExtraError

    Examples
    --------
    >>> with needing("the page is drawn by plotly", "report"):
    ...     import plotly_or_what_not
    Traceback (most recent call last):
    ...
    flower_fedcon.errors.MissingExtraError: the page is drawn by plotly, which is not installed: \
pip install 'flower-fedcon[report]'
    """
    try:
        yield
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        why = "is not installed" if absent else f"cannot be loaded ({printable(str(error))})"
        remedy = f"pip install 'flower-fedcon[{extra}]'{otherwise and f', or {otherwise}'}"
        raise MissingExtraError(f"{what}, which {why}: {remedy}", name=error.name) from None


def pandas() -> Any:
    """Return pandas, for results as data frames.

    Raises
    ------
    MissingExtraError
    """
    with needing("data frames are made by pandas", "tables"):
        import pandas as found
    return found


def printable(text: str, most: int = 500) -> str:
    r"""Return a text from elsewhere in a form for logs: one short line without control characters.

    >>> printable("disk\x1b[2J full\n"), printable("a" * 9, most=3)
    ('disk\\x1b[2J full\\n', 'aaa... (9 characters)')
    """
    cut = text[:most]
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return clean if len(text) <= most else f"{clean}... ({len(text)} characters)"


def repr_of(value: object) -> str:
    """Return any value as an error shows it: in one short line.

    >>> repr_of("a"), len(repr_of(10**99))
    ("'a'", 100)
    """
    try:
        return printable(repr(value), _SHOWN)
    except Exception as error:  # a number of thousands of digits, or an unknown class
        return f"a value of type {type(value).__name__} ({printable(str(error), _SHOWN)})"


def nearest(word: str, valid: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """Return a hint: the valid word nearest to `word`, if one is near, then all valid words.

    With a near word, more than `_MOST` valid ones are not listed. `also` maps other names to
    valid words, such as a paper's symbols.

    >>> nearest("penality", ["penalty", "schedule"])
    "did you mean 'penalty'? Valid: penalty, schedule"
    >>> nearest("lr", ["client_lr", "local_steps"])
    "did you mean 'client_lr'? Valid: client_lr, local_steps"
    >>> nearest("mu", ["proximal"], {"mu": "proximal"})
    "did you mean 'proximal'? Valid: proximal"
    """
    words, sought = sorted(valid), word.lower()
    lowered = {w.lower(): w for w in words}
    named = {name.lower(): w for name, w in (also or {}).items() if w in words}
    close = [named[sought]] if sought in named else []
    close += [lowered[w] for w in difflib.get_close_matches(sought, list(lowered), 1, cutoff=0.5)]
    close += [lowered[w] for w in lowered if len(sought) > 1 and sought in w.split("_")]
    hint = f"did you mean '{close[0]}'? " if close else ""
    if close and len(words) > _MOST:
        return hint.rstrip()
    return f"{hint}Valid: {', '.join(words)}"


def toml_remedy(text: str, error: object) -> str:
    """Return a remedy for a value that only looks like TOML; "" for others.

    >>> toml_remedy("on = True", "Invalid value (at line 1, column 6)")
    ': write true and false in small letters, and texts in quotes'
    """
    place = re.search(r"^Invalid value \(at line (\d+), column (\d+)\)", str(error))
    if place is None:
        return ""
    line = text.splitlines()[int(place[1]) - 1]
    word = re.match(r"[A-Za-z_]", line[int(place[2]) - 1 :])
    return ": write true and false in small letters, and texts in quotes" if word else ""


def first_few(names: Sequence[str], most: int = 6, what: str = "") -> str:
    """Return the first few of many names, after `what` they are.

    >>> first_few(["a", "b"]), first_few([str(j) for j in range(9)])
    ('a, b', '0, 1, 2, 3, 4, 5 and 3 more')
    >>> first_few(["a"], what="column"), first_few(["a", "b"], what="column")
    ('column a', 'columns a, b')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    before = f"{what}{'s'[: len(names) - 1]} " if what else ""
    return f"{before}{', '.join(names[:most])}{more}"


def number_of(n: float, one: str, several: str = "") -> str:
    """Return a number with the word for what is counted.

    >>> number_of(1, "row"), number_of(0, "row"), number_of(1681.0, "row is", "rows are")
    ('1 row', '0 rows', '1681 rows are')
    """
    return f"{n:.10g} {one if n == 1 else several or one + 's'}"


def clients_by_name(names: Sequence[str]) -> str:
    """Return the names of clients, at most the first five.

    >>> clients_by_name(["a"]), clients_by_name(list("abcdefg"))
    ('client a', 'clients a, b, c, d, e and 2 more')
    """
    return first_few(names, 5, "client")


def grouped(reasons: Mapping[str, str]) -> list[str]:
    """Return each reason with its clients, in words.

    >>> grouped({"a": "late", "b": "gone", "c": "late"})
    ['clients a, c: late', 'client b: gone']
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [f"{clients_by_name(with_it)}: {reason}" for reason, with_it in names.items()]


def point_elsewhere(room: str, homes: Mapping[str, str] = MappingProxyType({})) -> None:
    """Let a module load some names on first use, and say where those of other public modules are.

    `homes` has the modules, below this one, of the names that it loads. Unlike a `__getattr__` in
    its source, this does not tell type checkers that it has every name.
    """

    def asked(name: str) -> Any:
        if name not in homes:
            refuse_name(room, name, sys._getframe(1))
        value = getattr(import_module(f"{room}.{homes[name]}"), name)
        vars(sys.modules[room])[name] = value
        return value

    vars(sys.modules[room])["__getattr__"] = asked


def refuse_name(room: str, name: str, caller: FrameType) -> NoReturn:
    """Raise for a name that a module does not have, and say which public module has it.

    An import statement makes an error of its own of an AttributeError, so there the error is the
    ImportError in which it would end.
    """
    said = f"module {room!r} has no attribute {name!r}"
    if not name.startswith("_") and not _is_module(room, name):
        homes: dict[str, str] = {}
        for module in (room.partition(".")[2], *_PUBLIC):
            there = f"flower_fedcon.{module}".rstrip(".")
            homes |= {public: there for public in _names_of(module) if public not in homes}
        if name in homes:
            said = f"{name} is in {homes[name]}: write `from {homes[name]} import {name}`"
        for near in difflib.get_close_matches(name, homes, 1, 0.75) if name not in homes else ():
            said += f": did you mean {near}? Write `from {homes[near]} import {near}`"
        if (name in homes or "did you mean" in said) and _imports(caller):
            raise ImportError(said, name=room)
    raise AttributeError(said)


def _imports(frame: FrameType) -> bool:
    """Return whether a name is asked by `from module import name`, of a package or a file."""
    code = frame.f_code
    return code.co_name == "_handle_fromlist" or (
        code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]
    )


def _is_module(room: str, name: str) -> bool:
    """Return whether a package has a module of this name, which is imported next."""
    folders = getattr(sys.modules[room], "__path__", ())
    return any((Path(f) / f"{name}{end}").exists() for f in folders for end in ("", ".py"))


def _names_of(module: str) -> list[str]:
    """Return a module's public names, read from its source: it may need an extra."""
    here = Path(__file__).parent
    path = here / f"{module}.py"
    try:
        text = (path if path.exists() else here / module / "__init__.py").read_text("utf-8")
    except OSError:  # an archive, or compiled files alone
        return []
    if whole := re.search(r"^from flower_fedcon\.(\S+) import \*$", text, re.MULTILINE):
        return _names_of(whole[1].replace(".", "/"))
    listed = re.search(r"^__all__ = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    named = re.findall(r'"(\w+)"', listed[1] if listed else "")
    return named or re.findall(r"^from \S+ import (?:\(\s+)?(\w+) as \1\b", text, re.MULTILINE)
