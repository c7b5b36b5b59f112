"""The registry of algorithms: the pairs of strategy and client, by name.

Each pair of the collection is two modules of the same name, in strategies/ and in clients/: one is
imported on a server, the other on a node. The names come from the modules in clients/, so that a
node imports only the module that it needs; the classes, and their order, come from
`flower_fedcon.strategies`.

Add your own pair with `register` or, in an installed package, with an entry point of the group
"flower_fedcon.algorithms" that names a tuple (strategy class, client class)::

    [project.entry-points."flower_fedcon.algorithms"]
    fedmine = "my_package.fedmine:PAIR"

Then every process that can import the package knows it, nodes and workers included.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flower_fedcon.errors import AlgorithmError, ConfigError, nearest

if TYPE_CHECKING:
    from flower_fedcon.core.client_side import ClientSide
    from flower_fedcon.core.method import Method

Pair: TypeAlias = "tuple[type[Method[Any]] | None, type[ClientSide]]"

GROUP = "flower_fedcon.algorithms"
_log = logging.getLogger("flwr")
_own: dict[str, Pair] = {}
"""The registered pairs outside the collection; a worker does not need the strategy."""


@cache
def names() -> frozenset[str]:
    """Return the names of the collection's algorithms, without importing any.

    >>> sorted(names())[:3]
    ['apdainexact', 'area', 'averagedfw']
    """
    modules = {path.stem for path in (Path(__file__).parent / "clients").glob("*.py")}
    return frozenset(modules - {"__init__", "base"})


def accepted() -> list[str]:
    """Return the names of all algorithms that this process knows, without importing any."""
    return sorted({*names(), *_own, *_entry_points()})


@cache
def algorithms() -> dict[str, type[Method[Any]]]:
    """Return the collection's strategies by name, in the order of strategies/__init__.py.

    Raises
    ------
    AlgorithmError
        If a pair is not complete, naming what is missing.
    """
    # By name: a pair knows its base, and the base the registry.
    strategies = import_module("flower_fedcon.strategies")
    exported = [kind for kind in vars(strategies).values() if isinstance(kind, type)]
    methods = {kind.__module__.rpartition(".")[2]: kind for kind in exported}
    del methods["base"]
    for name in names() - methods.keys():
        raise AlgorithmError(
            f"clients/{name}.py has no strategy in strategies/__init__.py: write "
            f"strategies/{name}.py and add the line `from flower_fedcon.strategies.{name} "
            "import ... as ...` there"
        )
    for name, kind in methods.items():
        if getattr(kind, "name", None) != name:
            raise AlgorithmError(f'strategies/{name}.py: write name = "{name}" in {kind.__name__}')
        if name not in names():
            raise AlgorithmError(f"strategies/{name}.py has no client: write clients/{name}.py")
    return methods


def own_algorithms() -> dict[str, type[Method[Any]]]:
    """Return the registered and installed strategies outside the collection, by name.

    A package whose pair cannot be loaded is left out, and the log says why.
    """
    for name in _entry_points():
        try:
            _find_own(name)
        except AlgorithmError as error:
            _log.warning("%s", error)
    return {name: kind for name, (kind, _) in sorted(_own.items()) if kind is not None}


def register(strategy: type[Method[Any]], client: type[ClientSide]) -> None:
    """Make your own algorithm available by name, like those of the collection.

    Call it at the top level of the module that defines the pair; each process that imports the
    module then knows it. Processes that the library starts itself (`workers=2`, Ray) know it, too.

    Parameters
    ----------
    strategy : type
        A subclass of `FedConStrategy` with a `name`, lower-case letters, digits and underscores.
    client : type
        A subclass of `FedConClient` whose `algorithm` is that name.

    Raises
    ------
    AlgorithmError
        If the two do not fit together, or the name stands for another algorithm.

    Examples
    --------
    ::

        class Mine(FedAvg):
            name = "mine"

        class MineClient(FedAvgClient):
            algorithm = "mine"

        register(Mine, MineClient)
    """
    base = import_module("flower_fedcon.strategies.base").FedConStrategy
    if not (isinstance(strategy, type) and issubclass(strategy, base)):
        raise AlgorithmError(f"register: expected a subclass of FedConStrategy, got {strategy!r}")
    name = getattr(strategy, "name", None)
    if not isinstance(name, str) or not name.isidentifier() or name != name.lower():
        raise AlgorithmError(
            f"{strategy.__name__}.name must be lower-case letters, digits and underscores, "
            f"got {name!r}"
        )
    register_client(client)
    if client.algorithm != name:
        raise AlgorithmError(
            f"{client.__name__}.algorithm is {client.algorithm!r} and {strategy.__name__}.name "
            f"{name!r}: write the same name in both"
        )
    holder, _ = _own[name]
    if holder is not None and not _same(holder, strategy):
        raise AlgorithmError(
            f"{name!r} is already the name of {holder!r}: give {strategy!r} another"
        )
    _own[name] = strategy, client


def register_client(client: type[ClientSide]) -> None:
    """Make the client of your own algorithm known in a process without the server's side.

    The collection's clients are already known.
    """
    base = import_module("flower_fedcon.clients.base").FedConClient
    if not (isinstance(client, type) and issubclass(client, base)):
        raise AlgorithmError(f"register: expected a subclass of FedConClient, got {client!r}")
    name = getattr(client, "algorithm", None)
    if name is None:
        raise AlgorithmError(f"{client.__name__} has no algorithm: write its strategy's name")
    if name in names():
        if client is not client_class(name):
            raise AlgorithmError(f"{name!r} is an algorithm of the collection: choose another name")
        return
    pair = _own.get(name)
    if pair is not None and not _same(pair[1], client):
        raise AlgorithmError(
            f"{name!r} is already the name of {pair[1]!r}: give {client!r} another"
        )
    _own[name] = (None if pair is None else pair[0]), client


def _same(one: type[Any], other: type[Any]) -> bool:
    """Return whether two classes are the same, possibly from a module loaded twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def find(name: str) -> str:
    """Return the registered name of an algorithm, whatever its case.

    >>> find("FedFW")
    'fedfw'
    """
    key = str(name).lower()
    if key not in names() and key not in _own and key not in _entry_points():
        valid = [kind.__name__ for kind in algorithms().values()]
        valid += sorted({*_own, *_entry_points()})
        raise ConfigError(
            f"unknown algorithm {name!r}: {nearest(str(name), valid)}. Register your own by "
            f"flower_fedcon.register, or install its package"
        )
    return key


