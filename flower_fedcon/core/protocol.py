"""The messages between server and clients, the same in every engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from flower_fedcon.core.batches import ORDER, EpochRows, minibatch
from flower_fedcon.core.infos import ClientInfo as ClientInfo
from flower_fedcon.core.infos import ClientInfos
from flower_fedcon.core.infos import check_objective as check_objective
from flower_fedcon.core.participation import Participation
from flower_fedcon.core.rng import check_seed, stream
from flower_fedcon.core.scales import Scales
from flower_fedcon.layout import Layout
from flower_fedcon.validation import Array, choice
from flower_fedcon.wire.payloads import Payload

UNIFORM, EXAMPLES = WEIGHTINGS = "uniform", "examples"
MOST_EXAMPLES = 1e12
"""The largest number of examples of a client, if they are its weight."""
TRAIN, QUERY = "train", "query"
CERTIFY, EVALUATE, SCALES = "certify", "evaluate", "scales"
PREPARE, STATISTICS = "prepare", "statistics"


@dataclass(frozen=True)
class RunInfo:
    """What all messages of one run have in common."""

    algorithm: str
    seed: int
    layout: Layout
    num_clients: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The hyperparameters and oracles that the client's step uses, by name."""
    run_id: str = "0" * 32
    """Identifies the run, also across restarts of the server: 32 hexadecimal digits."""
    incarnation: int = 1
    """How often the server of this run has been started."""
    factor: float = 1.0
    """The factor of the objective of the client that gets this message."""
    factors: Sequence[float] | None = None
    """On a server, the factor of each client; None for 1."""
    attached: Mapping[str, Array] = field(default_factory=dict)
    """What clients have agreed on before round 1, as arrays that travel with every request."""
    about: Mapping[str, str] = field(default_factory=dict)
    """For uploads that are points and clipped: the broadcast value that is their reference."""

    @property
    def rows_each(self) -> int | None:
        """Rows in a minibatch, by batch size or local solver; None for all rows."""
        return minibatch(self.settings.get("batch_size"), self.settings.get("local_solver"))

    @property
    def epoch_rows(self) -> EpochRows | None:
        """The rows of minibatches, if epochs continue over rounds; otherwise None."""
        if self.settings.get(ORDER) != "epoch":
            return None
        return EpochRows(self.seed, int(self.settings.get("local_steps") or 1))


@dataclass(slots=True)
class Request:
    """One exchange's request to a whole cohort.

    Attributes
    ----------
    clients : list of int
        The clients that are asked: indices into the sorted list of names, ascending.
    round : int
        From 1.
    acknowledged : array of int, shape (len(clients),)
        For each of them, the round of its last reply that was used; 0 if there is none.
    broadcast : dict
        What all of them are sent.
    kept : array of int, shape (len(clients),)
        For each of them, the round of its last reply that was used before the server's last
        checkpoint; 0 for none. The client keeps this state in case the server falls back to the
        checkpoint.
    personal, restore : dict
        By client: what it is sent in addition, and the state that is handed back to a client that
        has none.
    phase : str
        "train" or "query", which comes before the step in algorithms that have one; or an exchange
        that is not part of a round and changes no state (`flower_fedcon.core.exchange`).
    held : set of int
        The clients that still hold this round's query; `broadcast` adds to it.
    names, wanted : tuple of str, int
        The names of the values to answer with, and how many usable replies the phase needs.
    attempt : int
        How often the phase has asked, 1 for the first time.
    seconds_left : float
        Seconds until the round no longer asks.
    rounds : array of int, shape (len(clients),), optional
        For each of them its round, if they differ, in an engine that answers waves together.
    """

    clients: list[int]
    round: int
    acknowledged: np.ndarray[Any, Any]
    broadcast: Payload
    kept: np.ndarray[Any, Any]
    personal: dict[int, Payload] = field(default_factory=dict)
    restore: dict[int, Payload] = field(default_factory=dict)
    phase: str = TRAIN
    held: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()
    wanted: int = 1
    attempt: int = 1
    seconds_left: float = math.inf
    rounds: np.ndarray[Any, Any] | None = None

    def down(self, client: int) -> Payload:
        """Return all that one client is sent."""
        part = self.personal.get(client)
        return {**self.broadcast, **part} if part else self.broadcast

    def only(self, places: Sequence[int]) -> Request:
        """Return the same request to some of its clients, given by position in `clients`."""
        clients, index = [self.clients[i] for i in places], np.array(places, dtype=np.intp)
        return replace(
            self,
            clients=clients,
            acknowledged=self.acknowledged[index],
            kept=self.kept[index],
            rounds=None if self.rounds is None else self.rounds[index],
            personal={c: self.personal[c] for c in clients if c in self.personal},
            restore={c: self.restore[c] for c in clients if c in self.restore},
        )


