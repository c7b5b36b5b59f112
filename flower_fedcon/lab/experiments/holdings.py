"""The figure of who holds what: each client's rows by outcome."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.figures import COLOURS, check_figure
from flower_fedcon.problems.tables import clients_of
from flower_fedcon.tables import Schema, Table
from flower_fedcon.validation import Array
from flower_fedcon.wire.whole_files import atomic


def draw_holdings(arguments: dict[str, object], path: Path) -> list[list[str]]:
    """Draw the clients' rows as stacked bars, and return the same numbers as rows of a table.

    Parameters
    ----------
    arguments : dict
        Of the problem `tables`.
    path : path
        A .png, .pdf or .svg file.

    Raises
    ------
    ConfigError
        If the tables cannot be read, or the file's type is another.
    """
    from matplotlib.figure import Figure

    check_figure(path, None)
    keys = ("data", "schema", "client_column", "partition")
    if not {"data", "schema"} <= arguments.keys():
        raise ConfigError('who holds what is drawn for the problem "tables": give data and schema')
    tables, names = clients_of(**{k: v for k, v in arguments.items() if k in keys})  # type: ignore[arg-type]
    labels, counts = holdings(tables)
    figure = Figure(figsize=(max(4.5, 1.5 + 0.35 * len(names)), 3.2), layout="constrained")
    axes = figure.subplots()
    below = np.zeros(len(names))
    for k, label in enumerate(labels):
        colour = COLOURS[k % len(COLOURS)]
        axes.bar(range(len(names)), counts[:, k], bottom=below, label=label, color=colour)
        below += counts[:, k]
    axes.set_xticks(range(len(names)), names, rotation=45 if len("".join(names)) > 30 else 0)
    axes.set_xlabel("client")
    axes.set_ylabel("rows")
    axes.legend(title=tables[0].schema.target, fontsize="small")
    with atomic(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)
    body = [[name, *(str(int(n)) for n in row)] for name, row in zip(names, counts, strict=True)]
    return [["client", *labels], *body]


def holdings(tables: Sequence[Table]) -> tuple[list[str], Array]:
    """Return the outcomes' labels and how many rows of each every client holds, training or not."""
    schema, outcomes = tables[0].schema, [table.outcome for table in tables]
    edges, labels = _bins(schema, np.concatenate(outcomes))
    places = [np.searchsorted(edges, outcome, side="right") for outcome in outcomes]
    return labels, np.stack([np.bincount(p, minlength=len(labels)) for p in places])


def _bins(schema: Schema, pooled: Array) -> tuple[Array, list[str]]:
    """Return what separates outcomes, and their names: quarters where they are numbers."""
    if schema.loss == "logistic":
        return np.array([0.0]), ["negative", "positive"]
    if schema.loss == "multinomial":
        return np.arange(len(schema.classes) - 1) + 0.5, list(schema.classes)
    if schema.loss == "cox":
        return np.array([0.5]), ["censored", "event"]
    edges = np.unique(np.quantile(pooled, [0.25, 0.5, 0.75]))
    ends = ["", *(f"{edge:.4g}" for edge in edges), ""]
    labels = [f"{a} to {b}" for a, b in pairwise(ends)]
    labels[0], labels[-1] = f"below {ends[1]}", f"from {ends[-2]}"
    return edges, labels