def strategy_class(name: str) -> type[Method[Any]]:
    """Return an algorithm's strategy class, by its name or as "module:Class"."""
    if ":" in str(name):
        return _imported(str(name))
    key = find(name)
    if key in names():
        return algorithms()[key]
    kind, _ = _find_own(key)
    if kind is None:
        raise AlgorithmError(f"only the client of {key!r} is registered here: register the pair")
    return kind


def _imported(name: str) -> type[Method[Any]]:
    """Return the strategy that "module:Class" names, whose module registers it.

    Raises
    ------
    ConfigError
        If there is none.
    """
    # By name: what reads files stands above.
    kind: Any = import_module("flower_fedcon.runs.toml").own_object(name, "the algorithm")
    registered = _own.get(getattr(kind, "name", ""), (None, None))[0]
    if registered is None or not _same(registered, kind):
        raise ConfigError(
            f"{name!r} is not registered: write flower_fedcon.register({kind.__name__}, its client "
            "class) at the end of its module"
        )
    return kind  # type: ignore[no-any-return]


def client_class(name: str) -> type[ClientSide]:
    """Return an algorithm's client class.

    Raises
    ------
    ConfigError
        If this process, such as a node, does not know the algorithm; the error lists known ones.
    """
    key = str(name).lower()
    if key in names():
        return _client_of_the_collection(key)
    if key not in _own and key not in _entry_points():
        raise ConfigError(
            f"the algorithm {name!r} is not accepted here; accepted: {', '.join(accepted())}. "
            "Install the package that has it, or call flower_fedcon.register(strategy, client)"
        )
    return _find_own(key)[1]


@cache
def _client_of_the_collection(key: str) -> type[ClientSide]:
    module = import_module(f"flower_fedcon.clients.{key}")
    for kind in vars(module).values():
        if isinstance(kind, type) and vars(kind).get("algorithm") == key:
            return kind
    raise AlgorithmError(f'clients/{key}.py has no client class with algorithm = "{key}"')


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of installed packages, by algorithm; nothing is imported."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in names() or points.get(point.name, point).value != point.value:
            _log.warning("%s: the name is taken, and the entry point left out", _where(point))
        else:
            points[point.name] = point
    return points


def plugins() -> dict[str, str]:
    """Return the installed packages that bring algorithms, with their versions."""
    packages = [point.dist for point in _entry_points().values() if point.dist is not None]
    return {dist.name: dist.version for dist in packages}


def _find_own(key: str) -> Pair:
    """Return a pair that is registered, or in an installed package."""
    if key not in _own or (_own[key][0] is None and key in _entry_points()):
        point = _entry_points()[key]
        try:
            strategy, client = point.load()
            register(strategy, client)
        except Exception as error:  # any error of a foreign package
            raise AlgorithmError(
                f"{_where(point)} cannot be loaded ({error!r}): it must name a tuple (strategy "
                "class, client class)"
            ) from None
        if key not in _own:
            raise AlgorithmError(f"{_where(point)} has the name {strategy.name!r}: give it that")
    return _own[key]


def _where(point: EntryPoint) -> str:
    package = point.dist.name if point.dist is not None else "an unknown package"
    return f"the algorithm {point.name!r} of {package} ({point.value})"


def markdown_table() -> str:
    """Return the collection as a Markdown table, a row for each algorithm, with links to files."""
    from flower_fedcon.card import one_line

    rows = ["| method | problem | in a line |", "|---|---|---|"]
    for name, kind in algorithms().items():
        card = kind.card()
        texts = one_line(card.problem), card.summary
        cells = f"[{kind.__name__}](flower_fedcon/strategies/{name}.py)", *texts
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)
