"""The exchange after a fit, in which every client sums a statistic over its rows at the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from flower_fedcon.core.admission import ask
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.evaluation import LARGEST
from flower_fedcon.core.exchange import known
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, FedConError, RoundError, printable
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

Client = TypeVar("Client", int, str)

_log = logging.getLogger("flwr")


def total_sums(
    server: Server,
    engine: Engine,
    statistic: str,
    shapes: Mapping[str, tuple[int, ...]],
    x: Array | None = None,
    **more: float | Array,
) -> dict[str, Array]:
    """Return the totals of all clients' answers, added in client order.

    This is not part of a round: no state changes.

    Parameters
    ----------
    server : Server
    engine : Engine
    statistic : str
        The name of an exchange; see `flower_fedcon.core.exchange`.
    shapes : dict
        The shape of each array of an answer.
    x : array, optional
        The model; by default the server's.
    more
        Further arguments of the statistic.

    Raises
    ------
    ConfigError
        If the run is private, since no noise covers these sums.
    RoundError
        If a client's answer is missing: the others' sums would belong to a different table. The
        error says whose answer, and why.
    """
    return added(every_answer(server, engine, statistic, shapes, x, **more), shapes)


def added(
    answers: Mapping[Client, Payload], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Array]:
    """Return the totals of clients' answers, added in client order."""
    totals = {name: np.zeros(shape) for name, shape in shapes.items()}
    for client in sorted(answers):
        for name, value in answers[client].items():
            totals[name] += value
    return totals


def every_answer(
    server: Server,
    engine: Engine,
    statistic: str,
    shapes: Mapping[str, tuple[int, ...]],
    x: Array | None = None,
    **more: float | Array,
) -> dict[int, Payload]:
    """Return all clients' answers, by client; see `total_sums`."""
    if server.strategy.privacy is not None:
        raise ConfigError(
            f"privacy={server.strategy.privacy!r} protects the uploads of rounds, not the sums of "
            f"the exchange {statistic!r} ({', '.join(shapes)}): leave inference out, or privacy"
        )
    answers, faults = asked(server, engine, statistic, shapes, None, x, **more)
    if faults:
        why = server.in_words(faults)
        raise RoundError(f"the sums {statistic!r} need every client's answer: {'; '.join(why)}")
    return answers


def asked(
    server: Server,
    engine: Engine,
    statistic: str,
    shapes: Mapping[str, tuple[int | None, ...]],
    clients: Sequence[int] | None = None,
    x: Array | None = None,
    **more: float | Array,
) -> tuple[dict[int, Payload], dict[int, str]]:
    """Return the answers by client, and the reasons of clients that gave none.

    This is not part of a round: no state changes.

    Parameters
    ----------
    server, engine, statistic, x, more : see `total_sums`
    shapes : dict
        The shape of each array of an answer, with None for any length.
    clients : sequence of int, optional
        The clients that are asked; by default all.
    """
    wanted = server.everyone if clients is None else list(clients)
    exchange = known()[statistic]
    down = exchange.request({"x": server.x if x is None else x, **more})
    answers: dict[int, Payload] = {}
    faults: dict[int, str] = {}

    def refused(client: int, error: FedConError) -> None:
        faults[client] = printable(str(error))

    most = 3 if engine.max_retries is None else engine.max_retries
    for attempt in range(1 + most):
        missing = [c for c in wanted if c not in answers]
        if not missing:
            break
        request = server.question(exchange.phase, down, missing)
        request.attempt = attempt + 1
        admit = partial(_admitted, shapes=shapes)
        answers |= ask(request, server, engine.answer, admit, refused, counted=True)
        if all(is_refusal(faults.get(c, "")) for c in missing if c not in answers):
            break
    return answers, {c: faults.get(c, "no answer") for c in wanted if c not in answers}


def is_refusal(fault: str) -> bool:
    """Return whether a node has refused, so that another attempt does not help."""
    return fault.startswith("refused")


def _admitted(reply: Reply, shapes: Mapping[str, tuple[int | None, ...]]) -> Payload:
    """Return the columns of one client's answer, if it can be added up.

    Raises
    ------
    ConfigError
    """
    answer = {name: value for name, (value,) in reply.payload.items()}
    if answer.keys() != shapes.keys():
        raise ConfigError(f"it holds {sorted(answer)}, expected {sorted(shapes)}")
    for name, shape in shapes.items():
        value = np.asarray(answer[name])
        sizes = tuple(size if wanted is None else wanted
                      for size, wanted in zip(value.shape, shape, strict=False))  # fmt: skip
        if value.dtype != np.float64 or value.shape != sizes or value.ndim != len(shape):
            raise ConfigError(
                f"{name!r} has shape {value.shape} and dtype {value.dtype}, expected {shape} and "
                "float64"
            )
        if not (np.abs(value) <= LARGEST).all():
            raise ConfigError(
                f"{name!r} holds numbers that cannot be added up, beyond {LARGEST:g}: "
                "write columns, targets and weights in units in which they are no huge numbers"
            )
    return reply.payload
