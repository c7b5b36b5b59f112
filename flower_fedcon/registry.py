"""The closed registry of algorithms: the pairs of strategy and client, by name.

A pair's two modules bear its name, in strategies/ and in clients/: one is imported on a server, the
other on a node. The names are those of the modules in clients/, so that a node imports only the one
that it is asked for; the classes, and their order, are those of `flower_fedcon.strategies`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import AlgorithmError, ConfigError, nearest

if TYPE_CHECKING:
    from flower_fedcon.clients.base import FedConClient
    from flower_fedcon.strategies.base import FedConStrategy


@cache
def names() -> frozenset[str]:
    """Return the names of all algorithms, without importing any.

    >>> sorted(names())[:3]
    ['apdainexact', 'cfedda', 'compositefl']
    """
    modules = {path.stem for path in (Path(__file__).parent / "clients").glob("*.py")}
    return frozenset(modules - {"__init__", "base"})


@cache
def algorithms() -> dict[str, type[FedConStrategy[Any]]]:
    """Return the strategy classes by name, in the order of their lines in strategies/__init__.py.

    Raises
    ------
    AlgorithmError
        If a pair is not complete, naming what is missing.
    """
    # By name: a pair knows its base, and the base the registry.
    strategies = import_module("flower_fedcon.strategies")
    exported = [kind for kind in vars(strategies).values() if isinstance(kind, type)]
    found = {kind.__module__.rpartition(".")[2]: kind for kind in exported}
    del found["base"]
    for name in names() - found.keys():
        raise AlgorithmError(
            f"clients/{name}.py has no strategy in strategies/__init__.py: write "
            f"strategies/{name}.py and add the line `from flower_fedcon.strategies.{name} "
            "import ... as ...` there"
        )
    for name, kind in found.items():
        if getattr(kind, "name", None) != name:
            raise AlgorithmError(f'strategies/{name}.py: write name = "{name}" in {kind.__name__}')
        if name not in names():
            raise AlgorithmError(f"strategies/{name}.py has no client: write clients/{name}.py")
    return found


def find(name: str) -> str:
    """Return the registered name of an algorithm, whatever its case.

    >>> find("FedFW")
    'fedfw'
    """
    key = str(name).lower()
    if key not in names():
        known = (kind.__name__ for kind in algorithms().values())
        raise ConfigError(f"unknown algorithm {name!r}: {nearest(str(name), known)}")
    return key


def strategy_class(name: str) -> type[FedConStrategy[Any]]:
    """Return an algorithm's strategy class."""
    return algorithms()[find(name)]


@cache
def client_class(name: str) -> type[FedConClient[Any]]:
    """Return an algorithm's client class."""
    key = find(name)
    module = import_module(f"flower_fedcon.clients.{key}")
    for kind in vars(module).values():
        if isinstance(kind, type) and vars(kind).get("algorithm") == key:
            return kind
    raise AlgorithmError(f'clients/{key}.py has no client class with algorithm = "{key}"')


def markdown_table() -> str:
    """Return the collection as a Markdown table, a row for each algorithm."""
    from flower_fedcon.card import first_sentence, one_line

    rows = [
        "| class | problem | participation | wire, each round | source | stated |",
        "|---|---|---|---|---|---|",
    ]
    for kind in algorithms().values():
        card = kind.card()
        texts = (card.participation, card.wire, card.source)
        cells = (
            f"`{kind.__name__}`", one_line(card.problem), *map(first_sentence, texts), card.stated
        )  # fmt: skip
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)