@dataclass(slots=True)
class Reply:
    """An answer of one client, or of many at once, in columns.

    Attributes
    ----------
    clients : list of int
        The clients that answer.
    round : int
    payload : dict
        Columns by name. A column is a list with a value for each client, or one stacked value (an
        array, or atoms) with a leading client axis.
    num_examples : float
        The reply's weight, > 0.
    lost : bool
        Whether these clients' states are gone; then there is no payload.
    error : str
        Why there is no usable answer.
    work : sequence of dict
        The costs of the steps: a dict for each client, with the names of
        `flower_fedcon.core.gate.WORK`.
    remote : bool
        Whether it came over a wire. Its values are then arrays that have yet to be decoded, and
        nothing in it is trusted.
    diverged : bool
        Whether the reason is that numbers are no longer finite. `error` says so too.
    silent : bool
        Whether these clients did not answer at all, for the reason in `error`.
    longest : float
        At least the largest absolute value in the payload of a remote reply, from the gate's
        pass over it; infinity if it is not known.
    left : NamedTuple, optional
        The state after the step, with stacked arrays, if an engine in this process has computed all
        clients together and their state follows from the payload. It is never sent.
    """

    clients: list[int]
    round: int
    payload: Payload = field(default_factory=dict)
    num_examples: float = 1
    lost: bool = False
    error: str = ""
    work: Sequence[Mapping[str, float]] = ()
    remote: bool = False
    silent: bool = False
    diverged: bool = False
    longest: float = math.inf
    left: Any = None

    def single(self) -> Iterator[Reply]:
        """Return the reply of each client on its own, made one by one."""
        return map(self.one, range(len(self.clients)))

    def one(self, i: int) -> Reply:
        """Return the reply of the client at a place of `clients` on its own."""
        payload = {name: [entry(column, i)] for name, column in self.payload.items()}
        work = self.work[i : i + 1]
        return replace(self, clients=[self.clients[i]], payload=payload, work=work, left=None)


class Work(Sequence[Mapping[str, float]]):
    """The costs of many clients' steps: numbers that all share, or an array over clients.

    Parameters
    ----------
    numbers : dict
    count : int
        How many clients.

    >>> work = Work({"gradients": 5, "proxes": np.array([1, 2])}, 2)
    >>> work[1], work.total()
    ({'gradients': 5, 'proxes': 2}, {'gradients': 10, 'proxes': 3})
    """

    def __init__(self, numbers: Mapping[str, Any], count: int) -> None:
        self.numbers, self._count = numbers, count
        self._alike = all(type(value) is int for value in numbers.values())

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Mapping[str, float]: ...
    @overload
    def __getitem__(self, place: slice) -> list[Mapping[str, float]]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(self._count))]
        if self._alike and 0 <= place < self._count:
            return self.numbers
        arrays = (np.broadcast_to(value, self._count) for value in self.numbers.values())
        return {n: array[place].item() for n, array in zip(self.numbers, arrays, strict=True)}

    def total(self) -> dict[str, float]:
        """Return the sums over the clients."""
        totals: dict[str, float] = {}
        for name, value in self.numbers.items():
            if type(value) is int:
                totals[name] = self._count * value
            else:
                totals[name] = np.broadcast_to(value, self._count).sum().item()
        return totals


