"""A node's table: the file that its own configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables.read import read_table
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.table import Table

if TYPE_CHECKING:
    from flwr.app import Context


def table_of_node(
    schema: Schema | str | Path | Mapping[str, Any] | None = None,
) -> Callable[[Context], Table]:
    """Return a function that loads a node's table, for `flower_fedcon.client_app`.

    The node's configuration names the file, `data="cleveland.csv"`. It may name the node's own
    schema, which overrides the app's, `schema="schema.toml"`. For a file with rows of several
    clients it names the column of clients, and the client, `client-column="site" client="north"`.

    Parameters
    ----------
    schema : Schema, path or dict, optional
        The schema that all nodes share, such as a file in the app's folder.

    Examples
    --------
    >>> from flower_fedcon import client_app
    >>> app = client_app(table_of_node("schema.toml"))
    """

    def load(context: Context) -> Table:
        node = context.node_config
        for key, given in (("data", True), ("schema", schema is None)):
            if given and key not in node:
                raise ConfigError(f'this node\'s configuration names no {key}: write {key}="FILE"')
        shared = node.get("schema", schema)
        loaded = shared if isinstance(shared, Schema) else Schema.load(shared)  # type: ignore[arg-type]
        column = node.get("client-column")
        return read_table(
            str(node["data"]),
            loaded,
            column=None if column is None else str(column),
            client=node.get("client", node.get("name")),
        )

    return load
