"""Sums of a round's uploads by Flower's own SecAgg+ workflow, and what a server gets to see of it.

The one file that uses Flower's older server interface for that (`flwr.server.workflow` and what it
takes): the workflow has no other door. It asks a strategy whom to send what, and tells it the mean;
it sends by a grid. Objects of this file stand in for all three, so that messages go by this
package's `Post`, and every reply is looked at before the workflow sees it.

What Flower 1.41 does with it, found by trying: nodes that are lost before all have shared their
keys leave nothing to unmask with, so the workflow is then begun anew without them; arrays of shape
() come out wrong, so that all values travel as one vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, FitRes, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow

from flower_fedcon.core.protocol import Reply
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.flower import incoming, messages
from flower_fedcon.flower.codec import Config
from flower_fedcon.flower.incoming import Fault, guarded, readable
from flower_fedcon.flower.mail import Arrival, Post, Waiting
from flower_fedcon.privacy.secure_aggregation import MODULUS, SecAggPlus
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import SCALAR_BYTES, load_array

CONFIGS, STAGE = "secaggplus_configs", "stage"
SETUP, SHARE, COLLECT, UNMASK = "setup", "share_keys", "collect_masked_vectors", "unmask"
_KEY = 2**16  # bytes of a key, or of a share of one


@dataclass
class Outcome:
    """What came of one attempt at a sum.

    Attributes
    ----------
    mean : array, shape (size,), optional
        Of the vectors, each entry in [-1, 1]; None if there is no sum.
    nodes : list of int
        Whose vectors are in it.
    faults : dict
        Of the nodes whose vectors are not: why, or a reply that says that a state is lost.
    reason : str
        Why there is no sum.
    again : bool
        Whether it can be tried at once without those; nothing has been trained yet.
    sent : int
        Bytes that the nodes have sent.
    """

    mean: Array | None = None
    nodes: list[int] = field(default_factory=list)
    faults: dict[int, Reply | Fault] = field(default_factory=dict)
    reason: str = "too few uploads came for a sum"
    again: bool = False
    sent: int = 0


def attempt(
    post: Post,
    secure: SecAggPlus,
    asks: Mapping[int, tuple[Sequence[Array], Config]],
    size: int,
    least: int,
    waiting: Waiting,
) -> Outcome:
    """Play the workflow once.

    Parameters
    ----------
    post : Post
    secure : SecAggPlus
    asks : dict
        What each node is sent to train with: arrays and configuration.
    size : int
        Entries of a vector.
    least : int
        With fewer vectors nothing is unmasked.
    waiting : Waiting
    """
    outcome = Outcome()
    grid = _Exchanges(post, set(asks), size, replace(waiting, enough=least), outcome)
    context = LegacyContext(
        Context(0, 0, {}, RecordDict(), {}),
        strategy=cast(Any, _Asks(asks, outcome)),
        client_manager=cast(Any, grid),
    )
    context.state["config"] = ConfigRecord({"current_round": 1})
    context.state["parameters"] = ArrayRecord([])
    n = len(asks)
    workflow = SecAggPlusWorkflow(
        secure.shares(n),
        secure.threshold(n) if secure.threshold(n) < secure.shares(n) else 1.0,
        max_weight=1,
        clipping_range=1.0,
        quantization_range=secure.levels(n),
        modulus_range=MODULUS,
    )
    try:
        workflow(cast(Any, grid), context)
    except _AbandonedError as abandoned:
        outcome.again = abandoned.again
    except RoundError:  # of the SuperLink, and of no node
        raise
    except Exception as error:  # of shares that fit no key, say: whose, nobody can tell
        fault = Fault(f"Flower's secure aggregation failed: {readable(repr(error))}")
        outcome.faults = dict.fromkeys(asks, fault)
    if outcome.mean is not None and not (np.abs(outcome.mean) <= 1 + 1e-6).all():
        fault = Fault("the sum lies beyond the range, so an unknown client has exceeded it")
        return Outcome(faults=dict.fromkeys(asks, fault), sent=outcome.sent)
    return outcome


class _AbandonedError(Exception):
    """No sum can come of this attempt."""

    def __init__(self, again: bool) -> None:
        self.again = again


@dataclass
class _NodeProxy:
    """Stands for the workflow's proxy of a client."""

    node_id: int


