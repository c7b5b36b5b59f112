"""Sums of a round's uploads by Flower's own SecAgg+ workflow, on the server's side.

Only this file uses Flower's older server interface for secure aggregation (`flwr.server.workflow`
and its arguments), since the workflow has no other interface. The workflow asks a strategy what to
send to which client, hands it the mean, and sends by a grid. Objects of this file take the place of
these, so that messages go by this package's `Post`, and every reply is checked before the workflow
sees it.

Two properties of Flower 1.41 were found by experiment. If nodes are lost before all have shared
their keys, nothing can be unmasked; the workflow then begins again without them. Arrays of shape ()
come out wrong; all values are therefore sent as one vector.
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
    """The result of one attempt at a sum.

    Attributes
    ----------
    mean : array, shape (size,), optional
        The mean of the vectors, each entry in [-1, 1]; None if there is no sum.
    nodes : list of int
        The nodes whose vectors are in it.
    faults : dict
        For nodes whose vectors are not in it: the reason, or a reply that a state is lost.
    reason : str
        Why there is no sum.
    again : bool
        Whether it can be repeated at once without these nodes, since nothing has been trained yet.
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
    """Run the workflow once.

    Parameters
    ----------
    post : Post
    secure : SecAggPlus
    asks : dict
        The arrays and configuration that each node is sent for training.
    size : int
        Entries of a vector.
    least : int
        The least number of vectors; with fewer nothing is unmasked.
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
    except RoundError:  # an error of the SuperLink, not of a node
        raise
    except Exception as error:  # such as shares that fit no key: the node is not known
        fault = Fault(f"Flower's secure aggregation failed: {readable(repr(error))}")
        outcome.faults = dict.fromkeys(asks, fault)
    if outcome.mean is not None and not (np.abs(outcome.mean) <= 1 + 1e-6).all():
        fault = Fault("the sum lies beyond the range, so an unknown client has exceeded it")
        return Outcome(faults=dict.fromkeys(asks, fault), sent=outcome.sent)
    return outcome


class _AbandonedError(Exception):
    """No sum can result from the attempt."""

    def __init__(self, again: bool) -> None:
        self.again = again


@dataclass
class _NodeProxy:
    """Takes the place of the workflow's proxy of a client."""

    node_id: int


class _Asks:
    """Takes the place of the workflow's strategy."""

    def __init__(
        self, asks: Mapping[int, tuple[Sequence[Array], Config]], outcome: Outcome
    ) -> None:
        self._asks, self._outcome = asks, outcome

    def configure_fit(self, *_: Any) -> list[tuple[_NodeProxy, FitIns]]:
        """Return the training request of each node."""
        return [
            (_NodeProxy(node), FitIns(ndarrays_to_parameters(list(arrays)), config))
            for node, (arrays, config) in self._asks.items()
        ]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[_NodeProxy, FitRes]], failures: list[Exception]
    ) -> tuple[None, dict[str, Any]]:
        """Take the mean, which is passed once for each node."""
        self._outcome.nodes = [node.node_id for node, _ in results]
        (self._outcome.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


class _Exchanges:
    """Takes the place of the workflow's grid and its list of clients."""

    def __init__(
        self, post: Post, nodes: set[int], size: int, waiting: Waiting, outcome: Outcome
    ) -> None:
        self._post, self._nodes, self._size = post, nodes, size
        self._waiting, self._outcome = waiting, outcome

    def num_available(self) -> int:
        """Return the number of clients."""
        return len(self._nodes)

    def send_and_receive(
        self, asked: Sequence[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the replies that the workflow can use; note the others.

        Raises
        ------
        _AbandonedError
            If they cannot give a sum.
        """
        stage = str(asked[0].content.config_records[CONFIGS][STAGE])
        outcome, good, lost = self._outcome, [], False
        for arrival in self._post.exchange(asked, self._waiting):
            answer = guarded(partial(self._usable, stage, arrival))
            if isinstance(answer, Message):
                good.append(answer)
            elif isinstance(answer, Fault) and stage == UNMASK:  # its vector is already in the sum
                outcome.reason = f"its sum could not be unmasked: {answer.reason}"
            else:
                outcome.faults[arrival.node] = answer
                lost |= isinstance(answer, Reply)
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
            answer = incoming.reply(0, 0, lambda: messages.reply_parts(message, messages.TRAIN))
            if isinstance(answer, Reply) and not answer.lost:
                raise ConfigError("its app does not support secure aggregation")
            return answer
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
