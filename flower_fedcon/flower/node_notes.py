"""A node's notes on its rows over all runs, written before an answer leaves."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from flower_fedcon.errors import RefusedError, StorageError
from flower_fedcon.flower.policy import Policy
from flower_fedcon.flower.stores import Store
from flower_fedcon.privacy.ledger import NOISY_SUMS, SumsLedger
from flower_fedcon.privacy.shares import Seen
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.ledgers import former_on_node, rows_on_node
from flower_fedcon.wire.payloads import Payload

_REQUESTS, _TOLD, _ROWS = "requests", "told", "rows"
_CELLS = "cells-1"  # with a number for another way to digest cells


class NodeNotes:
    """The notes of one node: requests, sums, and noisy answers; without a store, none.

    Parameters
    ----------
    store : Store, optional
        The store that outlasts a message.
    loaded : object
        The objective or table that the node has loaded.
    policy : Policy
    name : str, optional
        The node's name.
    """

    def __init__(self, store: Store | None, loaded: Any, policy: Policy, name: str | None) -> None:
        self._store, self._loaded_objective, self._policy, self._name = store, loaded, policy, name
        self._told: dict[str, str] = {}  # noisy sums of this message, by question
        self.tell = self._told.__setitem__

    @cached_property
    def rows(self) -> str:
        """The digest that identifies the loaded rows in the node's ledgers, counts and runs."""
        loaded = self._loaded_objective
        content = getattr(loaded, "rows_digest", "")
        if self._store is None or not content:
            return rows_on_node(loaded)
        # A node may have a process for each message, and parsing a file takes longer than a note.
        return self._store.revise(_CELLS, content, lambda known: known or rows_on_node(loaded))

    def former_rows(self) -> tuple[str, ...]:
        """Return the digests that earlier versions used."""
        return former_on_node(self._loaded_objective)

    def told(self, question: str) -> str:
        """Return the noisy sums that have answered a question before; "" if there are none."""
        return "" if self._store is None else self._store.note(_TOLD, question)

    def keep_told(self, kind: type[BaseException] | None, *of: object) -> None:
        """Keep noisy sums to answer the same question again; not after a failure."""
        if kind is not None or self._store is None:
            return
        for question, answer in self._told.items():
            self._store.revise(_TOLD, question, lambda _, answer=answer: answer)  # type: ignore[misc]
        self._told.clear()

    def check_rows(self, run: str) -> None:
        """Hold a run to the rows that it began with: other rows would have a separate ledger.

        Raises
        ------
        RefusedError
            If the node has loaded other rows.
        """
        if self._store is None:
            return
        part = digest((run, self._name))  # clients may share a state-dir

        def with_rows(known: str) -> str:
            begun_before = known != self.rows and known in self.former_rows()
            return self.rows if begun_before or not known else known

        if self._store.revise(_ROWS, part, with_rows) != self.rows:
            raise RefusedError(
                "refused: this node's rows have changed during the run, and each choice of "
                "rows would have a separate privacy ledger: load the same rows for every message, "
                "for example with a seed for random_split"
            )

    def count_request(self, models: int = 1) -> None:
        """Count a request on this node's rows, over all runs, before it is answered.

        It counts once for each of its models: an answer on many would be as good as many answers.
        """
        if self._store is None or not self._policy.counts_requests:
            return

        def more(noted: str) -> str:
            noted = noted or "0"
            if not noted.isdecimal():
                raise StorageError(
                    f"the count of requests on this node's rows is damaged: {noted[:20]!r} in its "
                    f"state-dir, {_REQUESTS}/{self.rows}: put back a number"
                )
            self._policy.check_requests(int(noted), models)
            return str(int(noted) + models)

        self._store.revise(_REQUESTS, self.rows, more, self.former_rows)

    def count_sum(self, payload: Payload, seen: Seen) -> None:
        """Count a sum with this node's noise, over all runs, before its upload leaves."""
        if self._store is None or seen.shares is None or not payload:
            return
        entries = sum(int(np.size(value)) for (value,) in payload.values())

        def added(noted: str) -> str:
            ledger = SumsLedger(noted, f"{NOISY_SUMS}/{self.rows}")
            ledger.add(seen, entries)
            return ledger.text

        self._store.revise(NOISY_SUMS, self.rows, added, self.former_rows)