class _Asks:
    """Stands for the workflow's strategy."""

    def __init__(
        self, asks: Mapping[int, tuple[Sequence[Array], Config]], outcome: Outcome
    ) -> None:
        self._asks, self._outcome = asks, outcome

    def configure_fit(self, *_: Any) -> list[tuple[_NodeProxy, FitIns]]:
        """Return what each node is to train with."""
        return [
            (_NodeProxy(node), FitIns(ndarrays_to_parameters(list(arrays)), config))
            for node, (arrays, config) in self._asks.items()
        ]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[_NodeProxy, FitRes]], failures: list[Exception]
    ) -> tuple[None, dict[str, Any]]:
        """Take the mean, which comes once for each node."""
        self._outcome.nodes = [node.node_id for node, _ in results]
        (self._outcome.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


class _Exchanges:
    """Stands for the workflow's grid, and for its list of clients."""

    def __init__(
        self, post: Post, nodes: set[int], size: int, waiting: Waiting, outcome: Outcome
    ) -> None:
        self._post, self._nodes, self._size = post, nodes, size
        self._waiting, self._outcome = waiting, outcome

    def num_available(self) -> int:
        """Return how many clients there are."""
        return len(self._nodes)

    def send_and_receive(
        self, asked: Sequence[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the replies that the workflow can use; note the others.

        Raises
        ------
        _AbandonedError
            If no sum can come of them.
        """
        stage = str(asked[0].content.config_records[CONFIGS][STAGE])
        outcome, good, lost = self._outcome, [], False
        for arrival in self._post.exchange(asked, self._waiting):
            found = guarded(partial(self._usable, stage, arrival))
            if isinstance(found, Message):
                good.append(found)
            elif isinstance(found, Fault) and stage == UNMASK:  # its vector is in the sum already
                outcome.reason = f"its sum could not be unmasked: {found.reason}"
            else:
                outcome.faults[arrival.node] = found
                lost |= isinstance(found, Reply)
        if stage in (SETUP, SHARE) and len(good) < len(asked):
            raise _AbandonedError(again=True)
        if stage == COLLECT and (lost or len(good) < self._waiting.enough):
            raise _AbandonedError(again=False)
        return good

    def _usable(self, stage: str, arrival: Arrival) -> Message | Reply | Fault:
        """Return a node's message if the workflow can use it."""
        message = arrival.content
        if isinstance(message, Fault):
            return message
        if message.has_error() or CONFIGS not in message.content:
            found = incoming.reply(0, 0, lambda: messages.reply_parts(message, messages.TRAIN))
            if isinstance(found, Reply) and not found.lost:
                raise ConfigError("its app does not support secure aggregation")
            return found
        said = message.content.config_records[CONFIGS]
        if stage == SETUP:
            _keys([said["pk1"], said["pk2"]])
        elif stage == SHARE:
            self._pairs(said["dsts"], said["ctxts"])
        elif stage == COLLECT:
            if messages.reply_parts(message, messages.TRAIN).tensors:
                raise ConfigError("its reply holds arrays that are not masked")
            self._vector(said["masked_params"])
        else:
            self._pairs(said["nids"], said["shares"])
        self._outcome.sent += sum(map(_size, said.values()))
        return message

    def _pairs(self, nodes: Any, keys: Any) -> None:
        """Raise unless there is a key for each node, all of them asked."""
        if len(nodes) != len(keys) or not set(nodes) <= self._nodes:
            raise ConfigError("its keys are not of the nodes of this round")
        _keys(keys)

    def _vector(self, parts: Any) -> None:
        """Raise unless it is a masked weight, and a masked vector."""
        arrays = [load_array(part) for part in parts if len(part) <= 8 * self._size + 4096]
        if [(a.shape, a.dtype.str) for a in arrays] != [((1,), "<i8"), ((self._size,), "<i8")]:
            raise ConfigError(f"it has not masked a vector of {self._size} entries")
        if any(((a < 0) | (a >= MODULUS)).any() for a in arrays):
            raise ConfigError("its masked vector lies beyond the modulus")


def _size(value: Any) -> int:
    """Return the bytes of keys, vectors and numbers on the wire."""
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, bytes) else SCALAR_BYTES


def _keys(keys: Any) -> None:
    if not all(isinstance(key, bytes) and len(key) <= _KEY for key in keys):
        raise ConfigError("it has sent something else than keys")
