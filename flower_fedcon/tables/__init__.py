"""Tables whose rows stay at their nodes: schema, preparation and objectives.

A `Schema` describes the columns, and `read_table` reads a file by it. A `Preparation` holds what
the nodes agree on before round 1: categories, means and scales. See
`flower_fedcon.problems.tables`.
"""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.tables.misfits import DataError as DataError
from flower_fedcon.tables.node import table_of_node as table_of_node
from flower_fedcon.tables.preparation import Preparation as Preparation
from flower_fedcon.tables.read import read_table as read_table
from flower_fedcon.tables.schema import Schema as Schema
from flower_fedcon.tables.table import Table as Table

point_elsewhere(__name__)
