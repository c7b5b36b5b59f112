"""The exchanges before round 1 in which nodes with tables agree on categories, means and scales.

They have the form of a round's exchanges: a `Request` in the phase "prepare", whose `round` is the
number of the exchange, and a `Reply` of every client, which is checked before it is used.
`flower_fedcon.tables.preparation` describes their contents. If the schema has `curve_times`, nodes
count events and rows at risk in a further exchange; if it has `describe_by`, they tell sums by
level (`flower_fedcon.tables.by_level`). If it has terms, the exchanges of
`flower_fedcon.tables.design` follow. If clients are on nodes, a last exchange completes the
handshake: it asks for the constants L and mu of the objectives that were made from their rows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon.core.agreement import Agreement
from flower_fedcon.core.protocol import PREPARE, UNIFORM, ClientInfo, Reply, Request, RunInfo
from flower_fedcon.errors import ConfigError, FedConError, RoundError, printable
from flower_fedcon.layout import Layout
from flower_fedcon.tables.by_level import LEVELS, ByLevel, asked_by_level, sizes_by_level
from flower_fedcon.tables.checks.conspicuous import (
    check_comparable,
    check_outcomes,
    check_references,
    conspicuous_values,
    heavy_sites,
)
from flower_fedcon.tables.checks.turned_round import turned_on_nodes
from flower_fedcon.tables.descriptives import Descriptives
from flower_fedcon.tables.design import OF_TERMS
from flower_fedcon.tables.packed_text import packed_text
from flower_fedcon.tables.preparation import (
    LARGEST,
    WEIGHTS,
    Preparation,
    agree,
    categories_of,
    conclude,
    expected,
    left_out_in_words,
)
from flower_fedcon.tables.risk_counts import Curves
from flower_fedcon.tables.schema import COMMON, RANDOM, Schema
from flower_fedcon.tables.table import CURVES, SPREAD, SUMMARY
from flower_fedcon.wire.payloads import Payload, payload_bytes

_log = logging.getLogger("flwr")
LIMIT = Layout(((2**21,),), "float64", layered=False)
"""The largest number of entries in an array from a node."""
_SAID = 10  # at most so many lines about clients that stand out are logged
CONSTANTS = "constants"
STAGES = (SUMMARY, SPREAD, CONSTANTS, CURVES, *OF_TERMS, LEVELS)


class Preparing:
    """The exchanges of one preparation.

    Parameters
    ----------
    schema : Schema
    names : sequence of str
        The clients', in their order.
    answer : callable
        An engine's `answer`.
    max_retries : int, optional
        How often a client without a usable answer is asked again; None for no limit.
    deadline : float
        Seconds after which an exchange without all answers ends in an error.
    site_effects : {"common", "own", "random"}
        See `flower_fedcon.tables.preparation.Preparation`.

    Raises
    ------
    ConfigError
        If the schema's loss does not take such effects.
    """

    def __init__(
        self,
        schema: Schema,
        names: Sequence[str],
        answer: Callable[[Request], list[Reply]],
        *,
        max_retries: int | None = 3,
        deadline: float = math.inf,
        site_effects: str = COMMON,
    ) -> None:
        self._site_effects = schema.check_site_effects(site_effects)
        self._schema, self._names, self._answer = schema, list(names), answer
        self._max_retries, self._deadline = max_retries, deadline
        self._up = self._down = 0

    def agree(self) -> Preparation:
        """Carry out the two exchanges, and log which clients stand out.

        Raises
        ------
        RoundError
            If a client's answer is missing; the error says whose and why.
        ConfigError
            If a class of the outcome has no row over all clients, or a reference is no category.
        """
        schema = self._schema
        told = self._exchange(1, {}, expected(schema, None))
        check_outcomes(schema, told)
        first = agree(schema, told)
        check_references(schema, first)
        answers = self._exchange(2, first.payload, expected(schema, first))
        found = conspicuous_values(schema, self._names, first, told, answers)
        said = [printable(o) for o in (*found, *heavy_sites(schema, self._names, first))]
        for line in said[:_SAID]:
            _log.warning("tables: %s", line)
        if len(said) > _SAID:
            more = len(said) - _SAID
            _log.warning("tables: %s more remarks: see `fedcon data check`", more)
        preparation = conclude(schema, first, answers, self._ask)
        preparation = replace(preparation, site_effects=self._site_effects, remarks=tuple(said))
        if not schema.sparse:
            described = Descriptives.of(
                schema, self._names, first.rows, first.means, first.categories, told, answers
            )
            preparation = replace(preparation, described=described)
        if schema.curve_times:
            preparation = replace(preparation, curves=self._curves(preparation))
        if schema.describe_by:
            asked = asked_by_level(first.means, first.categories)
            sizes = sizes_by_level(schema, first.categories)
            by_level = self._ask(LEVELS, asked, sizes)
            made = ByLevel.of(schema, self._names, first.means, first.categories, by_level)
            preparation = replace(preparation, by_level=made)
        if preparation.left_out:
            _log.warning(
                "columns with at most one value over all clients are left out: %s",
                left_out_in_words(preparation.left_out),
            )
        return replace(preparation, uplink_bytes=self._up, downlink_bytes=self._down)

    def _ask(self, stage: str, down: Payload, sizes: dict[str, int]) -> list[Payload]:
        """Carry out an exchange of terms."""
        return self._exchange(STAGES.index(stage) + 1, down, dict(sizes))

    def _curves(self, found: Preparation) -> Curves:
        """Return the clients' counts at the schema's times, from a separate exchange."""
        schema = self._schema
        by = schema.curve_by
        arms = found.categories[by] if by else ("all",)
        size = len(schema.curve_times) * len(arms)
        down = {"categories": packed_text({by: list(arms)} if by else {})}
        sizes = {"at_risk": size, "events": size, "left": size + len(arms)}
        told = self._exchange(4, down, dict(sizes))
        at_risk, events = (
            np.stack([answer[name] for answer in told])
            .astype(np.int64)
            .reshape(len(told), -1, len(arms))
            for name in ("at_risk", "events")
        )
        left = np.sum([answer["left"] for answer in told], axis=0).reshape(-1, len(arms))
        times = np.array(schema.curve_times)
        return Curves(times, arms, at_risk, events, tuple(self._names), left)

    def constants(
        self, infos: Sequence[ClientInfo], preparation: Preparation
    ) -> tuple[list[ClientInfo], Preparation]:
        """Return the constants of the objectives that were made from clients' rows.

        Raises
        ------
        RoundError
            If a client's answer is missing.
        ConfigError
            If no client has comparable rows, in a Cox model.
        """
        answers = self._exchange(3, preparation.payload, {"constants": 2})
        shape = self._schema.model_shape(len(preparation.names), preparation.site_effects)
        layout = Layout((shape,), "float64", False)
        completed = []
        for info, answer in zip(infos, answers, strict=True):
            L, mu = (None if math.isnan(v) else v for v in answer["constants"].tolist())
            completed.append(replace(info, layout=layout, smoothness=L, strong_convexity=mu))
        check_comparable(
            self._schema, (info.smoothness for info in completed), preparation.site_effects
        )
        return completed, preparation

    def _exchange(self, number: int, down: Payload, shapes: dict[str, int | None]) -> list[Payload]:
        """Return everyone's answer, in client order."""
        answers: dict[int, Payload] = {}
        faults: dict[int, str] = {}
        began, attempt = time.monotonic(), 0
        most = math.inf if self._max_retries is None else self._max_retries
        while len(answers) < len(self._names):
            left = began + self._deadline - time.monotonic()
            if attempt and (left <= 0 or attempt > most):
                why = "; ".join(
                    f"client {self._names[c]}: {faults.get(c, 'no answer')}"
                    for c in range(len(self._names))
                    if c not in answers
                )
                raise RoundError(f"preparing the tables needs every client's answer ({why})")
            attempt += 1
            clients = [c for c in range(len(self._names)) if c not in answers]
            none = np.zeros(len(clients), dtype=np.int64)
            request = Request(
                clients, number, none, down, none, phase=PREPARE, wanted=len(clients),
                attempt=attempt, seconds_left=left,
            )  # fmt: skip
            if number != 3:
                self._down += len(clients) * payload_bytes(down)
            for reply in self._answer(request):
                (client,) = reply.clients
                try:
                    answers[client] = self._admit(reply, number, shapes)
                except FedConError as error:
                    faults[client] = printable(str(error))
                    if not reply.silent:
                        _log.warning("preparing: client %s: %s", self._names[client], error)
        return [answers[client] for client in range(len(self._names))]

    def _admit(self, reply: Reply, number: int, shapes: dict[str, int | None]) -> Payload:
        """Return an answer, if it can be used."""
        if reply.error:
            raise RoundError(reply.error)
        if reply.round != number:
            raise RoundError(f"it is for exchange {reply.round}")
        payload = {name: value for name, (value,) in reply.payload.items()}
        if payload.keys() != shapes.keys():
            raise ConfigError(f"it holds {sorted(payload)}, expected {sorted(shapes)}")
        for name, size in shapes.items():
            if name == "categories":
                categories_of(payload[name], self._schema)
            else:
                partly = STAGES[number - 1] in (SPREAD, LEVELS)
                payload[name] = _numbers(name, payload[name], size, partly=partly)
        if number != 3:
            self._up += payload_bytes(payload)
        return payload


