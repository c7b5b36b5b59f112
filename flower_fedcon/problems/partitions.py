"""A researcher's pooled table, dealt out to clients by the partitioners of flwr-datasets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.tables import Schema, Table, read_table
from flower_fedcon.tables.raw_cells import read_cells
from flower_fedcon.tables.read import owners_of
from flower_fedcon.validation import count

_KEYS = {  # of each rule, besides "by"; those with a star are needed
    "iid": ("clients*",),
    "dirichlet": ("clients*", "alpha*", "seed", "min_rows"),
    "shards": ("clients*", "shards*", "seed"),
    "natural": ("column*",),
}


def dealt_out(
    path: str | Path, schema: Schema, partition: Mapping[str, Any]
) -> tuple[list[Table], list[str]]:
    """Return the clients' tables and names.

    Parameters
    ----------
    path : path
        The pooled table.
    schema : Schema
    partition : dict
        ``{by = "iid", clients = 10}``; ``{by = "dirichlet", clients = 10, alpha = 0.5}``, with
        seed = 42 and min_rows = 10: the shares of each outcome are drawn from Dirichlet(alpha), the
        less the more different; ``{by = "shards", clients = 10, shards = 2}``, with seed = 42: rows
        sorted by outcome, cut into clients times shards pieces, so many of them each; or
        ``{by = "natural", column = "site"}``: as the rows came about.

    Raises
    ------
    ConfigError
        If flwr-datasets is not installed (the extra `datasets`), or cannot deal the rows out so.
    """
    by = partition.get("by")
    if by not in _KEYS:
        raise ConfigError(f"partition: unknown rule by = {by!r}: {nearest(str(by), _KEYS)}")
    valid = [key.rstrip("*") for key in _KEYS[by]]
    for key in partition:
        if key not in ("by", *valid):
            raise ConfigError(f"partition by {by!r}: unknown key {key!r}: {nearest(key, valid)}")
    for key in _KEYS[by]:
        if key.endswith("*") and key[:-1] not in partition:
            raise ConfigError(f"partition by {by!r} needs {key[:-1]}: write {key[:-1]} = ...")
    whole = read_table(path, schema)
    marks = [str(value) for value in whole.outcome.tolist()]
    if by == "natural":
        column = str(partition["column"])
        marks = owners_of(read_cells(Path(path), [column]), schema, column).tolist()
    parts = _rows(str(by), partition, marks)
    names = sorted(parts) if by == "natural" else list(parts)
    return [whole.of_rows(np.sort(parts[name])) for name in names], names


def _rows(by: str, partition: Mapping[str, Any], marks: list[str]) -> dict[str, Any]:
    """Return the rows of each client, by its name."""
    try:
        from datasets import Dataset
        from flwr_datasets import partitioner as rules
    except ImportError:
        raise ConfigError(
            "partition is the work of flwr-datasets, which is not installed: "
            "pip install 'flower-fedcon[datasets]'"
        ) from None
    seed = count("partition: seed", partition.get("seed", 42), minimum=0)
    if by == "natural":
        rule: Any = rules.NaturalIdPartitioner(partition_by="mark")
    else:
        n = count("partition: clients", partition["clients"])
        makers: dict[str, Callable[[], Any]] = {
            "iid": lambda: rules.IidPartitioner(num_partitions=n),
            "dirichlet": lambda: rules.DirichletPartitioner(
                num_partitions=n,
                partition_by="mark",
                alpha=partition["alpha"],
                min_partition_size=partition.get("min_rows", 10),
                seed=seed,
            ),
            "shards": lambda: rules.ShardPartitioner(
                num_partitions=n,
                partition_by="mark",
                num_shards_per_partition=partition["shards"],
                seed=seed,
            ),
        }
        rule = _tried(makers[by])
    rule.dataset = Dataset.from_dict({"row": list(range(len(marks))), "mark": marks})
    found = {}
    for j in range(_tried(lambda: rule.num_partitions)):
        part = _tried(partial(rule.load_partition, j))
        name = str(part["mark"][0]) if by == "natural" else str(j)
        if not len(part):
            raise ConfigError(f"partition by {by!r} leaves client {j} no row: take fewer clients")
        found[name] = np.array(part["row"], dtype=np.intp)
    return found


def _tried(call: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says what matters
            return call()
    except Exception as error:  # whatever flwr-datasets says of a setting
        raise ConfigError(f"flwr-datasets cannot deal the rows out so: {error}") from None