def total_work(work: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Return what all these clients' steps cost together."""
    if isinstance(work, Work):
        return work.total()
    if len(work) == 1:
        return work[0]
    totals: dict[str, float] = {}
    for one in work:
        for name, number in one.items():
            totals[name] = totals.get(name, 0) + number
    return totals


def entry(column: Any, i: int) -> Any:
    """Return one client's value of a column."""
    return column[i] if isinstance(column, list | np.ndarray) else column.part(i)


@dataclass(frozen=True)
class Setup:
    """What a strategy knows when it starts.

    Attributes
    ----------
    clients : sequence of ClientInfo
        In client order; a tuple, or `ClientInfos`.
    num_rounds : int
    layout : Layout
    sampled : bool
        Whether some rounds leave clients out.
    rate : float
        Expected fraction p of the clients that take part, in (0, 1].
    seed : int
        The run's seed.
    weighting : {"uniform", "examples"}
        Whether clients have equal weights, or weights by their numbers of examples; in tables with
        weighted rows, by the sums of these weights.
    preparation : Attachment, optional
        What clients have agreed on before round 1, such as the columns of their tables. A wing
        knows more of it than `flower_fedcon.core.attachment.Attachment`, which is all that the core
        uses.
    scales : Scales, optional
        Estimates from the clients' gradients at the start, if a rule needs them.
    """

    clients: Sequence[ClientInfo]
    num_rounds: int
    layout: Layout
    sampled: bool
    rate: float
    seed: int
    weighting: str = UNIFORM
    preparation: Any = None
    scales: Scales | None = None

    @classmethod
    def of(
        cls,
        infos: Sequence[ClientInfo],
        num_rounds: int,
        layout: Layout,
        participation: Participation,
        seed: int,
        weighting: str = UNIFORM,
        preparation: Any = None,
    ) -> Setup:
        """Return the setup of a run with these clients."""
        n, participation = len(infos), participation.for_clients(infos)
        return cls(
            clients=infos if isinstance(infos, ClientInfos) else tuple(infos),
            num_rounds=num_rounds,
            layout=layout,
            sampled=not participation.is_full(n),
            rate=participation.rate(n),
            seed=check_seed(seed),
            weighting=choice("weighting", weighting, WEIGHTINGS),
            preparation=preparation,
        )

    @cached_property
    def names(self) -> Sequence[str]:
        """The clients' names."""
        infos = self.clients
        return infos.names if isinstance(infos, ClientInfos) else [client.name for client in infos]

    @property
    def smoothness(self) -> float | None:
        """The largest smoothness constant L of the clients, or an estimate; None if unknown."""
        return max(self.smoothnesses, default=None)

    @property
    def smoothnesses(self) -> list[float]:
        """The smoothness constant L_i of each client, or an estimate; empty if unknown."""
        stated = self._scaled("smoothness")
        return self.scales.smoothnesses if not stated and self.scales is not None else stated

    @property
    def estimated(self) -> bool:
        """Whether the L_i are an estimate."""
        return self.scales is not None and bool(self.scales.smoothnesses)

    @property
    def max_model(self) -> float:
        """The largest entry of a model that most clients accept: the upper median of theirs."""
        if isinstance(self.clients, ClientInfos):  # they are in this process
            return math.inf
        each = sorted(client.max_model for client in self.clients)
        return each[len(each) // 2]

    @property
    def strong_convexity(self) -> float | None:
        """The smallest strong convexity mu of the clients; None unless all are known."""
        return min(self.moduli, default=None)

    @property
    def moduli(self) -> list[float]:
        """The strong convexity mu_i of each client; empty unless all are known."""
        return self._scaled("strong_convexity")

    def _scaled(self, name: str) -> list[float]:
        """Return the constants of the scaled objectives; none unless all are known."""
        if isinstance(self.clients, ClientInfos):
            constants = self.clients.constants(name)
        else:
            constants = [getattr(client, name) for client in self.clients]
        stated = [value for value in constants if value is not None]
        if len(stated) < len(constants) or self.factors is None:
            return stated if len(stated) == len(constants) else []
        return [f * value for f, value in zip(self.factors, stated, strict=True)]

    @property
    def factors(self) -> list[float] | None:
        """The factor of each objective that makes the plain mean the weighted mean.

        None if all factors are 1, and for train loops, whose uploads are weighted instead.
        """
        if self.weighting == UNIFORM or self.own_loops:
            return None
        agreed = self.preparation
        each = agreed.weights if agreed else [float(c.num_examples) for c in self.clients]
        examples = np.array(each)
        return [self.num_clients * float(w) for w in examples / float(examples.sum())]

    @property
    def own_loops(self) -> bool:
        """Whether every client trains with its own loop."""
        return "" not in self._loops

    @property
    def any_own_loop(self) -> bool:
        """Whether any client trains with its own loop."""
        return self._loops != {""}

    @property
    def _loops(self) -> set[str]:
        many = isinstance(self.clients, ClientInfos)  # these have objectives
        return {""} if many else {client.own_loop for client in self.clients}

    def rng(self, purpose: int, server_round: int) -> np.random.Generator:
        """Return the server's random stream for one purpose and round."""
        return stream(self.seed, purpose, server_round, len(self.clients))

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return len(self.clients)
