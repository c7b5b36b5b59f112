"""Tables whose rows stay at their nodes: schema, preparation and objectives.

A `Schema` describes the columns, and `read_table` reads a file by it. A `Preparation` holds what
the nodes agree on before round 1: categories, means and scales. See
`flower_fedcon.problems.tables`.
"""

from typing import TYPE_CHECKING

from flower_fedcon.errors import point_elsewhere

if TYPE_CHECKING:
    from flower_fedcon.tables.misfits import DataError
    from flower_fedcon.tables.node import table_of_node
    from flower_fedcon.tables.preparation import Preparation
    from flower_fedcon.tables.read import read_table
    from flower_fedcon.tables.schema import Schema
    from flower_fedcon.tables.table import Table

__all__ = ["DataError", "Preparation", "Schema", "Table", "read_table", "table_of_node"]

# Loaded on first use: the wing and its commands need none of it.
point_elsewhere(
    __name__,
    {
        "DataError": "misfits",
        "Preparation": "preparation",
        "Schema": "schema",
        "Table": "table",
        "read_table": "read",
        "table_of_node": "node",
    },
)
