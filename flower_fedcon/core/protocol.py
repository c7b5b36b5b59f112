"""What server and client say to each other, whatever carries it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.core import rng as streams
from flower_fedcon.layout import Layout
from flower_fedcon.wire.payloads import Payload

TRAIN, QUERY, CERTIFY = "train", "query", "certify"


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
    """Names the run, also over a server's restarts: 32 hexadecimal digits."""
    incarnation: int = 1
    """How often the server of this run has been started."""


@dataclass(slots=True)
class Request:
    """One client's work for one round.

    Attributes
    ----------
    client : int
        The client's place in the sorted list of names.
    round : int
        From 1.
    ack : int
        The round of this client's last reply that was used; 0 if there is none.
    broadcast : dict
        What the algorithm sends to everyone.
    keep : int
        The round of this client's last reply that was used before the server's last checkpoint:
        the version to keep in case the server falls back to it; 0 for none.
    restore : dict, optional
        State that the server hands back to a client that has none.
    phase : {"train", "query", "certify"}
        A query comes before the step, in algorithms that ask first. A certificate is no part of
        a round: the client gives its gradient at the model, and moves nothing.
    follow_up : bool
        Whether `broadcast` only adds to what the client holds from this round's query.
    """

    client: int
    round: int
    ack: int
    broadcast: Payload
    restore: Payload | None = None
    phase: str = TRAIN
    follow_up: bool = False
    keep: int = 0


@dataclass(slots=True)
class Reply:
    """A client's answer: an upload, the news that its state is gone, or an error."""

    client: int
    round: int
    payload: Payload = field(default_factory=dict)
    num_examples: float = 1
    lost: bool = False
    error: str = ""
    work: dict[str, float] = field(default_factory=dict)
    """What the step cost: a local solver's iterations and evaluations."""
    encoded: bool = False
    """Whether the payload holds arrays as they came over the wire."""


@dataclass(slots=True)
class StackRequest:
    """The work of a whole cohort for one round, where its clients live in arrays.

    Attributes
    ----------
    clients : array of int
        Ascending.
    acks : array of int
        For each of them, as in `Request`.
    own : list of dict, optional
        What each client alone gets beside the broadcast.
    restore : dict
        The state that is handed to some clients, by client.
    """

    clients: np.ndarray[Any, Any]
    round: int
    acks: np.ndarray[Any, Any]
    broadcast: Payload
    own: list[Payload] | None = None
    restore: dict[int, Payload] = field(default_factory=dict)


@dataclass(slots=True)
class StackReply:
    """The uploads of several clients: each value has a leading client axis."""

    clients: np.ndarray[Any, Any]
    payload: Payload

    def part(self, index: int) -> Payload:
        """Return the upload of one client."""
        return {
            name: value[index] if isinstance(value, np.ndarray) else value.part(index)
            for name, value in self.payload.items()
        }


Exchange: TypeAlias = Callable[[list[Request]], Iterable[Reply]]


@dataclass(frozen=True)
class ClientInfo:
    """What a client says of itself before the first round.

    Attributes
    ----------
    name : str
        Stable across restarts: the partition id, a name from the node's configuration, or
        else the node's own id.
    num_examples : int
    layout : Layout
        The model that the client's objective takes.
    smoothness, strong_convexity : float, optional
        L and mu, where known.
    """

    name: str
    num_examples: int
    layout: Layout | None
    smoothness: float | None = None
    strong_convexity: float | None = None


@dataclass(frozen=True)
class Setup:
    """What a strategy may know when it starts.

    Attributes
    ----------
    clients : tuple of ClientInfo
        In client order.
    num_rounds : int
    layout : Layout
    sampled : bool
        Whether some rounds leave somebody out.
    rate : float
        Expected fraction of the clients that take part, p, in (0, 1].
    seed : int
        The run's seed.
    """

    clients: tuple[ClientInfo, ...]
    num_rounds: int
    layout: Layout
    sampled: bool
    rate: float
    seed: int

    @property
    def smoothness(self) -> float | None:
        """The largest smoothness constant L of the clients; None unless all are known."""
        known = [c.smoothness for c in self.clients if c.smoothness is not None]
        return max(known) if len(known) == len(self.clients) else None

    @property
    def strong_convexity(self) -> float | None:
        """The smallest strong convexity mu of the clients; None unless all are known."""
        known = [c.strong_convexity for c in self.clients if c.strong_convexity is not None]
        return min(known) if len(known) == len(self.clients) else None

    def rng(self, purpose: int, server_round: int) -> np.random.Generator:
        """Return the server's random stream of one purpose and round."""
        return streams.stream(self.seed, purpose, server_round, len(self.clients))

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return len(self.clients)
