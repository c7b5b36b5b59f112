"""A table on its node: what it tells before round 1, its objective, and the files that stay."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon import __version__
from flower_fedcon.core.agreement import DataAtNode
from flower_fedcon.core.exchange import Site
from flower_fedcon.core.infos import ClientInfo
from flower_fedcon.core.protocol import Request
from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.objectives.profiled import Profiled
from flower_fedcon.tables.agreeing import CONSTANTS, STAGES
from flower_fedcon.tables.by_level import LEVELS
from flower_fedcon.tables.checks.kinds_of_columns import codes_as_numbers
from flower_fedcon.tables.checks.weights_in_rows import broken_frequencies
from flower_fedcon.tables.design import SQUARES
from flower_fedcon.tables.fitted import write_effects, write_held_out
from flower_fedcon.tables.held_out import HeldOut
from flower_fedcon.tables.noisy_sums import PrivateTable
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.read import log_notes
from flower_fedcon.tables.statistics.group_sums import effects_of
from flower_fedcon.tables.surveys import Surveys
from flower_fedcon.tables.table import CURVES, Table
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_log = logging.getLogger("flwr")


class TableAtNode(DataAtNode):
    """A node's table; `data` is the `Table`."""

    data: Table
    _made: tuple[Preparation, Any] | None = None

    def make_private(self, privacy: Any, ledger: Any, notes: Any) -> None:
        """Answer with noise from now on, and count it."""
        self.data = PrivateTable.of(self.data, privacy, ledger, note=notes.told, keep=notes.tell)

    def described(self) -> ClientInfo:
        """Return what is known of a table before its preparation."""
        return info_of(self.data, self._name)

    def objective(self, attached: Mapping[str, Array]) -> Any:
        """Return the loss of the table's rows, prepared as all nodes agreed."""
        if self._made is None:
            if not attached:
                raise ConfigError(
                    "this node has a table, and the server prepares none: give the server its "
                    "schema, server_app(..., schema=...)"
                )
            preparation = Preparation.from_payload(dict(attached))
            if self._store is not None:
                Surveys(self._store, self.data).check(preparation)
            self._make(preparation)
        assert self._made is not None  # noqa: S101  (just made)
        return self._made[1]

    def _make(self, preparation: Preparation) -> Any:
        objective: Any = self.data.objective(preparation, self._bounds.min_rows)
        if isinstance(held := getattr(objective, "metrics", None), HeldOut):
            objective.metrics = replace(held, cell=self._bounds.min_cell)
        self._made = preparation, objective
        return objective

    def tell(self, request: Request, down: Payload) -> Payload:
        """Return the sums of the table for the server's preparation."""
        stage, table, store = STAGES[request.round - 1], self.data, self._store
        if stage in (CURVES, LEVELS):
            self._bounds.check_phase(stage)
        if stage == CONSTANTS:
            preparation = Preparation.from_payload(down)
            if store is not None:
                Surveys(store, table).conclude(preparation)
            info = ClientInfo.of(self._make(preparation), self._name)
            constants = (info.smoothness, info.strong_convexity)
            return {"constants": np.array([math.nan if v is None else v for v in constants])}
        if request.round == 1:
            private = isinstance(table, PrivateTable)
            more = [] if private else list(broken_frequencies([table]))
            more += [] if private or table.schema.sparse else list(codes_as_numbers([table]))
            log_notes([replace(table, notes=lambda: [*table.notes(), *more])])
        answer = table.answer(stage, down, self._bounds.min_rows, self._bounds.min_cell)
        if request.round == 2 and store is not None:
            Surveys(store, table).asked(down)
        if stage == SQUARES and store is not None:
            Surveys(store, table).asked_of_terms(down)
        return answer

    def evaluated(self, objective: Any, x: Any) -> None:
        """Write predictions of held-out rows, if the node has a folder for them."""
        if self._folder is None or self._made is None:
            return
        if isinstance(objective, Profiled):
            if not objective.informative:
                _log.warning(
                    "no predictions are written, since this node's own intercept is infinite"
                )
                return
            x = objective.full(x)
        write_held_out(self._folder, self._name, self.data, self._made[0], x)

    def keep_effects(self, effects: Array) -> None:
        """Write the predicted intercepts of the groups, if the node has a folder for them."""
        if self._folder is not None and self._made is not None:
            write_effects(self._folder, self._name, self.data, effects)


def info_of(table: Table, name: str) -> ClientInfo:
    """Return what is known of a table before its preparation."""
    return ClientInfo(
        name=name,
        num_examples=table.num_examples,
        layout=None,
        digest=table.told_digest,
        version=__version__,
        schema=table.schema.digest,
    )


def prepared(site: Site, down: Payload) -> Payload:
    """Return a node's answer to an exchange of the preparation."""
    table: TableAtNode = site.data
    assert site.request is not None  # noqa: S101  (`check_table` comes first)
    return table.tell(site.request, down)


def check_table(site: Site, down: Payload) -> None:
    """Raise unless the client is a node with a table.

    Raises
    ------
    ConfigError
    """
    if site.request is None or not isinstance(site.data, TableAtNode):
        raise ConfigError(
            "this client has an objective instead of a table: leave schema out of server_app"
        )


def keep_effects(site: Site, down: Payload) -> None:
    """Write the predictions of random intercepts that stay at the node."""
    if isinstance(site.data, TableAtNode):
        site.data.keep_effects(effects_of(site.objective, down))


def check_times(site: Site, down: Payload) -> None:
    """Raise if a table's hazards are requested at other times than its schema's.

    Answers on two grids would reveal the events between them, even if there are few.

    Raises
    ------
    RefusedError
    """
    table = site.data
    if isinstance(table, TableAtNode) and not np.array_equal(
        down["times"], table.data.schema.curve_times
    ):
        raise RefusedError(
            "refused: this node sends baseline hazards only at the schema's curve_times, not at "
            "other times"
        )