class SchemaAgreement(Agreement):
    """The agreement of nodes whose tables have one schema.

    Parameters
    ----------
    schema : Schema, path or dict
    site_effects, weighting : str
        As for a strategy's `start`.

    Raises
    ------
    ConfigError
        If random effects, or one baseline hazard, have equal weights of clients.
    """

    def __init__(self, schema: Any, site_effects: str, weighting: str) -> None:
        self._schema = schema if isinstance(schema, Schema) else Schema.load(schema)
        self._site_effects = site_effects
        common = not self._schema.stratified
        if (site_effects == RANDOM or common) and weighting == UNIFORM:
            what = "stratified = false" if common else f"site_effects={site_effects!r}"
            raise ConfigError(
                f'{what} needs weighting="examples", since the likelihood is that of all rows'
            )

    def reached(
        self, infos: list[ClientInfo], engine: Any, algorithm: str
    ) -> tuple[list[ClientInfo], Preparation]:
        """Return the clients' descriptions with constants, and the preparation.

        Raises
        ------
        ConfigError
            If some have tables and others not, or their schema is not the server's.
        """
        schema = self._schema
        for info in infos:
            if info.schema != schema.digest:
                has = "another schema than the server" if info.schema else "an objective, no table"
                raise ConfigError(
                    f"client {info.name} has {has}: give server and nodes the same schema file"
                )
        engine.open(RunInfo(algorithm, 0, LIMIT, len(infos)))
        preparing = Preparing(
            schema,
            [info.name for info in infos],
            engine.answer,
            max_retries=engine.max_retries,
            deadline=engine.round_deadline,
            site_effects=self._site_effects,
        )
        preparation = preparing.agree()
        turned = [*map(printable, turned_on_nodes([info.name for info in infos], preparation))]
        for line in turned:
            _log.warning("tables: %s", line)
        preparation = replace(preparation, remarks=(*preparation.remarks, *turned))
        return preparing.constants(infos, preparation)


