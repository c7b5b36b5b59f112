"""The preparations of a table that a node has taken part in; it accepts no others.

A server that sets means, scales and categories as it likes decides how rows are transformed. A node
therefore keeps the values that it was asked to compute sums about: means and categories from
exchange 2 of `tables.preparation`, and the parts of terms from exchange 8 of `tables.design`. In
exchange 3 it accepts only a preparation with these values. It keeps a digest of this preparation,
and answers rounds and evaluations with no other. Both are stored under a digest of the rows.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.tables.packed_text import unpacked_text
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.table import Table
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.payloads import Payload

if TYPE_CHECKING:
    from flower_fedcon.flower.stores import Store

_MOST = 64  # notes of each kind that are kept; the oldest are dropped
_KIND, _ASKED, _AGREED = "prepared", "asked", "agreed"


class Surveys:
    """The preparations of one table that its node has taken part in.

    Parameters
    ----------
    store : Store
        The store that outlasts a message.
    table : Table
    """

    def __init__(self, store: Store, table: Table) -> None:
        self._store, self._schema, self._data = store, table.schema, table.resume_key

    def asked(self, down: Payload) -> None:
        """Remember the values that the node's second answer was about."""
        if self._schema.sparse:
            entry: Any = int(down["width"])
        else:
            means = [float(mean).hex() for mean in down["means"].tolist()]
            entry = [means, _names(unpacked_text(down["categories"]))]
        self._remember(_ASKED, entry)

    def asked_of_terms(self, down: Payload) -> None:
        """Remember the parts of terms that the node's last answer was about."""
        about = unpacked_text(down["about"])
        means = [float(mean).hex() for mean in down["means"].tolist()]
        self._remember(_ASKED, [means, _terms(about["design"], about["categories"])])

    def conclude(self, preparation: Preparation) -> None:
        """Remember a preparation, if it has the values that the node was asked about.

        Raises
        ------
        RefusedError
        """
        if not any(self._follows(preparation, entry) for entry in self._known()[_ASKED]):
            raise RefusedError(
                "refused: these means and categories were not prepared with this node: let the "
                "server prepare the tables, and send the result"
            )
        self._remember(_AGREED, digest(preparation.payload))

    def check(self, preparation: Preparation) -> None:
        """Raise unless the node has taken part in a preparation.

        Raises
        ------
        RefusedError
        """
        if digest(preparation.payload) not in self._known()[_AGREED]:
            raise RefusedError(
                "refused: this node has not taken part in this preparation of its table, or has "
                "forgotten it: start a new run, and give nodes that may restart during a run a "
                "state-dir"
            )

    def _follows(self, preparation: Preparation, entry: Any) -> bool:
        if self._schema.sparse or not isinstance(entry, list):
            return bool(preparation.width and preparation.width == entry)
        means, names = entry
        kept = [int(place) for place in preparation.kept]
        if self._schema.design:
            design = preparation.design
            categories = {k: list(v) for k, v in preparation.categories.items()}
            if design is None or names != _terms(design.stated, categories):
                return False
            pairs = zip(kept, preparation.means.tolist(), strict=True)
            return all(
                0 <= place < len(means) and float(mean).hex() == means[place]
                for place, mean in pairs
            )
        if names != _names({k: list(v) for k, v in preparation.categories.items()}):
            return False
        return all(
            place >= 0 and (place >= len(means) or float(mean).hex() == means[place])
            for place, mean in zip(kept, preparation.means.tolist(), strict=True)
        )

    def _known(self) -> dict[str, list[Any]]:
        return _read(self._store.note(_KIND, self._data))

    def _remember(self, name: str, entry: Any) -> None:
        def with_entry(noted: str) -> str:
            content = _read(noted)
            if entry in content[name]:
                return noted
            content[name] = [*content[name], entry][-_MOST:]
            return json.dumps(content)

        self._store.revise(_KIND, self._data, with_entry)


def _read(noted: str) -> dict[str, list[Any]]:
    """Return the content of a note; empty if it is damaged."""
    try:
        content = json.loads(noted or "{}")
        return {name: list(content.get(name, ())) for name in (_ASKED, _AGREED)}
    except (ValueError, TypeError, AttributeError):
        return {_ASKED: [], _AGREED: []}


def _terms(design: Any, categories: Any) -> str:
    """Return a digest of the parts of terms."""
    return digest([json.dumps(design, sort_keys=True), _names(categories)])


def _names(categories: Any) -> str:
    """Return a digest of the categories of each column, in their order."""
    if not isinstance(categories, dict):
        raise ConfigError("a preparation's categories must be lists by column")
    return digest({str(name): list(map(str, marks)) for name, marks in categories.items()})
