"""Which tables are compared row by row."""

from __future__ import annotations

from collections.abc import Sequence

from flower_fedcon.tables.site_rows import SiteRows

_MOST = 2e7  # cells, a tenth of the time to read them: of more nothing is sought


def comparable(tables: Sequence[SiteRows]) -> bool:
    """Return whether rows are compared: dense ones of several clients, not too many.

    Parameters
    ----------
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    return len(tables) > 1 and not schema.sparse and cells_of(tables) <= _MOST


def cells_of(tables: Sequence[SiteRows]) -> int:
    """Return the number of cells in the schema's columns."""
    return sum(len(table.targets) for table in tables) * len(tables[0].schema.columns)
