"""The figure of each client's rows by outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.figures import COLOURS, check_figure
from flower_fedcon.objectives.cohorts import unscaled
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.partitions import counts_by_label
from flower_fedcon.validation import Array
from flower_fedcon.wire.whole_files import atomic

if TYPE_CHECKING:
    from flower_fedcon.tables import Schema, Table

_CLASSES = 20  # number of outcomes up to which each is shown


def draw_holdings(
    build: Callable[..., FederatedProblem], arguments: dict[str, Any], path: Path
) -> list[list[str]]:
    """Draw the clients' rows as stacked bars, and return the same numbers as rows of a table.

    Parameters
    ----------
    build : callable
        The builder of the problem.
    arguments : dict
        The problem's arguments.
    path : path
        A .png, .pdf or .svg file.

    Raises
    ------
    ConfigError
        If the data cannot be read or have no outcomes, or the file has a different type.
    """
    check_figure(path, None)
    from matplotlib.figure import Figure

    keys = ("data", "schema", "client_column", "partition")
    names: Sequence[str]
    if {"data", "schema"} <= arguments.keys():
        from flower_fedcon.tables.builders import clients_of

        tables, names = clients_of(**{k: v for k, v in arguments.items() if k in keys})
        (labels, counts), title = holdings(tables), tables[0].schema.target
    else:
        problem = build(**arguments)
        names, title = problem.names, "outcome"
        labels, counts = _outcomes_held(problem.objectives)
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
    axes.legend(title=title, fontsize="small")
    with atomic(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)
    body = [[name, *(str(int(n)) for n in row)] for name, row in zip(names, counts, strict=True)]
    return [["client", *labels], *body]


def holdings(tables: Sequence[Table]) -> tuple[list[str], Array]:
    """Return the outcomes' labels, and each client's rows of each, training or not."""
    schema, outcomes = tables[0].schema, [table.outcome for table in tables]
    edges, labels = _bins(schema, np.concatenate(outcomes))
    return labels, counts_by_label(outcomes, edges, labels)


def _outcomes_held(objectives: Sequence[Any]) -> tuple[list[str], Array]:
    """Return the same from objectives with rows: by class, or by quarters of many values."""
    outcomes = [_outcomes(objective) for objective in objectives]
    pooled = np.concatenate(outcomes)
    values = np.unique(pooled)
    if len(values) > _CLASSES:
        edges, labels = _quarters(pooled)
    else:
        edges, labels = values[1:], [f"{value:g}" for value in values.tolist()]
    return labels, counts_by_label(outcomes, edges, labels)


def _outcomes(objective: Any) -> Array:
    """Return the outcomes of an objective's rows.

    Raises
    ------
    ConfigError
        If it has none.
    """
    core, _ = unscaled(objective)
    for name in ("targets", "y"):
        values = getattr(core, name, None)
        if isinstance(values, np.ndarray) and values.ndim == 1:
            return values
    raise ConfigError(
        f"the figure needs rows with outcomes, and {type(core).__name__} has none: use a problem "
        f'such as "tables", "files" or "digits"'
    )


def _bins(schema: Schema, pooled: Array) -> tuple[Array, list[str]]:
    """Return the limits of groups of outcomes and their names; quarters for numbers."""
    return schema.family.limits(schema) or _quarters(pooled)


def _quarters(pooled: Array) -> tuple[Array, list[str]]:
    """Return the limits between quarters of numbers, and their names."""
    edges = np.unique(np.quantile(pooled, [0.25, 0.5, 0.75]))
    ends = ["", *(f"{edge:.4g}" for edge in edges), ""]
    labels = [f"{a} to {b}" for a, b in pairwise(ends)]
    labels[0], labels[-1] = f"below {ends[1]}", f"from {ends[-2]}"
    return edges, labels