def _numbers(name: str, value: Any, size: int | None, *, partly: bool = False) -> Any:
    """Return one number or a vector whose sums are finite; counts may be NaN if `partly`."""
    array = np.asarray(value)
    scalar = name in ("rows", "weight", "effective", "width", "left_out")
    if array.dtype != np.float64 or array.shape != (() if scalar else (size,)):
        raise ConfigError(f"{name!r} has shape {array.shape} and dtype {array.dtype}")
    if name == "constants":
        usable = np.isnan(array) | ((array >= 0) & (array <= LARGEST))
    elif name in ("outcomes", "left_out") and np.isnan(array).all():
        usable = np.array(True)
    elif name == "level_sums":
        usable = (np.abs(array) <= LARGEST) | np.isnan(array)
    elif name == "sums":
        usable = np.abs(array) <= LARGEST
    elif name == "weight":
        usable = (array >= WEIGHTS[0]) & (array <= WEIGHTS[1])
    elif name in ("squares", "level", "effective"):
        usable = (array >= 0) & (array <= LARGEST)
    else:
        usable = (array >= 0) & (array <= 2**53) & (array == np.floor(array))
        usable |= np.isnan(array) & (partly and name in ("counts", "level_counts"))
    if not usable.all():
        raise ConfigError(f"{name!r} holds numbers that cannot be used")
    return float(value) if scalar else array
