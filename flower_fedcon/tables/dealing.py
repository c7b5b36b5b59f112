"""A pooled table dealt out among clients, for studies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_fedcon.problems.partitions import checked_rule, partition
from flower_fedcon.tables.raw_cells import read_cells
from flower_fedcon.tables.read import owners_of, read_table
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.table import Table


def dealt_out(
    path: str | Path, schema: Schema, rule: Mapping[str, Any]
) -> tuple[list[Table], list[str]]:
    """Divide a pooled table: return the clients' tables and names; see `partition`.

    The classes are the outcomes; for "natural" `column` is a column of the table.
    """
    by = checked_rule(rule)
    whole = read_table(path, schema)
    column = None
    if by == "natural":
        name = str(rule["column"])
        column = owners_of(read_cells(Path(path), [name]), schema, name).tolist()
    parts = partition([str(value) for value in whole.outcome.tolist()], rule, column)
    names = sorted(parts) if by == "natural" else list(parts)
    return [whole.of_rows(parts[name]) for name in names], names
