"""A site's side: the table that the node's configuration names, read by the shared schema."""

from pathlib import Path

from flower_fedcon import client_app
from flower_fedcon.tables import table_of_node

app = client_app(table_of_node(Path(__file__).parent / "schema.toml"))
