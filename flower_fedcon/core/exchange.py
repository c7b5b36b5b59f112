"""What a server may ask of clients besides queries and steps: one record for each question.

An `Exchange` says all of it: its name, the words by which a node's policy allows it, what an answer
may rest on, and the answer itself. Engines carry any exchange, and look it up here. The core has
"certify", "evaluate" and "scales"; wings bring others (`flower_fedcon.core.wings`), and a program
registers its own:

>>> def count_rows(site, down):
...     return {"rows": float(site.rows)}
>>> rows = register(Exchange("rows", count_rows))
>>> exchange_of("rows", {}).tell(Site(objective=None, rows=5), {})
{'rows': 5.0}
>>> _own.clear()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from flower_fedcon.core.protocol import CERTIFY, EVALUATE, QUERY, SCALES, TRAIN, Request, RunInfo
from flower_fedcon.core.wings import brought, later
from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import Layout
from flower_fedcon.validation import choice
from flower_fedcon.wire.payloads import Payload

OF_ROUNDS = (TRAIN, QUERY)
"""The phases of rounds, which are no exchanges."""
ASKS = "asks."
"""Prefix of the name by which a request states its exchange, if several have its action."""


class Bounds(Protocol):
    """What limits the answers: a node's `flower_fedcon.Policy`."""

    @property
    def min_rows(self) -> int:
        """The least number of rows on which an answer may rest."""

    @property
    def min_cell(self) -> int:
        """The smallest count that may be told."""

    def check_phase(self, phase: str) -> None:
        """Raise unless the node answers such a request."""

    def check_parameters(self, parameters: int, rows: int) -> None:
        """Raise if a model has too many parameters for the number of rows."""


class Unbounded:
    """The bounds of clients in this process: none."""

    min_rows = min_cell = 1

    def check_phase(self, phase: str) -> None:
        """Allow it."""

    def check_parameters(self, parameters: int, rows: int) -> None:
        """Allow it."""


@dataclass(frozen=True)
class Site:
    """The client that answers, the same in every engine.

    Attributes
    ----------
    objective : object
        Its own, as its owner gave it.
    seen : object
        The objective as its steps see it: times the client's factor, on packed models.
    state : NamedTuple, optional
        Its state after its last reply that was used; None without one.
    run : RunInfo, optional
    client : int
        Its position in the list of names.
    rows : int
        Its number of rows, for the bounds.
    bounds : Bounds
    data : DataAtNode, optional
        On a node: the data of which its objective was made.
    request : Request, optional
        The request, of an exchange before the start.
    """

    objective: Any
    seen: Any = None
    state: Any = None
    run: RunInfo | None = None
    client: int = 0
    rows: int = 0
    bounds: Bounds = field(default_factory=Unbounded)
    data: Any = None
    request: Request | None = None


def _none(site: Site, down: Payload) -> None:
    """Limit nothing."""


def _once(down: Payload) -> int:
    """Count a request as one."""
    return 1


def _no_more(layout: Layout) -> int:
    """Expect arrays no larger than a round's."""
    return 0


class _Asked(dict[str, Any]):
    """What a request holds; reading what it lacks is the server's error."""

    name = ""

    def __missing__(self, key: str) -> Any:
        raise ConfigError(
            f"the server asks for {self.name!r} without {key!r}: run one version of flower-fedcon"
        )


@dataclass(frozen=True)
class Exchange:
    """One kind of question.

    Attributes
    ----------
    name : str
    answer : callable
        (site, down) -> a client's answer, by name.
    action : str
        The phase of its requests, and the first word in a policy; by default the name. Several
        exchanges may have one action. A request then names its exchange by "asks.<name>".
    words : tuple of str
        Further words by which a policy allows it, or a part of it; never by default.
    allowed : bool
        Whether a node's default policy lists the action.
    limits : callable
        (site, down); raises `RefusedError` for what a node's bounds do not allow.
    counts : callable
        (down) -> how many requests it counts as, for the policy's `max_requests`.
    most : callable
        (layout) -> the most entries of an array in its answer.
    before_start : bool
        Whether it comes before a run has a model.
    own_message : bool
        Whether Flower has a message of its own for it.
    beside_sums : bool
        Whether it is asked beside secure aggregation, which does not mask its answers.
    """

    name: str
    answer: Callable[[Site, Payload], Payload]
    action: str = ""
    words: tuple[str, ...] = ()
    allowed: bool = False
    limits: Callable[[Site, Payload], None] = _none
    counts: Callable[[Payload], int] = _once
    most: Callable[[Layout], int] = _no_more
    before_start: bool = False
    own_message: bool = False
    beside_sums: bool = True

    @property
    def phase(self) -> str:
        """The phase of its requests."""
        return self.action or self.name

    def request(self, down: Payload) -> Payload:
        """Return what a request holds, with the exchange's name if its phase does not say it."""
        return down if self.phase == self.name else {**down, f"{ASKS}{self.name}": 1.0}

    def tell(self, site: Site, down: Payload) -> Payload:
        """Return a client's answer, if its bounds allow it.

        Raises
        ------
        RefusedError
            If they do not.
        ConfigError
            If the request lacks something.
        """
        asked = self._asked(down)
        self.limits(site, asked)
        return self.answer(site, asked)

    def check(self, site: Site, down: Payload) -> None:
        """Raise unless a client's bounds allow an answer."""
        self.limits(site, self._asked(down))

    def _asked(self, down: Payload) -> Payload:
        asked = _Asked(down)
        asked.name = self.name
        return asked


_COLLECTION = (
    Exchange(CERTIFY, later("flower_fedcon.core.answers:certificate"), beside_sums=False),
    Exchange(
        EVALUATE, later("flower_fedcon.core.answers:evaluation"), allowed=True, own_message=True
    ),
    Exchange(
        SCALES,
        later("flower_fedcon.core.answers:own_scales"),
        allowed=True,
        counts=lambda down: 2,  # numbers
        beside_sums=False,
    ),
)
_own: dict[str, Exchange] = {}


def register(exchange: Exchange) -> Exchange:
    """Make an exchange of your own known in this process.

    Raises
    ------
    ConfigError
        If the name is taken.
    """
    if exchange.name in OF_ROUNDS or _own.get(exchange.name, exchange) is not exchange:
        raise ConfigError(f"an exchange called {exchange.name!r} exists: choose another name")
    if exchange.name in _built_in():
        raise ConfigError(f"{exchange.name!r} is an exchange of flower-fedcon: choose another name")
    _own[exchange.name] = exchange
    return exchange


@cache
def _built_in() -> dict[str, Exchange]:
    return {exchange.name: exchange for exchange in _COLLECTION} | brought("EXCHANGES")


def known() -> dict[str, Exchange]:
    """Return all exchanges by name.

    >>> [name for name, exchange in known().items() if exchange.own_message]
    ['evaluate']
    """
    return {**_built_in(), **_own}


@cache  # built once, not for each client of each request
def _by_phase(own: tuple[Exchange, ...]) -> dict[str, dict[str, Exchange]]:
    """Return the exchanges without a message of their own, by phase and by name."""
    exchanges: dict[str, dict[str, Exchange]] = {}
    for exchange in (*_built_in().values(), *own):
        if not exchange.own_message:
            exchanges.setdefault(exchange.phase, {})[exchange.name] = exchange
    return exchanges


def phases(*, allowed: bool = False) -> tuple[str, ...]:
    """Return the words that a policy may list; with `allowed` those that it lists by default.

    >>> phases()[:5], phases(allowed=True)[:4]
    (('train', 'query', 'certify', 'evaluate', 'scales'), ('train', 'query', 'evaluate', 'scales'))
    """

    def words() -> Iterator[str]:
        yield from OF_ROUNDS
        for exchange in known().values():
            if exchange.allowed or not allowed:
                yield exchange.phase
            if not allowed:
                yield from exchange.words

    return (*dict.fromkeys(words()),)


def asked_in(down: Payload) -> list[str]:
    """Return the exchanges that a request names.

    >>> asked_in({"x": 0.0, "asks.estimates": 1.0})
    ['estimates']
    """
    return [name.removeprefix(ASKS) for name in down if name.startswith(ASKS)]


def exchange_of(phase: str, down: Payload) -> Exchange:
    """Return the exchange that a request is for.

    Raises
    ------
    ConfigError
        If this process does not know it.
    """
    by_phase = _by_phase(tuple(_own.values()))
    if phase not in by_phase:
        choice("action", phase, (*OF_ROUNDS, *by_phase))
    here, named = by_phase.get(phase, {}), asked_in(down)
    if [*here] == [phase] and not named:
        return here[phase]
    if len(named) != 1 or named[0] not in here:
        raise ConfigError(
            f"the server asks for the {phase} {named}, and this node has {', '.join(here)}: run "
            f"one version of flower-fedcon"
        )
    return here[named[0]]
